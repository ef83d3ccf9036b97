#!/usr/bin/env bash
# Installs, upgrades, exchanges, removes and purges the Debian package on a node with a real systemd (hack/vm.sh), also with
# a changed configuration, and checks that the containers of its pods run on through all of it. Kubernetes' packages are
# stand-ins with the same names and relations. Before that, `make uninstall` has to remove what `make install` writes.
# Software emulation: five minutes.
#
#   hack/package-test.sh [KUBELET]    (default: target/debug/kubelet)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/target/tools" "$stage/target/images" "$stage/manifests" "$stage/repository"
# The copy that goes into the machine needs no debugging information.
strip --strip-debug -o "$stage/kubelet" "$(realpath "${1:-$target_dir/debug/kubelet}")"

make -s -C "$repo_root" install "DESTDIR=$stage/root" "KUBELET=$stage/kubelet"
[[ -n $(find "$stage/root" -type f -name 10-kubeadm.conf) ]] || die "make install wrote no drop-in"
make -s -C "$repo_root" uninstall "DESTDIR=$stage/root"
[[ -z $(find "$stage/root" -type f) ]] || die "make uninstall left $(find "$stage/root" -type f)"
rm -r "$stage/root"

KUBELET=$stage/kubelet DIST=$stage/packages "$repo_root/hack/release.sh" >/dev/null
rm "$stage/kubelet"
new=$(echo "$stage"/packages/*.deb)
version=$(dpkg-deb -f "$new" Version)
mv "$new" "$stage/repository/"
rm -r "$stage/packages"

# package NAME VERSION [LINE]: an empty one, or with what is in $stage/tree, into the repository.
package() {
    mkdir -p "$stage/tree/DEBIAN"
    printf '%s\n' "Package: $1" "Version: $2" "Architecture: all" "Maintainer: none <none@localhost>" \
        ${3:+"$3"} "Description: stands in for Kubernetes' own" >"$stage/tree/DEBIAN/control"
    dpkg-deb --root-owner-group --build "$stage/tree" "$stage/repository/$1_$2.deb" >/dev/null
    rm -r "$stage/tree"
}
# kubeadm's relation until v1.29; later ones have none.
package kubeadm 1.36.3-1.1 'Depends: kubelet (>= 1.19.0)'
# Newer than ours.
mkdir -p "$stage/tree/usr/bin" "$stage/tree/usr/lib/systemd/system"
printf '#!/bin/sh\nexec sleep infinity\n' >"$stage/tree/usr/bin/kubelet"
chmod 755 "$stage/tree/usr/bin/kubelet"
printf '[Service]\nExecStart=/usr/bin/kubelet\nKillMode=process\n' >"$stage/tree/usr/lib/systemd/system/kubelet.service"
package kubelet 1.99.0-1.1
# A version before with another default configuration.
dpkg-deb -R "$stage/repository/$(basename "$new")" "$stage/tree"
sed -i 's/^Version: .*/Version: 1.36.2+rs0.0.9/' "$stage/tree/DEBIAN/control"
echo '# An earlier default.' >>"$stage/tree/etc/kubelet/config.yaml"
dpkg-deb --root-owner-group --build "$stage/tree" "$stage/repository/old.deb" >/dev/null
rm -r "$stage/tree"
(cd "$stage/repository" && for deb in *.deb; do
    dpkg-deb -f "$deb"
    printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' "$deb" "$(stat -c %s "$deb")" "$(sha256sum "$deb" | cut -d' ' -f1)"
done >Packages)

ln -s "$repo_root/hack" "$stage/hack"
ln -s "$images_dir"/*.tar "$stage/target/images/"
ln -s "$(find_crictl)" "$stage/target/tools/crictl"
for pod in one two; do
    cat >"$stage/manifests/$pod.yaml" <<END
apiVersion: v1
kind: Pod
metadata: {name: $pod}
spec:
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1; done"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, emptyDir: {medium: Memory}}]
END
done
cat >"$stage/main" <<END
set -eu
new=$version
END
cat >>"$stage/main" <<'END'
export DEBIAN_FRONTEND=noninteractive
began=$(date +%s)
step() { echo "==> $1 after $(($(date +%s) - began)) s"; }
die() { echo "error: $1"; exit 1; }
trap 'journalctl -u kubelet -o cat >out/kubelet.log' EXIT
config=/etc/kubelet/config.yaml
CGROUP_DRIVER=systemd hack/containerd.sh start /work/containerd $$ >/dev/null
endpoint=$(hack/containerd.sh endpoint /work/containerd)
crictl() { target/tools/crictl --config /dev/null --runtime-endpoint "$endpoint" "$@"; }
# The containers that run, and since when.
containers() {
    crictl ps -q | sort | while read -r id; do
        crictl inspect --output go-template --template '{{.status.id}} {{.status.startedAt}}' "$id"
    done
}
unchanged() { [ "$(containers)" = "$before" ] || die "containers changed: $1"; step "$1: the same containers"; }
is() { [ "$(systemctl is-active kubelet)" = "$1" ] || die "the kubelet is $(systemctl is-active kubelet), not $1"; }
process() { systemctl show -P MainPID kubelet; }
installed() { [ "$(dpkg-query -Wf '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
running() { [ "$(kubelet pods 2>/dev/null | grep -c ' 1/1 .*Running')" = 2 ]; }
wait_for() { until "$@"; do sleep 1; done; }

rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:/work/repository ./' >/etc/apt/sources.list
apt-get -qq update
apt-get -qqy install kubelet-rs=1.36.2+rs0.0.9 kubeadm >/dev/null
installed kubeadm && installed kubelet-rs || die "they are not installed together"
! installed kubelet || die "kubeadm's dependency has brought kubelet"
is inactive
[ "$(systemctl is-enabled kubelet)" = disabled ] || die "the package has enabled the unit"
step "kubeadm's dependency on kubelet holds, and nothing is started"

sed -i "s|^containerRuntimeEndpoint:.*|containerRuntimeEndpoint: $endpoint|" $config
printf 'cgroupDriver: systemd\nfailSwapOn: false\n' >>$config
cp $config changed.yaml
cp manifests/* /etc/kubernetes/manifests/
systemctl enable --quiet --now kubelet
wait_for running
before=$(containers)
[ "$(echo "$before" | grep -c .)" = 2 ] || die "there are not two containers: $before"
echo "$before"
step "two pods run"

first=$(process)
# Nobody answers dpkg's question about the configuration.
! apt-get -y upgrade </dev/null >out/upgrade.log 2>&1 || die "dpkg has not asked: $(cat out/upgrade.log)"
is active
[ "$(process)" = "$first" ] || die "the kubelet was restarted before it was configured"
unchanged "an upgrade that stops half-way"
dpkg --force-confold --configure -a >>out/upgrade.log 2>&1
[ "$(dpkg-query -Wf '${Version}' kubelet-rs)" = "$new" ] || die "that was no upgrade"
! installed kubelet || die "the upgrade has brought kubelet"
cmp $config changed.yaml
[ -e $config.dpkg-dist ] || die "the new configuration is not there"
is active
[ "$(process)" != "$first" ] || die "the kubelet was not restarted"
wait_for running
unchanged "an upgrade with a changed configuration"
for verb in upgrade dist-upgrade; do
    ! apt-get -s $verb | grep -E '^(Inst|Remv)' || die "apt-get $verb would exchange the kubelet"
done

echo 'maxPods: -1' >>$config
apt-get -qqy install --reinstall kubelet-rs >out/reinstall.log 2>&1 || die "a wrong configuration fails the package"
installed kubelet-rs || die "a wrong configuration leaves the package half installed"
grep "did not start again" out/reinstall.log || die "nobody is told that the kubelet does not start"
unchanged "an upgrade with a wrong configuration"
cp changed.yaml $config
systemctl restart kubelet
wait_for running
unchanged "the configuration is right again"

systemctl mask --quiet --runtime kubelet
apt-get -qqy remove kubelet-rs >/dev/null 2>&1 || die "a masked unit keeps the package"
! installed kubelet-rs && ! installed kubeadm || die "they were not removed"
systemctl unmask --quiet --runtime kubelet
is inactive
unchanged "a removal with the unit masked"
apt-get -qqy install kubelet-rs >/dev/null
is inactive
cmp $config changed.yaml
systemctl enable --quiet --now kubelet
wait_for running
unchanged "an installation after that"

# Either is removed, and with that stopped, before the other one is unpacked.
apt-get -qqy install kubelet >out/exchange.log 2>&1
installed kubelet && ! installed kubelet-rs || die "kubelet has not taken the place of kubelet-rs"
is inactive
systemctl enable --quiet --now kubelet
unchanged "another kubelet runs"
systemctl stop kubelet
apt-get -qqy install kubelet-rs >out/exchange.log 2>&1
installed kubelet-rs && ! installed kubelet || die "kubelet-rs has not taken the place of kubelet"
systemctl enable --quiet --now kubelet
wait_for running
unchanged "the exchange back"

apt-get -qqy purge kubelet-rs >/dev/null 2>&1
is inactive
[ ! -e $config ] || die "a purge leaves the configuration"
[ -d /var/lib/kubelet/pods ] || die "a purge removes the volumes of pods"
unchanged "a purge"
END
"$repo_root/hack/vm.sh" run --timeout "${VM_TIMEOUT:-1500}" --out "${OUT:-$target_dir/package-test}" "$stage" -- sh main
