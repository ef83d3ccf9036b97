#!/usr/bin/env bash
# Shows the kubelet at work: a private containerd, the pods of examples/manifests, and a table of each
# becoming what it should be. Ends by itself and leaves nothing behind.
#
#   hack/demo.sh         run the example pods to readiness, take them down again, exit 0
#   hack/demo.sh --stay  the same, but stay until Ctrl-C
#
# PROFILE chooses cargo's profile; the default, dev, is built in a fraction of the time of release.
# KUBELET_UNDER_TEST runs another kubelet with the same flags.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

stay=false
[[ ${1:-} == --stay ]] && stay=true
profile=${PROFILE:-dev}
need_root
cd "$repo_root"

"$repo_root/hack/install-deps.sh"
"$repo_root/hack/build-images.sh"
say "building the kubelet (profile $profile)"
cargo build --profile "$profile" --bin kubelet --example watch_pods
built=$target_dir/$profile
[[ $profile == dev ]] && built=$target_dir/debug
kubelet=${KUBELET_UNDER_TEST:-$built/kubelet}

dir=$(mktemp -d /tmp/kubelet-demo.XXXXXX)
kubelet_pid=
clean_up() {
    local code=$?
    trap - EXIT INT TERM
    if ((code != 0)) && [[ -e $dir/kubelet/kubelet.log ]]; then
        printf -- '---- the kubelet said ----\n' >&2
        tail -n 100 "$dir/kubelet/kubelet.log" >&2
    fi
    if [[ -n $kubelet_pid ]]; then
        kill -KILL "$kubelet_pid" 2>/dev/null || true
        wait "$kubelet_pid" 2>/dev/null || true
    fi
    "$repo_root/hack/containerd.sh" stop "$dir" || code=1
    # A pod of one's own may have had something of the machine mounted here.
    if grep -qF " $dir/" /proc/self/mountinfo; then
        printf 'error: something is still mounted below %s, which stays therefore\n' "$dir" >&2
        code=1
    else
        rm -rf "$dir"
    fi
    exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A port of 127.0.0.1 without a listener.
free_port() {
    local port
    while port=$((20000 + RANDOM % 20000)); do
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            printf '%s\n' "$port"
            return
        fi
    done
}

"$repo_root/hack/containerd.sh" start "$dir" $$
endpoint=$("$repo_root/hack/containerd.sh" endpoint "$dir")
name=$(basename "$(dirname "${endpoint#unix://}")")
crictl=$(find_crictl)
crictl() { "$crictl" -c /dev/null -r "$endpoint" "$@"; }
port=$(free_port)
healthz_port=$(free_port)

mkdir -p "$dir"/kubelet/{manifests,root,logs}
sed -e "s|^staticPodPath:.*|staticPodPath: $dir/kubelet/manifests|" \
    -e "s|^containerRuntimeEndpoint:.*|containerRuntimeEndpoint: $endpoint|" \
    -e "s|^readOnlyPort:.*|readOnlyPort: $port|" \
    -e "s|^healthzPort:.*|healthzPort: $healthz_port|" \
    examples/kubelet-config.yaml >"$dir/kubelet/config.yaml"
printf 'podLogsDir: %s\ncgroupRoot: /%s\n' "$dir/kubelet/logs" "$name" >>"$dir/kubelet/config.yaml"
# A machine that is nearly full may not change what is shown.
printf 'imageGCHighThresholdPercent: 100\nevictionHard: {%s}\n' \
    'memory.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%' \
    >>"$dir/kubelet/config.yaml"

say "starting the kubelet; its log is $dir/kubelet/kubelet.log"
setpriv --pdeathsig KILL -- "$kubelet" --config "$dir/kubelet/config.yaml" --root-dir "$dir/kubelet/root" \
    --hostname-override demo >"$dir/kubelet/kubelet.log" 2>&1 </dev/null &
kubelet_pid=$!

# What the examples use of the machine itself is this demo's own, so that another one may run beside it.
manifests=(examples/manifests/*.yaml)
web_port=$(free_port)
mkdir "$dir/kubelet/new"
for manifest in "${manifests[@]}"; do
    sed -e "s|/tmp/kubelet-example|$dir/kubelet/example|" -e "s|\\b18090\\b|$web_port|" "$manifest" \
        >"$dir/kubelet/new/$(basename "$manifest")"
done
mv "$dir"/kubelet/new/* "$dir/kubelet/manifests/"
say "dropped ${#manifests[@]} manifests into its directory"
"$built/examples/watch_pods" --port "$port" --count "${#manifests[@]}" --timeout "${DEMO_TIMEOUT:-60}" &
watcher=$!
if ! wait -n -p ended "$watcher" "$kubelet_pid" || [[ $ended != "$watcher" ]]; then
    kill "$watcher" 2>/dev/null || true
    if [[ $ended != "$watcher" ]]; then
        kubelet_pid=
        die "the kubelet ended by itself"
    fi
    die "not all pods became what they should be"
fi

say "what the runtime shows"
crictl pods
crictl ps -a
job=$(crictl ps -a -q --name '^sum$')
say "the job wrote: $(crictl logs "$job")"

if $stay; then
    say "the kubelet runs until Ctrl-C; put manifests into $dir/kubelet/manifests, look with:"
    printf '    curl http://127.0.0.1:%s/pods\n    %s -r %s ps\n' "$port" "$crictl" "$endpoint" >&2
    wait "$kubelet_pid"
    exit
fi

say "removing the manifests"
rm "$dir"/kubelet/manifests/*
# Dead sandboxes may stay until they are collected.
nothing_runs() { [[ -z $(crictl pods -q --state ready)$(crictl ps -q) ]]; }
wait_until 60 nothing_runs || die "pods run on although their manifests are gone: $(crictl pods)"
say "nothing runs any more"
kill -TERM "$kubelet_pid"
wait "$kubelet_pid" || die "the kubelet ended with $?"
kubelet_pid=
say "the kubelet ended by itself"
