#!/usr/bin/env bash
# hack/failures.sh COMMAND...: runs tests, and says once more at the end what failed and why. Between a
# failure and the end of a long run lie the logs of all that failed, and all other tests.
set -uo pipefail

said=$(mktemp)
trap 'rm -f "$said"' EXIT
"$@" 2>&1 | tee "$said"
status=${PIPESTATUS[0]}
if ((status != 0)); then
    printf '\n==== what failed\n'
    awk '
        / panicked at / && !told[$0]++ { left = 12; print "" }
        left > 0 { if ($0 == "") left = 0; else { print substr($0, 1, 1500); left-- } }
        /^test .*FAILED/ || /^error(\[|:)/ { print substr($0, 1, 300) }
    ' "$said"
fi
exit "$status"
