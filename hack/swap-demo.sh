#!/usr/bin/env bash
# Replaces the Go kubelet of a live node by this one, and this one by the Go kubelet again. kubeadm makes a cluster of two
# nodes with the Go kubelet; a web server runs on node2, and gets requests through its Service all the time. Each exchange
# is that of docs/operate/move.md. It has failed, and the exit code is not 0, if a container is not the same one with the
# same start time and process, if a request is lost, or if the node was not Ready for a moment. Leaves nothing behind.
#
#   hack/swap-demo.sh
#
# KUBELET names this kubelet (default: it is built). CONTAINERD_DIR is that of hack/containerd.sh.
# shellcheck source-path=SCRIPTDIR source=kubeadm-cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/kubeadm-cluster.sh"
shopt -s inherit_errexit

# Seconds that each kubelet runs before the node is compared: it has probed and reported everything by then.
stay=${SWAP_DEMO_STAY:-15}

cluster_programs --kubelet
ours=$(own_kubelet)
kubelet=$kubernetes_dir/kubelet
version_of() { "$1" --version | sed 's/^Kubernetes //'; }
our_version=$(version_of "$ours")
go_version=$(version_of "$kubelet")
[[ $our_version != "$go_version" ]] || die "both kubelets are $go_version, so that one cannot be told from the other"

objects() {
    cat <<END
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {kubernetes.io/hostname: node2}
      containers:
      - name: web
        image: localhost/busybox:dev
        command: [sh, -c, "hostname >/tmp/index.html; exec httpd -f -p 8080 -h /tmp"]
        readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}
        livenessProbe: {httpGet: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
END
}

# create_pod NAME: one that says something, on node2.
create_pod() {
    kubectl create -f - >&2 <<END
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  nodeName: node2
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "localhost/busybox:dev", command: [sh, -c, "echo said by $1; exec sleep infinity"]}]
END
    kubectl wait --timeout=60s --for=condition=Ready "pod/$1" >&2
    [[ $(kubectl logs "$1") == "said by $1" ]] || die "the log of pod $1 cannot be read"
    [[ $(kubectl exec "$1" -- echo inside) == inside ]] || die "no command runs in pod $1"
}

# Everything is shown before the end says whether it was well.
violations=()
violated() {
    violations+=("$1")
    say "VIOLATED: $1"
}

# -- what is watched -------------------------------------------------------------------------------------------

# Every container and sandbox that runs on node2, as the runtime has it: name, id, process, start.
containers() {
    local crictl id ids
    crictl=("$(find_crictl)" -c /dev/null -r "$(endpoint_of 2)")
    ids=$(on 2 "${crictl[@]}" ps -q | sort)
    for id in $ids; do
        on 2 "${crictl[@]}" inspect --output go-template \
            --template '{{.status.metadata.name}} {{.status.id}} pid {{.info.pid}} started {{.status.startedAt}}' "$id"
    done
    on 2 "${crictl[@]}" pods -q --state ready | sort | sed 's/^/sandbox /'
}

# The pods as the API server has them.
shown_pods() {
    kubectl get pods -A --field-selector spec.nodeName=node2 --sort-by .metadata.name -o \
        'custom-columns=POD:.metadata.name,STARTED:.status.containerStatuses[0].state.running.startedAt,RESTARTS:.status.containerStatuses[0].restartCount,CONTAINER:.status.containerStatuses[0].containerID' |
        sed 's|containerd://\(.\{13\}\).*|\1|'
}

# Status and last transition of the node's condition.
ready_condition='custom-columns=READY:.status.conditions[?(@.type=="Ready")].status,SINCE:.status.conditions[?(@.type=="Ready")].lastTransitionTime'
ready_since() { kubectl get node node2 --no-headers -o "$ready_condition" | tr -s ' '; }
running_version() { kubectl get node node2 -o 'jsonpath={.status.nodeInfo.kubeletVersion}'; }
runs_version() { [[ $(running_version) == "$1" ]]; }

requests=$dir/requests
conditions=$dir/conditions
start_watching() {
    local address
    address=$(kubectl get service web -o 'jsonpath={.spec.clusterIP}')
    on 1 "$repo_root/hack/request-loop.py" "http://$address/" >>"$requests" &
    kubectl get node node2 --watch --no-headers -o "$ready_condition" >>"$conditions" &
    wait_until 60 both_pods_answer || die "the Service does not answer: $(tail -n 3 "$requests")"
    wait_until 60 test -s "$conditions" || die "the node is not watched"
}

both_pods_answer() { [[ $(grep -o ' ok web-.*' "$requests" | sort -u | wc -l) == 2 ]]; }

# report LINE: of the requests after this line of the file; fails if one was lost.
report() {
    local count lost
    count=$(tail -n "+$(($1 + 1))" "$requests" | wc -l)
    lost=$(tail -n "+$(($1 + 1))" "$requests" | grep -c ' lost ' || true)
    say "$count requests, $lost lost, the slowest took $(tail -n "+$(($1 + 1))" "$requests" | sort -k2,2n | tail -n 1 | cut -d' ' -f2) ms"
    ((count >= 50)) || die "there were too few requests to show anything"
    ((lost == 0)) || violated "requests were lost: $(grep ' lost ' "$requests" | head -n 3)"
}

# -- the exchange ----------------------------------------------------------------------------------------------

# exchange NAME VERSION COMMAND: runs COMMAND on node2, which puts another program in place and restarts the unit, and
# compares what was there before with what is there afterwards.
exchange() {
    local before after ready reported lines began count
    before=$(containers)
    count=$(grep -c ' started ' <<<"$before")
    ((count >= 4)) || die "the runtime shows too few containers: $before"
    ready=$(ready_since)
    lines=$(wc -l <"$requests")
    : >"$conditions"
    say "node2# $3"
    began=$(date +%s%N)
    on 2 sh -c "$3"
    wait_until 60 runs_version "$2" || die "node2 does not report kubelet $2 but $(running_version)"
    say "node2 reports kubelet $2 after $((($(date +%s%N) - began) / 1000000)) ms"
    sleep "$stay"
    after=$(containers)
    [[ $before == "$after" ]] ||
        violated "containers have changed: $(diff <(printf '%s\n' "$before") <(printf '%s\n' "$after"))"
    say "$count containers run on, with the same ids, processes and start times:"
    shown_pods
    report "$lines"
    # The watch has sent every status of the node, the one with the other version among them.
    [[ -s $conditions ]] || die "the watch of node2 has ended"
    reported=$(tr -s ' ' <"$conditions" | uniq)
    if [[ $(ready_since) == "$ready" && $reported == "$ready" ]]; then
        say "node2 was Ready all the time: $ready"
    else
        violated "node2 was not Ready for a moment, after \"$ready\": ${reported//$'\n'/, }"
    fi
    step "$1"
}

make_cluster
objects | kubectl create -f - >&2
await_cluster_pods
kubectl rollout status --timeout=120s deployment/web >&2
create_pod made-by-go
kubectl get nodes
shown_pods
start_watching
step "all pods are Ready with the Go kubelet, and requests are being answered"

bin=$(files 2)/bin
cp "$ours" "$bin/kubelet.new"
say "node2# kubelet.new preflight"
said=$(on 2 kubelet.new preflight) || die "kubelet preflight does not say that node2 can be moved: $said"
printf '%s\n' "$said"
step "kubelet preflight says that node2 can be moved"

exchange "the Go kubelet is replaced" "$our_version" \
    "cd $bin && cp -p kubelet kubelet.go && mv kubelet.new kubelet && systemctl restart kubelet"
# Which pods are kept; `exchange` has compared their containers.
kept=$(awk '$1 == "kept" { sub(":$", "", $2); print $2 }' <<<"$said" | sort)
running=$(kubectl get pods -A --field-selector spec.nodeName=node2,status.phase=Running \
    -o 'jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name}{"\n"}{end}' | sort)
[[ -n $kept && $kept == "$running" ]] ||
    violated "the preflight said that these are kept: $kept, and these run: $running"
create_pod made-by-this
kubectl delete --timeout=60s pod/made-by-go >&2
step "a new pod runs, and one of the Go kubelet is deleted"

exchange "the Go kubelet is back" "$go_version" "cd $bin && mv kubelet.go kubelet && systemctl restart kubelet"
kubectl delete --timeout=60s pod/made-by-this >&2
create_pod made-by-go-again
step "the pod of this kubelet is deleted, and a new one runs"
say "all requests of the demonstration:"
report 0
((${#violations[@]} == 0)) || die "${#violations[@]} times something was VIOLATED, as said above"
step "the demonstration is done: nothing restarted, no request was lost, and the node was Ready all the time"
