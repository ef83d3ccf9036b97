#!/usr/bin/env bash
# Builds containerd 2 and a runc of its time for the tests: Debian has 1.6, which has no CRI events and no
# streamed lists, and a runc that knows no user namespaces. They become target/tools/containerd2/
# {containerd,containerd-shim-runc-v2,ctr,runc}; what the machine has is not touched. Does nothing when
# these versions are there.
#
#   hack/build-containerd2.sh            build them if they are missing (a few minutes, once)
#   hack/build-containerd2.sh --check    only say whether they are there; exit 1 if not, 2 if this machine's Go
#                                        cannot build them
#
# It needs the Go that the versions require. Where they cannot be built, the tests on them are skipped and
# say so; where CI=true they fail, unless the Go is too old. runc also needs a C compiler and libseccomp's
# headers, which hack/install-deps.sh installs; without them the machine's runc is used, and that is said as well.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version=v2.4.2
needs_go=1.26.6
module=github.com/containerd/containerd/v2
runc_version=v1.5.2
runc_module=github.com/opencontainers/runc
# As many compilers at once.
jobs=2

loudly() { printf '\n!!!! containerd %s is not built: %s\n!!!! the tests on it will be skipped\n\n' "$version" "$1" >&2; }

programs() { printf '%s\n' "containerd $version, runc $runc_version"; }

is_built() { [[ -x $containerd2_dir/containerd && $(cat "$containerd2_dir/version" 2>/dev/null) == "$(programs)" ]]; }

# A Go older than the module requires fetches the right one as a module, if it may and can.
install() { GOBIN=$new GOTOOLCHAIN=${GOTOOLCHAIN:-auto} go install -p "$jobs" -trimpath "$@" </dev/null >>"$log" 2>&1; }

build() {
    local new=$containerd2_dir.new log=$tools_dir/containerd2.log
    rm -rf "$new" "$log"
    mkdir -p "$new"
    say "building containerd $version (a few minutes, once)"
    if ! CGO_ENABLED=0 install -ldflags "-s -w -X $module/version.Version=$version" \
        "$module/cmd/containerd@$version" "$module/cmd/containerd-shim-runc-v2@$version" "$module/cmd/ctr@$version"; then
        rm -rf "$new"
        tail -n 20 "$log" >&2
        loudly "it needs Go $needs_go and its modules, and this is $(go version 2>&1 || true); all of the log is in $log"
        return 1
    fi
    if ! CGO_ENABLED=1 install -tags seccomp -ldflags "-s -w" "$runc_module@$runc_version"; then
        printf '\n!!!! runc %s is not built (%s): containerd 2 is tested with %s\n\n' "$runc_version" "$log" \
            "$(runc --version 2>&1 | head -n 1)" >&2
    fi
    programs >"$new/version"
    rm -rf "$containerd2_dir"
    mv "$new" "$containerd2_dir"
    say "built $("$containerd2_dir/containerd" --version)"
}

is_built && exit
if ! go_can_build "$needs_go"; then
    loudly "it needs Go $needs_go, and this is $(go version 2>&1 || true)"
    exit 2
fi
if [[ ${1:-} == --check ]]; then
    die "containerd $version is not built; hack/build-containerd2.sh builds it"
fi
mkdir -p "$tools_dir"
# Who comes second finds it built.
exec 9>"$tools_dir/containerd2.lock"
flock 9
is_built || build
