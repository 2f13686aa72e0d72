# shellcheck shell=bash
# Configuration files of one node: containerd, CNI, kubelet, kube-proxy. Sourced by node.sh.

node_config() {  # node_config I
  local i=$1 name=node$1 d=$CLUSTER_STATE/node$1 address
  address=$(node_address "$i")
  mkdir -p "$d/cni" "$RUN/$i"
  certificate "$name" "/O=system:nodes/CN=system:node:$name" "DNS:$name,IP:$address"
  kubeconfig "$d/kubeconfig" "$name" "https://$API:6443"
  printf 'nameserver %s\n' "$API" >"$d/resolv.conf"
  containerd_config "$i" "$d" >"$d/containerd.toml"
  cni_config "$i" >"$d/cni/10-test.conflist"
  kubelet_config "$name" "$address" "$d" >"$d/kubelet.yaml"
  kube_proxy_config "$name" "$address" >"$d/kube-proxy.yaml"
}

# restrict_oom_score_adj: a root without CAP_SYS_RESOURCE cannot lower oom_score_adj; runc then dies with
# "can't get final child's PID from pipe". Sockets lie under /run because their paths must stay below
# 108 characters.
containerd_config() {  # containerd_config I FOLDER
  cat <<Y
version = 2
root = "$2/containerd"
state = "$RUN/$1/containerd"
[grpc]
  address = "$RUN/$1/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$CNI_BIN"
    conf_dir = "$2/cni"
Y
}

cni_config() {  # cni_config I
  cat <<Y
{"cniVersion": "1.0.0", "name": "test", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$RUN/$1/ipam",
            "ranges": [[{"subnet": "$PODS.$1.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
Y
}

# Eviction: absolute, since one percent of a large disk is more than the tests take; and no memory, of
# which kubelet counts the machine's page cache as used: after hours of other work pods would be evicted
# for it. A node under pressure deletes images that no pod uses, and nobody can pull these again.
kubelet_config() {  # kubelet_config NAME ADDRESS FOLDER
  cat <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://$RUN/${1#node}/containerd.sock
address: $2
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $PKI/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: $PKI/$1.crt
tlsPrivateKeyFile: $PKI/$1.key
clusterDomain: cluster.local
clusterDNS: [$API]
resolvConf: $3/resolv.conf
cgroupDriver: cgroupfs
cgroupRoot: /$ID/$1
failCgroupV1: false
failSwapOn: false
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 8
healthzBindAddress: $2
volumePluginDir: $3/volume-plugins
podLogsDir: $3/pod-logs
imageGCHighThresholdPercent: 100
evictionHard: {nodefs.available: 200Mi, imagefs.available: 200Mi}
shutdownGracePeriod: 0s
serializeImagePulls: false
Y
}

# conntrack: zeros make kube-proxy leave the host's sysctls alone.
kube_proxy_config() {  # kube_proxy_config NAME ADDRESS
  cat <<Y
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: $CLUSTER_STATE/proxy.kubeconfig}
hostnameOverride: $1
mode: iptables
clusterCIDR: $PODS.0.0/16
bindAddress: $2
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {minSyncPeriod: 0s}
Y
}
