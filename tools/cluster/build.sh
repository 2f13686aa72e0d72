#!/usr/bin/env bash
# Builds the Kubernetes binaries from the Go modules pinned in binaries/go.mod into the cache folder.
#
#   build.sh [all]    everything that api.sh and node.sh need
#   build.sh api      only what api.sh needs
#   build.sh check [SET]  exit status 0 if that set is built and up to date
#
# Takes 8-10 minutes on two idle cores the first time, half a minute with a warm Go cache, nothing when
# the stamp (pins and recipe) has not changed. Prints how long it will take, a line per binary and one
# per half minute, with the packages compiled so far of all there are, and in the end how long it took
# and of that the processor time. Compiles as many packages at once as there are cores.
# shellcheck source=env.sh
. "$(cd "$(dirname "$0")" && pwd)/env.sh"
set=${1:-all}
case $set in all | api | check) ;; *) die "usage: build.sh [all | api | check [all | api]]" ;; esac

cd "$CLUSTER_HOME/binaries"
# The recipe is what stands between the two marks: how progress is shown makes no other binary.
stamp=$( (cat go.mod go.sum cmd/*/*.go; sed -n '/^# recipe begins/,/^# recipe ends/p' ../build.sh) | sha256sum | cut -c1-16)
up_to_date() { [ -e "$CLUSTER_BIN/.built-$stamp-all" ] || [ -e "$CLUSTER_BIN/.built-$stamp-$1" ]; }
if [ "$set" = check ]; then up_to_date "${2:-all}"; exit; fi
if up_to_date "$set"; then say "binaries are up to date in $CLUSTER_BIN"; exit 0; fi

command -v go >/dev/null || die "go is missing: Go 1.26 or newer is needed (https://go.dev/dl)"
mkdir -p "$CLUSTER_BIN"
exec 9>"$CLUSTER_CACHE/build.lock"    # two builds at once would only slow each other down
flock 9
if up_to_date "$set"; then exit 0; fi

# Go starts as many compilers as it sees cores, each with as many threads again: one of them each.
# A quota of the control group counts as Go counts it.
cores() {
  local count quota=-1 period=100000
  count=$(nproc)
  if [ -r /sys/fs/cgroup/cpu.max ]; then read -r quota period </sys/fs/cgroup/cpu.max
  elif [ -r /sys/fs/cgroup/cpu/cpu.cfs_quota_us ]; then
    quota=$(cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us) period=$(cat /sys/fs/cgroup/cpu/cpu.cfs_period_us)
  fi
  case $quota in max | -1) ;; *) [ $((quota / period)) -ge "$count" ] || count=$((quota / period)) ;; esac
  [ "$count" -ge 1 ] || count=1
  echo "$count"
}

# recipe begins
export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-mod=readonly -trimpath -buildvcs=false"
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${version#v1.}; minor=${minor%%.*}
# kubectl and the API server compare these; an unstamped build calls itself v0.0.0.
ldflags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  ldflags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$minor"
done
# `helm template` and `helm lint` ask no cluster: unstamped, they take every one for a v1.20.
for package in helm.sh/helm/v3/pkg/chartutil helm.sh/helm/v3/pkg/lint/rules; do
  ldflags+=" -X $package.k8sVersionMajor=1 -X $package.k8sVersionMinor=$minor"
done

kube=k8s.io/kubernetes/cmd
targets=("etcd go.etcd.io/etcd/server/v3" "helm helm.sh/helm/v3/cmd/helm")
for name in kube-apiserver kubectl kube-controller-manager; do targets+=("$name $kube/$name"); done
if [ "$set" = all ]; then
  for name in kube-scheduler kubelet kube-proxy; do targets+=("$name $kube/$name"); done
  targets+=("coredns ./cmd/coredns")
fi
build() { go build -v -p "$jobs" -ldflags "$ldflags" -o "$CLUSTER_BIN/$1" "$2"; }
pause_program() {  # the pause container's C source lies in the Kubernetes module
  gcc -Os -static -DVERSION="$version" -o "$CLUSTER_BIN/pause" \
    "$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)/build/pause/linux/pause.c"
}
# recipe ends

jobs=$(cores)
export GOMAXPROCS=$jobs
every=${CLUSTER_BEAT:-30}      # seconds between two lines about the same program
log=$CLUSTER_CACHE/build.log   # go says a line per package there, what it fetches, what does not compile
compiled() { grep -c '^[^ ]*$' "$log"; }   # of these only a package is one word
heartbeat() {  # heartbeat PID WHAT: a line now and then while PID lives
  local waited=0
  while sleep 1 && kill -0 "$1" 2>/dev/null; do
    waited=$((waited + 1))
    [ $((waited % every)) -ne 0 ] || say "  still $2 ($waited s; $(compiled) of at most $all packages compiled)"
  done
}
await() {  # await PID WHAT: its exit status
  heartbeat "$1" "$2" &
  local beat=$! status=0
  wait "$1" || status=$?
  kill "$beat" 2>/dev/null || true
  return "$status"
}

# Processor time of a first build: 680 s for api, and for all 8 to 10 minutes of two idle cores. Other
# work beside it shares the cores.
cpu_expected=1080
[ "$set" = all ] || cpu_expected=680
minutes=$(((cpu_expected / jobs + 59) / 60))

all="?"
: >"$log"
say "building ${#targets[@]} programs of Kubernetes $version with $jobs compilers at once (log: $log)"
say "this takes about $minutes minutes, once, if nothing else runs here; beside other work longer"
say "fetching their modules"
# Listing the packages fetches the modules they need, and no others.
# shellcheck disable=SC2046
go list -deps $(printf '%s\n' "${targets[@]}" | cut -d' ' -f2) >"$log.packages" 2>>"$log" &
await $! "fetching modules" || { tail -n 20 "$log" >&2; die "the modules cannot be fetched"; }
all=$(wc -l <"$log.packages")
rm -f "$log.packages"
n=0
for target in "${targets[@]}"; do
  n=$((n + 1))
  read -r name package <<<"$target"
  say "building $name ($n of ${#targets[@]}, $SECONDS s so far)"
  build "$name" "$package" >>"$log" 2>&1 &
  await $! "building $name" || { tail -n 20 "$log" >&2; die "$name does not build"; }
done
if [ "$set" = all ]; then
  command -v gcc >/dev/null || die "gcc is missing: apt-get install gcc libc6-dev"
  pause_program
fi
rm -f "$CLUSTER_BIN"/.built-*
touch "$CLUSTER_BIN/.built-$stamp-$set"
times >"$log.times"   # of this shell, and of all that it waited for; a subshell would have none
cpu=$(awk 'NR == 2 {for (i = 1; i <= 2; i++) {split($i, t, /[ms]/); sum += 60 * t[1] + t[2]} print int(sum)}' "$log.times")
rm -f "$log.times"
say "built in $SECONDS s ($cpu s of processor time): $(du -sh "$CLUSTER_BIN" | cut -f1) in $CLUSTER_BIN"
