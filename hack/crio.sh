#!/usr/bin/env bash
# A private CRI-O with its own storage, state, socket, CNI network and images, as hack/containerd.sh has a
# private containerd. The commands are the same:
#
#   hack/crio.sh start DIR [OWNER_PID]  start it; stop it by itself when OWNER_PID is gone
#   hack/crio.sh stop DIR               stop it and all it started; leaves nothing but its log
#   hack/crio.sh halt DIR               kill only the daemon; its containers run on
#   hack/crio.sh resume DIR             start the daemon again after `halt`
#   hack/crio.sh endpoint DIR           print unix://... of its CRI socket
#   hack/crio.sh import DIR TAR NAME    give it the image in an OCI archive under this name
#   hack/crio.sh tag DIR NAME NEW       give an image that it has another name as well
#   hack/crio.sh push DIR NAME TARGET [USER:PASSWORD]
#                                       put an image that it has into a registry
#
# CRIO_DIR names the directory of crio and pinns (default: target/tools/crio). POD_EVENTS=true makes it send
# events of containers, which CRI-O does not do by default. IMAGES and MESSAGE_LIMIT are as for containerd.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

runtime=crio
# shellcheck source=private-runtime.sh
source "$(dirname "${BASH_SOURCE[0]}")/private-runtime.sh"

choose_programs() {
    local programs=${CRIO_DIR:-$crio_dir}
    [[ -x $programs/crio && -x $programs/pinns ]] || die "no crio and pinns in $programs; hack/build-crio.sh builds them"
    (cd "$programs" && pwd -P) >"$dir/binaries"
    use_programs
}

use_programs() { PATH=$(cat "$dir/binaries" 2>/dev/null):$PATH; }

# NRI is off because its socket has one place for all. So are host ports, whose nftables table has one name for
# all; without nft CRI-O 1.34 crashes at the first of them.
print_config() {
    cat <<END
[crio]
root = "$dir/root"
runroot = "$dir/state"
storage_driver = "overlay"
log_dir = "$dir/pod-logs"
version_file = "$dir/state/version"
clean_shutdown_file = "$dir/opt/clean.shutdown"
[crio.api]
listen = "$(socket)"
${MESSAGE_LIMIT:+grpc_max_send_msg_size = $MESSAGE_LIMIT}
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
namespaces_dir = "$dir/state/namespaces"
container_exits_dir = "$(runtime_dir)/exits"
container_attach_socket_dir = "$(runtime_dir)/attach"
enable_pod_events = ${POD_EVENTS:-false}
pinns_path = "$(type -P pinns)"
hooks_dir = []
disable_hostport_mapping = true
irqbalance_config_restore_file = "disable"
[crio.runtime.runtimes.runc]
runtime_path = "$dir/opt/runc"
runtime_root = "$dir/runc/k8s.io"
monitor_path = "$(type -P conmon)"
monitor_cgroup = "pod"
[crio.image]
pause_image = "localhost/pause:dev"
signature_policy = "$dir/opt/policy.json"
[crio.network]
network_dir = "$dir/cni/conf"
plugin_dirs = ["$(cni_bin_dir)"]
[crio.nri]
enable_nri = false
END
}

# What runc cannot do on every machine: set limits of huge pages where no hierarchy of cgroup v1 has the
# controller (CRI-O passes them on when the kernel has it), and lower oom_score_adj or hand CAP_SYS_RESOURCE on
# without having it. containerd leaves these out by itself.
impossible_edits() {
    local hugepages='"hugepageLimits":\s*\[[^]]*\]'
    if awk '$1 == "hugetlb" && $2 == 0 { found = 1 } END { exit !found }' /proc/cgroups && [[ ! -e /sys/fs/cgroup/cgroup.controllers ]]; then
        printf 's/,\s*%s//;s/%s,?//;' "$hugepages" "$hugepages"
    fi
    if ! (printf '%s\n' -1 >/proc/self/oom_score_adj) 2>/dev/null; then
        printf 's/("oomScoreAdj":\s*)-[0-9]+/\\1%s/;' "$(cat /proc/self/oom_score_adj)"
        printf 's/,\s*"CAP_SYS_RESOURCE"//g;s/"CAP_SYS_RESOURCE",?//g;'
    fi
}

# The runc that CRI-O is given: it takes what is impossible here out of what containers and their commands are
# made from.
write_runc() {
    cat >"$dir/opt/runc" <<END
#!/bin/bash
arguments=("\$@")
for ((i = 0; i < \$#; i++)); do
    case \${arguments[i]} in
    --bundle) file=\${arguments[i + 1]}/config.json ;;
    --process) file=\${arguments[i + 1]} ;;
    *) continue ;;
    esac
    sed -i -z -E '$(impossible_edits)' "\$file"
done
exec $(type -P runc) "\$@"
END
    chmod 755 "$dir/opt/runc"
}

run_daemon() { exec setsid crio --config "$dir/config.toml" --config-dir ""; }

storage() { printf 'containers-storage:[overlay@%s/root+%s/state]%s' "$dir" "$dir" "$1"; }

# skopeo keeps a cache of its own in one place for all.
copy_image() {
    mkdir -p /var/lib/containers
    # shellcheck disable=SC2016
    unshare --mount bash -c 'mount -t tmpfs tmpfs /var/lib/containers && exec "$@"' bash \
        skopeo --insecure-policy copy --quiet "$@" </dev/null
}

before_daemon() {
    local images=${IMAGES:-$images_dir} name
    mkdir -p "$dir/opt" "$(runtime_dir)"/{exits,attach}
    printf '{"default": [{"type": "insecureAcceptAnything"}]}\n' >"$dir/opt/policy.json"
    write_runc
    for name in pause busybox; do
        [[ -e $images/$name.tar ]] || die "no image $name in $images; hack/build-images.sh builds it"
        copy_image "oci-archive:$images/$name.tar" "$(storage "localhost/$name:dev")"
    done
}

network_ready() { crictl info | tr -d ' \n' | grep -q '"status":true,"type":"NetworkReady"'; }

# The network is read a moment after the socket is there, and a kubelet that came between would wait five seconds.
after_daemon() { wait_until 60 network_ready; }

# Every conmon, of a container or of an exec, is started with paths below DIR.
monitor_pids() {
    local file pid
    { grep -laF -- "$dir/" /proc/[0-9]*/cmdline 2>/dev/null || true; } | while read -r file; do
        pid=${file#/proc/}
        pid=${pid%/cmdline}
        if [[ $(cat "/proc/$pid/comm" 2>/dev/null) == conmon ]]; then
            printf '%s\n' "$pid"
        fi
    done
}

sandbox_ids() { ls "$dir/root/overlay-containers" 2>/dev/null || true; }

# Containers without a cgroup parent, and their conmons, are in one cgroup for all, those with the root as their
# parent in one each; one in use stays.
remove_rest() {
    rmdir /var/lib/containers 2>/dev/null || true
    local id
    for id in $(sandbox_ids); do
        rmdir /sys/fs/cgroup/*/{crio,crio-conmon}-"$id" 2>/dev/null || true
    done
    rmdir /sys/fs/cgroup/*/crio/crio-conmon-* /sys/fs/cgroup/*/crio 2>/dev/null || true
}

case $command in
import) copy_image "oci-archive:$3" "$(storage "$4")" ;;
tag) copy_image "$(storage "$3")" "$(storage "$4")" ;;
push)
    copy_image --dest-tls-verify=false ${5:+--dest-creds "$5"} "$(storage "$3")" "docker://$4"
    ;;
*) private_runtime ;;
esac
