"""A folder of scripts that give pairs of servers their bandwidth by Open vSwitch.

Each server has a script that sets it up and one that undoes it; `hosts.env` has the names of NICs and their addresses,
which the user sets. The bandwidth of a pair is split over the NICs of the sending server. The pairs with most come
first. A pair goes to the NIC with most room that holds all of it, if possible one on which the receiving server has
room too; if none does, it fills the NIC with most room, and what remains goes on in the same way. Each further part of
a pair fills a NIC, so a server of N NICs has at most N parts more than pairs.

Each NIC has a bridge, whose local interface takes over its address. A queue of the NIC (HTB) has the rate of each pair;
flows put packets into queues by the address that they go to. Several NICs are subnets of their own, and a policy route
sends what has the address of a NIC by that NIC. What is for no queue, answers among it, is in queue 0, which has what
is left and may borrow more. Rates are whole bit/s: Open vSwitch takes others for its defaults
(openvswitch/ovs-issues#277). Its datapath in user space does not enforce queues of flows, so filters of `tc` sort
packets there: queue K is class 1:(K+1), in hexadecimal.

Not modelled: what a server receives is no limit, since the allocation has none. The README says where senders together
may send more than a NIC takes in.
"""

from pathlib import Path

import numpy as np

from dsx.errors import InputError, StoreError
from dsx.files import OpenFolder
from dsx.progress import remark
from dsx.units import format_quantity

_ROUNDING = 1e-9  # of a NIC's bandwidth
OTHERS = 0  # the queue of packets without a pair
_LEAST = 50  # queue 0 has at least one part in so many of a NIC: without answers (of TCP), what others send stops
_UNITS = ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s"))
HOSTS, README = "hosts.env", "README.md"
_WIDEST = 2.0**32  # bytes/s: Open vSwitch 3.1 sets the remainder, 31.3 Gbit/s for 100 Gbit/s
_MOST = 254  # servers of a subnet with a prefix of 24 bits, and NICs


def nic_shares(bandwidth: np.ndarray, nics: int, nic_bandwidth: float) -> np.ndarray:
    """Return [S, S, N] bytes/s: what each server sends to each other one on each of its NICs.

    `bandwidth` is [S, S] bytes/s, of which the diagonal does not count. Raises InputError for another shape, for
    numbers that are no bandwidths, and for a server that sends more than all of its NICs.
    """
    bandwidth = np.array(bandwidth, dtype=float)
    if bandwidth.ndim != 2 or bandwidth.shape[0] != bandwidth.shape[1]:
        raise InputError(f"bandwidth has the shape {bandwidth.shape}: a row and a column for each server are needed")
    if nics < 1:
        raise InputError(f"nics: {nics} are too few; a server has at least 1")
    if not 0.0 < nic_bandwidth < np.inf:
        raise InputError(f"nic_bandwidth: {nic_bandwidth} bytes/s is no bandwidth above 0")
    np.fill_diagonal(bandwidth, 0.0)
    for source, target in np.argwhere(~((bandwidth >= 0.0) & (bandwidth < np.inf))):
        raise InputError(f"bandwidth[{source}, {target}]: {bandwidth[source, target]} bytes/s is no bandwidth")
    for server, total in enumerate(bandwidth.sum(axis=1)):
        if total > nics * nic_bandwidth * (1 + _ROUNDING):
            rule = f"{nics} NICs have {format_quantity(nics * nic_bandwidth, 'bytes/s')}"
            raise InputError(f"bandwidth: server {server} sends {format_quantity(float(total), 'bytes/s')}, but {rule}")
    servers = len(bandwidth)
    sends, receives = np.full((2, servers, nics), nic_bandwidth)  # room that is left
    shares = np.zeros((servers, servers, nics))
    slack = _ROUNDING * nic_bandwidth
    for pair in np.argsort(-bandwidth, axis=None, kind="stable").tolist():
        source, target = divmod(pair, servers)
        remainder = float(bandwidth[source, target])
        while remainder > slack:
            needed = min(remainder, nic_bandwidth)
            holds, takes = sends[source] >= needed - slack, receives[target] >= needed - slack
            nic = int(np.lexsort((-receives[target], -sends[source], ~(holds & takes), ~holds))[0])
            part = min(remainder, float(sends[source, nic]))
            if part <= slack:
                break  # the total is that of all NICs, but for rounding
            shares[source, target, nic] += part
            sends[source, nic] -= part
            receives[target, nic] -= part
            remainder -= part
    return shares


def overbooked(shares: np.ndarray, nic_bandwidth: float) -> list[tuple[int, int, float]]:
    """Return (server, NIC, bytes/s) where what all others may send together is more than the NIC takes in."""
    received = shares.sum(axis=0)
    over = np.argwhere(received > nic_bandwidth * (1 + _ROUNDING)).tolist()
    return [(server, nic, float(received[server, nic])) for server, nic in over]


def bits_per_s(bytes_per_s: float) -> int:
    """Return whole bit/s that do not exceed a rate, but for its rounding."""
    return int(np.floor(bytes_per_s * 8 * (1 + 1e-12)))


def rate_text(bytes_per_s: float) -> str:
    """Return a rate as people write that of a NIC: "2.5 Gbit/s"."""
    bits = bits_per_s(bytes_per_s)
    scale, unit = next(((scale, unit) for scale, unit in _UNITS if bits >= scale), _UNITS[-1])
    return f"{bits / scale:.4g} {unit}"


def setup_script(server: int, shares: np.ndarray, nic_bandwidth: float) -> str:
    """Return the script that sets up a server whose shares are [S, N] bytes/s."""
    blocks = [_setup(server, nic, shares[:, nic], nic_bandwidth) for nic in range(shares.shape[1])]
    sends = [
        f"#   to server {other}: {text}"
        for other, text in enumerate(map(pair_text, shares))
        if text and other != server
    ]
    return f"""\
#!/bin/sh
# What server {server} sends to each other one. Run it on that server as root, also again: sh server-{server}-setup.sh
# server-{server}-remove.sh undoes it; names and addresses are in hosts.env beside it.
{chr(10).join(sends) or "#   nothing"}
{_START}
bridge() {{  # name, NIC
    ovs-vsctl --may-exist add-br "$1" -- set bridge "$1" datapath_type="$DATAPATH" \\
        -- --may-exist add-port "$1" "$2" -- set interface "$2" ofport_request=1
}}

address() {{  # bridge, NIC, address, its net, routing table: the bridge has the address in place of the NIC
    ip address del "$3/$PREFIX" dev "$2" 2> /dev/null || true
    ip address replace "$3/$PREFIX" dev "$1"
    ip link set "$2" up
    ip link set "$1" up
    # Each address is answered by its own bridge alone, and what comes in need not go out there.
    sysctl -q -w "net.ipv4.conf.$1.rp_filter=2" "net.ipv4.conf.$1.arp_ignore=1" "net.ipv4.conf.$1.arp_announce=2"
    ip route replace "$4" dev "$1" src "$3" table "$5"
    ip rule del pref "$5" from "$3" lookup "$5" 2> /dev/null || true
    ip rule add pref "$5" from "$3" lookup "$5"
}}
{"".join(blocks)}"""


def remove_script(server: int, num_nics: int) -> str:
    """Return the script that undoes the setup of a server."""
    blocks = "".join(f"\nremove dsx{nic} {nic} {_names(server, nic)}\n" for nic in range(num_nics))
    return f"""\
#!/bin/sh
# Undoes server-{server}-setup.sh, also what it did in part: sh server-{server}-remove.sh, as root on that server.
{_START}
remove() {{  # bridge, number of the NIC, NIC, address, its net, routing table: the NIC has its address back
    ip rule del pref "$6" from "$4" lookup "$6" 2> /dev/null || true
    ip route del "$5" dev "$1" table "$6" 2> /dev/null || true
    forget_queues "$3" "$2"
    ovs-vsctl --if-exists del-br "$1"
    ip address replace "$4/$PREFIX" dev "$3"
}}
{blocks}"""


def pair_text(shares: np.ndarray) -> str:
    """Return what a pair has on each NIC: "4 Gbit/s on NIC 0, 2 Gbit/s on NIC 1"; empty for nothing."""
    sent = [(nic, share) for nic, share in enumerate(shares.tolist()) if bits_per_s(share) > 0]
    return ", ".join(f"{rate_text(share)} on NIC {nic}" for nic, share in sent)


def _names(server: int, nic: int) -> str:
    """Return the NIC, its address, its net and its routing table, as the arguments of a function of the shell."""
    return f'"$NIC_{server}_{nic}" "$ADDRESS_{server}_{nic}" "$NET_{nic}" "$((TABLE + {nic}))"'


def _setup(server: int, nic: int, shares: np.ndarray, nic_bandwidth: float) -> str:
    """Return the commands for one NIC."""
    sent = [(receiver, share) for receiver, share in enumerate(shares.tolist()) if bits_per_s(share) > 0]
    used = [(queue, receiver, share) for queue, (receiver, share) in enumerate(sent, OTHERS + 1)]
    most, port = bits_per_s(nic_bandwidth), f'"$NIC_{server}_{nic}"'
    remainder = max(most - sum(bits_per_s(share) for _, _, share in used), most // _LEAST)
    rates = [(OTHERS, remainder, most), *((queue, bits_per_s(share), bits_per_s(share)) for queue, _, share in used)]
    tag = f"external-ids:dsx-nic={nic}"
    created = [
        f"    -- --id=@q{queue} create queue {tag} other-config:min-rate={least} other-config:max-rate={highest} \\"
        for queue, least, highest in rates
    ]
    flows = [
        f"priority=100,in_port=LOCAL,ip,nw_dst=$ADDRESS_{other}_{nic},actions=set_queue:{queue},output:1"
        for queue, other, _ in used
    ]
    filters = [
        f'    tc filter add dev {port} parent 1: protocol ip prio 1 u32 match ip dst "$ADDRESS_{other}_{nic}/32" '
        f"classid 1:{queue + 1:x}"
        for queue, other, _ in used
    ]
    sends = [f"#   queue {queue}: {rate_text(share)} to server {other}" for queue, other, share in used]
    newline = "\n"
    return f"""
# NIC {nic}, {rate_text(nic_bandwidth)}
{newline.join([*sends, f"#   queue {OTHERS}: the rest"])}
bridge dsx{nic} {port}
forget_queues {port} {nic}
ovs-vsctl \\
{newline.join(created)}
    -- --id=@qos create qos type=linux-htb {tag} other-config:max-rate={most} \\
    {" ".join(f"queues:{queue}=@q{queue}" for queue, _, _ in rates)} \\
    -- set port {port} qos=@qos
ovs-ofctl -O OpenFlow13 replace-flows dsx{nic} - << FLOWS
{newline.join([*flows, "priority=90,arp,in_port=LOCAL,actions=output:1", "priority=80,in_port=1,actions=LOCAL"])}
priority=10,in_port=LOCAL,actions=output:1
FLOWS
address dsx{nic} {_names(server, nic)}
if [ "$DATAPATH" = netdev ]; then
    ethtool -K dsx{nic} tx off > /dev/null  # checksums are not completed on the way, so TCP would hang
{newline.join(filters) or "    :"}
fi
"""


_START = """\
set -eu
. "$(dirname "$0")/hosts.env"

forget_queues() {  # NIC, its number: rows go by their ids, as --all would take those of others
    ovs-vsctl --if-exists clear port "$1" qos
    for table in qos queue; do
        for id in $(ovs-vsctl --bare --columns=_uuid find "$table" "external_ids:dsx-nic=$2"); do
            ovs-vsctl destroy "$table" "$id"
        done
    done
}
"""


_START_OF_HOSTS = """\
# Names and addresses of the hosts, the same file on all of them. These are defaults: set them as they are.
# DATAPATH: system, that of the kernel module; or netdev, that in user space, which also needs tc and ethtool.
# TABLE: the routing table of NIC 0, and the preference of its rule; the other NICs have the next ones.
# NIC_S_N, ADDRESS_S_N: the interface of NIC N of server S, and its IPv4 address in the subnet NET_N.
DATAPATH=system
TABLE=100
PREFIX=24
"""


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
    lines = [f"NET_{nic}=10.0.{nic}.0/24" for nic in range(nics)]
    for server in range(servers):
        lines += [f"NIC_{server}_{nic}=eth{nic} ADDRESS_{server}_{nic}=10.0.{nic}.{server + 1}" for nic in range(nics)]
    texts = {HOSTS: _START_OF_HOSTS + "".join(f"{line}\n" for line in lines)}
    for server in range(servers):
        texts[f"server-{server}-setup.sh"] = setup_script(server, shares[server], nic_bandwidth)
        texts[f"server-{server}-remove.sh"] = remove_script(server, nics)
    return texts | {README: _readme(shares, nic_bandwidth)}  # at last: a folder with it alone is somebody else's


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
            scripts = [name for name in opened.names() if name.startswith("server-") and name.endswith(".sh")]
            for name in scripts:
                with opened.open(name) as file:
                    if name not in texts or file.read() != texts[name].encode():
                        raise StoreError(f"{folder} has {name} of another allocation: give another folder")
            for name in (HOSTS, README):
                if opened.has(name) and not (scripts and opened.is_file(name)):
                    raise StoreError(f"{folder} has a {name} of something else: give another folder")
            for name, text in texts.items():
                if name == HOSTS and opened.has(HOSTS):
                    remark(f"{folder / HOSTS} is kept as it is")
                else:
                    opened.write_whole(name, text.encode())
    except OSError as error:
        raise StoreError(f"cannot write the scripts to {str(folder)!r}: {error.strerror or error}") from error
    return [folder / name for name in texts]


def _readme(shares: np.ndarray, nic_bandwidth: float) -> str:
    """Return how to use the scripts, and what each pair has."""
    servers, _, nics = shares.shape
    rows = [
        f"| {source} | {target} | {rate_text(float(shares[source, target].sum()))} | {text} |"
        for source, target in np.ndindex(servers, servers)
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
