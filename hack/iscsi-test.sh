#!/usr/bin/env bash
# Disks of a real iSCSI target (tgt) over loopback, in a virtual machine (hack/vm.sh): mounted and mapped by the library, also
# by two paths, with a password, and while the target falls silent; then of static pods, whose kubelet is killed meanwhile.
#
#   hack/iscsi-test.sh [KUBELET]    (default: target/debug/kubelet)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=unit-tests.sh
source "$(dirname "${BASH_SOURCE[0]}")/unit-tests.sh"

kubelet=$(realpath "${1:-$target_dir/debug/kubelet}")
mkdir -p "$stage/target/tools" "$stage/target/images" "$stage/manifests"
ln -s "$repo_root/hack" "$stage/hack"
ln -s "$images_dir"/*.tar "$stage/target/images/"
ln -s "$(find_crictl)" "$stage/target/tools/crictl"
ln -s "$kubelet" "$stage/kubelet"

# pod NAME LUN: a static pod that says in its log what it found on the disk, and writes to it.
pod() {
    cat >"$stage/$1.yaml" <<EOF
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sh, -c, 'cat /disk/file >>/out/$1; echo data >/disk/file; sync; echo begins >>/out/$1; exec sleep 3600']
    volumeMounts: [{name: disk, mountPath: /disk}, {name: out, mountPath: /out}]
  volumes:
  - {name: disk, iscsi: {targetPortal: 127.0.0.1, iqn: 'iqn.2001-04.com.example:open', lun: $2}}
  - {name: out, hostPath: {path: /work/out}}
EOF
}
pod disk 4
pod partitions 5

cat >"$stage/config.yaml" <<'EOF'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: /work/manifests
containerRuntimeEndpoint: ENDPOINT
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
readOnlyPort: 10255
EOF

cat >"$stage/target.sh" <<'EOF'
printf 'defaults {\n    find_multipaths no\n}\nblacklist {\n    device {\n        vendor "ATA"\n    }\n}\n' >/etc/multipath.conf
systemctl start tgt iscsid multipathd
admin() { tgtadm --lld iscsi "$@"; }
disk() {
    truncate -s 64M "/disk-$1-$2"
    # A table of partitions with an empty one.
    [ "$2" != 5 ] || printf '\0\0\0\0\203\0\0\0\0\10\0\0\0\200\0\0' | dd of="/disk-$1-$2" bs=1 seek=446 conv=notrunc status=none
    [ "$2" != 5 ] || printf '\125\252' | dd of="/disk-$1-$2" bs=1 seek=510 conv=notrunc status=none
    admin --op new --mode logicalunit --tid "$1" --lun "$2" --backing-store "/disk-$1-$2"
}
admin --op new --mode target --tid 1 --targetname iqn.2001-04.com.example:open
admin --op new --mode target --tid 2 --targetname iqn.2001-04.com.example:closed
for lun in 1 2 3 4 5; do disk 1 $lun; done
disk 2 1
admin --op new --mode account --user user --password hush-hush-123
admin --op bind --mode account --tid 2 --user user
for target in 1 2; do admin --op bind --mode target --tid $target --initiator-address ALL; done
# Its own name of the initiator, as a packaged one asks for a random one at the first start.
iscsiadm -m iface -I default >/dev/null
EOF

cat >"$stage/pods.sh" <<'EOF'
hack/containerd.sh start /work/containerd $$ >/dev/null
sed -i "s|ENDPOINT|$(hack/containerd.sh endpoint /work/containerd)|" config.yaml
start() {
    ./kubelet --config config.yaml --root-dir /work/root --hostname-override node1 >>kubelet.log 2>&1 &
    kubelet=$!
}
crash() {
    kill -9 "$kubelet"
    wait "$kubelet" || true
}
# until WHAT COMMAND...
until_so() {
    what=$1 n=0
    shift
    until "$@" >/dev/null 2>&1; do
        [ $n -lt 600 ] || { echo "FAILED: $what"; iscsiadm -m session; tail -n 60 kubelet.log; exit 1; }
        n=$((n + 1))
        sleep 0.5
    done
    echo "seen: $what"
}
has_run() { [ "$(grep -c begins "out/$1")" = "$2" ]; }
is_running() { busybox wget -q -O - http://127.0.0.1:10255/pods | grep -q '"phase":"Running"'; }
has_session() { iscsiadm -m session | grep -q :open; }
is_clean() {
    ! has_session && ! grep -q ' /work/root/' /proc/self/mountinfo && ! ls /dev/disk/by-path | grep -q iscsi &&
        [ ! -e /work/root/plugins/kubernetes.io/iscsi/iface-default ]
}
is_refused() {
    grep -q 'unknown data, probably partitions' kubelet.log && grep 'MountVolume.MountDevice failed' kubelet.log | grep -q partitions
}

cp disk.yaml manifests/
start
until_so "a pod has written to a new disk" has_run disk 1
crash
start
until_so "the next kubelet has the pod" is_running
has_run disk 1
grep -q "/iface-default/127.0.0.1:3260-iqn.2001-04.com.example:open-lun-4 " /proc/self/mountinfo
rm manifests/disk.yaml
until_so "nothing is left of the disk" is_clean
cp disk.yaml manifests/
until_so "the target is logged in to" has_session
crash
start
until_so "the pod has run again" has_run disk 2
grep -qx data out/disk
echo "seen: its data is there"
crash
rm manifests/disk.yaml
start
until_so "a kubelet that has no such pod has left nothing of the disk" is_clean
cp partitions.yaml manifests/
cp /disk-1-5 before
until_so "a disk with partitions is refused" is_refused
rm manifests/partitions.yaml
until_so "nothing is left of the disk with partitions" is_clean
cmp before /disk-1-5
[ ! -e out/partitions ]
echo "seen: the disk with partitions is as it was"
EOF

echo '. ./target.sh; ISCSI_TARGET=1 ./tests --nocapture disks_of_a_real_iscsi_target; . ./pods.sh; echo "pods: 1 passed"
# It would hold up the end of the machine.
systemctl kill -s KILL tgt' >"$stage/run"
run_test --timeout 1800
grep -q '^pods: 1 passed' "$stage/output" || die "the pods' part did not run"
