#!/usr/bin/env bash
# Judges an OLM bundle: verify.sh BUNDLE. Builds the judge (main.go) into the cache folder when its
# sources have changed: about a minute on two cores, once.
# shellcheck source=../cluster/env.sh
. "$(cd "$(dirname "$0")" && pwd)/../cluster/env.sh"
[ $# = 1 ] || die "usage: verify.sh BUNDLE"
bundle=$(realpath "$1")
cd "$CLUSTER_REPO/tools/olm"
program=$CLUSTER_BIN/olm-$(cat go.mod go.sum main.go | sha256sum | cut -c1-16)
if [ ! -x "$program" ]; then
  command -v go >/dev/null || die "go is missing: Go 1.26 or newer is needed (https://go.dev/dl)"
  mkdir -p "$CLUSTER_BIN"
  exec 9>"$CLUSTER_CACHE/olm.lock"    # two tests at once
  flock 9
  rm -f "$CLUSTER_BIN"/olm-*.new
  CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-mod=readonly -trimpath -buildvcs=false" \
    go build -ldflags "-s -w" -o "$program.new" . >&2 || die "the judge of bundles does not build"
  mv "$program.new" "$program"
fi
"$program" "$bundle"
