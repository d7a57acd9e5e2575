"""A folder of scripts that realise an allocation of bandwidth between servers by Open vSwitch.

Each server has a script that sets it up and one that undoes it (`ovs_commands.py`); `hosts.env` has the names of NICs
and their addresses, which the user sets. Queues shape what a server sends, so an allocation holds as long as no NIC is
sent more than it takes in; the README says where that may happen.
"""

from pathlib import Path

import numpy as np

from dsx.errors import InputError, StoreError
from dsx.files import OpenFolder
from dsx.operator_placement.open_vswitch.commands import pair_text, rate_text, remove_script, setup_script
from dsx.operator_placement.open_vswitch.nic_shares import nic_shares, overbooked
from dsx.remarks import remark

HOSTS, README = "hosts.env", "README.md"
_WIDEST = 2.0**32  # bytes/s: Open vSwitch 3.1 sets the remainder, 31.3 Gbit/s for 100 Gbit/s
_MOST = 254  # servers of a subnet with a prefix of 24 bits, and NICs


def ovs_files(bandwidth: np.ndarray, nics: int, nic_bandwidth: float) -> dict[str, str]:
    """Return the texts of the files by their names, for [S, S] bytes/s and the NICs of each server, of equal bytes/s.

    Raises InputError for an allocation that NICs cannot have (`nic_shares`), or for too many servers or NICs.
    """
    shares = nic_shares(bandwidth, nics, nic_bandwidth)
    servers = len(shares)
    if servers > _MOST or nics > _MOST:
        raise InputError(
            f"{servers} servers of {nics} NICs: the addresses 10.0.NIC.SERVER have room for {_MOST} of each"
        )
    found = {HOSTS: _hosts(servers, nics)}
    for server in range(servers):
        found[f"server-{server}-setup.sh"] = setup_script(server, shares[server], nic_bandwidth)
        found[f"server-{server}-remove.sh"] = remove_script(server, nics)
    return found | {README: _readme(shares, nic_bandwidth)}  # at last: a folder with it alone is somebody else's


def write_ovs(folder: Path, bandwidth: np.ndarray, nics: int, nic_bandwidth: float) -> list[Path]:
    """Write the files of an allocation into a folder, which is made if it does not exist; return them.

    A `hosts.env` that is beside the scripts stays, since the user has filled it in. Raises InputError as `ovs_files`
    does, and StoreError for a folder with the scripts of another allocation, which are needed to undo it, or of
    something else: with a `hosts.env` or README alone, or a `hosts.env` that is no file. Scripts run it as root.
    """
    texts = ovs_files(bandwidth, nics, nic_bandwidth)
    try:
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"{str(folder)!r} is a file: name a folder for the scripts")
        folder.mkdir(parents=True, exist_ok=True)
        with OpenFolder(folder) as opened:
            there = [name for name in opened.names() if name.startswith("server-") and name.endswith(".sh")]
            for name in there:
                with opened.open(name) as file:
                    if name not in texts or file.read() != texts[name].encode():
                        raise StoreError(f"{folder} has {name} of another allocation: give another folder")
            for name in (HOSTS, README):
                if opened.has(name) and not (there and opened.is_file(name)):
                    raise StoreError(f"{folder} has a {name} of something else: give another folder")
            for name, text in texts.items():
                if name == HOSTS and opened.has(HOSTS):
                    remark(f"{folder / HOSTS} is kept as it is")
                else:
                    opened.write_whole(name, text.encode())
    except OSError as error:
        raise StoreError(f"cannot write the scripts to {str(folder)!r}: {error.strerror or error}") from error
    return [folder / name for name in texts]


def _hosts(servers: int, nics: int) -> str:
    """Return the file of names and addresses."""
    lines = [f"NET_{nic}=10.0.{nic}.0/24" for nic in range(nics)]
    for server in range(servers):
        lines += [f"NIC_{server}_{nic}=eth{nic} ADDRESS_{server}_{nic}=10.0.{nic}.{server + 1}" for nic in range(nics)]
    return f"""\
# Names and addresses of the hosts, the same file on all of them. These are defaults: set them as they are.
# DATAPATH: system, that of the kernel module; or netdev, that in user space, which also needs tc and ethtool.
# TABLE: the routing table of NIC 0, and the preference of its rule; the other NICs have the next ones.
# NIC_S_N, ADDRESS_S_N: the interface of NIC N of server S, and its IPv4 address in the subnet NET_N.
DATAPATH=system
TABLE=100
PREFIX=24
{chr(10).join(lines)}
"""


def _readme(shares: np.ndarray, nic_bandwidth: float) -> str:
    """Return how to use the scripts, and what each pair has."""
    servers, _, nics = shares.shape
    rows = [
        f"| {source} | {target} | {rate_text(float(shares[source, target].sum()))} | {text} |"
        for source in range(servers)
        for target in range(servers)
        if (text := pair_text(shares[source, target]))
    ]
    full = [
        f"* NIC {nic} of server {server}: {rate_text(received)} may arrive, of {rate_text(nic_bandwidth)}."
        for server, nic, received in overbooked(shares, nic_bandwidth)
    ]
    more = ["", "Senders together may send more than these NICs take in:", "", *full] if full else []
    wide = """\
* Some releases of Open vSwitch, 3.1 among them, keep rates in 32 bits of bytes/s, so they set less than is asked for
  above 34 Gbit/s: look at `tc class show`.
"""
    newline = "\n"
    return f"""\
# Bandwidth of pairs of servers by Open vSwitch

{servers} servers, each with {nics} NICs of {rate_text(nic_bandwidth)}.

| from server | to server | bandwidth | shares |
|---|---|---|---|
{newline.join(rows)}
{newline.join([*more, ""] if more else [])}
Set names and addresses in `{HOSTS}`, copy the folder to each server, and run there, as root, `sh server-0-setup.sh`
with its own number. `sh server-0-remove.sh` undoes it. After Open vSwitch has started anew, run the setup again: flows
and filters are not kept.

* The setup moves the address of each NIC to a bridge. Do not log in by an address that is in `{HOSTS}`.
* A pair has its share on a NIC for packets to the address of the other server on that NIC. One connection uses one NIC:
  a pair with shares on several NICs needs a connection by each, bound to the address of the sending NIC.
* Queues limit: a pair has its bandwidth also while others send nothing. What is for no pair has what is left.
{wide if nic_bandwidth >= _WIDEST else ""}"""
