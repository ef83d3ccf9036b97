#!/usr/bin/env bash
# Builds containerd 2 and a runc of its time for the tests: Debian has 1.6, which has no CRI events and no
# streamed lists, and a runc that knows no user namespaces. They become target/tools/containerd2/
# {containerd,containerd-shim-runc-v2,ctr,runc}; what the machine has is not touched. Does nothing when
# these versions are there.
#
#   hack/build-containerd2.sh            build them if they are missing (a few minutes, once)
#   hack/build-containerd2.sh --check    only say whether they are there; exit 1 if not
#
# It needs the Go that the versions ask for. Where they cannot be built, the tests on them are skipped and
# say so. runc also needs a C compiler and libseccomp's headers (Debian's libseccomp-dev); without them the
# machine's runc is used, and that is said as well.
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

# A Go older than the module asks for fetches the right one as a module, if it may and can.
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
    seccomp_headers
    if ! CGO_ENABLED=1 install -tags seccomp -ldflags "-s -w" "$runc_module@$runc_version"; then
        printf '\n!!!! runc %s is not built (%s): containerd 2 is tested with %s\n\n' "$runc_version" "$log" \
            "$(runc --version 2>&1 | head -n 1)" >&2
    fi
    programs >"$new/version"
    rm -rf "$containerd2_dir"
    mv "$new" "$containerd2_dir"
    say "built $("$containerd2_dir/containerd" --version)"
}

seccomp_headers() {
    [[ -e /usr/include/seccomp.h ]] && return
    have apt-get || return 0
    say "installing libseccomp-dev to build runc"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libseccomp-dev >&2 || true
}

is_built && exit
if [[ ${1:-} == --check ]]; then
    die "containerd $version is not built; hack/build-containerd2.sh builds it"
fi
if ! have go; then
    loudly "there is no Go on PATH; it needs $needs_go"
    exit 1
fi
mkdir -p "$tools_dir"
# Who comes second finds it built.
exec 9>"$tools_dir/containerd2.lock"
flock 9
is_built || build
