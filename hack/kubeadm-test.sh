#!/usr/bin/env bash
# A node with cgroup v2 and a real systemd (hack/vm.sh), made by `kubeadm init` with no check ignored: the unit and
# kubeadm's drop-in as `make install` leaves them, kube-proxy, CoreDNS, a pod, a new argument for the API server by
# `kubeadm upgrade node`, and a restart of the kubelet that restarts no container. Software emulation: ten minutes.
#
#   hack/kubeadm-test.sh [KUBELET]    (default: target/debug/kubelet; it may be a Go one)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

kubelet=$(realpath "${1:-$target_dir/debug/kubelet}")
"$repo_root/hack/build-images.sh" --cluster "$images_dir/cluster"
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/target/tools/kubernetes" "$stage/out"
ln -s "$repo_root/hack" "$stage/hack"
ln -s "$images_dir/cluster" "$stage/images"
ln -s "$(find_crictl)" "$stage/target/tools/crictl"
ln -s "$kubernetes_dir"/{kubeadm,kubectl} "$stage/target/tools/kubernetes/"
# The copy that goes into the machine needs no symbols.
strip -o "$stage/kubelet" "$kubelet"
make -s -C "$repo_root" install-program "DESTDIR=$stage/root" PREFIX=/usr "KUBELET=$stage/kubelet"
rm "$stage/kubelet"

cat >"$stage/kubeadm.yaml" <<EOF
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 10.88.0.1}
nodeRegistration:
  name: node1
  criSocket: ENDPOINT
  taints: []
  imagePullPolicy: Never
  kubeletExtraArgs: [{name: node-ip, value: 10.88.0.1}]
# The machine is an emulated one.
timeouts: {controlPlaneComponentHealthCheck: 20m, kubeletHealthCheck: 10m, kubernetesAPICall: 5m, upgradeManifests: 20m}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: $("$kubernetes_dir/kubeadm" version -o short)
imageRepository: localhost
networking: {podSubnet: 10.89.0.0/16, serviceSubnet: 10.96.0.0/16}
EOF
cat >"$stage/main" <<'EOF'
set -eu
step() { echo "==> $1 after $(($(date +%s) - began)) s"; }
began=$(date +%s)
trap 'journalctl -u kubelet -o cat >out/kubelet.log; cp -rL /var/log/pods out/; systemctl status kubelet --no-pager | head -n 15' EXIT
export PATH=/work/target/tools/kubernetes:/work/target/tools:$PATH KUBECONFIG=/etc/kubernetes/admin.conf
cp -r root/usr/. /usr/
systemctl daemon-reload
systemctl enable --quiet kubelet
modprobe -a bridge br_netfilter nf_conntrack
ip link add node0 type bridge && ip addr add 10.88.0.1/24 dev node0 && ip link set node0 up
ip route add default via 10.88.0.254
echo 'nameserver 10.88.0.1' >/etc/resolv.conf
IMAGES=/work/images CGROUP_DRIVER=systemd hack/containerd.sh start /work/containerd $$ >/dev/null
sed -i "s|ENDPOINT|$(hack/containerd.sh endpoint /work/containerd)|" kubeadm.yaml
step "the machine has a container runtime"
kubeadm init --config kubeadm.yaml >out/init.log 2>&1 || { tail -n 40 out/init.log; exit 1; }
grep -i warning out/init.log || true
step "kubeadm init is done"
kubectl wait --timeout=600s --for=condition=Ready node/node1
kubectl -n kube-system rollout status --timeout=900s daemonset/kube-proxy deployment/coredns
until kubectl get serviceaccount default >/dev/null 2>&1; do sleep 1; done
kubectl run web --image localhost/busybox:dev --image-pull-policy Never --restart Never -- sh -c 'echo started; exec sleep infinity'
kubectl wait --timeout=300s --for=condition=Ready pod/web
[ "$(kubectl logs web)" = started ]
[ "$(kubectl exec web -- echo inside)" = inside ]
step "all pods are Ready"
kubectl -n kube-system get configmap kubeadm-config -o yaml |
    sed 's/^\( *\)apiServer: {}$/\1apiServer: {extraArgs: [{name: profiling, value: "false"}]}/' | kubectl replace -f -
kubeadm upgrade node >out/upgrade.log 2>&1 || { tail -n 40 out/upgrade.log; exit 1; }
kubectl -n kube-system get pod kube-apiserver-node1 -o yaml | grep -q -- --profiling=false
step "kubeadm upgrade node has changed the API server"
containers() { crictl --config /dev/null --runtime-endpoint "$(hack/containerd.sh endpoint /work/containerd)" ps -q | sort; }
until [ "$(kubectl get pods -A --no-headers | grep -c '1/1 *Running')" = 8 ]; do sleep 2; done
before=$(containers)
systemctl restart kubelet
sleep 60
[ "$before" = "$(containers)" ] || { echo "a restart of the kubelet changed containers"; exit 1; }
kubectl wait --timeout=300s --for=condition=Ready node/node1
step "a restart of the kubelet has restarted nothing"
systemctl show kubelet -p ActiveState -p NRestarts -p Type -p WatchdogUSec
kubectl get nodes -o wide
kubectl get pods -A
EOF
"$repo_root/hack/vm.sh" run --memory 6144 --timeout "${VM_TIMEOUT:-2400}" --out "${OUT:-$target_dir/kubeadm-test}" "$stage" -- sh main
