#!/usr/bin/env bash
# Runs the tests of project quotas in a virtual machine (hack/vm.sh), whose kernel has them. Prints how long a walk takes
# beside the read of a quota.
#
#   hack/quota-test.sh [FILES]     in a volume of so many files (default: 2000)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=unit-tests.sh
source "$(dirname "${BASH_SOURCE[0]}")/unit-tests.sh"

"$repo_root/hack/vm.sh" run "$stage" -- "QUOTA_FILES=${1:-2000} ./tests --nocapture quota project" | tee "$stage/output"
! grep -q 'SKIPPED, no project quotas by mke2fs' "$stage/output" || die "the machine has no project quotas"
