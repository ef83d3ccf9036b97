#!/usr/bin/env bash
# A private containerd with its own root, state, socket, CNI network and images. Several run beside
# one another and beside the machine's own, which is never touched.
#
#   hack/containerd.sh start DIR [OWNER_PID]  start it; stop it by itself when OWNER_PID is gone
#   hack/containerd.sh stop DIR               stop it and all it started; leaves nothing but its log
#   hack/containerd.sh halt DIR               kill only the daemon; its containers run on
#   hack/containerd.sh resume DIR             start the daemon again after `halt`
#   hack/containerd.sh endpoint DIR           print unix://... of its CRI socket
#
# DIR may not contain spaces. What else mounts below it is unmounted by `stop`, so a kubelet that uses
# this containerd may keep its directories there, in subdirectories of other names than those below.
# IMAGES names the directory of image tars (default: target/images). CONTAINERD_DIR names a directory
# with another containerd, its shim and ctr, 1.6 or newer (default: those on PATH). MESSAGE_LIMIT is
# the largest reply in bytes that it sends. `start` reads all of them.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

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
read_slot() { slot=$(cat "$slot_file" 2>/dev/null) && [[ -n $slot ]]; }
network() { printf 'kt%s' "$slot"; }
runtime_dir() { printf '/run/kt%s' "$slot"; }
socket() { printf '%s/containerd.sock' "$(runtime_dir)"; }

# What was given at the start goes before the machine's own: shim and daemon belong together.
use_binaries() {
    local binaries
    if binaries=$(cat "$dir/binaries" 2>/dev/null); then
        PATH=$binaries:$PATH
    fi
}

crictl() { "$crictl_path" -c /dev/null -r "unix://$(socket)" "$@"; }

# The kernel hands out the numbers: creating a link fails when the name is taken. The link's alias
# names its owner's directory, so that a leftover is recognised and taken over.
claim_slot() {
    local try alias
    for ((try = 0; try < 250; try++)); do
        slot=$((($(printf '%s' "$dir" | cksum | cut -d' ' -f1) + try) % 250 + 1))
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
    case $(containerd --version) in
    *" 1."* | *" v1."*) config_of_1 ;;
    *) config_of_2 ;;
    esac >"$dir/config.toml"
}

config_of_1() {
    cat <<EOF
version = 2
root = "$dir/root"
state = "$dir/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]
$(config_of_grpc)
[plugins."io.containerd.internal.v1.opt"]
  path = "$dir/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:dev"
  netns_mounts_under_state_dir = true
  # Where CAP_SYS_RESOURCE is missing, lowering oom_score_adj fails the container otherwise.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$(cni_bin_dir)"
    conf_dir = "$dir/cni/conf"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "$dir/runc"
EOF
}

config_of_grpc() {
    printf '[grpc]\n  address = "%s"\n' "$(socket)"
    if [[ -n ${MESSAGE_LIMIT:-} ]]; then
        printf '  max_send_message_size = %s\n' "$MESSAGE_LIMIT"
    fi
}

# NRI is off because its socket has one place for all.
config_of_2() {
    cat <<EOF
version = 3
root = "$dir/root"
state = "$dir/state"
disabled_plugins = [
  "io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.differ.v1.erofs",
]
$(config_of_grpc)
[plugins."io.containerd.internal.v1.opt"]
  path = "$dir/opt"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "localhost/pause:dev"
[plugins."io.containerd.cri.v1.runtime"]
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["$(cni_bin_dir)"]
    conf_dir = "$dir/cni/conf"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        Root = "$dir/runc"
EOF
}

# The daemon's pid, if the recorded process is still ours.
daemon_pid() {
    local pid
    pid=$(cat "$dir/containerd.pid" 2>/dev/null) || return 1
    [[ -n $pid ]] && grep -qzxF -- "$dir/config.toml" "/proc/$pid/cmdline" 2>/dev/null && printf '%s' "$pid"
}

launch() {
    crictl_path=$(find_crictl)
    daemon_pid >/dev/null && return
    setsid containerd --config "$dir/config.toml" >>"$dir/containerd.log" 2>&1 </dev/null &
    printf '%s\n' "$!" >"$dir/containerd.pid"
    if ! wait_until 120 crictl version; then
        tail -n 40 "$dir/containerd.log" >&2
        return 1
    fi
}

image_known() { crictl inspecti -q "$1"; }

import_images() {
    local images=${IMAGES:-$images_dir} tar
    for tar in "$images"/*.tar; do
        [[ -e $tar ]] || die "no images in $images; hack/build-images.sh builds them"
        ctr -a "$(socket)" -n k8s.io images import "$tar" >/dev/null
    done
    # The CRI plugin learns of an import through an event.
    wait_until 60 image_known localhost/pause:dev
    wait_until 60 image_known localhost/busybox:dev
}

kill_daemon() {
    local pid
    pid=$(daemon_pid) || return 0
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    wait_until 60 test ! -e "/proc/$pid" || failures+=("the daemon does not die")
    rm -f "$dir/containerd.pid"
}

shim_pids() {
    local file pid
    { grep -lzxF -- "$(socket)" /proc/[0-9]*/cmdline 2>/dev/null || true; } | while read -r file; do
        pid=${file#/proc/}
        pid=${pid%/cmdline}
        if [[ $(cat "/proc/$pid/comm" 2>/dev/null) == containerd-shim* ]]; then
            printf '%s\n' "$pid"
        fi
    done
}

# All descendants of the given pids, from one look at the process table.
descendants() {
    ps -e -o pid=,ppid= | awk -v roots="$*" '
        BEGIN { n = split(roots, r, " "); for (i = 1; i <= n; i++) keep[r[i]] = 1 }
        { parent[$1] = $2 }
        END { for (pid in parent) { p = pid; d = 0
                while (p > 1 && d++ < 64) { p = parent[p]; if (p in keep) { print pid; break } } } }'
}

remove_containers() {
    local shims leftovers state id
    mapfile -t shims < <(shim_pids)
    leftovers=()
    ((${#shims[@]})) && mapfile -t leftovers < <(descendants "${shims[@]}")
    # runc knows each container's processes and cgroups.
    for state in "$dir"/runc/k8s.io/*/state.json; do
        [[ -e $state ]] || continue
        pod_cgroups "$state" >>"$dir/cgroups"
        id=$(basename "$(dirname "$state")")
        printf '%s\0' "$id"
    done | xargs -0 -r -n 1 -P 4 runc --root "$dir/runc/k8s.io" delete --force >/dev/null 2>&1 || true
    ((${#leftovers[@]})) && kill -KILL "${leftovers[@]}" 2>/dev/null
    ((${#shims[@]})) && kill -KILL "${shims[@]}" 2>/dev/null
    wait_until 60 no_shims || failures+=("its shims do not die")
    # Pod cgroups that a kubelet made above its containers, deepest first; a used one stays.
    if [[ -e $dir/cgroups ]]; then
        sort -ru "$dir/cgroups" | while read -r id; do rmdir "$id" 2>/dev/null || true; done
        rm -f "$dir/cgroups"
    fi
}
no_shims() { [[ -z $(shim_pids) ]]; }

# The directories /sys/fs/cgroup/*/.../pod<uid> that a container's cgroups lie in.
pod_cgroups() {
    { grep -o '"cgroup_paths":{[^}]*}' "$1" || true; } | grep -o '"/[^"]*"' | tr -d '"' | while read -r path; do
        path=$(dirname "$path")
        case $(basename "$path") in pod*) printf '%s\n' "$path" ;; esac
    done
}

# A shim of 1.6 leaves its address, one of 2 all that it was started with.
shim_sockets() { cat "$dir"/state/io.containerd.runtime.v2.task/*/*/{address,bootstrap.json} 2>/dev/null | grep -o '/run/containerd/s/[0-9a-f]*' || true; }

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

# A kubelet given this containerd keeps its cgroups below one of this name (`cgroupRoot`).
remove_cgroups() {
    find /sys/fs/cgroup -maxdepth 2 -type d -name "$(network)" 2>/dev/null | while read -r root; do
        find "$root" -depth -type d -exec rmdir {} + 2>/dev/null
    done
}

remove_network() {
    remove_iptables
    remove_cgroups
    ip link delete "$(network)" 2>/dev/null || failures+=("its bridge stays")
    # The plugins' result cache has one place for all; ours are named after the network or a sandbox.
    local sandbox
    for sandbox in "$dir"/state/io.containerd.grpc.v1.cri/sandboxes/* "$dir"/root/io.containerd.grpc.v1.cri/sandboxes/*; do
        rm -f "/var/lib/cni/results/cni-loopback-$(basename "$sandbox")-lo"
    done
    rm -f "/var/lib/cni/results/$(network)-"*
}

# What all of them use goes with the last one: another one may be about to make its first shim or network.
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
        say "containerd already runs in $dir"
        return
    fi
    read_slot && stop
    if [[ -n ${CONTAINERD_DIR:-} ]]; then
        [[ -x $CONTAINERD_DIR/containerd ]] || die "no containerd in $CONTAINERD_DIR"
        (cd "$CONTAINERD_DIR" && pwd -P) >"$dir/binaries"
        use_binaries
    fi
    cat /proc/sys/net/ipv4/ip_forward >"$dir/ip_forward" 2>/dev/null || true
    claim_slot
    write_config
    # Whoever interrupts from here on finds nothing left.
    trap stop ERR INT TERM
    launch
    import_images
    [[ -z $owner ]] || start_guardian "$owner" containerd.sh "$dir"
    trap - ERR INT TERM
    say "containerd listens on unix://$(socket)"
}

# Goes on whatever fails, and says at the end what could not be removed.
stop() {
    trap - ERR INT TERM
    read_slot || return 0
    use_binaries
    set +e
    failures=()
    kill_daemon
    local sockets
    mapfile -t sockets < <(shim_sockets)
    remove_containers
    ((${#sockets[@]})) && rm -f "${sockets[@]}"
    unmount_all
    remove_network
    remove_shared
    rm -rf "$(runtime_dir)" "$dir"/{root,state,runc,cni,opt,config.toml,ip_forward,binaries}
    rm -f "$slot_file"
    stop_guardian "$dir"
    set -e
    ((${#failures[@]} == 0)) || die "containerd of $dir: ${failures[*]}"
    say "containerd of $dir is gone"
}

case $command in
start) start ;;
stop) stop ;;
halt)
    failures=()
    read_slot && kill_daemon
    ((${#failures[@]} == 0)) || die "${failures[*]}"
    ;;
resume)
    use_binaries
    read_slot && launch
    ;;
endpoint) read_slot && printf 'unix://%s\n' "$(socket)" ;;
*) usage ;;
esac
