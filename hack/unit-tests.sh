# shellcheck shell=bash
# The library's unit tests for a virtual machine (hack/vm.sh): $stage is a directory with them as `tests`, which goes with the
# script that sources this.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

build_tests() {
    cd "$repo_root" || exit
    cargo test --lib --no-run
    local tests
    tests=$(cargo test --lib --no-run 2>&1 | sed -n 's/.*unittests .*(\(.*\))$/\1/p')
    [[ -n $tests ]] || die "cargo does not say where the tests are"
    ln -s "$(realpath "$tests")" "$stage/tests"
}

# run_test [OPTIONS-OF-VM.SH]: runs `run` of $stage in the machine, in which one test passes.
run_test() {
    "$repo_root/hack/vm.sh" run "$@" "$stage" -- "sh -e run" | tee "$stage/output"
    grep -q '1 passed' "$stage/output" || die "the test did not run"
}

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
(build_tests)
