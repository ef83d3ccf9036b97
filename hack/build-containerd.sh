#!/usr/bin/env bash
# Builds containerd 2 and a runc of its time for the tests: Debian has 1.6, which has no CRI events and no
# streamed lists, and a runc that knows no user namespaces. They become target/tools/containerd2/
# {containerd,containerd-shim-runc-v2,ctr,runc}; what the machine has is not touched. Does nothing when
# these versions are there.
#
#   hack/build-containerd.sh             build them if they are missing (a few minutes, once)
#   hack/build-containerd.sh --check     only say whether they are there; exit 1 if not, 2 if this machine's Go
#                                        cannot build them
#
# CONTAINERD_VERSION names another version, which becomes target/tools/containerd-VERSION, without runc.
# It needs the Go that the versions require. Where they cannot be built, the tests on them are skipped and
# say so; where CI=true they fail, unless the Go is too old. runc also needs a C compiler and libseccomp's
# headers, which hack/install-deps.sh installs; without them the machine's runc is used, and that is said as well.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version=${CONTAINERD_VERSION:-v2.4.2}
needs_go=1.26.6
module=github.com/containerd/containerd
[[ $version == v1.* ]] || module+=/v2
runc_version=v1.5.2
runc_module=github.com/opencontainers/runc
# As many compilers at once.
jobs=2
name=$(basename "$containerd_dir")

loudly() { printf '\n!!!! containerd %s is not built: %s\n!!!! the tests on it will be skipped\n\n' "$version" "$1" >&2; }

programs() {
    printf 'containerd %s' "$version"
    [[ -n ${CONTAINERD_VERSION:-} ]] || printf ', runc %s' "$runc_version"
    printf '\n'
}

is_built() { [[ -x $containerd_dir/containerd && $(cat "$containerd_dir/version" 2>/dev/null) == "$(programs)" ]]; }

# In a copy of its source, because `go install` refuses the go.mod of 1.7.
build_containerd() {
    local source
    source=$(module_dir "$module@$version")
    cp -r "$source" "$new/source"
    chmod -R u+w "$new/source"
    cd "$new/source"
    CGO_ENABLED=0 GOFLAGS=-mod=mod nice -n 10 go build -p "$jobs" -trimpath \
        -ldflags "-s -w -X $module/version.Version=$version" \
        -o "$new/" ./cmd/containerd ./cmd/containerd-shim-runc-v2 ./cmd/ctr
    rm -rf "$new/source"
}

build_runc() {
    GOBIN=$new CGO_ENABLED=1 go install -p "$jobs" -trimpath -tags seccomp -ldflags "-s -w" "$runc_module@$runc_version"
}

build() {
    local new=$containerd_dir.new log=$tools_dir/$name.log
    rm -rf "$new" "$log"
    mkdir -p "$new"
    say "building containerd $version (a few minutes, once)"
    # A Go older than the module requires fetches the right one as a module, if it may and can.
    export GOTOOLCHAIN=${GOTOOLCHAIN:-auto}
    if ! (build_containerd) </dev/null >>"$log" 2>&1; then
        rm -rf "$new"
        tail -n 20 "$log" >&2
        loudly "it needs Go $needs_go and its modules, and this is $(go version 2>&1 || true); all of the log is in $log"
        return 1
    fi
    if [[ -z ${CONTAINERD_VERSION:-} ]] && ! build_runc </dev/null >>"$log" 2>&1; then
        printf '\n!!!! runc %s is not built (%s): containerd 2 is tested with %s\n\n' "$runc_version" "$log" \
            "$(runc --version 2>&1 | head -n 1)" >&2
    fi
    programs >"$new/version"
    rm -rf "$containerd_dir"
    mv "$new" "$containerd_dir"
    say "built $("$containerd_dir/containerd" --version)"
}

is_built && exit
if ! go_can_build "$needs_go"; then
    loudly "it needs Go $needs_go, and this is $(go version 2>&1 || true)"
    exit 2
fi
if [[ ${1:-} == --check ]]; then
    die "containerd $version is not built; hack/build-containerd.sh builds it"
fi
mkdir -p "$tools_dir"
# Who comes second finds it built.
exec 9>"$tools_dir/$name.lock"
flock 9
is_built || build
