#!/usr/bin/env bash
# Builds the programs of a Kubernetes cluster into target/tools/kubernetes, from the modules that hack/kubernetes
# and hack/storage pin: for tests/cluster, hack/control-plane.sh, and comparisons with the Go kubelet. A program that is there in
# this version is left alone, so an interrupted run goes on where it was.
#
#   hack/build-kubernetes.sh [--check] [GROUP|PROGRAM]...   default: all groups
#
#   --control-plane   etcd kube-apiserver kube-controller-manager kube-scheduler kubectl
#   --kubelet         the Go kubelet, as kubelet
#   --kubeadm         kubeadm kube-proxy coredns
#   --metrics         metrics-server
#   --storage         what serves a CSI driver, and what judges one: csi-provisioner csi-attacher csi-resizer csi-sanity
#   --e2e             Kubernetes' node test suite: e2e_node.test ginkgo agnhost sample-device-plugin
#   --e2e-storage     Kubernetes' test suite of clusters, with the specs of volumes: e2e.test, and what stands in for two of its
#                     images: csi-stand-ins
#   --check           build nothing; exit 1 if one of them is missing
#
# KUBERNETES_VERSION=v1.35.4 builds the API server, the controller manager and the scheduler of that version into
# target/tools/kubernetes-v1.35.4, for `make test-versions`; etcd and kubectl there are the pinned ones, and other
# programs are refused.
#
# Needs a Go that can build hack/kubernetes/go.mod, or can fetch one that does. On two idle cores the control plane
# and the kubelet take about 5 minutes, all groups about 9.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

module=$repo_root/hack/kubernetes
pinned_module=$module
storage_module=$repo_root/hack/storage
version=${KUBERNETES_VERSION:-$(awk '$1 == "k8s.io/kubernetes" { print $2 }' "$module/go.mod")}
wanted_go=$(awk '$1 == "go" { print $2 }' "$module/go.mod")
# The one that kubeadm of this version installs.
coredns_version=v1.14.2
# The newest one.
metrics_version=v0.9.0
# Compilers at once.
jobs=2
log=$tools_dir/kubernetes.log

control_plane=(etcd kube-apiserver kube-controller-manager kube-scheduler kubectl)
kubelet=(kubelet)
kubeadm=(kubeadm kube-proxy coredns)
metrics=(metrics-server)
storage=(csi-provisioner csi-attacher csi-resizer csi-sanity)
e2e=(e2e_node.test ginkgo agnhost sample-device-plugin)
e2e_storage=(e2e.test csi-stand-ins)

usage() { die "usage: $(basename "$0") [--check] [--control-plane] [--kubelet] [--kubeadm] [--metrics] [--storage] [--e2e] [--e2e-storage] [PROGRAM]..."; }

package_of() {
    case $1 in
    etcd) echo go.etcd.io/etcd/server/v3 ;;
    kube-apiserver | kube-controller-manager | kube-scheduler | kubectl | kubelet | kubeadm | kube-proxy)
        echo "k8s.io/kubernetes/cmd/$1" ;;
    e2e_node.test) echo k8s.io/kubernetes/test/e2e_node ;;
    e2e.test) echo k8s.io/kubernetes/test/e2e ;;
    csi-stand-ins) echo ./csi-stand-ins ;;
    ginkgo) echo github.com/onsi/ginkgo/v2/ginkgo ;;
    agnhost | sample-device-plugin) echo "k8s.io/kubernetes/test/images/$1" ;;
    coredns) echo github.com/coredns/coredns ;;
    metrics-server) echo sigs.k8s.io/metrics-server/cmd/metrics-server ;;
    csi-provisioner) echo github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner ;;
    csi-attacher) echo github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher ;;
    csi-resizer) echo github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer ;;
    csi-sanity) echo github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity ;;
    *) return 1 ;;
    esac
}

# What a program is built from; it is built again when that changes.
source_of() {
    case $1 in
    coredns) echo "coredns $coredns_version" ;;
    metrics-server) echo "metrics-server $metrics_version" ;;
    csi-stand-ins) echo "kubernetes $version $module_digest $stand_ins_digest" ;;
    csi-*) echo "storage $storage_digest" ;;
    *) echo "kubernetes $version $module_digest" ;;
    esac
}

module_of() {
    case $1 in
    csi-stand-ins) echo "$module" ;;
    csi-*) echo "$storage_module" ;;
    *) echo "$module" ;;
    esac
}

is_built() { [[ -x $kubernetes_dir/$1 && $(cat "$kubernetes_dir/.built/$1" 2>/dev/null) == "$(source_of "$1")" ]]; }

# Runs Go on the pinned module and its own settings alone: those of the caller could change what is built.
run_go() {
    GOFLAGS='' GO111MODULE=on CGO_ENABLED=0 GOTOOLCHAIN=${GOTOOLCHAIN:-auto} nice -n 15 "$go" "$@" </dev/null >>"$log" 2>&1
}

# compile PROGRAM OUTPUT. kubeadm and the API server parse the versions that the programs report.
compile() {
    local package in=k8s.io/component-base/version flags
    package=$(package_of "$1")
    flags="-s -w -X $in.gitVersion=$version -X $in.gitMajor=1 -X $in.gitMinor=$(cut -d. -f2 <<<"$version")"
    flags+=" -X $in.gitTreeState=clean"
    case $1 in
    coredns | metrics-server)
        package+=@$(source_of "$1" | cut -d' ' -f2)
        GOBIN=$(dirname "$2") run_go install -p "$jobs" -trimpath -ldflags "-s -w" "$package"
        ;;
    *.test) run_go test -c -p "$jobs" "-mod=$mod" -trimpath -ldflags "$flags" -o "$2" "$package" ;;
    *) run_go build -p "$jobs" "-mod=$mod" -trimpath -ldflags "$flags" -o "$2" "$package" ;;
    esac
}

build() {
    local program=$1 new=$kubernetes_dir/.new start=$SECONDS
    rm -rf "$new"
    mkdir -p "$new" "$kubernetes_dir/.built"
    printf '== %s\n' "$program" >>"$log"
    if ! (cd "$(module_of "$program")" && compile "$program" "$new/$program"); then
        rm -rf "$new"
        tail -n 20 "$log" >&2
        loudly "$program cannot be built with $("$go" version); the whole log is $log"
        return 1
    fi
    # An interruption from here on counts as not built.
    rm -f "$kubernetes_dir/.built/$program"
    mv "$new/$program" "$kubernetes_dir/$program"
    source_of "$program" >"$kubernetes_dir/.built/$program"
    rm -rf "$new"
    say "built $program in $((SECONDS - start)) s ($(($(stat -c %s "$kubernetes_dir/$program") >> 20)) MB)"
}

loudly() { printf '\n!!!! Kubernetes %s is not built: %s\n!!!! what needs it will be skipped\n\n' "$version" "$1" >&2; }

# A module of another version: the same list of parts, each in the release of that version. Its checksums are not pinned.
other_version() {
    [[ $version =~ ^v1\.[0-9]+\.[0-9]+$ ]] || die "KUBERNETES_VERSION=$version: not a version like v1.35.4"
    [[ ${programs[*]} == "${control_plane[*]}" ]] || die "of another version only --control-plane is built"
    programs=(kube-apiserver kube-controller-manager kube-scheduler)
    mod='mod'
    module=$kubernetes_dir/.module
    mkdir -p "$module"
    awk -v part="v0.${version#v1.}" -v whole="$version" '
        $1 == "module" || $1 == "go" || $1 == "replace" || $1 == ")" && replacing { print }
        $1 == "module" { print "require k8s.io/kubernetes", whole }
        $1 == "replace" { replacing = 1 }
        replacing && $2 == "=>" { print $1, $2, $3, part }' "$pinned_module/go.mod" >"$module/pinned.mod"
    cmp -s "$module/pinned.mod" "$module/from" || {
        cp "$module/pinned.mod" "$module/go.mod"
        mv "$module/pinned.mod" "$module/from"
        rm -f "$module/go.sum"
    }
    ln -sfn ../kubernetes/etcd "$kubernetes_dir/etcd"
    ln -sfn ../kubernetes/kubectl "$kubernetes_dir/kubectl"
}

check_only=false
programs=()
for word in "$@"; do
    case $word in
    --check) check_only=true ;;
    --control-plane) programs+=("${control_plane[@]}") ;;
    --kubelet) programs+=("${kubelet[@]}") ;;
    --kubeadm) programs+=("${kubeadm[@]}") ;;
    --metrics) programs+=("${metrics[@]}") ;;
    --storage) programs+=("${storage[@]}") ;;
    --e2e) programs+=("${e2e[@]}") ;;
    --e2e-storage) programs+=("${e2e_storage[@]}") ;;
    *)
        package_of "$word" >/dev/null || usage
        programs+=("$word")
        ;;
    esac
done
((${#programs[@]})) ||
    programs=("${control_plane[@]}" "${kubelet[@]}" "${kubeadm[@]}" "${metrics[@]}" "${storage[@]}" "${e2e[@]}")
mod='readonly'
if [[ -n ${KUBERNETES_VERSION:-} ]]; then
    other_version
fi
digest_of() { cat "$@" | sha256sum | cut -c1-16; }
module_digest=$(digest_of "$pinned_module"/go.{mod,sum})
storage_digest=$(digest_of "$storage_module"/go.{mod,sum})
stand_ins_digest=$(digest_of "$pinned_module"/csi-stand-ins/*.go)

missing_programs() {
    local program
    for program in "${programs[@]}"; do is_built "$program" || printf '%s\n' "$program"; done
}
mapfile -t missing < <(missing_programs)
((${#missing[@]})) || exit 0
if $check_only; then
    die "Kubernetes $version: ${missing[*]} not built; hack/build-kubernetes.sh builds them"
fi
if ! have go; then
    loudly "there is no Go on PATH; it needs Go $wanted_go"
    exit 1
fi
go=$(go_for "$wanted_go") || {
    loudly "it needs Go $wanted_go, this is $(go version), and the newer one cannot be fetched"
    exit 1
}
mkdir -p "$tools_dir"
# A second run at the same time waits, then finds everything built.
exec 9>"$tools_dir/kubernetes.lock"
flock 9
mapfile -t missing < <(missing_programs)
: >"$log"
at=0
for program in "${missing[@]}"; do
    say "building Kubernetes $version [$((at += 1))/${#missing[@]}]: $program (minutes for the first ones, once)"
    build "$program"
done
