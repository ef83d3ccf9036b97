#!/usr/bin/env bash
# The Go kubelet as a yardstick for `make bench-go`: `go-kubelet.sh build` builds it, `go-kubelet.sh restore` puts
# back what it changed on the machine, any other arguments run it, standalone, with the configuration that the bench
# writes and what it lacks there.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# What the Go kubelet sets on the machine.
sysctls=(vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops)

build() {
    mkdir -p "$tools_dir"
    sysctl "${sysctls[@]}" >"$tools_dir/go-kubelet.sysctls"
    "$repo_root/hack/build-kubernetes.sh" --kubelet
}

case ${1:-} in
build)
    build
    exit
    ;;
restore)
    sysctl -q -p "$tools_dir/go-kubelet.sysctls"
    exit
    ;;
esac

# Called as the kubelet: --config FILE first.
config=$2
directory=$(dirname "$config")
if ! grep -q '^makeIPTablesUtilChains' "$config"; then
    cat >>"$config" <<'YAML'
makeIPTablesUtilChains: false
port: 10299
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
maxPods: 2000
localStorageCapacityIsolation: false
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", imagefs.inodesFree: "0%"}
YAML
    # Where the bench gives it no cgroup of its own.
    grep -q '^cgroup\(Root\|sPerQOS\):' "$config" || printf 'cgroupsPerQOS: false\nenforceNodeAllocatable: []\n' >>"$config"
fi
exec "$kubernetes_dir/kubelet" "$@" --cert-dir="$directory/pki" --node-ip=127.0.0.1
