#!/usr/bin/env bash
# Mounts volumes of a real NFS server, which also falls silent, in a virtual machine (hack/vm.sh).
#
#   hack/nfs-test.sh
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$repo_root"
cargo test --lib --no-run
tests=$(cargo test --lib --no-run 2>&1 | sed -n 's/.*unittests .*(\(.*\))$/\1/p')
[[ -n $tests ]] || die "cargo does not say where the tests are"
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
ln -s "$(realpath "$tests")" "$stage/tests"
cat >"$stage/run" <<'EOF'
mkdir -p /export
echo '/export 127.0.0.1(rw,no_root_squash,no_subtree_check)' >/etc/exports
systemctl start nfs-kernel-server
NFS_EXPORT=/export ./tests --nocapture a_real_nfs_server
EOF
hack/vm.sh run "$stage" -- "sh -e run" | tee "$stage/output"
grep -q '1 passed' "$stage/output" || die "the test did not run"
