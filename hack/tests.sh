#!/usr/bin/env bash
# hack/tests.sh: all tests. Those on a containerd and those of a cluster run beside one another, because both wait more
# than they compute; what the cluster's said is printed when they have ended.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

cargo test --no-run || exit

quick=(--lib --bins)
for main in tests/*/main.rs; do
    name=$(basename "$(dirname "$main")")
    case $name in
    containerd | cluster) ;;
    *) quick+=(--test "$name") ;;
    esac
done
status=0
cargo test --no-fail-fast "${quick[@]}" || status=1
cargo test --doc || status=1

said=$(mktemp)
# A group of its own, so that an interrupt can be passed on.
set -m
cargo test --test cluster >"$said" 2>&1 &
cluster=$!
set +m
trap 'kill -- "-$cluster" 2>/dev/null; rm -f "$said"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
cargo test --test containerd || status=1
wait "$cluster" || status=1
cat "$said"
exit "$status"
