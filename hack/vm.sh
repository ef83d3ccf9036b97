#!/usr/bin/env bash
# A virtual machine for what this machine cannot show: cgroup v2, systemd as init, logind, NUMA nodes. Debian's
# kernel and packages under software emulation, without a network. One boot runs one command.
#
#   hack/vm.sh image              build the image if it is missing: target/vm (about a minute)
#   hack/vm.sh run [OPTIONS] DIR -- COMMAND
#                                 boot, copy DIR to /work in the machine, run COMMAND there as root with sh,
#                                 power off; prints what it prints and ends with its status
#
# Options of run:
#   --out DIR       afterwards copy /work/out of the machine to DIR
#   --cpus SPEC     QEMU's -smp (default 2)
#   --memory MIB    (default 4096)
#   --numa N        so many NUMA nodes
#   --append WORDS  more words for the kernel
#   --cgroup-v1     cgroup v1 instead of v2
#   --stay          COMMAND powers off by itself; its status is 0 if it began
#   --timeout S     (default 900)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
PATH=$PATH:/usr/sbin:/sbin

vm_dir=$target_dir/vm
packages=systemd,systemd-sysv,udev,dbus,kmod,iproute2,iptables,procps,util-linux,mount,containerd,runc
packages+=,containernetworking-plugins,busybox-static,python3,numactl,nfs-kernel-server,open-iscsi,tgt,multipath-tools
# Debian's kernel has them as modules: the disks, and the console that carries the output.
modules="virtio_pci virtio_blk virtio_console"
work=

clean_up() { [[ -z $work ]] || rm -rf "$work"; }
trap clean_up EXIT

build_image() {
    local state
    state=$(sha256sum "${BASH_SOURCE[0]}" | cut -d' ' -f1)
    [[ $(cat "$vm_dir/built-by" 2>/dev/null) != "$state" ]] || return 0
    need_root
    local program missing=()
    for program in mmdebstrap:mmdebstrap qemu-system-x86_64:qemu-system-x86 cpio:cpio mke2fs:e2fsprogs; do
        have "${program%:*}" || missing+=("${program#*:}")
    done
    if ((${#missing[@]})); then
        say "installing ${missing[*]}"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
    fi
    say "building the image of a virtual machine"
    mkdir -p "$vm_dir"
    work=$(mktemp -d)
    make_root
    make_initrd
    rm -f "$vm_dir/root.ext4"
    mke2fs -q -t ext4 -O ^has_journal -m 0 -d "$work/root" "$vm_dir/root.ext4" "$(($(du -sm "$work/root" | cut -f1) + 3000))M"
    printf '%s\n' "$state" >"$vm_dir/built-by"
    rm -rf "$work"
}

make_root() {
    local root=$work/root sources=() options=() file
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list; do
        [[ ! -s $file ]] || sources+=("$file")
    done
    # However this machine reaches its packages, the image is built the same way.
    for file in /etc/apt/apt.conf.d/*; do
        ! grep -qiE 'proxy|check-valid|timeout|retries' "$file" || options+=(--aptopt="$file")
    done
    # The kernel's package without its dependencies: nothing is to make an initramfs.
    # shellcheck disable=SC2016 # the hook has the root as its first argument
    mmdebstrap --quiet --mode=root --variant=minbase --include="$packages" "${options[@]}" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --customize-hook='chroot "$1" sh -ec "
            mkdir /kernel && cd /kernel
            name=\$(apt-cache depends linux-image-cloud-amd64 | sed -n \"s/.*Depends: //p\" | head -n 1)
            apt-get download -qq -o APT::Sandbox::User=root \$name
            dpkg-deb -x *.deb . && rm *.deb"' \
        "$(. /etc/os-release && printf '%s' "$VERSION_CODENAME")" "$root" "${sources[@]}" ||
        die "mmdebstrap failed"
    mv "$root"/kernel/boot/vmlinuz-* "$vm_dir/vmlinuz"
    # kubeadm reads it.
    mv "$root"/kernel/boot/config-* "$root/boot/"
    mkdir -p "$root/usr/lib/modules" "$root/work"
    mv "$root"/kernel/lib/modules/* "$root/usr/lib/modules/"
    rm -rf "$root/kernel" "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*
    chroot "$root" depmod "$(basename "$root"/usr/lib/modules/*)"
    printf 'node1\n' >"$root/etc/hostname"
    printf '127.0.0.1 localhost node1\n' >"$root/etc/hosts"
    : >"$root/etc/resolv.conf"
    printf '/dev/vda / ext4 rw,noatime 0 0\n' >"$root/etc/fstab"
    printf 'net.ipv4.ip_forward=1\n' >"$root/etc/sysctl.d/vm.conf"
    local units=$root/etc/systemd/system unit
    mkdir -p "$units/multi-user.target.wants"
    cat >"$units/command.service" <<'EOF'
[Unit]
After=dbus.service systemd-logind.service
[Service]
Type=oneshot
Delegate=yes
TimeoutStopSec=5
WorkingDirectory=/work
Environment=HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
StandardOutput=file:/dev/hvc0
StandardError=inherit
ExecStartPre=/bin/tar -xf /dev/vdb -C /work
ExecStart=/bin/sh /work/.vm/main
EOF
    ln -s ../command.service "$units/multi-user.target.wants/"
    ln -s /lib/systemd/system/systemd-logind.service "$units/multi-user.target.wants/"
    # Their tests start them.
    rm -f "$units"/*.wants/{nfs-,rpc,iscsi,open-iscsi,tgt,multipath}*
    # What would only cost time in a machine that lives for a minute.
    for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
        fstrim.timer getty@tty1.service serial-getty@ttyS0.service serial-getty@hvc0.service containerd.service \
        systemd-update-utmp.service systemd-tmpfiles-clean.timer; do
        ln -sf /dev/null "$units/$unit"
    done
}

make_initrd() {
    local root=$work/root initrd=$work/initrd file
    mkdir -p "$initrd"/{bin,dev,proc,root,modules}
    cp "$root/bin/busybox" "$initrd/bin/"
    # shellcheck disable=SC2086 # several modules
    chroot "$root" modprobe -S "$(basename "$root"/usr/lib/modules/*)" --show-depends -a $modules |
        awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r file; do
        cp "$root/$file" "$initrd/modules/"
        printf 'insmod /modules/%s\n' "${file##*/}" >>"$initrd/load"
    done
    cat >"$initrd/init" <<'EOF'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
. /load
until [ -b /dev/vda ]; do usleep 20000; done
mount -t ext4 -o noatime /dev/vda /root
mount --move /dev /root/dev
exec switch_root /root /lib/systemd/systemd
EOF
    chmod 755 "$initrd/init"
    (cd "$initrd" && find . -print0 | cpio --quiet -0 -o -H newc) | gzip -1 >"$vm_dir/initrd"
}

run() {
    local out='' cpus=2 memory=4096 numa=0 append='' stay='' timeout=900 machine=()
    while (($#)); do
        case $1 in
        --out) out=$2 && shift 2 ;;
        --cpus) cpus=$2 && shift 2 ;;
        --memory) memory=$2 && shift 2 ;;
        --numa) numa=$2 && shift 2 ;;
        --append) append+=" $2" && shift 2 ;;
        --cgroup-v1) append+=" systemd.unified_cgroup_hierarchy=0" && shift ;;
        --stay) stay=1 && shift ;;
        --timeout) timeout=$2 && shift 2 ;;
        *) break ;;
        esac
    done
    [[ $# -ge 3 && $2 == -- ]] || die "run [OPTIONS] DIR -- COMMAND"
    local dir=$1
    shift 2
    build_image
    work=$(mktemp -d)
    mkdir -p "$work/vm/.vm"
    printf '%s\n' "$*" >"$work/vm/.vm/command"
    cat >"$work/vm/.vm/main" <<EOF
mkdir -p out .vm
echo began >.vm/status
sh .vm/command
echo \$? >.vm/status
tar -cf /dev/vdc .vm/status out
sync
[ -n "$stay" ] || systemctl poweroff --force --no-block
EOF
    # Disks without file systems: an archive goes in, one comes out.
    tar -chf "$work/in.tar" --exclude=./out -C "$dir" . -C "$work/vm" ./.vm
    truncate -s %512 "$work/in.tar"
    truncate -s 256M "$work/out.tar"
    local node each=$((${cpus%%,*} / (numa > 0 ? numa : 1)))
    for ((node = 0; node < numa; node++)); do
        machine+=(-object "memory-backend-ram,id=memory$node,size=$((memory / numa))M")
        machine+=(-numa "node,nodeid=$node,memdev=memory$node,cpus=$((node * each))-$(((node + 1) * each - 1))")
    done
    local disk=if=virtio,format=raw,cache=unsafe,file
    : >"$work/output"
    # /dev/kvm may exist and not work.
    timeout -k 5 "$timeout" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu Nehalem,+pdpe1gb -smp "$cpus" -m "$memory" \
        "${machine[@]}" -nodefaults -no-user-config -nographic -no-reboot -nic none -device virtio-rng-pci \
        -kernel "$vm_dir/vmlinuz" -initrd "$vm_dir/initrd" \
        -append "console=ttyS0 quiet net.ifnames=0 psi=1 mitigations=off panic=-1 random.trust_cpu=on$append" \
        -drive "$disk=$vm_dir/root.ext4,snapshot=on" -drive "$disk=$work/in.tar,readonly=on" -drive "$disk=$work/out.tar" \
        -serial "file:$work/console" -device virtio-serial-pci \
        -chardev "file,id=output,path=$work/output" -device virtconsole,chardev=output &
    local qemu=$! status=0
    tail -n +1 -f --pid="$qemu" "$work/output" || true
    wait "$qemu" || status=$?
    ((status != 124)) || die "the machine took longer than $timeout s"
    mkdir "$work/back"
    if tar -xf "$work/out.tar" -C "$work/back" 2>/dev/null && [[ -s $work/back/.vm/status ]]; then
        [[ -z $out ]] || { mkdir -p "$out" && cp -a "$work/back/out/." "$out/"; }
        status=$(cat "$work/back/.vm/status")
        [[ $status != began ]] || status=0
        return "$status"
    fi
    [[ -z $stay ]] || return 0
    tail -n 20 "$work/console" >&2
    die "the machine did not come to its end"
}

case ${1:-} in
image) build_image ;;
run) shift && run "$@" ;;
*) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" && exit 2 ;;
esac
