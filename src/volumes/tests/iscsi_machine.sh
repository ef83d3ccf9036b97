#!/bin/sh
# Stands in for iscsiadm, multipath, blockdev, blkid, mkfs.ext4 and fsck, and shows disks as the kernel does. It records its
# calls. One whose text has a line of the file `fail` in it fails, with its text; one that has the line of `hang` hangs.
base=$(dirname "$0")/..
call="$(basename "$0") $*"
printf '%s\n' "$call" >>"$base/calls"
if [ -f "$base/fail" ] && printf '%s' "$call" | grep -qFf "$base/fail"; then
    echo "cannot do $call"
    exit 8
fi
if [ -f "$base/hang" ] && printf '%s' "$call" | grep -qFf "$base/hang"; then
    echo $$ >"$base/hanging"
    exec sleep 600
fi
portal='' target='' end=''
while [ $# -gt 0 ]; do
    case $1 in
    -p) portal=$2 && shift ;;
    -T) target=$2 && shift ;;
    --login | --logout | show) end=$1 ;;
    esac
    shift
done
device_of() { echo "sd$1$2"; }
session="$base/sessions/$portal $target"
case "$(basename "$0") $end" in
"iscsiadm show")
    printf 'iface.iscsi_ifacename = default\niface.net_ifacename = <empty>\niface.transport_name = tcp\niface.mtu = 0\n'
    ;;
"iscsiadm --login")
    [ ! -f "$session" ] || exit 15
    mkdir -p "$base/sessions" "$base/dev/disk/by-path"
    host=$(($(find "$base/sessions" -type f | wc -l) + 4))
    echo $host >"$session"
    of=$base/sys/class/iscsi_host/host$host/device/session$host
    connection=$of/connection$host:0/iscsi_connection/connection$host:0
    mkdir -p "$of/iscsi_session/session$host" "$connection" "$base/sys/class/scsi_host/host$host"
    : >"$base/sys/class/scsi_host/host$host/scan"
    echo "$target" >"$of/iscsi_session/session$host/targetname"
    for name in address persistent_address; do echo "${portal%:*}" >"$connection/$name"; done
    for name in port persistent_port; do echo "${portal##*:}" >"$connection/$name"; done
    for lun in 0 1; do
        device=$(device_of $host $lun)
        mkdir -p "$of/target$host:0:0/$host:0:0:$lun/block/$device" "$base/sys/block/$device/device"
        echo "8:$host$lun" >"$base/sys/block/$device/dev"
        : >"$base/sys/block/$device/device/delete"
        head -c 8192 /dev/zero >"$base/dev/$device"
        ln -s "../../$device" "$base/dev/disk/by-path/ip-$portal-iscsi-$target-lun-$lun"
    done
    if [ -f "$base/multipath" ]; then
        mkdir -p "$base/sys/block/dm-0/dm" "$base/sys/block/dm-0/slaves/$(device_of $host 0)"
        echo mpath-1 >"$base/sys/block/dm-0/dm/uuid"
        echo 253:0 >"$base/sys/block/dm-0/dev"
        head -c 8192 /dev/zero >"$base/dev/dm-0"
    fi
    ;;
"iscsiadm --logout")
    [ -f "$session" ] || exit 21
    host=$(cat "$session")
    rm -r "$session" "$base/sys/class/iscsi_host/host$host" "$base/dev/disk/by-path/ip-$portal-iscsi-$target"-*
    ;;
blkid*)
    [ -f "$base/formatted" ] || exit 2
    echo TYPE=ext4
    ;;
mkfs*) : >"$base/formatted" ;;
esac
