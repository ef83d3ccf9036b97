#!/usr/bin/env bash
# A cluster of two nodes, made by `kubeadm init` and `kubeadm join` with this kubelet, each in namespaces of its own:
# control plane, kube-proxy and CoreDNS as pods, a Deployment and a Service that answers by name, then new arguments
# for the API server by `kubeadm upgrade node`. Leaves nothing behind.
#
#   hack/cluster.sh            show that it works, take it down, exit 0
#   hack/cluster.sh --stay     the same, but stay until Ctrl-C
#   hack/cluster.sh --metrics  with metrics-server, which the API server reaches through a Service; `kubectl top` works
#
# KUBELET names the kubelet, also a Go one (default: this one is built). CONTAINERD_DIR is that of hack/containerd.sh.
# shellcheck source-path=SCRIPTDIR source=kubeadm-cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/kubeadm-cluster.sh"

stay=false
metrics=()
for word in "$@"; do
    case $word in
    --stay) stay=true ;;
    --metrics) metrics=(--metrics) ;;
    *) die "usage: $(basename "$0") [--stay] [--metrics]" ;;
    esac
done

cluster_programs "${metrics[@]}"
((${#metrics[@]} == 0)) || hack/build-images.sh --metrics "$images_dir/metrics"
kubelet=$(own_kubelet)

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

# Debian's static busybox crashes where it uses the resolver of the C library; its nslookup has its own.
service_answers() {
    # shellcheck disable=SC2016 # the shell in the pod expands it
    kubectl exec client -- sh -c 'address=$(nslookup -type=a "$1" | sed -n "/^Name/,\$s/^Address: *//p") && [ -n "$address" ] &&
        printf "GET / HTTP/1.0\r\n\r\n" | nc -w 5 "$address" 80 | grep "^web-"' - web.default.svc.cluster.local
}

# As the API server reaches webhooks and aggregated APIs.
node_reaches_service() {
    on 1 bash -c "exec 3<>/dev/tcp/$(kubectl get service web -o 'jsonpath={.spec.clusterIP}')/80"
}

# metrics-server as a pod of node2, as its own manifests have it; the kubelets' certificates are their own.
metrics_objects() {
    cat <<END
apiVersion: v1
kind: ServiceAccount
metadata: {name: metrics-server, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: system:metrics-server}
rules:
- {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
- {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system:metrics-server}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:metrics-server}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: metrics-server:system:auth-delegator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:auth-delegator}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: metrics-server-auth-reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: metrics-server, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: metrics-server}}
  template:
    metadata: {labels: {k8s-app: metrics-server}}
    spec:
      nodeName: node2
      serviceAccountName: metrics-server
      containers:
      - name: metrics-server
        image: localhost/metrics-server:dev
        imagePullPolicy: Never
        args: [--secure-port=4443, --cert-dir=/tmp, --kubelet-insecure-tls, --kubelet-preferred-address-types=InternalIP,
          --metric-resolution=10s, --kubelet-request-timeout=5s]
        readinessProbe: {httpGet: {path: /readyz, port: 4443, scheme: HTTPS}, periodSeconds: 2}
---
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec:
  selector: {k8s-app: metrics-server}
  ports: [{port: 443, targetPort: 4443}]
END
    metrics_api_service
}

both_nodes_are_measured() { [[ $(kubectl top nodes --no-headers | grep -c '^node[12] .*m .*Mi') == 2 ]]; }

start_metrics_server() {
    local socket
    socket=$(endpoint_of 2)
    on 2 ctr -a "${socket#unix://}" -n k8s.io images import "$images_dir/metrics/metrics-server.tar" >/dev/null
    metrics_objects | kubectl create -f - >&2
    kubectl -n kube-system rollout status --timeout=120s deployment/metrics-server >&2
    wait_until 120 both_nodes_are_measured || die "metrics-server does not show the nodes: $(kubectl top nodes 2>&1)"
    step "kubectl top shows both nodes"
    kubectl top nodes
}

make_cluster
objects | kubectl create -f - >&2
await_cluster_pods
kubectl rollout status --timeout=120s deployment/web >&2
kubectl wait --timeout=60s --for=condition=Ready pod/client >&2
step "all pods are Ready"
wait_until 60 service_answers || die "the Service web does not answer: $(service_answers 2>&1)"
say "the Service web answers by name, from pod $(service_answers)"
wait_until 30 node_reaches_service || die "the node does not reach the Service web"
((${#metrics[@]} == 0)) || start_metrics_server
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
