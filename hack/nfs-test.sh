#!/usr/bin/env bash
# Mounts volumes of a real NFS server, which also falls silent, in a virtual machine (hack/vm.sh).
#
#   hack/nfs-test.sh
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=unit-tests.sh
source "$(dirname "${BASH_SOURCE[0]}")/unit-tests.sh"

cat >"$stage/run" <<'EOF'
mkdir -p /export
echo '/export 127.0.0.1(rw,no_root_squash,no_subtree_check)' >/etc/exports
systemctl start nfs-kernel-server
NFS_EXPORT=/export ./tests --nocapture a_real_nfs_server
EOF
run_test --timeout 900
