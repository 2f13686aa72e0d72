#!/usr/bin/env bash
# The node level: a whole Kubernetes on this machine without Docker, registry or systemd. A node is a
# network namespace, a mount namespace and a cgroup subtree in which containerd, kubelet and kube-proxy run.
#
#   node.sh up [NODES]     default 2; prints the kubeconfig's path
#   node.sh load TAR...    import image archives into every node (manifests: imagePullPolicy IfNotPresent)
#   node.sh ctr NODE ...   containerd's own client in one node
#   node.sh env            lines for eval: PATH with kubectl and helm, KUBECONFIG of the running cluster
#   node.sh down           end everything: no process, mount, bridge, namespace, cgroup or sysctl stays
#
# Root; one cluster per machine. Needs setup.sh node and build.sh. Environment, besides env.sh's:
#   CLUSTER_NODE_GRACE  seconds until a silent node is NotReady (default 12; a real cluster 40-50)
#   CLUSTER_EVICT       seconds until its pods are evicted (default 10; a real cluster 300)
#
# Addresses: 10.99.0.1 is the API server (6443) and DNS; node I is 10.99.0.(10+I), its pods 10.244.I.0/24.
# Cut node 2 off: `ip link set brokerdk-v2 down`, and `up` again: a partition; its pods go on running.
# shellcheck source=env.sh
. "$(cd "$(dirname "$0")" && pwd)/env.sh"
for part in pki control_plane cgroups network node_config preconditions; do
  # shellcheck source=/dev/null
  . "$CLUSTER_HOME/$part.sh"
done
ID=brokerdk                        # name of bridge, namespaces and cgroups; interface names hold 15 letters
NET=10.99
PODS=10.244
API=$NET.0.1
CNI_BIN=/usr/lib/cni
RUN=/run/$ID
# Folders whose path kubelet, containerd or CNI fix: every node sees an empty one of its own.
OWN_FOLDERS="/run/netns /var/lib/kubelet /var/lib/cni /var/log/containers"
# kubelet sets these for the whole machine, and preconditions.sh the last two; down puts them back.
SYSCTLS="vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops
  kernel.keys.root_maxkeys kernel.keys.root_maxbytes fs.inotify.max_user_instances
  fs.inotify.max_user_watches"
node_address() { echo "$NET.0.$((10 + $1))"; }
nodes() { local d; for d in "$RUN"/[0-9]*; do [ ! -d "$d" ] || basename "$d"; done; }

[ "$(id -u)" = 0 ] || [ "${1:-}" = env ] || die "must be root"
GIVEN_STATE=$CLUSTER_STATE
if [ -s "$RUN/state" ]; then CLUSTER_STATE=$(cat "$RUN/state"); state_paths; fi

in_node() {  # in_node I CGROUP CMD...: exec CMD in node I's network, cgroup and (IN_MOUNTS) mounts
  local i=$1 group=$2; shift 2
  # nsenter, because `ip netns exec` remounts /sys and hides the cgroups
  # shellcheck disable=SC2016
  exec sh -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' sh "$(cgroup_tracking "$group")" \
    nsenter --net="/run/netns/$ID-$i" ${IN_MOUNTS:+--mount="$IN_MOUNTS"} -- "$@"
}

start_in_node() {  # start_in_node NAME I CMD...: the daemons' cgroup lies beside the pods'
  local name=$1 i=$2; shift 2
  export -f in_node cgroup_tracking
  export ID IN_MOUNTS
  start "$name" bash -c 'in_node "$@"' _ "$i" "$ID/sys$i" "$@"
}

node_up() {  # node_up I
  local i=$1 d=$CLUSTER_STATE/node$1
  cgroup_make "$ID/node$i"
  cgroup_make "$ID/sys$i"
  IN_MOUNTS=
  # shellcheck disable=SC2016
  start_in_node "containerd$i" "$i" unshare --mount --propagation slave sh -c '
    config=$0
    mount --make-rshared / || exit
    for folder; do mount -t tmpfs tmpfs "$folder" || exit; done
    exec containerd --config "$config"' "$d/containerd.toml" $OWN_FOLDERS
  wait_for 120 "containerd$i" ctr -a "$RUN/$i/containerd.sock" version
  load_into "$i" "$CLUSTER_CACHE/pause.tar"
  IN_MOUNTS=/proc/$(cat "$PIDS/containerd$i")/ns/mnt
  start_in_node "kubelet$i" "$i" "$CLUSTER_BIN/kubelet" --config="$d/kubelet.yaml" \
    --kubeconfig="$d/kubeconfig" --root-dir="$d/kubelet" --cert-dir="$PKI" \
    --hostname-override="node$i" --node-ip="$(node_address "$i")"
  start_in_node "kube-proxy$i" "$i" "$CLUSTER_BIN/kube-proxy" --config="$d/kube-proxy.yaml"
}

load_into() {  # load_into I TAR
  ctr -a "$RUN/$1/containerd.sock" -n k8s.io images import --all-platforms "$2" >>"$LOGS/images.log" 2>&1 ||
    die "cannot import $2 into node $1: $(tail -n 1 "$LOGS/images.log")"
}

load() {
  local tar i
  [ -s "$RUN/state" ] || die "no cluster is up"
  for tar in "$@"; do
    for i in $(nodes); do load_into "$i" "$tar"; done
  done
}

pause_image() {
  [ ! -e "$CLUSTER_CACHE/pause.tar" ] || return 0
  local rootfs; rootfs=$(mktemp -d)
  cp "$CLUSTER_BIN/pause" "$rootfs/pause"
  python3 "$CLUSTER_HOME/mkimage.py" --rootfs "$rootfs" --name localhost/pause:1 \
    --entrypoint '["/pause"]' --user 65535:65535 --out "$CLUSTER_CACHE/pause.tar"
  rm -rf "$rootfs"
}

control_plane_up() {
  local etcd peer
  read -r etcd peer < <(free_ports 2)
  pki_init "IP:$API" IP:127.0.0.1 IP:10.96.0.1 DNS:localhost DNS:kubernetes DNS:kubernetes.default \
    DNS:kubernetes.default.svc DNS:kubernetes.default.svc.cluster.local
  certificate proxy /CN=system:kube-proxy
  certificate kubelet-client "/O=system:masters/CN=kube-apiserver-kubelet-client"
  certificate front-proxy /CN=front-proxy
  control_kubeconfigs "https://$API:6443"
  kubeconfig "$CLUSTER_STATE/proxy.kubeconfig" proxy "https://$API:6443"
  start_etcd "$etcd" "$peer"
  start_apiserver "$etcd" "$API" 6443 --enable-admission-plugins=NodeRestriction \
    --default-not-ready-toleration-seconds="${CLUSTER_EVICT:-10}" \
    --default-unreachable-toleration-seconds="${CLUSTER_EVICT:-10}" \
    --kubelet-client-certificate="$PKI/kubelet-client.crt" --kubelet-client-key="$PKI/kubelet-client.key" \
    --kubelet-preferred-address-types=InternalIP \
    --requestheader-client-ca-file="$PKI/ca.crt" --requestheader-allowed-names=front-proxy \
    --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
    --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --proxy-client-cert-file="$PKI/front-proxy.crt" --proxy-client-key-file="$PKI/front-proxy.key"
  wait_for 180 kube-apiserver kubectl_admin get --raw /readyz
  start_controller_manager --cluster-signing-cert-file="$PKI/ca.crt" \
    --cluster-signing-key-file="$PKI/ca.key" \
    --node-monitor-grace-period="${CLUSTER_NODE_GRACE:-12}s" --node-monitor-period=1s
  start_scheduler
}

dns_up() {  # CoreDNS is a host process; pods and their tools find it at the usual Service
  kubectl_admin apply -f - >/dev/null <<Y
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
endpoints: [{addresses: [$API]}]
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
Y
  cat >"$CLUSTER_STATE/Corefile" <<Y
.:53 {
    bind $API
    errors
    kubernetes cluster.local in-addr.arpa {
        kubeconfig $KUBECONFIG_FILE test
        pods insecure
        ttl 1
    }
    cache 1
}
Y
  start coredns "$CLUSTER_BIN/coredns" -conf "$CLUSTER_STATE/Corefile"
}

all_ready() {  # all_ready COUNT
  [ "$(kubectl_admin get nodes --no-headers | grep -cw Ready)" = "$1" ]
}

end_what_is_dead() {  # a cluster whose processes were all killed leaves its bridge and folders behind
  [ -z "$(cgroup_pids)" ] || die "a cluster is up already (bridge $ID): node.sh down ends it"
  say "an earlier cluster (bridge $ID) runs nothing any more: its remains are removed"
  down
  CLUSTER_STATE=$GIVEN_STATE; state_paths
}

up() {
  local count=${1:-2} i
  case $count in [1-9]) ;; *) die "up takes a number of nodes from 1 to 9, not '$count'" ;; esac
  need_binaries etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy \
    kubectl coredns pause
  "$CLUSTER_HOME/setup.sh" check node || exit 1
  if ip link show "$ID" >/dev/null 2>&1; then end_what_is_dead; fi
  check_no_leftovers
  # shellcheck disable=SC2086
  mkdir -p "$PKI" "$RUN" $OWN_FOLDERS
  end_on_failure
  echo "$CLUSTER_STATE" >"$RUN/state"     # down finds this cluster whatever CLUSTER_STATE says then
  # shellcheck disable=SC2086
  sysctl $SYSCTLS >"$RUN/sysctl.before" 2>/dev/null || true
  raise_inotify
  check_machine
  pause_image
  network_up
  cgroup_make "$ID/control"
  (cgroup_join "$ID/control"; control_plane_up)
  for i in $(seq "$count"); do
    node_config "$i"
    network_add_node "$i" "$count"
    node_up "$i"
  done
  (
    cgroup_join "$ID/control"
    start provisioner python3 "$CLUSTER_HOME/provisioner.py" "$CLUSTER_BIN/kubectl" "$KUBECONFIG_FILE" "$CLUSTER_STATE/pv"
    dns_up
  )
  wait_for 240 kubelet1 all_ready "$count"
  wait_for 120 kube-controller-manager kubectl_admin -n default get serviceaccount default
  wait_for 120 provisioner kubectl_admin get storageclass standard
  keep_up
  say "$count nodes are ready. Next: eval \"\$(make -s cluster-env)\" for kubectl, helm and the plugin;"
  say "make images and $CLUSTER_HOME/node.sh load $CLUSTER_CACHE/images/*.tar; then"
  say "helm install and kubectl apply as in docs/getting-started.md. make cluster-down ends it."
  echo "$KUBECONFIG_FILE"
}

down() {
  # Nothing here is worth a graceful end: control plane, daemons, shims and containers die together,
  # also those of a cluster whose state folder is gone, and the mounts go with their mount namespace.
  cgroup_end
  stop provisioner coredns kube-scheduler kube-controller-manager kube-apiserver etcd
  network_down
  [ ! -s "$RUN/sysctl.before" ] || sysctl -qp "$RUN/sysctl.before" || true
  # shellcheck disable=SC2086
  rmdir $OWN_FOLDERS 2>/dev/null || true
  rm -rf "$RUN"
  remove_state
}

tools_env() {
  local plugin=$CLUSTER_REPO/.venv/bin/kubectl-brokerd plugins=$CLUSTER_REPO/build/kubectl-plugins
  if [ -x "$plugin" ]; then   # by itself: the environment's python is not to become everybody's
    mkdir -p "$plugins"
    ln -sf "$plugin" "$plugins/"
    printf 'export PATH=%q:"$PATH"\n' "$plugins"
  fi
  printf 'export PATH=%q:"$PATH"\n' "$CLUSTER_BIN"
  [ ! -s "$KUBECONFIG_FILE" ] || printf 'export KUBECONFIG=%q\n' "$KUBECONFIG_FILE"
}

case "${1:-}" in
  env) tools_env ;;
  up) up "${2:-}" ;;
  load) shift; load "$@" ;;
  ctr) i=$2; shift 2; exec ctr -a "$RUN/$i/containerd.sock" -n k8s.io "$@" ;;
  down) down ;;
  *) die "usage: node.sh up [NODES] | load TAR... | ctr NODE ARGS... | env | down" ;;
esac
