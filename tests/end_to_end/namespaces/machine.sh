#!/bin/bash
# The first process of a machine, in network, PID, IPC and mount namespaces of its own: `machine.sh NAME ADDRESS`.
# The machine has /tmp, /run, /dev/shm and a home of its own, and the repository and Python as they are. It waits for
# the end of its cable (named NAME here), gives it ADDRESS, prints "ready" and ends when its stdin does.
# Reads KEPT, the paths that stay: the repository and Python's. All machines share the tmpfs on /mnt.
set -euo pipefail

own=/mnt/$1
mkdir -p "$own"
i=0
for path in $KEPT; do
    i=$((i + 1))
    mkdir -p "$own/$i"
    mount --rbind "$path" "$own/$i"
done
mount -t tmpfs -o mode=1777,size=1g tmp /tmp
mount -t tmpfs -o mode=1777,size=1g shm /dev/shm
mount -t tmpfs -o mode=755,size=64m run /run
i=0
for path in $KEPT; do
    i=$((i + 1))
    if [ ! -e "$path" ]; then
        mkdir -p "$path"
        mount --rbind "$own/$i" "$path"
    fi
done
mkdir -p /tmp/home/squadron
ip link set lo up
until ip link show "$1" >/dev/null 2>&1; do sleep 0.05; done
ip addr add "$2/24" dev "$1"
ip link set "$1" up
echo ready
read -r || true
