#!/usr/bin/env bash
# The Go kubelet as a yardstick for `make bench-go`: `go-kubelet.sh build` builds it from its module,
# `go-kubelet.sh restore` puts back what it changed on the machine, any other arguments run it, standalone, with the configuration that the bench writes and what it lacks there.
set -euo pipefail

version=v1.36.3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools=${CARGO_TARGET_DIR:-$here/target}/tools
program=$tools/go-kubelet
# What the Go kubelet sets on the machine.
sysctls=(vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops)

build() {
  mkdir -p "$tools"
  sysctl "${sysctls[@]}" > "$tools/go-kubelet.sysctls"
  [[ -x $program ]] && return
  mkdir -p "$tools/go-kubelet.build"
  cd "$tools/go-kubelet.build"
  # The module replaces its parts by directories that only a checkout has; here each is its own release.
  local module=${version/v1./v0.}
  go mod init yardstick >/dev/null 2>&1 || true
  local parts
  parts=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
  sed -n 's|^\t\(k8s.io/[a-z-]*\) => ./staging.*|\1|p' "$parts" | while read -r part; do
    go mod edit -replace "$part=$part@$module"
  done
  go mod edit -require "k8s.io/kubernetes@$version"
  printf '//go:build tools\n\npackage yardstick\n\nimport _ "k8s.io/kubernetes/cmd/kubelet"\n' > tools.go
  go mod tidy -e
  go build -trimpath -o "$program" k8s.io/kubernetes/cmd/kubelet
}

case ${1:-} in
  build) build; exit ;;
  restore) sysctl -q -p "$tools/go-kubelet.sysctls"; exit ;;
esac

# Called as the kubelet: --config FILE first.
config=$2
directory=$(dirname "$config")
if ! grep -q '^makeIPTablesUtilChains' "$config"; then
  cat >> "$config" <<'YAML'
makeIPTablesUtilChains: false
port: 10299
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupsPerQOS: false
enforceNodeAllocatable: []
maxPods: 2000
localStorageCapacityIsolation: false
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", imagefs.inodesFree: "0%"}
YAML
fi
exec "$program" "$@" --cert-dir="$directory/pki" --node-ip=127.0.0.1
