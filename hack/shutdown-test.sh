#!/usr/bin/env bash
# Shuts a node down while pods run, in a virtual machine with a real logind (hack/vm.sh), and checks that they stop by
# priority, each with its time, before the machine goes down.
#
#   hack/shutdown-test.sh [KUBELET]    (default: target/debug/kubelet)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

kubelet=$(realpath "${1:-$target_dir/debug/kubelet}")
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/target/tools" "$stage/target/images" "$stage/manifests" "$stage/result"
ln -s "$repo_root/hack" "$stage/hack"
ln -s "$images_dir"/*.tar "$stage/target/images/"
ln -s "$(find_crictl)" "$stage/target/tools/crictl"
ln -s "$kubelet" "$stage/kubelet"

# pod NAME PRIORITY COMMAND-AT-TERM
pod() {
    cat >"$stage/manifests/$1.yaml" <<EOF
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  priority: $2
  terminationGracePeriodSeconds: 60
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sh, -c, 'trap "$3" TERM; echo $1 begins >>/out/log; while :; do sleep 0.1; done']
    volumeMounts: [{name: out, mountPath: /out}]
  volumes: [{name: out, hostPath: {path: /work/out}}]
EOF
}
pod low 0 'echo low stops >>/out/log; sleep 1; echo low has stopped >>/out/log; exit 0'
pod stubborn 0 'echo stubborn does not stop >>/out/log'
pod high 1000 'echo high stops >>/out/log; exit 0'

cat >"$stage/config.yaml" <<'EOF'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: /work/manifests
containerRuntimeEndpoint: ENDPOINT
cgroupDriver: systemd
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
shutdownGracePeriodByPodPriority:
- {priority: 0, shutdownGracePeriodSeconds: 8}
- {priority: 1000, shutdownGracePeriodSeconds: 4}
EOF
# What the machine's own shutdown ends has to be brought out before.
cat >"$stage/main" <<'EOF'
trap 'cp kubelet.log /etc/systemd/logind.conf.d/99-kubelet.conf out/; cp root/graceful_node_shutdown_state out/
      echo "the machine goes down" >>out/log; tar -cf /dev/vdc .vm/status out; sync; exit 0' TERM
CGROUP_DRIVER=systemd hack/containerd.sh start /work/containerd $$ >/dev/null
sed -i "s|ENDPOINT|$(hack/containerd.sh endpoint /work/containerd)|" config.yaml
./kubelet --config config.yaml --root-dir /work/root --hostname-override node1 >kubelet.log 2>&1 &
n=0
until [ "$(grep -c begins out/log 2>/dev/null)" = 3 ] || [ $n = 300 ]; do sleep 1; n=$((n + 1)); done
systemd-inhibit --list --no-pager >>out/inhibitors
echo "the shutdown begins" >>out/log
systemctl poweroff
while :; do sleep 0.1; done
EOF
"$repo_root/hack/vm.sh" run --stay --timeout 400 --out "$stage/result" "$stage" -- sh main
log=$stage/result/log
cat "$log" "$stage/result/99-kubelet.conf" "$stage/result/graceful_node_shutdown_state" "$stage/result/inhibitors"
printf '\n'
grep -i shut "$stage/result/kubelet.log" || true

# line TEXT: where it is in the log.
line() { grep -nFx -- "$1" "$log" | head -n 1 | cut -d: -f1 | grep . || die "the log lacks: $1"; }
[[ $(line 'the shutdown begins') -lt $(line 'low stops') ]] || die "a pod stopped before"
[[ $(line 'low has stopped') -lt $(line 'high stops') ]] || die "phases overlap"
[[ $(line 'stubborn does not stop') -lt $(line 'high stops') ]] || die "phases overlap"
[[ $(line 'high stops') -lt $(line 'the machine goes down') ]] || die "the machine did not wait"
grep -q '^InhibitDelayMaxSec=15$' "$stage/result/99-kubelet.conf" || die "logind was not made to wait"
say "pods stopped by priority before the machine went down"
