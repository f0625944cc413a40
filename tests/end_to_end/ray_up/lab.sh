#!/bin/bash
# The lab's first process. Called as `lab.sh ADDRESS...` in new network, PID and mount namespaces it becomes the
# operator's machine, starts one node for each address (`lab.sh node ADDRESS`, with a PID and a mount namespace of its
# own), prints "ready" and ends when its stdin does: the kernel then ends every process of the lab and drops its mounts.
# Reads REPOSITORY, PYTHON_PREFIX and PYTHON_BASE_PREFIX. All files written lie in one tmpfs on /mnt.
set -euo pipefail

home=$(getent passwd root | cut -d: -f6)

main() {
    ip link set lo up
    mount -t tmpfs -o mode=755 lab /mnt
    ssh-keygen -q -t ed25519 -N "" -f /mnt/host_key
    ssh-keygen -q -t ed25519 -N "" -f /mnt/user_key
    for address in "$@"; do
        mkdir "/mnt/$address"
        unshare --pid --fork --mount --mount-proc --kill-child "$0" node "$address" \
            </dev/null >&2 &
    done
    become_machine operator "$REPOSITORY" "$PYTHON_PREFIX" "$PYTHON_BASE_PREFIX"
    for address in "$@"; do
        until (exec 3<>"/dev/tcp/$address/22") 2>/dev/null; do sleep 0.1; done
    done
    echo ready
    read -r || true
}

node() {
    local own=/mnt/$1
    mkdir "$own/upper" "$own/work"
    become_machine "$1" "$PYTHON_PREFIX" "$PYTHON_BASE_PREFIX"
    # Nodes share the machine's Python, each with its own layer for what `pip install` writes.
    mount -t overlay overlay -o "lowerdir=$own/kept/0,upperdir=$own/upper,workdir=$own/work" "$PYTHON_PREFIX"
    mkdir -p "$home/squadron" "$home/.config/pip"
    ln -s "$PYTHON_PREFIX" "$home/squadron/.venv"
    printf '[install]\nno-index = true\nno-deps = true\nno-build-isolation = false\n' >"$home/.config/pip/pip.conf"
    # One CPU a node, by Ray's count: an application that wants more has to spread over nodes.
    echo "export RAY_OVERRIDE_RESOURCES='{\"CPU\": 1}'" >>"$home/.bashrc"
    # Its own address, where a node of real machines would listen on all it has.
    echo "export SQUADRON_HTTP_HOST=$1" >>"$home/.bashrc"
    # sshd without PAM refuses an account whose password is locked.
    echo "root:*:20000:0:99999:7:::" >"$own/shadow"
    mount --bind "$own/shadow" /etc/shadow
    /usr/sbin/sshd -D -e -f /dev/null -o ListenAddress="$1" -o HostKey=/mnt/host_key -o PidFile=none \
        -o AuthorizedKeysFile=/mnt/user_key.pub -o StrictModes=no -o PermitRootLogin=prohibit-password \
        -o PasswordAuthentication=no -o UsePAM=no &
    wait
}

become_machine() {  # NAME KEPT...: an empty home, /tmp, /run and /dev/shm and no repository, but for the paths KEPT
    local own=/mnt/$1 kept=("${@:2}") i
    mkdir -p "$own"/{home,tmp,run/sshd,shm,repository}
    for i in "${!kept[@]}"; do
        mkdir -p "$own/kept/$i"
        mount --rbind "${kept[i]}" "$own/kept/$i"
    done
    mount --bind "$own/repository" "$REPOSITORY"
    mount --bind "$own/home" "$home"
    mount --bind "$own/tmp" /tmp
    mount --bind "$own/run" /run
    mount --bind "$own/shm" /dev/shm
    cp -r /etc/skel/. "$home"
    touch "$home/.bashrc"
    chmod 1777 /tmp /dev/shm
    for i in "${!kept[@]}"; do
        mkdir -p "${kept[i]}"
        mount --rbind "$own/kept/$i" "${kept[i]}"
    done
}

if [ "$1" = node ]; then node "$2"; else main "$@"; fi
