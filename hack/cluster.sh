#!/usr/bin/env bash
# A cluster of one node, made by `kubeadm init` with this kubelet, in namespaces of its own: control plane, kube-proxy
# and CoreDNS as pods, then a Deployment and a Service that answers by name. Leaves nothing behind.
#
#   hack/cluster.sh         show that it works, take it down, exit 0
#   hack/cluster.sh --stay  the same, but stay until Ctrl-C
#
# KUBELET names the kubelet, also a Go one (default: this one is built). CONTAINERD_DIR is that of hack/containerd.sh.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

stay=false
[[ ${1:-} == --stay ]] && stay=true
need_root
cd "$repo_root"
export CARGO_TARGET_DIR=$target_dir
address=10.88.0.1
images=$images_dir/cluster

"$repo_root/hack/install-deps.sh"
"$repo_root/hack/build-kubernetes.sh" --control-plane --kubeadm
"$repo_root/hack/build-images.sh" --cluster "$images"
kubelet=${KUBELET:-}
if [[ -z $kubelet ]]; then
    cargo build --bin kubelet
    kubelet=$target_dir/debug/kubelet
fi
[[ -x $kubelet ]] || die "no kubelet in $kubelet"

dir=$(mktemp -d /tmp/kubelet-cluster.XXXXXX)
node=$dir/private/node
clean_up() {
    local code=$?
    trap - EXIT INT TERM
    if ((code != 0 && code != 130)); then
        "$repo_root/hack/namespaces.sh" exec "$dir" tail -n 60 /run/units/kubelet.log >&2 || true
    fi
    if [[ -n ${KEEP_LOGS:-} ]]; then
        mkdir -p "$KEEP_LOGS"
        "$repo_root/hack/namespaces.sh" exec "$dir" cp -rL /run/units /var/log/pods "$KEEP_LOGS" || true
    fi
    "$repo_root/hack/namespaces.sh" stop "$dir" || code=1
    rm -rf "$dir"
    exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

inside() { "$repo_root/hack/namespaces.sh" exec "$dir" env "PATH=$path" "UNIT_PATH=$node/lib/systemd/system" "$@"; }
path=$node/shims:$node/bin:$kubernetes_dir:$PATH
kubectl_line=(kubectl --kubeconfig /etc/kubernetes/admin.conf)
kubectl() { inside "${kubectl_line[@]}" "$@"; }

# -- the node --------------------------------------------------------------------------------------------------

make_node() {
    "$repo_root/hack/namespaces.sh" start "$dir" $$
    make -s install "PREFIX=$node" "KUBELET=$kubelet" DESTDIR=
    mkdir -p "$node/shims"
    ln -s "$repo_root/hack/units.sh" "$node/shims/systemctl"
    # kube-proxy's rules must see what goes from pod to pod.
    inside sh -c 'echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables; echo 1 >/proc/sys/net/ipv4/ip_forward'
    IMAGES=$images inside "$repo_root/hack/containerd.sh" start "$node/containerd"
    runtime=$(inside "$repo_root/hack/containerd.sh" endpoint "$node/containerd")
}

kubeadm_config() {
    cat <<EOF
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: $address}
nodeRegistration:
  name: node1
  criSocket: $runtime
  taints: []
  imagePullPolicy: Never
  kubeletExtraArgs: [{name: node-ip, value: $address}]
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: $("$kubernetes_dir/kubeadm" version -o short)
imageRepository: localhost
networking: {podSubnet: 10.89.0.0/16, serviceSubnet: 10.96.0.0/16}
controllerManager:
  extraArgs: [{name: flex-volume-plugin-dir, value: /var/lib/kubelet/volumeplugins}]
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $address
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
volumePluginDir: /var/lib/kubelet/volumeplugins
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", imagefs.inodesFree: "0%"}
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
# The machine's own limits stay as they are.
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
EOF
}

# -- what shows that it works ----------------------------------------------------------------------------------

objects() {
    cat <<EOF
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: localhost/busybox:dev
        command: [sh, -c, "hostname >/tmp/index.html; exec httpd -f -p 8080 -h /tmp"]
        readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: "localhost/busybox:dev", command: [sleep, infinity]}]
EOF
}

since=$SECONDS
step() { say "$1 after $((SECONDS - since)) s"; }
default_account() { kubectl get serviceaccount default; }
# Debian's static busybox crashes where it uses the resolver of the C library; its nslookup has its own.
service_answers() {
    # shellcheck disable=SC2016 # the shell in the pod expands it
    kubectl exec client -- sh -c 'address=$(nslookup -type=a "$1" | sed -n "/^Name/,\$s/^Address: *//p") && [ -n "$address" ] &&
        printf "GET / HTTP/1.0\r\n\r\n" | nc -w 5 "$address" 80 | grep "^web-"' - web.default.svc.cluster.local
}

make_node
step "the node has a container runtime"
kubeadm_config >"$node/kubeadm.yaml"
if ! inside kubeadm init --config "$node/kubeadm.yaml" --ignore-preflight-errors=all >"$node/kubeadm.log" 2>&1 </dev/null; then
    tail -n 40 "$node/kubeadm.log" >&2
    die "kubeadm init failed"
fi
step "kubeadm init is done"
wait_until 60 default_account || die "there is no default service account"
objects | kubectl create -f - >&2
kubectl wait --timeout=120s --for=condition=Ready node/node1 >&2
step "the node is Ready"
kubectl -n kube-system rollout status --timeout=180s daemonset/kube-proxy deployment/coredns >&2 ||
    die "kube-proxy or CoreDNS does not start: $(kubectl -n kube-system get pods -o wide)"
kubectl rollout status --timeout=120s deployment/web >&2
kubectl wait --timeout=60s --for=condition=Ready pod/client >&2
step "all pods are Ready"
wait_until 60 service_answers || die "the Service web does not answer: $(service_answers 2>&1)"
say "the Service web answers by name, from pod $(service_answers)"
step "the cluster works"
kubectl get nodes -o wide
kubectl get pods -A -o wide

if $stay; then
    say "the cluster runs until Ctrl-C; use it with:"
    printf '    hack/namespaces.sh exec %s %s/kubectl --kubeconfig /etc/kubernetes/admin.conf get pods -A\n' "$dir" "$kubernetes_dir" >&2
    printf '    hack/namespaces.sh exec %s bash\n' "$dir" >&2
    while :; do sleep 1; done
fi
