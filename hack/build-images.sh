#!/usr/bin/env bash
# Builds the images of the demo and the tests without a registry: localhost/pause:dev from
# hack/images/pause.c and localhost/busybox:dev from the machine's static busybox.
# Each becomes an OCI layout in a tar for `ctr -n k8s.io images import`. The same inputs give the
# same bytes.
#
#   hack/build-images.sh [OUTDIR]
#   hack/build-images.sh --cluster OUTDIR   these two and those of `kubeadm config images list`, from the programs
#                                           of hack/build-kubernetes.sh; what is up to date is left alone
#   hack/build-images.sh --metrics OUTDIR   these two and localhost/metrics-server:dev, from the program of
#                                           hack/build-kubernetes.sh
#   hack/build-images.sh --e2e OUTDIR       these two and stand-ins for the images of Kubernetes' node test suite
#   hack/build-images.sh --e2e-storage OUTDIR   all of these, and those that its storage suite has beside them
#   hack/build-images.sh --filler NAME BYTES OUTFILE   one image that only takes up space
#   hack/build-images.sh --kubelet INSTALLED ARCHITECTURE ROOT NAME OUTFILE   one with the kubelet and the licences that are
#                                           installed in that directory (for amd64 or arm64), and nothing but the
#                                           libraries that it needs, from the Debian in ROOT
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

work=$(mktemp -d)
# The image that is being made, under a name of its own: two of these scripts may run at a time.
unfinished=
trap 'rm -rf "$work"; [[ -z $unfinished ]] || rm -f "$unfinished"' EXIT

pack() { tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=ustar "$@"; }

# Stores a file under its digest in the layout and prints "digest size".
add_blob() {
    local layout=$1 file=$2 digest size
    digest=$(sha256sum "$file" | cut -d' ' -f1)
    size=$(stat -c %s "$file")
    mkdir -p "$layout/blobs/sha256"
    mv "$file" "$layout/blobs/sha256/$digest"
    printf '%s %s\n' "$digest" "$size"
}

# The one that images are for (IMAGE_ARCHITECTURE), or this machine's.
architecture() {
    local architecture=${IMAGE_ARCHITECTURE:-$(uname -m)}
    case $architecture in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
    *) echo "$architecture" ;;
    esac
}

# make_image NAME ROOTFS CONFIG_JSON OUTFILE
make_image() {
    local name=$1 rootfs=$2 run_config=$3 outfile=$4
    local layout
    layout=$work/layout-$(basename "$outfile")
    mkdir -p "$layout"
    pack -C "$rootfs" -cf "$work/layer.tar" .
    local layer layer_size config config_size manifest manifest_size
    read -r layer layer_size < <(add_blob "$layout" "$work/layer.tar")
    printf '{"created":"1970-01-01T00:00:00Z","architecture":"%s","os":"linux","config":%s,"rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"history":[{"created":"1970-01-01T00:00:00Z"}]}' \
        "$(architecture)" "$run_config" "$layer" >"$work/config.json"
    read -r config config_size < <(add_blob "$layout" "$work/config.json")
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:%s","size":%s}]}' \
        "$config" "$config_size" "$layer" "$layer_size" >"$work/manifest.json"
    read -r manifest manifest_size < <(add_blob "$layout" "$work/manifest.json")
    printf '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:%s","size":%s,"annotations":{"io.containerd.image.name":"%s","org.opencontainers.image.ref.name":"%s"}}]}' \
        "$manifest" "$manifest_size" "$name" "${name##*:}" >"$layout/index.json"
    unfinished=$outfile.$$.new
    pack -C "$layout" -cf "$unfinished" .
    mv "$unfinished" "$outfile"
    unfinished=
    say "built $name ($(stat -c %s "$outfile") bytes) in $outfile"
}

build_pause() {
    local rootfs=$work/pause
    mkdir -p "$rootfs"
    gcc -static -Os -s -Wall -Wextra -Werror -Wl,--build-id=none -o "$rootfs/pause" "$repo_root/hack/images/pause.c"
    make_image localhost/pause:dev "$rootfs" '{"Entrypoint":["/pause"]}' "$outdir/pause.tar"
}

find_static_busybox() {
    local candidate
    for candidate in "${BUSYBOX:-}" /usr/bin/busybox /bin/busybox; do
        [[ -x $candidate ]] || continue
        # A dynamic program names its loader.
        if ! grep -qaE '/lib(64)?/ld-' "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "no static busybox found (Debian package busybox-static)"
}

build_busybox() {
    local rootfs=$work/busybox busybox applet
    busybox=$(find_static_busybox)
    mkdir -p "$rootfs"/{bin,dev,etc,home/app,proc,root,sys,tmp,usr,var/run}
    cp "$busybox" "$rootfs/bin/busybox"
    chmod 755 "$rootfs/bin/busybox"
    while read -r applet; do
        [[ $applet == busybox ]] || ln -s busybox "$rootfs/bin/$applet"
    done < <("$busybox" --list)
    ln -s bin "$rootfs/sbin"
    ln -s ../bin "$rootfs/usr/bin"
    ln -s ../bin "$rootfs/usr/sbin"
    printf 'root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home/app:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$rootfs/etc/passwd"
    printf 'root:x:0:\napp:x:1000:\nextra:x:2000:app\nnogroup:x:65534:\n' >"$rootfs/etc/group"
    find "$rootfs" -type d -exec chmod 755 {} +
    chmod 644 "$rootfs"/etc/*
    chmod 1777 "$rootfs/tmp"
    chmod 700 "$rootfs/root"
    # World-writable rather than owned: the archive says that all belongs to root.
    chmod 777 "$rootfs/home/app"
    make_image localhost/busybox:dev "$rootfs" \
        '{"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],"Cmd":["sh"]}' "$outdir/busybox.tar"
}

build_filler() {
    local rootfs=$work/filler
    mkdir -p "$rootfs"
    head -c "$2" /dev/urandom >"$rootfs/filler"
    make_image "$1" "$rootfs" '{}' "$3"
}

# add_program ROOTFS PROGRAM [PATH]: with the libraries that it is linked to.
add_program() {
    local rootfs=$1 program=$2 path=${3:-$2} library
    install -D -m 755 "$program" "$rootfs$path"
    # There are none for a static program.
    { ldd "$program" 2>/dev/null || true; } | sed -n 's|^[^/]*\(/[^ ]*\) (0x.*|\1|p' | while read -r library; do
        install -D -m 755 "$(readlink -f "$library")" "$rootfs$library"
    done
}

build_kubelet_image() {
    local rootfs=$work/kubelet installed=$1 IMAGE_ARCHITECTURE=$2 root=$3 name=$4 out=$5 triplet library file
    case $IMAGE_ARCHITECTURE in
    amd64) triplet=x86_64-linux-gnu ;;
    arm64) triplet=aarch64-linux-gnu ;;
    *) die "no images for $IMAGE_ARCHITECTURE" ;;
    esac
    local program=$installed/usr/bin/kubelet
    install -D -m 755 "$program" "$rootfs/usr/bin/kubelet"
    mkdir -p "$rootfs/tmp" "$rootfs/usr/share"
    cp -r "$installed/usr/share/doc" "$rootfs/usr/share/"
    # The loader has to be at the path that the program names.
    file=$(readelf -lW "$program" | sed -n 's/.*program interpreter: \(.*\)]/\1/p')
    [[ -z $file ]] || install -D -m 755 "$root/lib/$triplet/${file##*/}" "$rootfs$file"
    for library in $(needed_libraries "$program"); do
        [[ $library == "${file##*/}" ]] || install -D -m 755 "$root/lib/$triplet/$library" "$rootfs/lib/$triplet/$library"
    done
    [[ -z $file ]] || install -D -m 644 "$root/usr/share/doc/libc6/copyright" "$rootfs/usr/share/doc/libc6/copyright"
    make_image "$name" "$rootfs" '{"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],"Entrypoint":["/usr/bin/kubelet"]}' "$out"
}

# kube-proxy runs the machine's iptables, which loads its extensions by name.
add_iptables() {
    local rootfs=$1 multi name extension
    multi=$(readlink -f "$(type -P iptables)")
    add_program "$rootfs" "$multi" "/usr/sbin/$(basename "$multi")"
    for name in {iptables,ip6tables}{,-save,-restore}; do ln -s "$(basename "$multi")" "$rootfs/usr/sbin/$name"; done
    for extension in /usr/lib/*/xtables/*.so; do add_program "$rootfs" "$extension"; done
    ln -s usr/sbin "$rootfs/sbin"
}

# Those of kubeadm: one static program each, under the name that kubeadm of this version gives it.
build_cluster_images() {
    local name program rootfs out
    while read -r name; do
        program=$(basename "${name%%:*}")
        out=$outdir/$program.tar
        rootfs=$work/$program
        if [[ $program == pause ]]; then
            out=$outdir/kubeadm-pause.tar
        else
            [[ ! $out -nt $kubernetes_dir/$program ]] || continue
            add_program "$rootfs" "$kubernetes_dir/$program" "/usr/local/bin/$program"
        fi
        [[ $program != kube-proxy ]] || add_iptables "$rootfs"
        mkdir -p "$rootfs/tmp" "$rootfs/etc"
        make_image "$name" "$rootfs" "$(printf '{"Env":["PATH=/usr/local/bin:/usr/sbin:/usr/bin"],"Entrypoint":["%s"]}' \
            "$([[ $program == pause ]] && echo /pause || echo "/usr/local/bin/$program")")" "$out"
        rm -rf "$rootfs"
    done < <("$kubernetes_dir/kubeadm" config images list --image-repository localhost \
        --kubernetes-version "$("$kubernetes_dir/kubeadm" version -o short)")
}

build_metrics_image() {
    local rootfs=$work/metrics-server out=$outdir/metrics-server.tar
    [[ ! $out -nt $kubernetes_dir/metrics-server ]] || return 0
    add_program "$rootfs" "$kubernetes_dir/metrics-server" /metrics-server
    mkdir -p "$rootfs/tmp"
    make_image localhost/metrics-server:dev "$rootfs" '{"Entrypoint":["/metrics-server"]}' "$out"
}

# shellcheck source-path=SCRIPTDIR source=suite-images.sh
source "$(dirname "${BASH_SOURCE[0]}")/suite-images.sh"

if [[ ${1:-} == --filler ]]; then
    (($# == 4)) || die "usage: $(basename "$0") --filler NAME BYTES OUTFILE"
    build_filler "$2" "$3" "$4"
    exit
fi
if [[ ${1:-} == --kubelet ]]; then
    (($# == 6)) || die "usage: $(basename "$0") --kubelet INSTALLED ARCHITECTURE ROOT NAME OUTFILE"
    build_kubelet_image "${@:2}"
    exit
fi
more=:
case ${1:-} in
--cluster) more=build_cluster_images ;;
--metrics) more=build_metrics_image ;;
--e2e) more=build_e2e_images ;;
--e2e-storage) more=build_e2e_storage_images ;;
esac
[[ $more == : ]] || shift
outdir=${1:-$images_dir}
mkdir -p "$outdir"
outdir=$(cd "$outdir" && pwd)
build_pause
build_busybox
$more
