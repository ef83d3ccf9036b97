#!/usr/bin/env bash
# A cluster of two nodes, made by `kubeadm init` and `kubeadm join` with this kubelet, each in namespaces of its own:
# control plane, kube-proxy and CoreDNS as pods, a Deployment and a Service that answers by name, then new arguments
# for the API server by `kubeadm upgrade node`. Leaves nothing behind.
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
clean_up() {
    local code=$? number
    trap - EXIT INT TERM
    for number in 2 1; do
        [[ -d $dir/node$number ]] || continue
        if ((code != 0 && code != 130)); then
            say "the end of the kubelet's log of node$number:"
            on "$number" tail -n 60 /run/units/kubelet.log >&2 || true
        fi
        if [[ -n ${KEEP_LOGS:-} ]]; then
            mkdir -p "$KEEP_LOGS/node$number"
            on "$number" cp -rL /run/units /var/log/pods "$KEEP_LOGS/node$number" || true
        fi
        "$repo_root/hack/namespaces.sh" stop "$dir/node$number" || code=1
    done
    rm -rf "$dir"
    exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# files NUMBER: where the node has what it runs.
files() { printf '%s/node%s/private/node' "$dir" "$1"; }
# on NUMBER COMMAND...: runs it on that node.
on() {
    local own
    own=$(files "$1")
    "$repo_root/hack/namespaces.sh" exec "$dir/node$1" env "UNIT_PATH=$own/lib/systemd/system" \
        "PATH=$own/shims:$own/bin:$kubernetes_dir:$PATH" "${@:2}"
}
kubectl_line=(kubectl --kubeconfig /etc/kubernetes/admin.conf)
kubectl() { on 1 "${kubectl_line[@]}" "$@"; }

# -- the nodes -------------------------------------------------------------------------------------------------

# make_node NUMBER [NEIGHBOUR_DIR]
make_node() {
    local own
    own=$(files "$1")
    "$repo_root/hack/namespaces.sh" start "$dir/node$1" $$ "${@:2}"
    make -s install "PREFIX=$own" "KUBELET=$kubelet" DESTDIR=
    mkdir -p "$own/shims"
    ln -s "$repo_root/hack/units.sh" "$own/shims/systemctl"
    # kube-proxy's rules must see what goes from pod to pod.
    on "$1" sh -c 'echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables; echo 1 >/proc/sys/net/ipv4/ip_forward'
    # A runtime takes a subnet to which there is no route yet.
    [[ $1 == 1 ]] || route_to_pods "$1" 1
    IMAGES=$images on "$1" "$repo_root/hack/containerd.sh" start "$own/containerd"
}

# route_to_pods FROM TO: lets one node reach the pods of the other.
route_to_pods() {
    on "$1" ip route add "10.89.$(cat "$(files "$2")/containerd/slot").0/24" via "10.88.0.$2"
}

registration() {
    cat <<EOF
nodeRegistration:
  name: node$1
  criSocket: $(on "$1" "$repo_root/hack/containerd.sh" endpoint "$(files "$1")/containerd")
  taints: []
  imagePullPolicy: Never
  # Version 1 of cgroups, which some machines have; the check would also read the configuration of the kernel.
  ignorePreflightErrors: [SystemVerification]
  kubeletExtraArgs: [{name: node-ip, value: 10.88.0.$1}]
EOF
}

init_config() {
    cat <<EOF
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 10.88.0.1}
$(registration 1)
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

join_config() {
    local words
    read -r -a words < <(kubeadm 1 token create --print-join-command)
    # kubeadm join ADDRESS --token TOKEN --discovery-token-ca-cert-hash HASH
    cat <<EOF
apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery:
  bootstrapToken: {apiServerEndpoint: "${words[2]}", token: "${words[4]}", caCertHashes: ["${words[6]}"]}
$(registration 2)
EOF
}

# kubeadm NUMBER ARGS...: prints what it prints, once it has ended well.
kubeadm() {
    local own
    own=$(files "$1")
    on "$1" env KUBECONFIG=/etc/kubernetes/admin.conf kubeadm "${@:2}" >"$own/kubeadm.out" 2>"$own/kubeadm.log" </dev/null || {
        tail -n 20 "$own/kubeadm.out" "$own/kubeadm.log" >&2
        die "kubeadm ${*:2} failed on node$1"
    }
    cat "$own/kubeadm.out"
}

# What an administrator changes for a cluster comes to a node of the control plane by `kubeadm upgrade node`.
change_control_plane() {
    kubectl -n kube-system get configmap kubeadm-config -o yaml |
        sed 's/^\( *\)apiServer: {}$/\1apiServer: {extraArgs: [{name: profiling, value: "false"}]}/' |
        kubectl replace -f - >&2
    kubeadm 1 upgrade node --ignore-preflight-errors=SystemVerification >&2
    kubectl -n kube-system get pod kube-apiserver-node1 -o yaml | grep -q -- --profiling=false ||
        die "the API server does not run with its new arguments"
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
      # One on each node.
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
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
  nodeName: node2
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

make_node 1
init_config >"$(files 1)/kubeadm.yaml"
step "node1 has a container runtime"
kubeadm 1 init --config "$(files 1)/kubeadm.yaml" >/dev/null
step "kubeadm init is done"
make_node 2 "$dir/node1"
route_to_pods 1 2
join_config >"$(files 2)/kubeadm.yaml"
kubeadm 2 join --config "$(files 2)/kubeadm.yaml" >/dev/null
step "kubeadm join is done on node2"
kubectl wait --timeout=60s --for=create node/node2 >&2
kubectl wait --timeout=120s --for=condition=Ready node/node1 node/node2 >&2
step "the nodes are Ready"
wait_until 60 default_account || die "there is no default service account"
objects | kubectl create -f - >&2
kubectl -n kube-system rollout status --timeout=180s daemonset/kube-proxy deployment/coredns >&2 ||
    die "kube-proxy or CoreDNS does not start: $(kubectl -n kube-system get pods -o wide)"
kubectl rollout status --timeout=120s deployment/web >&2
kubectl wait --timeout=60s --for=condition=Ready pod/client >&2
step "all pods are Ready"
wait_until 60 service_answers || die "the Service web does not answer: $(service_answers 2>&1)"
say "the Service web answers by name, from pod $(service_answers)"
change_control_plane
step "kubeadm upgrade node has changed the API server"
kubectl get nodes -o wide
kubectl get pods -A -o wide

if $stay; then
    say "the cluster runs until Ctrl-C; use it with:"
    printf '    hack/namespaces.sh exec %s %s/kubectl --kubeconfig /etc/kubernetes/admin.conf get pods -A\n' "$dir/node1" "$kubernetes_dir" >&2
    printf '    hack/namespaces.sh exec %s bash\n' "$dir/node2" >&2
    while :; do sleep 1; done
fi
