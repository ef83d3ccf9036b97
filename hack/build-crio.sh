#!/usr/bin/env bash
# Builds CRI-O for the tests, which Debian does not have: target/tools/crio/{crio,pinns}. What else it needs
# is Debian's: runc, conmon, skopeo; hack/install-deps.sh installs them. Does nothing when this version is
# there.
#
#   hack/build-crio.sh            build it if it is missing (a few minutes, once)
#   hack/build-crio.sh --check    only report whether it is there; exit 1 if not, 2 if this machine's Go cannot
#                                 build it
#
# Without the programs the tests on CRI-O are skipped, with a loud line; where CI=true they fail, unless the
# Go is too old.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version=v1.34.0
needs_go=1.24.1
module=github.com/cri-o/cri-o
# The checksums of the module and of its go.mod, as sum.golang.org has them.
sum=h1:ux2URwAyENy5e5hD9Z95tshdfy98eqatZk0fxx3rhuk=
mod_sum=h1:kP40HG+1EW5CDNHjqQBFhb6dehT5dCBKcmtO5RZAm6k=
# Signatures without gpgme, no btrfs: that needs fewer libraries.
tags="containers_image_openpgp exclude_graphdriver_btrfs btrfs_noversion seccomp"

loudly() { printf '\n!!!! CRI-O %s is not built: %s\n!!!! the tests on it will be skipped\n\n' "$version" "$1" >&2; }

is_built() { [[ -x $crio_dir/crio && -x $crio_dir/pinns && $(cat "$crio_dir/version" 2>/dev/null) == "$version" ]]; }

# What is missing on this machine to build or run it.
missing() {
    local program
    for program in conmon skopeo runc gcc pkg-config; do
        have "$program" || printf '%s ' "$program"
    done
    [[ -e /usr/include/seccomp.h ]] || printf 'libseccomp-dev '
}

# A scratch module that begins with CRI-O's own go.mod and go.sum has the same dependencies to the byte. Unlike
# `go install` it does not request the list of the module's versions, which not every proxy has.
build_crio() {
    local source=$1 scratch=$2
    mkdir -p "$scratch"
    sed "s|^module .*|module scratch|" "$source/go.mod" >"$scratch/go.mod"
    {
        cat "$source/go.sum"
        printf '%s %s %s\n' "$module" "$version" "$sum" "$module" "$version/go.mod" "$mod_sum"
    } >"$scratch/go.sum"
    printf '//go:build tools\n\npackage scratch\n\nimport _ "%s/cmd/crio"\n' "$module" >"$scratch/tools.go"
    cd "$scratch"
    go mod edit -require "$module@$version"
    CGO_ENABLED=1 GOFLAGS=-mod=mod nice -n 10 go build -p 2 -trimpath -ldflags "-s -w" -tags "$tags" \
        -o "$new/crio" "$module/cmd/crio"
    gcc -std=c99 -Os -s -Wall -Wextra -static -o "$new/pinns" "$source"/pinns/src/*.c
}

build() {
    new=$crio_dir.new
    local log=$tools_dir/crio.log source
    rm -rf "$new" "$log"
    mkdir -p "$new"
    say "building CRI-O $version (a few minutes, once)"
    export GOTOOLCHAIN=${GOTOOLCHAIN:-auto}
    if source=$(module_dir "$module@$version" 2>>"$log") &&
        (build_crio "$source" "$new/scratch") </dev/null >>"$log" 2>&1; then
        rm -rf "$new/scratch"
        printf '%s\n' "$version" >"$new/version"
        rm -rf "$crio_dir"
        mv "$new" "$crio_dir"
        say "built $("$crio_dir/crio" --version | head -n 1)"
        return
    fi
    rm -rf "$new"
    tail -n 20 "$log" >&2
    loudly "it needs Go $needs_go, a C compiler, libseccomp's headers and its modules; all of the log is in $log"
    return 1
}

lacking=$(missing)
if is_built && [[ -z $lacking ]]; then
    exit
fi
if ! go_can_build "$needs_go"; then
    loudly "it needs Go $needs_go, and this is $(go version 2>&1 || true)"
    exit 2
fi
if [[ ${1:-} == --check ]]; then
    die "CRI-O $version is not built or cannot run (missing: ${lacking:-the build}); hack/install-deps.sh and hack/build-crio.sh change that"
fi
if [[ -n $lacking ]]; then
    loudly "missing: $lacking; hack/install-deps.sh installs it"
    exit 1
fi
mkdir -p "$tools_dir"
# A second process waits here and finds it built.
exec 9>"$tools_dir/crio.lock"
flock 9
is_built || build
