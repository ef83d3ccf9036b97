#!/usr/bin/env bash
# Installs what the demo, the containerd tests and the benchmarks need on a Debian machine.
# Does nothing, and asks no package server, when everything is there.
#
#   hack/install-deps.sh            install what is missing
#   hack/install-deps.sh --check    only say what is missing; exit 1 if anything is
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

check_only=false
[[ ${1:-} == --check ]] && check_only=true

# package : a file or command that proves that it is there
missing_packages() {
    have containerd && have ctr || echo containerd
    have runc || echo runc
    [[ -x /usr/lib/cni/bridge || -x /opt/cni/bin/bridge ]] || echo containernetworking-plugins
    # Any busybox would do for the shell; the image needs a static one.
    [[ -x /usr/bin/busybox || -x /bin/busybox ]] || echo busybox-static
    have docker-registry || echo docker-registry
    have iptables || echo iptables
    have ip || echo iproute2
    have gcc || echo gcc
    have make || echo make
    [[ -e /usr/include/stdio.h ]] || echo libc6-dev
}

install_packages() {
    local packages
    mapfile -t packages < <(missing_packages)
    ((${#packages[@]})) || return 0
    $check_only && die "missing packages: ${packages[*]}"
    have apt-get || die "missing: ${packages[*]}; this script installs them with apt-get only"
    need_root
    say "installing ${packages[*]}"
    # A freshly installed containerd would start the machine's own daemon, which nobody asked for.
    local policy=/usr/sbin/policy-rc.d made_policy=false
    if [[ ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        made_policy=true
    fi
    local ok=true
    {
        apt-get update -qq &&
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
    } >&2 || ok=false
    $made_policy && rm -f "$policy"
    $ok || die "apt-get could not install ${packages[*]}"
}

install_crictl() {
    have crictl && return 0
    [[ -x $tools_dir/crictl ]] && return 0
    $check_only && die "missing: crictl"
    if ! have go; then
        have apt-get || die "no crictl and no Go to build it with: put either on PATH"
        say "installing golang to build crictl"
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends golang-go ca-certificates >&2
    fi
    local version
    version=$(awk '$1 == "require" && $2 == "sigs.k8s.io/cri-tools" { print $3 }' "$repo_root/hack/tools/go.mod")
    say "building crictl $version (a minute or two, once)"
    mkdir -p "$tools_dir"
    # A Go older than go.mod asks for fetches the right one as a module, if it may and can.
    (
        cd "$repo_root/hack/tools"
        GOTOOLCHAIN=${GOTOOLCHAIN:-auto} GOFLAGS=-mod=readonly go build -trimpath \
            -ldflags "-s -w -X sigs.k8s.io/cri-tools/pkg/version.Version=$version" \
            -o "$tools_dir/crictl.new" sigs.k8s.io/cri-tools/cmd/crictl
    ) || die "crictl could not be built with $(go version 2>/dev/null || echo 'this Go'); install the Go that hack/tools/go.mod names, or put a crictl on PATH"
    mv "$tools_dir/crictl.new" "$tools_dir/crictl"
}

check_rust() {
    have cargo && return 0
    die "cargo not found: install the Rust toolchain with rustup (see rustup.rs), at least version $(
        sed -n 's/^rust-version = "\(.*\)"/\1/p' "$repo_root/Cargo.toml"
    ), or put an installed one on PATH"
}

install_packages
install_crictl
check_rust
say "all that is needed is installed"
