# shellcheck shell=bash
# Shared by the scripts beside it; sourced, never run.

repo_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Where cargo builds, and with it everything else that is built rather than written.
target_dir=${CARGO_TARGET_DIR:-$repo_root/target}
[[ $target_dir == /* ]] || target_dir=$PWD/$target_dir
tools_dir=$target_dir/tools
# shellcheck disable=SC2034 # the scripts that source this use it
images_dir=$target_dir/images
# CONTAINERD_VERSION: another version than the containerd 2 that is pinned.
# shellcheck disable=SC2034
containerd_dir=$tools_dir/containerd${CONTAINERD_VERSION:+-$CONTAINERD_VERSION}
[[ -n ${CONTAINERD_VERSION:-} ]] || containerd_dir+=2
# shellcheck disable=SC2034
crio_dir=$tools_dir/crio
# KUBERNETES_VERSION: another version of the control plane than the one that is pinned.
# shellcheck disable=SC2034
kubernetes_dir=$tools_dir/kubernetes${KUBERNETES_VERSION:+-$KUBERNETES_VERSION}

say() { printf '==> %s\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# module_dir MODULE@VERSION: downloads a Go module and prints the directory of its source.
module_dir() {
    (cd / && GOFLAGS='' GO111MODULE=on go mod download -json "$1") | tee /dev/stderr | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",$/\1/p' | grep .
}

# go_can_build VERSION: whether the Go on PATH builds what requires Go VERSION. One from 1.21 on fetches a
# newer one as a module, if it may.
go_can_build() {
    have go || return 1
    local own minor
    own=$(go env GOVERSION)
    own=${own#go}
    [[ $(printf '%s\n' "$1" "$own" | sort -V | head -n 1) != "$1" ]] || return 0
    minor=${own#1.}
    minor=${minor%%.*}
    [[ ${GOTOOLCHAIN:-auto} != local ]] && ((minor >= 21))
}

need_root() {
    [[ $(id -u) == 0 ]] || die "$(basename "$0") needs root: containers, mounts and network namespaces do"
}

# The crictl to use: one on PATH as it is, else the one that install-deps.sh built.
find_crictl() {
    if type -P crictl >/dev/null; then
        type -P crictl
    elif [[ -x $tools_dir/crictl ]]; then
        printf '%s\n' "$tools_dir/crictl"
    else
        die "crictl not found; hack/install-deps.sh builds it"
    fi
}

# The names of the libraries that a program is linked to, also one for another machine. Without one it is static.
needed_libraries() { readelf -dW "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

# wait_until SECONDS COMMAND...: runs COMMAND until it succeeds, at most so long.
wait_until() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || return 1
        sleep 0.05
    done
}

# Prints a Go that builds modules for Go $1. One from 1.21 on fetches what a module requires by itself, if it
# may and can; an older one, as Debian 12 has, fetches it here as the module that it is.
go_for() {
    local minor fetched
    minor=$(go env GOVERSION | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
    if ((${minor:-0} >= 21)); then
        type -P go
        return
    fi
    fetched=$(cd / && GOFLAGS='' GO111MODULE=on go mod download -json "golang.org/toolchain@v0.0.1-go$1.linux-$(go env GOARCH)" |
        sed -n 's/^[[:space:]]*"Dir": "\(.*\)",$/\1/p')
    [[ -n $fetched ]] || return 1
    # Modules have no executable files.
    find "$fetched/bin" "$fetched/pkg/tool" -type f -exec chmod 755 {} +
    printf '%s\n' "$fetched/bin/go"
}

# start_guardian OWNER_PID SCRIPT DIR: once that process is gone, runs `SCRIPT stop DIR`.
start_guardian() {
    # shellcheck disable=SC2016
    setsid bash -c 'tail --pid="$1" -f /dev/null; "$2" stop "$3"' guardian "$1" "$repo_root/hack/$2" "$3" \
        >/dev/null 2>&1 </dev/null &
    printf '%s\n' "$!" >"$3/guardian.pid"
}

stop_guardian() {
    local pid
    pid=$(cat "$1/guardian.pid" 2>/dev/null) || return 0
    rm -f "$1/guardian.pid"
    # The guardian itself may be the one that stops.
    if [[ $PPID != "$pid" ]] && grep -qzxF guardian "/proc/$pid/cmdline" 2>/dev/null; then
        kill -TERM -- "-$pid" 2>/dev/null
    fi
}

# The API of metrics-server, served by its Service.
metrics_api_service() {
    cat <<'END'
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: metrics-server, namespace: kube-system}
END
}
