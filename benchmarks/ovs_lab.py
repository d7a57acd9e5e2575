"""Measures the scripts of `dsx.placement.open_vswitch` between servers that are network namespaces.

python benchmarks/ovs_lab.py [--link-mbit 30] [--seconds 4]

It needs root, Open vSwitch, iproute2, ethtool and sysctl, changes nothing outside of namespaces and a folder that it
makes, and removes both, also when it fails. Each server has an Open vSwitch of its own, with the datapath in user
space, so no kernel module is needed; NICs are veth pairs, those of the same number on one bridge. Rates are TCP
payload: 4 % of what queues count are headers.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from sections import table

from dsx.placement.open_vswitch import nic_shares, write_ovs

SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
PROGRAMS = ("ip", "tc", "ethtool", "sysctl", "ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl")
LONGEST_S = 180  # after this the lab ends
WARM_S = 1.5  # that TCP needs to fill its share
PORT = 5001

# Of a link: what server 0 sends to 1 and 2, 1 to 2, and 2 to both others, on two NICs.
SHARES = np.array([[0.0, 1.2, 0.4], [0.0, 0.0, 0.7], [0.3, 0.6, 0.0]])


def run(*command: object, env: dict[str, str] | None = None) -> None:
    done = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}")


class Lab:
    """Servers with NICs, and the switches between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spaces: list[str] = []
        self.daemons: list[subprocess.Popen[bytes]] = []

    def build(self, servers: int, nics: int) -> None:
        switch = self.space("switch")
        for nic in range(nics):
            run("ip", "-n", switch, "link", "add", f"switch{nic}", "type", "bridge")
            run("ip", "-n", switch, "link", "set", f"switch{nic}", "up")
        for server in range(servers):
            own = self.space(server)
            run("ip", "-n", own, "link", "set", "lo", "up")
            for nic in range(nics):
                port = f"port{server}x{nic}"
                ends = ("netns", own, "type", "veth", "peer", "name", port, "netns", switch)
                run("ip", "link", "add", f"eth{nic}", *ends)
                run("ip", "-n", switch, "link", "set", port, "master", f"switch{nic}", "up")
                run("ip", "-n", own, "link", "set", f"eth{nic}", "up")
            self.start_switch(server)

    def name(self, server: int | str) -> str:
        return f"dsx{os.getpid()}-{server}"

    def space(self, server: int | str) -> str:
        run("ip", "netns", "add", self.name(server))
        self.spaces.append(self.name(server))
        return self.name(server)

    def env(self, server: int) -> dict[str, str]:
        return os.environ | dict.fromkeys(("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"), str(self.folder / str(server)))

    def start_switch(self, server: int) -> None:
        own = self.folder / str(server)
        own.mkdir()
        run("ovsdb-tool", "create", own / "conf.db", SCHEMA)
        self.daemon(server, "ovsdb-server", own / "conf.db", f"--remote=punix:{own}/db.sock")
        wait_for((own / "db.sock").exists)
        run("ovs-vsctl", "--no-wait", "init", env=self.env(server))
        self.daemon(server, "ovs-vswitchd", f"unix:{own}/db.sock", "--disable-system", "--pidfile")
        wait_for((own / "ovs-vswitchd.pid").exists)

    def daemon(self, server: int, *command: object) -> None:
        inside = ["ip", "netns", "exec", self.name(server), *map(str, command)]
        with (self.folder / f"{server}-{command[0]}.log").open("w") as log:
            self.daemons.append(subprocess.Popen(inside, env=self.env(server), stdout=log, stderr=log))

    def script(self, server: int, path: Path) -> None:
        run("ip", "netns", "exec", self.name(server), "sh", path, env=self.env(server))

    def measured(self, flows: Sequence[tuple[int, int, int]], seconds: float) -> list[float]:
        """Return the bytes/s of (source, destination, NIC) that all send at once."""
        began = time.monotonic() + 1.5
        processes = []
        for number, (source, target, nic) in enumerate(flows):
            to, own = f"10.0.{nic}.{target + 1}", f"10.0.{nic}.{source + 1}"
            for server, what in ((target, "receive"), (source, "send")):
                command = ["ip", "netns", "exec", self.name(server), sys.executable, __file__, "--end", what]
                command += [to, own, str(PORT + number), str(began), str(seconds)]
                processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        try:
            outputs = [process.communicate(timeout=seconds + 30)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        return [float(output) for output in outputs[::2]]

    def remove(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.terminate()
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(5)
            daemon.kill()
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, timeout=30, check=False)


@contextmanager
def lab(servers: int, nics: int) -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="ovs") as folder:
        made = Lab(Path(folder))
        try:
            made.build(servers, nics)
            yield made
        finally:
            made.remove()


def wait_for(met: Callable[[], bool]) -> None:
    for _ in range(200):
        if met():
            return
        time.sleep(0.05)
    raise SystemExit("Open vSwitch has not started after 10 s")


def goodput(bandwidth: np.ndarray, link: float, nics: int, seconds: float) -> tuple[list[tuple[int, int, int]], ...]:
    """Return the flows of an allocation, the bytes/s that each is given, and those that are measured."""
    shares = nic_shares(bandwidth, nics, link)
    flows = [tuple(map(int, flow)) for flow in np.argwhere(shares > 0.0)]
    with lab(len(bandwidth), nics) as made:
        scripts = write_ovs(made.folder / "scripts", bandwidth, nics, link)[0].parent
        hosts = scripts / "hosts.env"
        hosts.write_text(hosts.read_text().replace("DATAPATH=system", "DATAPATH=netdev"))
        for server in range(len(bandwidth)):
            made.script(server, scripts / f"server-{server}-setup.sh")
        measured = made.measured(flows, seconds)
        for server in range(len(bandwidth)):
            made.script(server, scripts / f"server-{server}-remove.sh")
    return flows, [float(shares[flow]) for flow in flows], measured


def receive(to: str, port: int, began: float, seconds: float) -> float:
    """Return the bytes/s that arrive while all flows are under way."""
    with socket.create_server((to, port)) as server:
        server.settimeout(20)
        connection, _ = server.accept()
        connection.settimeout(20)
        counted = 0
        while (now := time.monotonic()) < began + WARM_S + seconds:
            received = len(connection.recv(1 << 16))
            counted += received if now >= began + WARM_S else 0
        return counted / seconds


def send(to: str, own: str, port: int, began: float, seconds: float) -> float:
    """Send until a while after the receiver has stopped to count."""
    while True:
        try:
            connection = socket.create_connection((to, port), timeout=5, source_address=(own, 0))
            break
        except OSError:
            if time.monotonic() > began + 10:
                raise
            time.sleep(0.05)
    data = bytes(1 << 16)
    with suppress(OSError):
        while time.monotonic() < began + WARM_S + seconds + 0.5:
            connection.sendall(data)
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link-mbit", type=float, default=30.0, help="the rate of a NIC")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--end", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.end:
        what, to, own, port, began, seconds = given.end
        at = int(port), float(began), float(seconds)
        print(receive(to, *at) if what == "receive" else send(to, own, *at))
        return
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if os.geteuid() or missing:
        raise SystemExit(f"the lab needs root, and {', '.join(PROGRAMS)}; missing: {', '.join(missing) or 'root'}")
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(LONGEST_S)
    link = given.link_mbit * 1e6 / 8
    flows, wanted, measured = goodput(SHARES * link, link, 2, given.seconds)
    rows = [
        (f"{source} to {target}", str(nic), *(f"{8e-6 * rate:.1f}" for rate in (share, found)), f"{found / share:.3f}")
        for (source, target, nic), share, found in zip(flows, wanted, measured, strict=True)
    ]
    print(table(("servers", "NIC", "share [Mbit/s]", "measured [Mbit/s]", "measured / share"), rows, 4))
    pair = np.array([[0.0, 1.0], [0.0, 0.0]]) * link
    one, two = (sum(goodput(nics * pair, link, nics, given.seconds)[2]) for nics in (1, 2))
    print(f"\nA pair with 1 NIC: {8e-6 * one:.1f} Mbit/s; with 2 NICs: {8e-6 * two:.1f} Mbit/s, {two / one:.2f} times.")
    off = max(abs(found / share - 1) for found, share in zip(measured, wanted, strict=True))
    if off > 0.1 or two < 1.5 * one:
        raise SystemExit(f"shares are off by {100 * off:.0f} %, 10 % at most are due; or 2 NICs do not beat 1")


def stop(number: int, _: object) -> None:
    raise SystemExit(f"stopped by signal {number}")


if __name__ == "__main__":
    main()
