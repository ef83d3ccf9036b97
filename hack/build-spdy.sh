#!/usr/bin/env bash
# Builds the SPDY client of the tests, target/tools/spdy, from hack/tools/spdy and the modules that are pinned
# there. Does nothing when it is there and newer than its source.
#
#   hack/build-spdy.sh            build it
#   hack/build-spdy.sh --check    only say whether it is there; exit 1 if not
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

source_dir=$repo_root/hack/tools
built=$tools_dir/spdy
is_built() { [[ -x $built && ! $source_dir/spdy/main.go -nt $built && ! $source_dir/go.mod -nt $built ]]; }

is_built && exit
[[ ${1:-} == --check ]] && die "the SPDY client is not built; hack/build-spdy.sh builds it"
have go || die "there is no Go on PATH, which builds the SPDY client"
mkdir -p "$tools_dir"
# Who comes second finds it built.
exec 9>"$tools_dir/spdy.lock"
flock 9
is_built && exit
say "building the SPDY client (a minute or two, once)"
cd "$source_dir"
GOTOOLCHAIN=${GOTOOLCHAIN:-auto} GOFLAGS=-mod=readonly go build -p 2 -trimpath -ldflags "-s -w" -o "$built.new" ./spdy >&2
mv "$built.new" "$built"
