#!/usr/bin/env bash
# A Kubernetes control plane (etcd, API server, controller manager, scheduler) in namespaces of its own, with new
# certificates each time. Several run beside one another, and all that is inside ends with it.
#
#   hack/control-plane.sh start DIR [OWNER_PID]   start it; it stops by itself when OWNER_PID is gone
#   hack/control-plane.sh kubectl DIR ARGS...     kubectl as cluster-admin
#   hack/control-plane.sh kubeconfig DIR NODE     print a kubeconfig with the client certificate of that node
#   hack/control-plane.sh exec DIR COMMAND...     run COMMAND inside, beside the control plane: containerd, a kubelet
#   hack/control-plane.sh again DIR COMPONENT     start etcd or kube-apiserver again after it was killed; does not wait
#   hack/control-plane.sh metrics DIR             start metrics-server and register it; does not wait
#   hack/control-plane.sh stop DIR                stop it; leaves certificates and logs
#
# The API server listens on 10.88.0.1:6443 inside, which is the address of the only node that there can be (see
# hack/namespaces.sh). It authorises with Node and RBAC, admits with NodeRestriction, and takes bootstrap tokens.
# In DIR: admin.conf, bootstrap.conf (of a bootstrap token; the certificate of its node is approved), pki/ca.crt,
# audit.log (every request of nodes and of bootstrap tokens with its body), *.log, and private/, which `stop` removes.
# The programs are those of hack/build-kubernetes.sh --control-plane, and --metrics.
# KUBE_APISERVER_FLAGS are more flags of the API server.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() { die "usage: $(basename "$0") start|kubectl|kubeconfig|exec|again|metrics|stop DIR ..."; }
(($# >= 2)) || usage
command=$1
dir=$2
shift 2
case $command in start) mkdir -p "$dir" ;; *) [[ -d $dir ]] || exit 0 ;; esac
dir=$(cd "$dir" && pwd -P)

# Inside, a relative one would mean another directory.
export CARGO_TARGET_DIR=$target_dir
address=10.88.0.1
service_cidr=10.96.0.0/16
pki=$dir/pki
token_id=abcdef
namespaces() { "$repo_root/hack/namespaces.sh" "$1" "$dir" "${@:2}"; }
kubectl_line=("$kubernetes_dir/kubectl" --kubeconfig "$dir/admin.conf")
kubectl() { namespaces exec "${kubectl_line[@]}" "$@"; }
# This script becomes COMMAND, so that killing it kills COMMAND.
become() { exec "$repo_root/hack/namespaces.sh" exec "$dir" "$@"; }

# -- certificates ----------------------------------------------------------------------------------------------

write_openssl_config() {
    cat >"$pki/openssl.cnf" <<EOF
[req]
distinguished_name = none
[none]
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, digitalSignature, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[client]
keyUsage = critical, digitalSignature
extendedKeyUsage = clientAuth
[server]
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = IP:$address, IP:127.0.0.1, IP:${service_cidr%0/*}1, DNS:localhost, DNS:kubernetes, DNS:kubernetes.default, DNS:kubernetes.default.svc, DNS:kubernetes.default.svc.cluster.local
EOF
}

# certificate NAME SECTION SUBJECT [SIGNING_OPTION...]
certificate() {
    local name=$1 section=$2 subject=$3
    shift 3
    openssl req -x509 -config "$pki/openssl.cnf" -extensions "$section" -newkey ec -pkeyopt ec_paramgen_curve:P-256 \
        -nodes -days 30 -subj "$subject" -keyout "$pki/$name.key" -out "$pki/$name.crt" "$@" 2>"$pki/openssl.log" ||
        die "no certificate for $name: $(cat "$pki/openssl.log")"
}

signed() { certificate "$@" -CA "$pki/ca.crt" -CAkey "$pki/ca.key"; }

# kubeconfig_of USER_LINE...: the user's credentials are the lines.
kubeconfig_of() {
    cat <<EOF
apiVersion: v1
kind: Config
clusters:
- name: test
  cluster:
    server: https://$address:6443
    certificate-authority-data: $(base64 -w0 <"$pki/ca.crt")
users:
- name: user
  user:
$(printf '    %s\n' "$@")
contexts:
- name: test
  context: {cluster: test, user: user}
current-context: test
EOF
}

# client_config NAME SUBJECT: prints a kubeconfig with a client certificate.
client_config() {
    signed "$1" client "$2"
    kubeconfig_of "client-certificate-data: $(base64 -w0 <"$pki/$1.crt")" "client-key-data: $(base64 -w0 <"$pki/$1.key")"
}

write_credentials() {
    rm -rf "$pki"
    mkdir -p "$pki"
    chmod 700 "$pki"
    write_openssl_config
    certificate ca ca /CN=kubernetes
    signed apiserver server /CN=kube-apiserver
    signed apiserver-kubelet-client client /CN=kube-apiserver-kubelet-client
    certificate front-proxy-ca ca /CN=front-proxy-ca
    certificate front-proxy-client client /CN=front-proxy-client -CA "$pki/front-proxy-ca.crt" -CAkey "$pki/front-proxy-ca.key"
    openssl ecparam -name prime256v1 -genkey -noout -out "$pki/sa.key"
    openssl ec -in "$pki/sa.key" -pubout -out "$pki/sa.pub" 2>/dev/null
    client_config admin /O=system:masters/CN=kubernetes-admin >"$dir/admin.conf"
    client_config controller-manager /CN=system:kube-controller-manager >"$pki/controller-manager.conf"
    client_config scheduler /CN=system:kube-scheduler >"$pki/scheduler.conf"
    token_secret=$(openssl rand -hex 8)
    kubeconfig_of "token: $token_id.$token_secret" >"$dir/bootstrap.conf"
    chmod 600 "$dir"/*.conf
}

write_audit_policy() {
    cat >"$dir/audit-policy.yaml" <<EOF
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Request
  userGroups: ["system:nodes", "system:bootstrappers"]
- level: None
EOF
}

# What kubeadm sets up for a cluster beside its certificates.
cluster_objects() {
    local name role group
    while read -r name role group; do
        cat <<EOF
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: $name}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "$role"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: ${group%%/*}, name: "${group#*/}"}]
---
EOF
    done <<EOF
apiserver-kubelet-api system:kubelet-api-admin User/kube-apiserver-kubelet-client
node-bootstrapper system:node-bootstrapper Group/system:bootstrappers
node-autoapprove-bootstrap system:certificates.k8s.io:certificatesigningrequests:nodeclient Group/system:bootstrappers
node-autoapprove-rotation system:certificates.k8s.io:certificatesigningrequests:selfnodeclient Group/system:nodes
EOF
    cat <<EOF
apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-$token_id, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData:
  token-id: $token_id
  token-secret: "$token_secret"
  usage-bootstrap-authentication: "true"
  usage-bootstrap-signing: "true"
EOF
}

# -- components ------------------------------------------------------------------------------------------------

# The rest of the script inside: starts components, which are then children of the namespace's first process.
run_storage_and_api() {
    run_etcd
    run_kube-apiserver
}

run_etcd() {
    mkdir -p "$dir/private/etcd"
    chmod 700 "$dir/private/etcd"
    in_background etcd --data-dir "$dir/private/etcd" --unsafe-no-fsync --log-level warn \
        --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
        --listen-peer-urls http://127.0.0.1:2380
}

# ResourceHealthStatus is off in v1.35.
run_kube-apiserver() {
    local more
    read -ra more <<<"${KUBE_APISERVER_FLAGS:-}"
    in_background kube-apiserver --etcd-servers http://127.0.0.1:2379 --advertise-address "$address" \
        --secure-port 6443 --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" \
        --client-ca-file "$pki/ca.crt" --kubelet-client-certificate "$pki/apiserver-kubelet-client.crt" \
        --kubelet-client-key "$pki/apiserver-kubelet-client.key" --kubelet-preferred-address-types InternalIP \
        --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$pki/sa.pub" \
        --service-account-signing-key-file "$pki/sa.key" --service-cluster-ip-range "$service_cidr" \
        --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --enable-bootstrap-token-auth \
        --requestheader-client-ca-file "$pki/front-proxy-ca.crt" --requestheader-allowed-names front-proxy-client \
        --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
        --requestheader-extra-headers-prefix X-Remote-Extra- --enable-aggregator-routing \
        --proxy-client-cert-file "$pki/front-proxy-client.crt" --proxy-client-key-file "$pki/front-proxy-client.key" \
        --feature-gates ResourceHealthStatus=true --allow-privileged --audit-policy-file "$dir/audit-policy.yaml" \
        --audit-log-path "$dir/audit.log" "${more[@]}"
}

run_controllers() {
    in_background kube-controller-manager --kubeconfig "$pki/controller-manager.conf" --bind-address 127.0.0.1 \
        --cluster-signing-cert-file "$pki/ca.crt" --cluster-signing-key-file "$pki/ca.key" --root-ca-file "$pki/ca.crt" \
        --service-account-private-key-file "$pki/sa.key" --use-service-account-credentials --leader-elect=false \
        --kube-api-qps 500 --kube-api-burst 500 --controllers "*,bootstrap-signer-controller,token-cleaner-controller"
    in_background kube-scheduler --kubeconfig "$pki/scheduler.conf" --bind-address 127.0.0.1 --leader-elect=false
}

run_metrics-server() {
    in_background metrics-server --kubeconfig "$dir/admin.conf" --authentication-kubeconfig "$dir/admin.conf" \
        --authorization-kubeconfig "$dir/admin.conf" --cert-dir "$dir/private/metrics-server" --secure-port 4443 \
        --kubelet-insecure-tls --kubelet-preferred-address-types InternalIP \
        --metric-resolution 10s --kubelet-request-timeout 5s
}

# Its API, served beside the control plane: a Service without pods.
metrics_objects() {
    cat <<EOF
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec: {ports: [{port: 443, targetPort: 4443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: metrics-server
  namespace: kube-system
  labels: {kubernetes.io/service-name: metrics-server}
addressType: IPv4
ports: [{port: 4443, protocol: TCP}]
endpoints: [{addresses: [$address], conditions: {ready: true}}]
EOF
    metrics_api_service
}

metrics() {
    "$repo_root/hack/build-kubernetes.sh" --check --metrics
    namespaces exec "$repo_root/hack/control-plane.sh" run_metrics-server "$dir"
    metrics_objects | kubectl create -f - >/dev/null
}

in_background() { setsid "$kubernetes_dir/$1" "${@:2}" >>"$dir/$1.log" 2>&1 </dev/null & }

port_is_open() { namespaces exec bash -c "exec 3<>/dev/tcp/127.0.0.1/$1"; }

# wait_for SECONDS COMPONENT COMMAND...
wait_for() {
    wait_until "$1" "${@:3}" && return
    tail -n 20 "$dir/$2.log" >&2
    die "$2 is not ready after $1 s; its log is $dir/$2.log"
}

start() {
    "$repo_root/hack/build-kubernetes.sh" --check --control-plane
    have openssl || die "openssl is missing; hack/install-deps.sh installs it"
    local since=$SECONDS
    namespaces start "$@"
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap stop EXIT
    rm -f "$dir"/*.log
    write_credentials
    write_audit_policy
    namespaces exec "$repo_root/hack/control-plane.sh" run_storage_and_api "$dir"
    wait_for 120 kube-apiserver port_is_open 6443
    wait_for 120 kube-apiserver kubectl get --raw /readyz
    namespaces exec "$repo_root/hack/control-plane.sh" run_controllers "$dir"
    cluster_objects | kubectl create --validate=false -f - >/dev/null
    wait_for 60 kube-scheduler port_is_open 10259
    # Without it no pod can be created.
    wait_for 60 kube-controller-manager kubectl get serviceaccount default
    trap - EXIT INT TERM
    say "the control plane of $dir is ready after $((SECONDS - since)) s"
}

again() {
    [[ ${1:-} == etcd || ${1:-} == kube-apiserver ]] || usage
    namespaces exec "$repo_root/hack/control-plane.sh" "run_$1" "$dir"
}

stop() {
    trap - EXIT INT TERM
    namespaces stop
}

case $command in
start) start "$@" ;;
kubectl) become "${kubectl_line[@]}" "$@" ;;
kubeconfig)
    (($# == 1)) || usage
    client_config "node-$1" "/O=system:nodes/CN=system:node:$1"
    ;;
exec) become "$@" ;;
again) again "$@" ;;
metrics) metrics ;;
stop) stop ;;
run_storage_and_api | run_etcd | run_kube-apiserver | run_controllers | run_metrics-server) "$command" ;;
*) usage ;;
esac
