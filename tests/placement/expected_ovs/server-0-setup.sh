#!/bin/sh
# What server 0 sends to each other one. Run it on that server as root, also again: sh server-0-setup.sh
# server-0-remove.sh undoes it; names and addresses are in hosts.env beside it.
#   to server 1: 10 Gbit/s on NIC 0, 2 Gbit/s on NIC 1
#   to server 2: 3.2 Gbit/s on NIC 1
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

bridge() {  # name, NIC
    ovs-vsctl --may-exist add-br "$1" -- set bridge "$1" datapath_type="$DATAPATH" \
        -- --may-exist add-port "$1" "$2" -- set interface "$2" ofport_request=1
}

address() {  # bridge, NIC, address, its net, routing table: the bridge has the address in place of the NIC
    ip address del "$3/$PREFIX" dev "$2" 2> /dev/null || true
    ip address replace "$3/$PREFIX" dev "$1"
    ip link set "$2" up
    ip link set "$1" up
    # Each address is answered by its own bridge alone, and what comes in need not go out there.
    sysctl -q -w "net.ipv4.conf.$1.rp_filter=2" "net.ipv4.conf.$1.arp_ignore=1" "net.ipv4.conf.$1.arp_announce=2"
    ip route replace "$4" dev "$1" src "$3" table "$5"
    ip rule del pref "$5" from "$3" lookup "$5" 2> /dev/null || true
    ip rule add pref "$5" from "$3" lookup "$5"
}

# NIC 0, 10 Gbit/s
#   queue 1: 10 Gbit/s to server 1
#   queue 0: the rest
bridge dsx0 "$NIC_0_0"
forget_queues "$NIC_0_0" 0
ovs-vsctl \
    -- --id=@q0 create queue external-ids:dsx-nic=0 other-config:min-rate=200000000 other-config:max-rate=10000000000 \
    -- --id=@q1 create queue external-ids:dsx-nic=0 other-config:min-rate=10000000000 other-config:max-rate=10000000000 \
    -- --id=@qos create qos type=linux-htb external-ids:dsx-nic=0 other-config:max-rate=10000000000 \
    queues:0=@q0 queues:1=@q1 \
    -- set port "$NIC_0_0" qos=@qos
ovs-ofctl -O OpenFlow13 replace-flows dsx0 - << FLOWS
priority=100,in_port=LOCAL,ip,nw_dst=$ADDRESS_1_0,actions=set_queue:1,output:1
priority=90,arp,in_port=LOCAL,actions=output:1
priority=80,in_port=1,actions=LOCAL
priority=10,in_port=LOCAL,actions=output:1
FLOWS
address dsx0 "$NIC_0_0" "$ADDRESS_0_0" "$NET_0" "$((TABLE + 0))"
if [ "$DATAPATH" = netdev ]; then
    ethtool -K dsx0 tx off > /dev/null  # checksums are not completed on the way, so TCP would hang
    tc filter add dev "$NIC_0_0" parent 1: protocol ip prio 1 u32 match ip dst "$ADDRESS_1_0/32" classid 1:2
fi

# NIC 1, 10 Gbit/s
#   queue 1: 2 Gbit/s to server 1
#   queue 2: 3.2 Gbit/s to server 2
#   queue 0: the rest
bridge dsx1 "$NIC_0_1"
forget_queues "$NIC_0_1" 1
ovs-vsctl \
    -- --id=@q0 create queue external-ids:dsx-nic=1 other-config:min-rate=4800000000 other-config:max-rate=10000000000 \
    -- --id=@q1 create queue external-ids:dsx-nic=1 other-config:min-rate=2000000000 other-config:max-rate=2000000000 \
    -- --id=@q2 create queue external-ids:dsx-nic=1 other-config:min-rate=3200000000 other-config:max-rate=3200000000 \
    -- --id=@qos create qos type=linux-htb external-ids:dsx-nic=1 other-config:max-rate=10000000000 \
    queues:0=@q0 queues:1=@q1 queues:2=@q2 \
    -- set port "$NIC_0_1" qos=@qos
ovs-ofctl -O OpenFlow13 replace-flows dsx1 - << FLOWS
priority=100,in_port=LOCAL,ip,nw_dst=$ADDRESS_1_1,actions=set_queue:1,output:1
priority=100,in_port=LOCAL,ip,nw_dst=$ADDRESS_2_1,actions=set_queue:2,output:1
priority=90,arp,in_port=LOCAL,actions=output:1
priority=80,in_port=1,actions=LOCAL
priority=10,in_port=LOCAL,actions=output:1
FLOWS
address dsx1 "$NIC_0_1" "$ADDRESS_0_1" "$NET_1" "$((TABLE + 1))"
if [ "$DATAPATH" = netdev ]; then
    ethtool -K dsx1 tx off > /dev/null  # checksums are not completed on the way, so TCP would hang
    tc filter add dev "$NIC_0_1" parent 1: protocol ip prio 1 u32 match ip dst "$ADDRESS_1_1/32" classid 1:2
    tc filter add dev "$NIC_0_1" parent 1: protocol ip prio 1 u32 match ip dst "$ADDRESS_2_1/32" classid 1:3
fi
