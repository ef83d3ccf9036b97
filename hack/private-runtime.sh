# shellcheck shell=bash
# What the scripts of private runtimes have in common, hack/containerd.sh and hack/crio.sh; sourced by them
# with their own arguments, never run. They set
#
#   runtime           the name of the daemon, of its log and of its socket
#
# define
#
#   choose_programs   at the start: record which programs to use
#   use_programs      put the recorded ones on PATH
#   print_config      the daemon's configuration file
#   run_daemon        replace this process by the daemon, whose arguments contain $dir/config.toml
#   before_daemon     what must be there when the daemon starts for the first time
#   after_daemon      what needs a running daemon
#   monitor_pids      the processes that hold containers while the daemon is away
#   sandbox_ids       the sandboxes that were there
#   remove_rest       what only this runtime leaves outside of DIR
#
# and then call `private_runtime`.

usage() { die "usage: $(basename "$0") start|stop|halt|resume|endpoint DIR [OWNER_PID]"; }
(($# >= 2)) || usage
command=$1
dir=$2
owner=${3:-}
[[ $dir != *[[:space:]\"\\]* ]] || die "the directory may not contain spaces or quotes: $dir"
case $command in start) mkdir -p "$dir" ;; *) [[ -d $dir ]] || exit 0 ;; esac
dir=$(cd "$dir" && pwd -P)
need_root

# Everything that lives outside of DIR is named after one number, the bridge's.
slot_file=$dir/slot
dir_sum() { printf '%s' "$dir" | cksum | cut -d' ' -f1; }
read_slot() { slot=$(cat "$slot_file" 2>/dev/null) && [[ -n $slot ]]; }
network() { printf 'kt%s' "$slot"; }
# The same number may be somebody's in another network namespace, where the rest is shared: what is found or removed by
# its name has the directory's sum too.
unique_name() { printf '%s_%s' "$(network)" "$(dir_sum)"; }
runtime_dir() { printf '/run/%s' "$(unique_name)"; }
# shellcheck disable=SC2154 # set by those that source this file
socket() { printf '%s/%s.sock' "$(runtime_dir)" "$runtime"; }

crictl() { "$crictl_path" -c /dev/null -r "unix://$(socket)" "$@"; }

# The kernel hands out the numbers: creating a link fails when the name is taken. The link's alias
# names its owner's directory, so that a leftover is recognised and taken over.
claim_slot() {
    local try alias
    for ((try = 0; try < 250; try++)); do
        slot=$((($(dir_sum) + try) % 250 + 1))
        alias=$(cat "/sys/class/net/$(network)/ifalias" 2>/dev/null || true)
        if [[ -n $alias && ! -d $alias ]]; then
            ip link delete "$(network)" 2>/dev/null || true
        fi
        [[ -z $(ip -4 route show root "10.89.$slot.0/24" 2>/dev/null) ]] || continue
        if ip link add "$(network)" type bridge 2>/dev/null; then
            ip link set "$(network)" alias "$dir"
            printf '%s\n' "$slot" >"$slot_file"
            return
        fi
    done
    die "no free bridge name and subnet left (10.89.1.0/24 to 10.89.250.0/24)"
}

cni_bin_dir() {
    local candidate
    for candidate in /usr/lib/cni /opt/cni/bin; do
        if [[ -x $candidate/bridge ]]; then
            printf '%s' "$candidate"
            return
        fi
    done
    die "CNI plugins not found (Debian package containernetworking-plugins)"
}

write_config() {
    mkdir -p "$dir"/{cni/conf,cni/ipam,root,state,runc} "$(runtime_dir)"
    cat >"$dir/cni/conf/10-kt.conflist" <<EOF
{
  "cniVersion": "0.4.0",
  "name": "$(network)",
  "plugins": [
    {
      "type": "bridge", "bridge": "$(network)", "isGateway": true, "ipMasq": false, "hairpinMode": true,
      "ipam": {
        "type": "host-local", "dataDir": "$dir/cni/ipam",
        "ranges": [[{ "subnet": "10.89.$slot.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }]
      }
    },
    { "type": "portmap", "capabilities": { "portMappings": true } }
  ]
}
EOF
    print_config >"$dir/config.toml"
}

# The daemon's pid, if the recorded process is still ours.
daemon_pid() {
    local pid
    pid=$(cat "$dir/daemon.pid" 2>/dev/null) || return 1
    [[ -n $pid ]] && grep -qzxF -- "$dir/config.toml" "/proc/$pid/cmdline" 2>/dev/null && printf '%s' "$pid"
}

launch() {
    crictl_path=$(find_crictl)
    daemon_pid >/dev/null && return
    (run_daemon) >>"$dir/$runtime.log" 2>&1 </dev/null &
    printf '%s\n' "$!" >"$dir/daemon.pid"
    if ! wait_until 120 crictl version; then
        tail -n 40 "$dir/$runtime.log" >&2
        return 1
    fi
}

kill_daemon() {
    local pid
    pid=$(daemon_pid) || return 0
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    wait_until 60 test ! -e "/proc/$pid" || failures+=("the daemon does not die")
    rm -f "$dir/daemon.pid"
}

# All descendants of the given pids, from one read of the process table.
descendants() {
    ps -e -o pid=,ppid= | awk -v roots="$*" '
        BEGIN { n = split(roots, r, " "); for (i = 1; i <= n; i++) keep[r[i]] = 1 }
        { parent[$1] = $2 }
        END { for (pid in parent) { p = pid; d = 0
                while (p > 1 && d++ < 64) { p = parent[p]; if (p in keep) { print pid; break } } } }'
}

remove_containers() {
    local monitors leftovers state id
    mapfile -t monitors < <(monitor_pids)
    leftovers=()
    ((${#monitors[@]})) && mapfile -t leftovers < <(descendants "${monitors[@]}")
    # runc knows each container's processes and cgroups.
    for state in "$dir"/runc/k8s.io/*/state.json; do
        [[ -e $state ]] || continue
        pod_cgroups "$state" >>"$dir/cgroups"
        id=$(basename "$(dirname "$state")")
        printf '%s\0' "$id"
    done | xargs -0 -r -n 1 -P 4 runc --root "$dir/runc/k8s.io" delete --force >/dev/null 2>&1 || true
    ((${#leftovers[@]})) && kill -KILL "${leftovers[@]}" 2>/dev/null
    ((${#monitors[@]})) && kill -KILL "${monitors[@]}" 2>/dev/null
    wait_until 60 no_monitors || failures+=("its monitors do not die")
    # Pod cgroups that a kubelet made above its containers, deepest first; a used one stays.
    if [[ -e $dir/cgroups ]]; then
        sort -ru "$dir/cgroups" | while read -r id; do rmdir "$id" 2>/dev/null || true; done
        rm -f "$dir/cgroups"
    fi
}
no_monitors() { [[ -z $(monitor_pids) ]]; }

# The directories /sys/fs/cgroup/*/.../pod<uid> that a container's cgroups lie in.
pod_cgroups() {
    { grep -o '"cgroup_paths":{[^}]*}' "$1" || true; } | grep -o '"/[^"]*"' | tr -d '"' | while read -r path; do
        path=$(dirname "$path")
        case $(basename "$path") in pod*) printf '%s\n' "$path" ;; esac
    done
}

unmount_all() {
    local point
    # Twice: an overlay may hide what was mounted before it.
    for _ in 1 2; do
        awk -v dir="$dir/" 'index($5, dir) == 1 { print $5 }' /proc/self/mountinfo | tac | while read -r point; do
            umount "$point" 2>/dev/null || umount -l "$point" 2>/dev/null || true
        done
    done
    ! grep -qF " $dir/" /proc/self/mountinfo || failures+=("mounts under it stay")
}

# Host-port rules carry the network's name in a comment. The shared top-level chains go as well, in
# one transaction that fails when anybody else has rules in them.
remove_iptables() {
    have iptables-save || return 0
    local mine rule chain
    mine=$(iptables-save -t nat 2>/dev/null | grep -F "name: \\\"$(network)\\\"" | grep '^-A CNI-HOSTPORT-DNAT ')
    [[ -n $mine ]] || return 0
    while read -r rule; do
        chain=$(grep -o 'CNI-DN-[0-9a-f]*' <<<"$rule" | head -n 1)
        printf '*nat\n-D %s\n-F %s\n-X %s\nCOMMIT\n' "${rule#-A }" "$chain" "$chain" | iptables-restore --noflush ||
            failures+=("the iptables chain $chain stays")
    done <<<"$mine"
    {
        printf '*nat\n'
        iptables-save -t nat | grep -E '^-A (PREROUTING|OUTPUT|POSTROUTING) .*-j CNI-HOSTPORT-(DNAT|MASQ)$' | sed 's/^-A/-D/'
        printf '%s\n' '-F CNI-HOSTPORT-SETMARK' '-F CNI-HOSTPORT-MASQ' '-X CNI-HOSTPORT-DNAT' '-X CNI-HOSTPORT-SETMARK' '-X CNI-HOSTPORT-MASQ' COMMIT
    } | iptables-restore --noflush 2>/dev/null
    return 0
}

# A kubelet given this runtime keeps its cgroups below one of this name (`cgroupRoot`), in every hierarchy.
make_cgroups() {
    local point name
    if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
        for name in $(</sys/fs/cgroup/cgroup.controllers); do
            printf '+%s\n' "$name" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
        done
        mkdir -p "/sys/fs/cgroup/$(unique_name)"
        return
    fi
    awk '{ for (i = 7; i < NF; i++) if ($i == "-" && $(i + 1) == "cgroup" && $4 == "/") print $5 }' /proc/self/mountinfo |
        while read -r point; do
            mkdir -p "$point/$(unique_name)"
            # No process can run where there are no CPUs or memory nodes.
            for name in cpuset.cpus cpuset.mems; do
                [[ ! -e $point/$name ]] || cat "$point/$name" >"$point/$(unique_name)/$name"
            done
        done
}

remove_cgroups() {
    find /sys/fs/cgroup -maxdepth 2 -type d -name "$(unique_name)" 2>/dev/null | while read -r root; do
        find "$root" -depth -type d -exec rmdir {} + 2>/dev/null
    done
    ! compgen -G "/sys/fs/cgroup/*/$(unique_name)" >/dev/null || failures+=("its cgroups stay")
}

remove_network() {
    remove_iptables
    remove_cgroups
    ip link delete "$(network)" 2>/dev/null || failures+=("its bridge stays")
    # The plugins' result cache has one place for all; ours are named after the network or a sandbox.
    local sandbox
    for sandbox in $(sandbox_ids); do
        rm -f "/var/lib/cni/results/cni-loopback-$sandbox-lo"
    done
    rm -f "/var/lib/cni/results/$(network)-"*
}

# What all of them use goes with the last one: another one may be about to make its first network or shim.
remove_shared() {
    ! compgen -G '/sys/class/net/kt[0-9]*' >/dev/null || return 0
    rmdir /var/lib/cni/results /var/lib/cni/networks /var/lib/cni 2>/dev/null
    rmdir /run/containerd/s /run/containerd 2>/dev/null
    # The bridge plugin turned forwarding on.
    if [[ $(cat "$dir/ip_forward" 2>/dev/null) == 0 ]]; then
        printf '0\n' >/proc/sys/net/ipv4/ip_forward 2>/dev/null
    fi
    return 0
}

start() {
    find_crictl >/dev/null
    if read_slot && daemon_pid >/dev/null; then
        say "$runtime already runs in $dir"
        return
    fi
    read_slot && stop
    choose_programs
    cat /proc/sys/net/ipv4/ip_forward >"$dir/ip_forward" 2>/dev/null || true
    claim_slot
    write_config
    # An interrupt from here on leaves nothing behind.
    trap stop ERR INT TERM
    make_cgroups
    before_daemon
    launch
    after_daemon
    [[ -z $owner ]] || start_guardian "$owner" "$(basename "$0")" "$dir"
    trap - ERR INT TERM
    say "$runtime listens on unix://$(socket)"
}

# Goes on whatever fails, and says at the end what could not be removed.
stop() {
    trap - ERR INT TERM
    read_slot || return 0
    use_programs
    set +e
    failures=()
    kill_daemon
    remove_containers
    unmount_all
    remove_network
    remove_rest
    remove_shared
    rm -rf "$(runtime_dir)" "$dir"/{root,state,runc,cni,opt,pod-logs,config.toml,ip_forward,binaries}
    rm -f "$slot_file"
    stop_guardian "$dir"
    set -e
    ((${#failures[@]} == 0)) || die "$runtime of $dir: ${failures[*]}"
    say "$runtime of $dir is gone"
}

private_runtime() {
    case $command in
    start) start ;;
    stop) stop ;;
    halt)
        failures=()
        read_slot && kill_daemon
        ((${#failures[@]} == 0)) || die "${failures[*]}"
        ;;
    resume)
        use_programs
        read_slot && launch
        ;;
    endpoint) read_slot && printf 'unix://%s\n' "$(socket)" ;;
    *) usage ;;
    esac
}
