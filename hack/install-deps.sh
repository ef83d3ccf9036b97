#!/usr/bin/env bash
# Installs what the demo, the containerd tests and the benchmarks need on a Debian machine.
# Does nothing, and contacts no package server, when everything is installed.
#
#   hack/install-deps.sh            install what is missing
#   hack/install-deps.sh --check    only say what is missing; exit 1 if anything is
#   hack/install-deps.sh --browser  install Chromium, too: some 400 MB, for the test of the pages alone.
#                                   It is also installed where CI=true, where that test must not be skipped.
#   hack/install-deps.sh --lint     also shellcheck and cargo-deny, which is built for some minutes; so, too, where CI=true
#   hack/install-deps.sh --suite    also Python for the scripts that need it, and the programs in the images of Kubernetes'
#                                   node test suite
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cargo_deny_version=0.20.2

check_only=false
[[ ${1:-} == --check ]] && check_only=true
suite=false
[[ ${1:-} == --suite ]] && suite=true
lint=false
[[ ${1:-} == --lint || ${CI:-} == true ]] && lint=true
browser=false
[[ ${1:-} == --browser || ${CI:-} == true ]] && browser=true

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
    have ps || echo procps
    have openssl || echo openssl
    have gcc || echo gcc
    have make || echo make
    [[ -e /usr/include/stdio.h ]] || echo libc6-dev
    ! $browser || have chromium || echo chromium
    if $suite; then
        have nc.openbsd || echo netcat-openbsd
        have dig || echo bind9-dnsutils
        have curl || echo curl
        have python3 || echo python3
    fi
}

# A freshly installed containerd would start the machine's own daemon, which is not wanted. The policy
# ends with this script, also when that is killed.
policy=/usr/sbin/policy-rc.d
hold_back_services() {
    [[ ! -e $policy ]] || return 0
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    printf '#!/bin/sh\n[ -e /proc/%s ] || exit 0\nexit 101\n' "$$" >"$policy"
    chmod 755 "$policy"
}

# apt_install PACKAGE...
apt_install() {
    have apt-get || die "missing: $*; this script installs them with apt-get only"
    need_root
    say "installing $*"
    hold_back_services
    {
        apt-get update -qq &&
            DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$@"
    } >&2 || die "apt-get could not install $*"
}

install_packages() {
    local packages
    mapfile -t packages < <(missing_packages)
    ((${#packages[@]})) || return 0
    $check_only && die "missing packages: ${packages[*]}"
    apt_install "${packages[@]}"
}

# What only CRI-O and a new runc need; the tests on them say what is missing.
runtime_packages() {
    have conmon || echo conmon
    have skopeo || echo skopeo
    have pkg-config || echo pkg-config
    [[ -e /usr/include/seccomp.h ]] || echo libseccomp-dev
}

install_runtime_packages() {
    local packages
    mapfile -t packages < <(runtime_packages)
    ((${#packages[@]})) || return 0
    $check_only && return 0
    (apt_install "${packages[@]}") || say "going on without ${packages[*]}: not every runtime is tested"
}

# What only one check needs; the others go on without it.
install_promtool() {
    have promtool && return 0
    $check_only && return 0
    (apt_install prometheus) || say "going on without promtool: what metrics look like is not checked"
}

install_proxy() {
    have tinyproxy && return 0
    $check_only && return 0
    (apt_install tinyproxy-bin) || say "going on without tinyproxy: connections through a proxy are tested less"
}

# What only `make lint` needs, which goes on without it.
install_lint_tools() {
    $lint && ! $check_only || return 0
    have shellcheck || (apt_install shellcheck) || say "going on without shellcheck: shell scripts are not checked"
    have cargo-deny || [[ -x $tools_dir/cargo-deny ]] && return 0
    say "building cargo-deny (some minutes, once)"
    local build=$tools_dir/cargo-deny.build
    if cargo install cargo-deny --version "$cargo_deny_version" --locked --root "$build" --target-dir "$build/target" >&2; then
        mv "$build/bin/cargo-deny" "$tools_dir/cargo-deny"
    else
        say "going on without cargo-deny: licences of crates are not checked"
    fi
    rm -rf "$build"
}

install_crictl() {
    have crictl && return 0
    [[ -x $tools_dir/crictl ]] && return 0
    $check_only && die "missing: crictl"
    have go || apt_install golang-go ca-certificates
    local version wanted go
    version=$(awk '$1 == "sigs.k8s.io/cri-tools" { print $2 }' "$repo_root/hack/tools/go.mod")
    wanted=$(awk '$1 == "go" { print $2 }' "$repo_root/hack/tools/go.mod")
    say "building crictl $version (a minute or two, once)"
    mkdir -p "$tools_dir"
    {
        go=$(go_for "$wanted") &&
            cd "$repo_root/hack/tools" &&
            GOTOOLCHAIN=${GOTOOLCHAIN:-auto} GOFLAGS=-mod=readonly "$go" build -trimpath \
                -ldflags "-s -w -X sigs.k8s.io/cri-tools/pkg/version.Version=$version" \
                -o "$tools_dir/crictl.new" sigs.k8s.io/cri-tools/cmd/crictl
    } || die "crictl could not be built with $(go version 2>/dev/null || echo 'this Go'); install Go $wanted, or put a crictl on PATH"
    mv "$tools_dir/crictl.new" "$tools_dir/crictl"
}

# What this script cannot bring, so it is looked for first.
check_rust() {
    local wanted version
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$repo_root/Cargo.toml")
    have cargo || die "cargo not found: install Rust $wanted or newer with rustup (see rustup.rs), or put it on PATH"
    version=$(cargo --version | cut -d' ' -f2)
    [[ $(printf '%s\n' "$wanted" "$version" | sort -V | head -n 1) == "$wanted" ]] ||
        die "cargo $version is too old: install Rust $wanted or newer with rustup (see rustup.rs)"
}

# One at a time: who comes second finds everything there.
exec 9<"${BASH_SOURCE[0]}"
flock 9
check_rust
install_packages
install_runtime_packages
install_crictl
install_promtool
install_proxy
install_lint_tools
say "all that is needed is installed"
