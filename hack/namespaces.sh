#!/usr/bin/env bash
# A machine of its own within this one, for a control plane and a node: private mount, network, process, IPC, host
# name and cgroup namespaces. Several run beside one another with the same ports, paths and addresses.
#
#   hack/namespaces.sh start DIR [OWNER_PID [NEIGHBOUR_DIR]]
#                                              make it; it stops by itself when OWNER_PID is gone
#   hack/namespaces.sh exec DIR COMMAND...     run COMMAND inside, in /; COMMAND is killed when this script is
#   hack/namespaces.sh stop DIR                kill all inside, and remove DIR/private; the rest of DIR stays
#
# Private inside: all of /run, /etc, /var/lib and /var/log (what is there outside can be read, but for /run), /sys
# with the cgroups below one of its own, and the kernel settings that a kubelet writes: inside they are plain
# files, so the machine's never change. The node's name is node1 and its address 10.88.0.1; nothing
# outside can be reached, and name service refuses at once. Everything else is the machine's. With a neighbour it is
# node2, 10.88.0.2, on the network of that one.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() { die "usage: $(basename "$0") start|exec|stop DIR ..."; }
(($# >= 2)) || usage
command=$1
dir=$2
shift 2
[[ $dir != *[[:space:],:\"\\]* ]] || die "the directory may not contain spaces, commas, colons or quotes: $dir"
case $command in start) mkdir -p "$dir" ;; *) [[ -d $dir ]] || exit 0 ;; esac
dir=$(cd "$dir" && pwd -P)
need_root

# 1, or 2 for the one with a neighbour.
number=${NODE_NUMBER:-1}
node_address=10.88.0.$number
private=$dir/private
# "mount point, type, options" of each cgroup hierarchy of the machine.
hierarchies=$private/hierarchies
# The name of its cgroup in each hierarchy.
cgroup=kcluster$(printf '%s' "$dir" | cksum | cut -d' ' -f1)
# What kubelets set on a machine as a whole.
sysctls=(vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys
    kernel/keys/root_maxbytes)

# -- cgroups ---------------------------------------------------------------------------------------------------

find_hierarchies() {
    awk '$3 == "cgroup2" { print $2, $3, "-" }
        $3 == "cgroup" {
            n = split($4, words, ","); kept = ""
            for (i = 1; i <= n; i++)
                if (words[i] !~ /^(rw|ro|relatime|noatime|nosuid|nodev|noexec|xattr|clone_children|seclabel)$/)
                    kept = kept (kept == "" ? "" : ",") words[i]
            print $2, $3, kept
        }' /proc/mounts
}

# Processes live in its child `system`: in cgroup v2 only a cgroup without processes hands on controllers.
make_cgroups() {
    local point kind what
    while read -r point kind _; do
        mkdir -p "$point/$cgroup"
        for what in cpuset.cpus cpuset.mems; do
            [[ $kind == cgroup && -e $point/$what ]] && cat "$point/$what" >"$point/$cgroup/$what"
        done
        [[ ! -e $point/$cgroup/cgroup.clone_children ]] || echo 1 >"$point/$cgroup/cgroup.clone_children"
        mkdir -p "$point/$cgroup/system"
    done <"$hierarchies"
}

# join_cgroups PID [CHILD]
join_cgroups() {
    local point
    while read -r point _; do printf '%s\n' "$1" >"$point/$cgroup${2:+/$2}/cgroup.procs"; done <"$hierarchies"
}

no_cgroups() {
    local point left=0
    while read -r point _; do
        [[ -d $point/$cgroup ]] || continue
        find "$point/$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || true
        [[ ! -d $point/$cgroup ]] || left=1
    done < <(find_hierarchies)
    return "$left"
}

# -- inside ----------------------------------------------------------------------------------------------------

# What is written below the three directories goes to a private one; what a kubelet measures, or mounts at, lies
# on the file system itself.
private_directories() {
    local path name
    mount -t tmpfs -o mode=755 tmpfs /run
    for path in /etc /var/lib /var/log; do
        name=$(basename "$path")
        mkdir -p "$private/$name" "$private/$name.work"
        mount -t overlay -o "lowerdir=$path,upperdir=$private/$name,workdir=$private/$name.work" overlay "$path"
    done
    for name in lib/kubelet log/pods log/containers; do
        mkdir -p "$private/node/$name" "/var/$name"
        mount --bind "$private/node/$name" "/var/$name"
    done
}

private_sys() {
    local point kind options
    mount -t sysfs sysfs /sys
    if [[ $(awk '{ print $1 }' "$hierarchies") != /sys/fs/cgroup ]]; then
        mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
    fi
    while read -r point kind options; do
        mkdir -p "$point"
        case $options in
        -) mount -t "$kind" cgroup "$point" ;;
        name=*) mount -t "$kind" -o "none,$options" cgroup "$point" ;;
        *) mount -t "$kind" -o "$options" cgroup "$point" ;;
        esac
    done <"$hierarchies"
}

private_sysctls() {
    local name
    for name in "${sysctls[@]}"; do
        [[ -e /proc/sys/$name ]] || continue
        mkdir -p "$private/sys/$(dirname "$name")"
        cat "/proc/sys/$name" >"$private/sys/$name"
        mount --bind "$private/sys/$name" "/proc/sys/$name"
    done
    # A user namespace gets a /proc only where there is one that nothing is mounted on.
    mkdir /run/proc
    mount -t proc proc /run/proc
}

# private_file PATH: PATH shows the standard input.
private_file() {
    local path copy
    path=$(readlink -m "$1")
    copy=$private/$(basename "$1")
    cat >"$copy"
    # It may be a link into /run, which is empty by now.
    if [[ $path == /run/* ]]; then
        mkdir -p "$(dirname "$path")"
        touch "$path"
    fi
    [[ ! -e $path ]] || mount --bind "$copy" "$path"
}

init() {
    mount --make-rshared /
    private_directories
    private_sys
    private_sysctls
    hostname "node$number"
    printf '127.0.0.1 localhost\n10.88.0.1 node1\n10.88.0.2 node2\n' | private_file /etc/hosts
    printf 'nameserver %s\noptions timeout:1 attempts:1\n' "$node_address" | private_file /etc/resolv.conf
    tr -d - </proc/sys/kernel/random/uuid | private_file /etc/machine-id
    ip link set lo up
    ip link add node0 type bridge
    ip address add "$node_address/24" dev node0
    ip link set node0 up
    : >"$private/ready"
    # The first process of the namespace takes in orphans, and all others end with it.
    trap : TERM INT
    while :; do
        sleep infinity &
        wait $! || true
    done
}

# -- outside ---------------------------------------------------------------------------------------------------

# init_pid [DIR]: the first process of the namespace, if the recorded one is still ours.
init_pid() {
    local pid of=${1:-$dir}
    pid=$(cat "$of/private/init.pid" 2>/dev/null) || return 1
    [[ -n $pid ]] && grep -qzxF -- "$of" "/proc/$pid/cmdline" 2>/dev/null && printf '%s\n' "$pid"
}

record_init() {
    local pid
    pid=$(ps -o pid= --ppid "$1" | tr -d ' ')
    [[ -n $pid && -e $private/ready ]] && printf '%s\n' "$pid" >"$private/init.pid"
}

# join_network DIR: puts the bridge of this machine and that of another one on one network.
join_network() {
    local other
    other=$(init_pid "$(cd "$1" && pwd -P)") || die "nothing runs in $1"
    nsenter --target "$other" --net ip link add to-node2 type veth peer name to-node1 netns "$(init_pid)"
    nsenter --target "$other" --net ip link set to-node2 master node0 up
    nsenter --target "$(init_pid)" --net ip link set to-node1 master node0 up
}

start() {
    ! init_pid >/dev/null || die "$dir is in use"
    [[ -z ${2:-} ]] || export NODE_NUMBER=2
    case $dir/ in /run/* | /var/lib/* | /var/log/*) die "the directory may not be below /run, /var/lib or /var/log: $dir" ;; esac
    [[ -z ${1:-} ]] || start_guardian "$1" namespaces.sh "$dir"
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap stop EXIT
    rm -rf "$private"
    mkdir -p "$private"
    find_hierarchies >"$hierarchies"
    no_cgroups || true
    make_cgroups
    (
        join_cgroups "$BASHPID"
        exec setsid unshare --mount --net --pid --ipc --uts --cgroup --fork --kill-child=KILL --mount-proc \
            --propagation private "$repo_root/hack/namespaces.sh" init "$dir"
    ) >"$dir/namespaces.log" 2>&1 </dev/null 9>&- &
    if ! wait_until 30 record_init "$!"; then
        cat "$dir/namespaces.log" >&2
        die "the namespaces of $dir were not made"
    fi
    join_cgroups "$!" system
    join_cgroups "$(init_pid)" system
    [[ -z ${2:-} ]] || join_network "$2"
    trap - EXIT INT TERM
}

run_inside() {
    local pid
    pid=$(init_pid) || die "nothing runs in $dir"
    join_cgroups "$$" system
    exec nsenter --target "$pid" --mount --net --pid --ipc --uts --cgroup -- setpriv --pdeathsig KILL -- "$@"
}

# Goes on whatever fails, and says at the end what could not be removed.
stop() {
    trap - EXIT INT TERM
    set +e
    local failures=()
    wait_until 60 nothing_runs || failures+=("its processes do not die")
    wait_until 60 no_cgroups || failures+=("its cgroups stay")
    rm -rf "$private" || failures+=("its directory stays")
    stop_guardian "$dir"
    set -e
    ((${#failures[@]} == 0)) || die "namespaces of $dir: ${failures[*]}"
}

# All that runs inside is in its cgroups, also what an interrupted start left.
nothing_runs() {
    local point pids
    mapfile -t pids < <(find_hierarchies | while read -r point _; do
        [[ ! -d $point/$cgroup ]] || find "$point/$cgroup" -name cgroup.procs -exec cat {} + 2>/dev/null
    done)
    ((${#pids[@]})) || return 0
    kill -KILL "${pids[@]}" 2>/dev/null
    return 1
}

case $command in
start) start "$@" ;;
exec) run_inside "$@" ;;
stop) stop ;;
init) init ;;
*) usage ;;
esac
