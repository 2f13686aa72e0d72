# shellcheck shell=bash
# What every script here shares: where things lie, and how a process is started, awaited and ended.
# Sourced, never run. Processes are ended by their recorded pid, never by name.
#
# Environment, all optional:
#   CLUSTER_CACHE  binaries and images  (default: ${XDG_CACHE_HOME:-~/.cache}/brokerd-cluster)
#   CLUSTER_STATE  one cluster's folder (default: .k8s/api, .k8s/node in the checkout): pki/ etcd/ logs/ pids/ kubeconfig
set -euo pipefail
CLUSTER_HOME=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CLUSTER_REPO=$(cd "$CLUSTER_HOME/../.." && pwd)
CLUSTER_CACHE=${CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/brokerd-cluster}
CLUSTER_STATE=$(realpath -m "${CLUSTER_STATE:-$CLUSTER_REPO/.k8s/$(basename "$0" .sh)}")
CLUSTER_BIN=$CLUSTER_CACHE/bin

say() { printf 'cluster: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

state_paths() {  # everything below one cluster's state folder; again after node.sh has found it
  PKI=$CLUSTER_STATE/pki LOGS=$CLUSTER_STATE/logs PIDS=$CLUSTER_STATE/pids
  KUBECONFIG_FILE=$CLUSTER_STATE/kubeconfig
}
state_paths

# end_on_failure: until keep_up is called, whatever ends the script ends the half-started cluster too.
# Bash runs no EXIT trap when a signal ends it, so the signals become exits.
end_on_failure() {
  trap 'say "ending the half-started cluster"; down' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
}
keep_up() { trap - EXIT INT TERM HUP; }

remove_state() {  # only what is a cluster's folder, whatever CLUSTER_STATE was set to
  [ ! -d "$PKI" ] || rm -rf "$CLUSTER_STATE"
}

need_binaries() {
  local name
  for name in "$@"; do
    [ -x "$CLUSTER_BIN/$name" ] || die "$name is not built yet: run tools/cluster/build.sh (about 10 minutes, once)"
  done
}

free_ports() {  # free_ports N: N distinct free loopback ports on one line
  python3 - "$1" <<'P'
import contextlib, pathlib, random, socket, sys
# Below those of outgoing connections, which could take one before its server does.
given = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
end = int(given.read_text().split()[0]) if given.exists() else 32_768
held = {}
while len(held) < int(sys.argv[1]):
    port = random.randrange(10_000, max(end, 20_000))
    with contextlib.suppress(OSError):
        held[port] = held.get(port) or socket.create_server(("127.0.0.1", port))
print(*held)
P
}

start() {  # start NAME CMD...: in a session of its own; log to logs/NAME.log, pid to pids/NAME
  local name=$1; shift
  mkdir -p "$LOGS" "$PIDS"
  setsid "$@" >>"$LOGS/$name.log" 2>&1 </dev/null &
  echo $! >"$PIDS/$name"
}

# A zombie does not run: an init that reaps late must not hold `down` up.
running() { grep -q '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status" 2>/dev/null; }

stop() {  # stop NAME...: SIGKILL each recorded session, then wait for them; test data is worth no grace
  local name pid
  for name in "$@"; do
    [ -s "$PIDS/$name" ] || continue
    kill -9 -- "-$(cat "$PIDS/$name")" 2>/dev/null || true
  done
  for name in "$@"; do
    [ -s "$PIDS/$name" ] || continue
    pid=$(cat "$PIDS/$name")
    for _ in $(seq 100); do running "$pid" || break; sleep 0.05; done
    rm -f "$PIDS/$name"
  done
}

wait_for() {  # wait_for SECONDS NAME CMD...: until CMD succeeds; at the end of time, or of NAME, show its log and die
  local left=$(( $1 * 5 )) name=$2; shift 2
  until "$@" >/dev/null 2>&1; do
    left=$((left - 1))
    [ ! -s "$PIDS/$name" ] || running "$(cat "$PIDS/$name")" || left=0
    if [ "$left" -le 0 ]; then
      [ ! -f "$LOGS/$name.log" ] || tail -n 20 "$LOGS/$name.log" >&2
      die "$name: not ready in time"
    fi
    sleep 0.2
  done
}
