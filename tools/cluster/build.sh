#!/usr/bin/env bash
# Builds the Kubernetes binaries from the Go modules pinned in binaries/go.mod into the cache folder.
#
#   build.sh [all]    everything that api.sh and node.sh need
#   build.sh api      only what api.sh needs
#   build.sh check [SET]  exit status 0 if that set is built and up to date
#
# Takes 8-10 minutes on two cores the first time, half a minute with a warm Go cache, nothing when
# the stamp (pins and this script) has not changed. Prints a line per binary and one per half minute.
# shellcheck source=env.sh
. "$(cd "$(dirname "$0")" && pwd)/env.sh"
set=${1:-all}
case $set in all | api | check) ;; *) die "usage: build.sh [all | api | check [all | api]]" ;; esac

cd "$CLUSTER_HOME/binaries"
stamp=$(cat go.mod go.sum cmd/*/*.go ../build.sh | sha256sum | cut -c1-16)
up_to_date() { [ -e "$CLUSTER_BIN/.built-$stamp-all" ] || [ -e "$CLUSTER_BIN/.built-$stamp-$1" ]; }
if [ "$set" = check ]; then up_to_date "${2:-all}"; exit; fi
if up_to_date "$set"; then say "binaries are up to date in $CLUSTER_BIN"; exit 0; fi

command -v go >/dev/null || die "go is missing: Go 1.26 or newer is needed (https://go.dev/dl)"
mkdir -p "$CLUSTER_BIN"
exec 9>"$CLUSTER_CACHE/build.lock"    # two builds at once would only slow each other down
flock 9
if up_to_date "$set"; then exit 0; fi

export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-mod=readonly -trimpath -buildvcs=false"
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${version#v1.}; minor=${minor%%.*}
# kubectl and the API server compare these; an unstamped build calls itself v0.0.0.
ldflags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  ldflags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$minor"
done

kube=k8s.io/kubernetes/cmd
targets=("etcd go.etcd.io/etcd/server/v3" "helm helm.sh/helm/v3/cmd/helm")
for name in kube-apiserver kubectl kube-controller-manager; do targets+=("$name $kube/$name"); done
if [ "$set" = all ]; then
  for name in kube-scheduler kubelet kube-proxy; do targets+=("$name $kube/$name"); done
  targets+=("coredns ./cmd/coredns")
fi

heartbeat() {  # heartbeat PID WHAT: a line per half minute while PID lives
  local waited=0
  while sleep 1 && kill -0 "$1" 2>/dev/null; do
    waited=$((waited + 1))
    [ $((waited % 30)) -ne 0 ] || say "  still building $2 ($waited s)"
  done
}
n=0
for target in "${targets[@]}"; do
  n=$((n + 1))
  read -r name package <<<"$target"
  say "building $name ($n of ${#targets[@]}, $SECONDS s so far)"
  go build -ldflags "$ldflags" -o "$CLUSTER_BIN/$name" "$package" &
  pid=$!
  heartbeat "$pid" "$name" &
  wait "$pid" || die "$name does not build"
done
if [ "$set" = all ]; then  # the pause container's C source lies in the Kubernetes module
  command -v gcc >/dev/null || die "gcc is missing: apt-get install gcc libc6-dev"
  gcc -Os -static -DVERSION="$version" -o "$CLUSTER_BIN/pause" \
    "$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)/build/pause/linux/pause.c"
fi
rm -f "$CLUSTER_BIN"/.built-*
touch "$CLUSTER_BIN/.built-$stamp-$set"
say "built in $SECONDS s: $(du -sh "$CLUSTER_BIN" | cut -f1) in $CLUSTER_BIN"
