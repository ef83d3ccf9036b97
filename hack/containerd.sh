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
# the largest reply in bytes that it sends. REGISTRIES names a directory of hosts.toml files, one directory per
# registry. HANDLER names one more runtime handler beside runc. CGROUP_DRIVER=systemd makes it use that driver.
# CDI_DIR names the directory of CDI specifications (default: DIR/cdi; without effect before 2.0).
# `start` reads all of them.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

runtime=containerd
# shellcheck source=private-runtime.sh
source "$(dirname "${BASH_SOURCE[0]}")/private-runtime.sh"

choose_programs() {
    [[ -n ${CONTAINERD_DIR:-} ]] || return 0
    [[ -x $CONTAINERD_DIR/containerd ]] || die "no containerd in $CONTAINERD_DIR"
    (cd "$CONTAINERD_DIR" && pwd -P) >"$dir/binaries"
    use_programs
}

# What was given at the start goes before the machine's own: shim and daemon belong together.
use_programs() {
    local binaries
    if binaries=$(cat "$dir/binaries" 2>/dev/null); then
        PATH=$binaries:$PATH
    fi
}

print_config() {
    case $(containerd --version) in
    *" 1."* | *" v1."*) config_of_1 ;;
    *) config_of_2 ;;
    esac
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
$(config_of_handlers io.containerd.grpc.v1.cri)
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "${REGISTRIES:-}"
EOF
}

config_of_grpc() {
    printf '[grpc]\n  address = "%s"\n' "$(socket)"
    if [[ -n ${MESSAGE_LIMIT:-} ]]; then
        printf '  max_send_message_size = %s\n' "$MESSAGE_LIMIT"
    fi
}

# config_of_handlers PLUGIN
config_of_handlers() {
    local handler
    for handler in runc ${HANDLER:-}; do
        printf '    [plugins."%s".containerd.runtimes.%s]\n      runtime_type = "io.containerd.runc.v2"\n' "$1" "$handler"
        printf '      [plugins."%s".containerd.runtimes.%s.options]\n        Root = "%s/runc"\n' "$1" "$handler" "$dir"
        [[ ${CGROUP_DRIVER:-} != systemd ]] || printf '        SystemdCgroup = true\n'
    done
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
  cdi_spec_dirs = ["${CDI_DIR:-$dir/cdi}"]
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["$(cni_bin_dir)"]
    conf_dir = "$dir/cni/conf"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
$(config_of_handlers io.containerd.cri.v1.runtime)
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "${REGISTRIES:-}"
EOF
}

run_daemon() { exec setsid containerd --config "$dir/config.toml"; }

before_daemon() { :; }

image_known() { crictl inspecti -q "$1"; }

after_daemon() {
    local images=${IMAGES:-$images_dir} tar
    for tar in "$images"/*.tar; do
        [[ -e $tar ]] || die "no images in $images; hack/build-images.sh builds them"
        ctr -a "$(socket)" -n k8s.io images import "$tar" >/dev/null
    done
    # The CRI plugin learns of an import through an event.
    wait_until 60 image_known localhost/pause:dev
    wait_until 60 image_known localhost/busybox:dev
}

monitor_pids() {
    local file pid
    { grep -lzxF -- "$(socket)" /proc/[0-9]*/cmdline 2>/dev/null || true; } | while read -r file; do
        pid=${file#/proc/}
        pid=${pid%/cmdline}
        if [[ $(cat "/proc/$pid/comm" 2>/dev/null) == containerd-shim* ]]; then
            printf '%s\n' "$pid"
        fi
    done
}

sandbox_ids() {
    local sandbox
    for sandbox in "$dir"/{state,root}/io.containerd.grpc.v1.cri/sandboxes/*; do
        basename "$sandbox"
    done
}

# The sockets of its shims: one of 1.6 leaves its address, one of 2 all that it was started with.
remove_rest() {
    cat "$dir"/state/io.containerd.runtime.v2.task/*/*/{address,bootstrap.json} 2>/dev/null |
        { grep -o '/run/containerd/s/[0-9a-f]*' || true; } | xargs -r rm -f
}

private_runtime
