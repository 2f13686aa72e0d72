# shellcheck shell=bash
# The control plane as plain processes: etcd, API server, controller manager, scheduler.
# Sourced after env.sh and pki.sh by api.sh and node.sh.

kubectl_admin() { "$CLUSTER_BIN/kubectl" --kubeconfig="$KUBECONFIG_FILE" "$@"; }

control_kubeconfigs() {  # control_kubeconfigs SERVER
  certificate admin "/O=system:masters/CN=admin"
  certificate kcm /CN=system:kube-controller-manager
  certificate scheduler /CN=system:kube-scheduler
  kubeconfig "$KUBECONFIG_FILE" admin "$1"
  kubeconfig "$CLUSTER_STATE/kcm.kubeconfig" kcm "$1"
  kubeconfig "$CLUSTER_STATE/scheduler.kubeconfig" scheduler "$1"
}

start_etcd() {  # start_etcd CLIENT_PORT PEER_PORT
  # No fsync: this is test data, and the sync is most of the write latency of a small cluster.
  start etcd "$CLUSTER_BIN/etcd" --name=test --data-dir="$CLUSTER_STATE/etcd" --unsafe-no-fsync --log-level=warn \
    --listen-client-urls="http://127.0.0.1:$1" --advertise-client-urls="http://127.0.0.1:$1" \
    --listen-peer-urls="http://127.0.0.1:$2" --initial-advertise-peer-urls="http://127.0.0.1:$2" \
    --initial-cluster="test=http://127.0.0.1:$2"
}

start_apiserver() {  # start_apiserver ETCD_PORT ADDRESS PORT [FLAG...]
  local etcd=$1 address=$2 port=$3; shift 3
  start kube-apiserver "$CLUSTER_BIN/kube-apiserver" --etcd-servers="http://127.0.0.1:$etcd" \
    --bind-address="$address" --advertise-address="$address" --secure-port="$port" \
    --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" \
    --client-ca-file="$PKI/ca.crt" --cert-dir="$PKI" \
    --authorization-mode=Node,RBAC --allow-privileged=true --service-cluster-ip-range=10.96.0.0/16 \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local \
    --service-account-key-file="$PKI/sa.pub" --service-account-signing-key-file="$PKI/sa.key" \
    --profiling=false "$@"
}

start_controller_manager() {  # start_controller_manager [FLAG...]
  start kube-controller-manager "$CLUSTER_BIN/kube-controller-manager" \
    --kubeconfig="$CLUSTER_STATE/kcm.kubeconfig" --use-service-account-credentials \
    --service-account-private-key-file="$PKI/sa.key" --root-ca-file="$PKI/ca.crt" \
    --leader-elect=false --secure-port=0 --profiling=false "$@"
}

start_scheduler() {
  start kube-scheduler "$CLUSTER_BIN/kube-scheduler" --kubeconfig="$CLUSTER_STATE/scheduler.kubeconfig" \
    --leader-elect=false --secure-port=0 --profiling=false
}
