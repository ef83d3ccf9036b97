#!/usr/bin/env bash
# hack/busy-test.sh [ARGUMENT OF cargo test]...: all tests, as `make test` runs them, on a machine that is kept busy: beside
# them, with the same priority, four processes compute and one writes files and syncs them. Everything is built before.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo test --no-run

files=$(mktemp -d)
load=()
end() {
    kill "${load[@]}" 2>/dev/null || true
    wait "${load[@]}" 2>/dev/null || true
    rm -rf "$files"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

compute() {
    while :; do :; done
}

# Four MiB at a time, in a hundred files, so that the journal of the file system has work, too.
write_and_sync() {
    local n=0
    while :; do
        dd if=/dev/zero of="$files/$((n++ % 100))" bs=64K count=64 conv=fsync status=none
    done
}

for _ in 1 2 3 4; do
    compute &
    load+=($!)
done
write_and_sync &
load+=($!)

say "load: four processes that compute, one that writes and syncs"
RUST_TEST_THREADS=${RUST_TEST_THREADS:-8} hack/failures.sh cargo test --no-fail-fast "$@"
say "load average at the end: $(cut -d' ' -f1-3 /proc/loadavg)"
