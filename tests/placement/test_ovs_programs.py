"""Open vSwitch takes the scripts: its database has their queues, and traced packets end in the queue of their pair.

Its programs run on a database and sockets of their own. `ip`, `tc`, `ethtool` and `sysctl` are recorded, not run, and
devices are dummies, so no rights are needed and nothing of the machine changes.
"""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from dsx.placement.open_vswitch import nic_shares, write_ovs

GBIT = 1e9 / 8
BANDWIDTH = np.array([[0, 12, 3.2], [2.4, 0, 5.6], [10, 10, 0]]) * GBIT
NICS, NIC = 2, 10 * GBIT
SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
PROGRAMS = ("ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl", "ovs-appctl")
RECORDED = ("ip", "tc", "ethtool", "sysctl")

pytestmark = pytest.mark.external


class Switch:
    """Open vSwitch in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, []
        self.env = os.environ | {"OVS_RUNDIR": str(folder), "OVS_LOGDIR": str(folder), "OVS_DBDIR": str(folder)}
        self.run("ovsdb-tool", "create", folder / "conf.db", SCHEMA)
        self.start("ovsdb-server", folder / "conf.db", f"--remote=punix:{folder}/db.sock", "--no-chdir")
        self.wait_for(lambda: (folder / "db.sock").exists())
        self.run("ovs-vsctl", "--no-wait", "init")
        shims = folder / "bin"
        shims.mkdir()
        for program in RECORDED:
            self.shim(program, f'echo "{program} $*" >> "{folder}/recorded"\n')

    def shim(self, program: str, text: str) -> None:
        (self.folder / "bin" / program).write_text(f"#!/bin/sh\n{text}")
        (self.folder / "bin" / program).chmod(0o755)

    def start(self, *command: object) -> None:
        with (self.folder / f"{command[0]}.out").open("w") as out:
            self.started.append(subprocess.Popen([*map(str, command)], env=self.env, stdout=out, stderr=out))

    def run(self, *command: object) -> str:
        done = subprocess.run([*map(str, command)], env=self.env, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def script(self, path: Path) -> None:
        done = subprocess.run(
            ["sh", path],
            env=self.env | {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr

    def wait_for(self, met) -> None:
        for _ in range(200):
            if met():
                return
            assert all(process.poll() is None for process in self.started), "a daemon has ended"
            time.sleep(0.05)
        raise AssertionError("waited 10 s")

    def rows(self, table: str) -> list[dict]:
        found = json.loads(self.run("ovs-vsctl", "--no-wait", "--format=json", "list", table))
        return [dict(zip(found["headings"], row, strict=True)) for row in found["data"]]

    def stop(self) -> None:
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:
            process.wait(10)


@pytest.fixture
def switch(tmp_path):
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing or not Path(SCHEMA).exists():
        pytest.skip(f"Open vSwitch is not installed: {', '.join(missing) or SCHEMA} is missing")
    # The path of a socket has at most 107 characters.
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"ovs-{os.getpid()}"
    folder.mkdir()
    found = Switch(folder)
    try:
        yield found
    finally:
        found.stop()
        shutil.rmtree(folder)


def rates(rows):
    return sorted((dict(row["other_config"][1])["min-rate"], dict(row["other_config"][1])["max-rate"]) for row in rows)


def test_the_database_has_the_queues_of_a_server(switch, tmp_path):
    scripts = write_ovs(tmp_path / "scripts", BANDWIDTH, NICS, NIC)[0].parent
    for program in ("ovs-vsctl", "ovs-ofctl"):  # no daemon is there to wait for
        real = shutil.which(program)
        switch.shim(program, f'exec {real} --no-wait "$@"\n' if program == "ovs-vsctl" else "cat > /dev/null\n")
    foreign = switch.run("ovs-vsctl", "--no-wait", "create", "queue", "other-config:max-rate=1000000").strip()
    switch.script(scripts / "server-0-setup.sh")
    own = [row for row in switch.rows("queue") if row["_uuid"][1] != foreign]
    most = "10000000000"
    assert rates(own) == sorted(
        [("200000000", most), (most, most), ("4800000000", most), ("2000000000",) * 2, ("3200000000",) * 2]
    )
    qos = switch.rows("qos")
    assert [row["type"] for row in qos] == ["linux-htb"] * 2
    assert {port["name"]: port["qos"] for port in switch.rows("port")} == {"dsx0": ["set", []], "dsx1": ["set", []]} | {
        f"eth{dict(row['external_ids'][1])['dsx-nic']}": row["_uuid"] for row in qos
    }
    recorded = (switch.folder / "recorded").read_text()
    assert "ip rule add pref 101 from 10.0.1.1 lookup 101" in recorded and "tc" not in recorded
    # A second time there are no more of them; removal leaves what is not from here.
    switch.script(scripts / "server-0-setup.sh")
    assert (len(switch.rows("queue")), len(switch.rows("qos")), len(switch.rows("bridge"))) == (6, 2, 2)
    switch.script(scripts / "server-0-remove.sh")
    assert [row["_uuid"][1] for row in switch.rows("queue")] == [foreign]
    assert switch.rows("qos") == switch.rows("bridge") == []


def test_a_traced_packet_ends_in_the_queue_of_its_pair(switch, tmp_path):
    socket = f"--unixctl={switch.folder}/vswitchd.ctl"
    switch.start("ovs-vswitchd", f"unix:{switch.folder}/db.sock", socket, "--no-chdir", "--enable-dummy=override")
    scripts = write_ovs(tmp_path / "scripts", BANDWIDTH, NICS, NIC)[0].parent
    hosts = scripts / "hosts.env"
    hosts.write_text(hosts.read_text().replace("DATAPATH=system", "DATAPATH=dummy"))
    server = 0
    switch.script(scripts / f"server-{server}-setup.sh")
    shares = nic_shares(BANDWIDTH, NICS, NIC)[server]
    seen = 0
    for nic in range(NICS):
        queue = 0
        for other in range(len(BANDWIDTH)):
            queue += shares[other, nic] > 0
            traced = trace(switch, nic, f"in_port=LOCAL,tcp,nw_src=10.0.{nic}.1,nw_dst=10.0.{nic}.{other + 1}")
            if shares[other, nic] > 0:
                assert f"set_queue:{queue}" in traced
                assert re.search(rf"Datapath actions: set\(skb_priority\({queue:#x}\)\),\d+$", traced.strip())
                seen += 1
            else:
                assert "set_queue" not in traced and re.search(r"Datapath actions: \d+$", traced.strip())
        assert "LOCAL" in trace(switch, nic, f"in_port=1,tcp,nw_dst=10.0.{nic}.1")
        assert "set_queue" not in trace(switch, nic, "in_port=LOCAL,arp,dl_dst=ff:ff:ff:ff:ff:ff")
    assert seen == 3
    switch.script(scripts / f"server-{server}-remove.sh")
    assert switch.rows("bridge") == switch.rows("queue") == []


def trace(switch, nic, flow):
    return switch.run("ovs-appctl", "-t", switch.folder / "vswitchd.ctl", "ofproto/trace", f"dsx{nic}", flow)
