#!/usr/bin/env bash
# Makes a Debian package of the kubelet in target/dist, and prints its path.
#
#   hack/dist.sh
#
# The program is a static one where rustup has the musl target of this machine, else one for this machine's glibc.
# KUBELET packs a program that is built already. kubeadm's drop-in is not in it: Debian's kubeadm package brings it.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$repo_root"
have dpkg-deb || die "dpkg-deb is missing"
target=$(uname -m)-unknown-linux-musl
KUBELET_COMMIT=$(git rev-parse --short=12 HEAD 2>/dev/null || true)
export KUBELET_COMMIT
kubelet=${KUBELET:-}
if [[ -z $kubelet ]]; then
    if [[ -d $(rustc --print sysroot)/lib/rustlib/$target ]]; then
        cargo build --release --bin kubelet --target "$target"
        kubelet=$target_dir/$target/release/kubelet
    else
        say "there is no Rust target $target (rustup target add $target); the program needs this machine's glibc"
        cargo build --release --bin kubelet
        kubelet=$target_dir/release/kubelet
    fi
fi
# v1.36.0+rs0.1.0
version=$("$kubelet" --version | awk '{ print $2 }')
version=${version#v}
[[ $version == [0-9]*.[0-9]*.[0-9]* ]] || die "$kubelet prints no version that a package can have: $version"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# dpkg would give the root directory of the node its mode.
chmod 755 "$work"
make -s install "DESTDIR=$work" PREFIX=/usr KUBEADM=no "KUBELET=$kubelet" >/dev/null
depends=
# The versions of glibc whose symbols it uses; there are none in a static program.
glibc=$(grep -ao 'GLIBC_2\.[0-9]*' "$kubelet" | sort -uV | tail -n 1 || true)
# `ldd` takes a static program that can be loaded anywhere as well.
if ldd "$kubelet" 2>/dev/null | grep -q libc.so; then
    depends="libc6 (>= ${glibc#GLIBC_}), libgcc-s1, "
fi
install -D -m 644 LICENSE "$work/usr/share/doc/kubelet-rs/copyright"
mkdir "$work/DEBIAN"
cat >"$work/DEBIAN/control" <<EOF
Package: kubelet-rs
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: the kubelet-rs project <kubelet-rs@localhost>
Section: admin
Priority: optional
Depends: ${depends}mount, util-linux
Recommends: containerd | cri-o, containernetworking-plugins, conntrack, iptables
Provides: kubelet (= ${version%%+*})
Conflicts: kubelet
Replaces: kubelet
Installed-Size: $(du -sk "$work/usr" | cut -f1)
Description: Kubernetes node agent in Rust
 Runs the pods of a node on a CRI runtime, as the kubelet of Kubernetes v1.36 does,
 with the same flags, files and interfaces.
EOF
out=$target_dir/dist/kubelet-rs_${version}_$(dpkg --print-architecture).deb
mkdir -p "$(dirname "$out")"
dpkg-deb --root-owner-group --build "$work" "$out" >/dev/null
printf '%s\n' "$out"
