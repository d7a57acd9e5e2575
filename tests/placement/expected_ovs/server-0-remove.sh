#!/bin/sh
# Undoes server-0-setup.sh, also what it did in part: sh server-0-remove.sh, as root on that server.
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

remove() {  # bridge, number of the NIC, NIC, address, its net, routing table: the NIC has its address back
    ip rule del pref "$6" from "$4" lookup "$6" 2> /dev/null || true
    ip route del "$5" dev "$1" table "$6" 2> /dev/null || true
    forget_queues "$3" "$2"
    ovs-vsctl --if-exists del-br "$1"
    ip address replace "$4/$PREFIX" dev "$3"
}

remove dsx0 0 "$NIC_0_0" "$ADDRESS_0_0" "$NET_0" "$((TABLE + 0))"

remove dsx1 1 "$NIC_0_1" "$ADDRESS_0_1" "$NET_1" "$((TABLE + 1))"
