# shellcheck shell=bash
# A cluster of two nodes made by `kubeadm init` and `kubeadm join`, each in namespaces of its own; sourced by
# hack/cluster.sh and hack/swap-demo.sh, never run. They set
#
#   kubelet     the kubelet of the nodes, also a Go one
#
# and call `make_cluster`. The trap that is set here removes everything, also after a failure. KEEP_LOGS=DIR keeps the
# logs of the kubelets and of all pods. CONTAINERD_DIR is that of hack/containerd.sh.

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_root
cd "$repo_root"
export CARGO_TARGET_DIR=$target_dir
images=$images_dir/cluster
service_subnet=10.96.0.0/16

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

# Seconds of this script at which the cluster began.
since=$SECONDS
step() { say "$1 after $((SECONDS - since)) s"; }

# cluster_programs GROUP...: builds what the nodes run; the groups are those of hack/build-kubernetes.sh.
cluster_programs() {
    "$repo_root/hack/install-deps.sh"
    "$repo_root/hack/build-kubernetes.sh" --control-plane --kubeadm "$@"
    "$repo_root/hack/build-images.sh" --cluster "$images"
}

# own_kubelet: prints the path of the one to show, KUBELET or a debug build.
own_kubelet() {
    local program=${KUBELET:-}
    if [[ -z $program ]]; then
        cargo build --bin kubelet || die "the kubelet cannot be built"
        program=$target_dir/debug/kubelet
    fi
    [[ -x $program ]] || die "no kubelet in $program"
    realpath "$program"
}

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
endpoint_of() { on "$1" "$repo_root/hack/containerd.sh" endpoint "$(files "$1")/containerd"; }

# make_node NUMBER [NEIGHBOUR_DIR]
make_node() {
    local own
    own=$(files "$1")
    "$repo_root/hack/namespaces.sh" start "$dir/node$1" $$ "${@:2}"
    # shellcheck disable=SC2154 # set by those that source this file
    make -s install-program "PREFIX=$own" "KUBELET=$kubelet" DESTDIR=
    mkdir -p "$own/shims"
    ln -s "$repo_root/hack/units.sh" "$own/shims/systemctl"
    # Where `kubelet preflight` looks for the unit; /etc is the node's own.
    on "$1" sh -c "mkdir -p /etc/systemd/system && ln -s $own/lib/systemd/system/kubelet.service* /etc/systemd/system/"
    # kube-proxy's rules must see what goes from pod to pod.
    on "$1" sh -c 'echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables; echo 1 >/proc/sys/net/ipv4/ip_forward'
    # Without a default route the node itself, and with it the API server, could reach no Service: kube-proxy's rules
    # apply only to what has a route.
    on "$1" ip route add "$service_subnet" dev node0
    # A runtime takes a subnet to which there is no route yet.
    [[ $1 == 1 ]] || route_to_pods "$1" 1
    IMAGES=$images on "$1" "$repo_root/hack/containerd.sh" start "$own/containerd"
}

# route_to_pods FROM TO: lets one node reach the pods of the other.
route_to_pods() {
    on "$1" ip route add "10.89.$(cat "$(files "$2")/containerd/slot").0/24" via "10.88.0.$2"
}

registration() {
    cat <<END
nodeRegistration:
  name: node$1
  criSocket: $(endpoint_of "$1")
  taints: []
  imagePullPolicy: Never
  # Version 1 of cgroups, which some machines have; the check would also read the configuration of the kernel.
  ignorePreflightErrors: [SystemVerification]
  kubeletExtraArgs: [{name: node-ip, value: 10.88.0.$1}]
END
}

init_config() {
    cat <<END
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 10.88.0.1}
$(registration 1)
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: $("$kubernetes_dir/kubeadm" version -o short)
imageRepository: localhost
networking: {podSubnet: 10.89.0.0/16, serviceSubnet: $service_subnet}
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
END
}

join_config() {
    local words
    read -r -a words < <(kubeadm 1 token create --print-join-command)
    # kubeadm join ADDRESS --token TOKEN --discovery-token-ca-cert-hash HASH
    cat <<END
apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery:
  bootstrapToken: {apiServerEndpoint: "${words[2]}", token: "${words[4]}", caCertHashes: ["${words[6]}"]}
$(registration 2)
END
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

default_account() { kubectl get serviceaccount default; }

# Until both nodes are Ready and pods can be created.
make_cluster() {
    since=$SECONDS
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
}

# kube-proxy and CoreDNS.
await_cluster_pods() {
    kubectl -n kube-system rollout status --timeout=180s daemonset/kube-proxy deployment/coredns >&2 ||
        die "kube-proxy or CoreDNS does not start: $(kubectl -n kube-system get pods -o wide)"
}
