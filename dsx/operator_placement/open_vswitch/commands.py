"""The shell commands by which Open vSwitch gives pairs of servers their bandwidth, and those that undo it.

Each NIC has a bridge, whose local interface takes over its address. A queue of the NIC (HTB) has the rate of each pair;
flows put packets into queues by the address that they go to. Several NICs are subnets of their own, and a policy route
sends what has the address of a NIC by that NIC. What is for no queue, answers among it, is in queue 0, which has what
is left and may borrow more.

Rates are whole bit/s: Open vSwitch takes others for its defaults (openvswitch/ovs-issues#277). Its datapath in user
space does not enforce queues of flows, so filters of `tc` sort packets there: queue K is class 1:(K+1), in hexadecimal.
"""

import numpy as np

OTHERS = 0  # the queue of packets without a pair
_LEAST = 50  # queue 0 has at least one part in so many of a NIC: without answers (of TCP), what others send stops


def bits_per_s(bytes_per_s: float) -> int:
    """Return whole bit/s that do not exceed a rate, but for its rounding."""
    return int(np.floor(bytes_per_s * 8 * (1 + 1e-12)))


def rate_text(bytes_per_s: float) -> str:
    """Return a rate as people write that of a NIC: "2.5 Gbit/s"."""
    bits = bits_per_s(bytes_per_s)
    scale, unit = next(((scale, unit) for scale, unit in _UNITS if bits >= scale), _UNITS[-1])
    return f"{bits / scale:.4g} {unit}"


_UNITS = ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s"))


def queues(shares: np.ndarray) -> list[tuple[int, int, float]]:
    """Return (queue, server, bytes/s) of a NIC whose shares are [S]."""
    sent = [(server, share) for server, share in enumerate(shares.tolist()) if bits_per_s(share) > 0]
    return [(OTHERS + 1 + at, server, share) for at, (server, share) in enumerate(sent)]


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
    used, most, port = queues(shares), bits_per_s(nic_bandwidth), f'"$NIC_{server}_{nic}"'
    left = max(most - sum(bits_per_s(share) for _, _, share in used), most // _LEAST)
    rates = [(OTHERS, left, most), *((queue, bits_per_s(share), bits_per_s(share)) for queue, _, share in used)]
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
