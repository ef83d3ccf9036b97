#!/usr/bin/env bash
# What a release consists of, in target/dist/VERSION: for each architecture a tarball, a Debian and an RPM package, an
# image and a bill of materials (CycloneDX); SHA256SUMS of all of them. Prints that directory.
#
#   hack/release.sh                    for x86_64 and aarch64, or those that ARCHITECTURES names
#   hack/release.sh test ARCHITECTURE  run the tests for it by qemu-user: those of the rules and on a simulated runtime
#
# Programs are linked with zig against glibc 2.28 (docs/adr/0011-programs.md). Where the machine's Rust has no standard
# library for an architecture, that of a Debian is used, which is made below target/release-tools once.
# KUBELET packs a program for this machine that is built already; DIST is another directory.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The oldest glibc of a distribution that is supported: RHEL 8's.
glibc=2.28
cyclonedx_version=0.5.9
# Its backports have the Rust that the kubelet wants.
debian=trixie
release_tools=$target_dir/release-tools
debian_root=$release_tools/debian

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$repo_root"

# -- tools -----------------------------------------------------------------------------------------------------

install_zig() {
    local state
    state=$(sha256sum hack/tools/zig/requirements.txt | cut -d' ' -f1)
    zig=$release_tools/zig
    [[ $(cat "$zig/built-by" 2>/dev/null) != "$state" ]] || return 0
    say "installing zig (once)"
    rm -rf "$zig"
    python3 -m venv "$zig" >&2 || die "no virtual environment of Python (Debian: python3-venv)"
    "$zig/bin/pip" install --quiet --require-hashes -r hack/tools/zig/requirements.txt >&2 ||
        die "pip could not install zig"
    printf '%s\n' "$state" >"$zig/built-by"
}

install_nfpm() {
    local go wanted
    nfpm=$release_tools/nfpm
    [[ ! $nfpm -nt hack/tools/nfpm/go.mod ]] || return 0
    say "building nfpm (a minute, once)"
    wanted=$(awk '$1 == "go" { print $2 }' hack/tools/nfpm/go.mod)
    go=$(go_for "$wanted") || die "nfpm needs Go $wanted"
    (cd hack/tools/nfpm && GOTOOLCHAIN=${GOTOOLCHAIN:-auto} GOFLAGS=-mod=readonly CGO_ENABLED=0 "$go" build -trimpath \
        -ldflags '-s -w' -o "$nfpm" github.com/goreleaser/nfpm/v2/cmd/nfpm) || die "nfpm could not be built"
}

install_cyclonedx() {
    cyclonedx=$release_tools/cyclonedx-$cyclonedx_version/bin/cargo-cyclonedx
    [[ ! -x $cyclonedx ]] || return 0
    say "building cargo-cyclonedx (minutes, once)"
    cargo install cargo-cyclonedx --version "$cyclonedx_version" --locked --root "$release_tools/cyclonedx-$cyclonedx_version" \
        --target-dir "$work/cyclonedx" >&2 || die "cargo-cyclonedx could not be built"
}

# A Debian with Rust for the other architectures, from where this machine has its own packages.
make_debian() {
    local file mirror options=() own unfinished=$debian_root.$$.new
    [[ ! -d $debian_root ]] || return 0
    need_root
    have mmdebstrap || die "mmdebstrap is missing"
    own=$(dpkg --print-architecture)
    for file in /etc/apt/apt.conf.d/*; do
        ! grep -qiE 'proxy|timeout|retries' "$file" || options+=(--aptopt="$file")
    done
    # shellcheck disable=SC2016 # apt's own variable
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1)
    [[ -n $mirror ]] || die "apt knows no mirror of Debian"
    mirror="deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror"
    say "making a Debian with Rust for $* (minutes, once)"
    # shellcheck disable=SC2016 # the hook has the root as its first argument
    mmdebstrap --quiet --mode=root --variant=apt --architectures="$own$(printf ',%s' "$@")" "${options[@]}" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --dpkgopt='path-exclude=/usr/share/man/*' \
        --include="binutils-multiarch,ca-certificates,qemu-user$(printf ',libc6-dev:%s' "$own" "$@")" \
        --customize-hook='chroot "$1" apt-get install -yqq -t '"$debian"'-backports --no-install-recommends cargo rustc \
            libstd-rust-dev '"$(printf ' libstd-rust-dev:%s' "$@")"' >/dev/null' \
        "$debian" "$unfinished" "$mirror $debian main" "$mirror $debian-backports main" >&2 || die "mmdebstrap failed"
    mv "$unfinished" "$debian_root"
}

# in_debian COMMAND...: runs it there in the repository, as root. What it builds is not shared with the machine's compiler.
in_debian() {
    export DEBIAN_ROOT=$debian_root
    # shellcheck disable=SC2016 # for the shells inside
    DIRECTORIES="$repo_root $(realpath -m "$target_dir") $CARGO_HOME /dev /proc" \
        unshare --mount bash -euc '
            for directory in $DIRECTORIES; do
                mkdir -p "$directory" "$DEBIAN_ROOT$directory"
                mount --rbind "$directory" "$DEBIAN_ROOT$directory"
            done
            cp /etc/resolv.conf "$DEBIAN_ROOT/etc/resolv.conf"
            exec chroot "$DEBIAN_ROOT" env HOME=/root PATH="$ZIG_BIN:/usr/bin:/usr/sbin:/bin" \
                bash -c '\''cd "$0" && exec "$@"'\'' "$PWD" "$@"' bash "$@"
}

# -- programs --------------------------------------------------------------------------------------------------

debian_name() {
    case $1 in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
    *) die "$1 is no architecture of a release" ;;
    esac
}

# prepare ARCHITECTURE: sets `cargo` and `objcopy`, the words of commands for it, and `root`, a Debian that has its
# libraries.
prepare() {
    local target=$1-unknown-linux-gnu name
    name=$(debian_name "$1")
    install_zig
    KUBELET_COMMIT=$(git rev-parse --short=12 HEAD 2>/dev/null || true)
    ZIG_BIN=$zig/bin
    CARGO_ZIGBUILD_ZIG_PATH=$(echo "$zig"/lib/python3*/site-packages/ziglang/zig)
    ZIG_GLOBAL_CACHE_DIR=$release_tools/zig-cache
    ZIG_LOCAL_CACHE_DIR=$ZIG_GLOBAL_CACHE_DIR
    CARGO_HOME=$(realpath -m "${CARGO_HOME:-$HOME/.cargo}")
    # zig's linker would take the symbols, too, which CPU profiles name functions by.
    export CARGO_PROFILE_RELEASE_STRIP=none
    # Paths of this machine are in messages of panics otherwise.
    RUSTFLAGS="--remap-path-prefix=$CARGO_HOME=/cargo --remap-path-prefix=$repo_root=/kubelet"
    export KUBELET_COMMIT ZIG_BIN CARGO_ZIGBUILD_ZIG_PATH ZIG_GLOBAL_CACHE_DIR ZIG_LOCAL_CACHE_DIR CARGO_HOME RUSTFLAGS
    if [[ -d $(rustc --print target-libdir --target "$target") ]]; then
        export PATH=$PATH:$ZIG_BIN
        CARGO_TARGET_DIR=$target_dir
        cargo=(cargo-zigbuild)
        objcopy=("$1-linux-gnu-objcopy")
        root=/
    else
        make_debian "$name"
        CARGO_TARGET_DIR=$release_tools/build
        cargo=(in_debian cargo-zigbuild)
        objcopy=(in_debian objcopy)
        root=$debian_root
    fi
    export CARGO_TARGET_DIR
}

# build ARCHITECTURE: sets `program`, and `root` as above.
build() {
    local target=$1-unknown-linux-gnu
    if [[ -n ${KUBELET:-} ]]; then
        root=/ program=$(realpath "$KUBELET")
        return
    fi
    prepare "$1"
    say "building for $1"
    "${cargo[@]}" zigbuild --release --locked --bin kubelet --target "$target.$glibc" >&2
    program=$CARGO_TARGET_DIR/$target/kubelet
    "${objcopy[@]}" --strip-debug "$CARGO_TARGET_DIR/$target/release/kubelet" "$program"
    [[ $(needed_glibc "$program") == "$(printf '%s\n' "$glibc" "$(needed_glibc "$program")" | sort -V | head -n 1)" ]] ||
        die "$program needs glibc $(needed_glibc "$program")"
}

# The newest version of glibc whose symbols a program uses.
needed_glibc() { grep -ao 'GLIBC_2\.[0-9]*' "$1" | sort -uV | tail -n 1 | cut -d_ -f2; }

# -- what is packed --------------------------------------------------------------------------------------------

# The same input gives the same bytes.
pack_tree() { tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=go-w "$@"; }

# stage ARCHITECTURE PREFIX KUBEADM: the installed tree in $work/stage.
stage() {
    local doc=$work/stage$2/share/doc/kubelet-rs library
    rm -rf "$work/stage"
    make -s install "DESTDIR=$work/stage" "PREFIX=$2" "KUBEADM=$3" "KUBELET=$program" "DESCRIBED_BY=$describes" >/dev/null
    gzip -9n "$work/stage$2/share/man/man8/kubelet.8"
    install -d "$doc"
    install -m 644 LICENSE "$doc/copyright"
    cp "$work/licences-$1" "$doc/licences-of-crates"
    library=$(rustc --print sysroot)/share/doc/rust/COPYRIGHT-library.html
    [[ ! -e $library ]] || install -m 644 "$library" "$doc/licences-of-rust.html"
    chmod -R go-w "$work/stage"
}

pack() {
    local architecture=$1 name prefix
    name=$(debian_name "$architecture")
    prefix=kubelet-rs_${version}_linux_$name
    hack/licences.py "$architecture-unknown-linux-gnu" >"$work/licences-$architecture"

    stage "$architecture" /usr/local yes
    install -m 644 deploy/package/config.yaml "$work/stage/usr/local/share/doc/kubelet-rs/config.yaml"
    pack_tree --transform "s|^\.|$prefix|" -C "$work/stage/usr/local" -c . | gzip -9n >"$out/$prefix.tar.gz"

    stage "$architecture" /usr no
    # A static program needs none.
    LIBC_DEB='' LIBC_RPM='' LIBGCC_DEB='' LIBGCC_RPM=''
    if needed_libraries "$program" | grep -qx 'libc\.so.*'; then
        LIBC_DEB="libc6 (>= $(needed_glibc "$program"))" LIBC_RPM="glibc >= $(needed_glibc "$program")"
    fi
    if needed_libraries "$program" | grep -qx 'libgcc_s\.so.*'; then LIBGCC_DEB=libgcc-s1 LIBGCC_RPM=libgcc; fi
    STAGE=$work/stage ARCH=$name VERSION=$version KUBERNETES=${version%%+*}
    export LIBC_DEB LIBC_RPM LIBGCC_DEB LIBGCC_RPM STAGE ARCH VERSION KUBERNETES
    "$nfpm" package --packager deb --config deploy/package/nfpm.yaml --target "$out/" >&2
    "$nfpm" package --packager rpm --config deploy/package/nfpm.yaml --target "$out/" >&2

    hack/build-images.sh --kubelet "$STAGE" "$name" "$root" "localhost/kubelet-rs:v${version/+/-}" "$out/$prefix.oci.tar"
    # It writes beside Cargo.toml.
    "$cyclonedx" cyclonedx --quiet --format json --target "$architecture-unknown-linux-gnu" --no-build-deps \
        --spec-version 1.5 --override-filename "$prefix.cdx" >&2
    sed "s|path+file://$repo_root|path+file:///kubelet|" "$prefix.cdx.json" >"$out/$prefix.cdx.json"
    rm "$prefix.cdx.json"
}

release() {
    local architecture architectures own
    read -ra architectures <<<"${ARCHITECTURES:-x86_64 aarch64}"
    [[ -z ${KUBELET:-} ]] || architectures=("$(uname -m)")
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
    export SOURCE_DATE_EPOCH
    own=$(sed -n '/^version = /{s/.*"\(.*\)"/\1/p;q}' Cargo.toml)
    grep -q "^## \[$own\]" CHANGELOG.md || die "CHANGELOG.md has no section for $own"
    install_nfpm
    install_cyclonedx
    out='' describes=''
    for architecture in "${architectures[@]}"; do
        build "$architecture"
        [[ $architecture != "$(uname -m)" ]] || describes=$program
        [[ -n $describes ]] || die "ARCHITECTURES begins with $(uname -m), whose program prints the manual"
        # Kubernetes v1.36.3+rs0.1.0
        version=$("$describes" --version | awk '{ print $2 }')
        version=${version#v}
        [[ $version == [0-9]*.[0-9]*.[0-9]*+* ]] || die "$describes prints no version that a package can have: $version"
        if [[ -z $out ]]; then
            out=${DIST:-$target_dir/dist/$version}
            rm -rf "$out"
            mkdir -p "$out"
        fi
        pack "$architecture"
    done
    (cd "$out" && sha256sum -- * >"$work/sums" && mv "$work/sums" SHA256SUMS)
    printf '%s\n' "$out"
}

# The tests that start nothing but themselves and the kubelet.
run_tests() {
    local variable
    prepare "$1"
    variable=CARGO_TARGET_$(tr '[:lower:]' '[:upper:]' <<<"$1")_UNKNOWN_LINUX_GNU_RUNNER
    [[ $1 == "$(uname -m)" ]] || export "$variable=qemu-$1 -L /"
    "${cargo[@]}" test --locked --no-fail-fast --lib --target "$1-unknown-linux-gnu" "${@:2}"
}

case ${1:-} in
'') release ;;
test)
    (($# >= 2)) || die "test ARCHITECTURE"
    run_tests "${@:2}"
    ;;
*) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" && exit 2 ;;
esac
