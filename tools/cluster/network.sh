# shellcheck shell=bash
# Network of the node level: a bridge with the API server and DNS on it, a network namespace per node.
# The host's iptables and ip_forward stay as they are; pods cannot leave the bridge. Sourced by node.sh.

network_up() {
  ip link add "$ID" type bridge
  ip addr add "$API/24" dev "$ID"
  ip link set "$ID" up
}

network_add_node() {  # network_add_node I COUNT
  local i=$1 count=$2 ns=$ID-$1 other
  ip netns add "$ns"
  ip link add "$ID-v$i" type veth peer name eth0 netns "$ns"
  ip link set "$ID-v$i" master "$ID" up
  ip -n "$ns" link set lo up
  ip -n "$ns" addr add "$(node_address "$i")/24" dev eth0
  ip -n "$ns" link set eth0 up
  ip -n "$ns" route add default via "$API"
  for other in $(seq "$count"); do
    [ "$other" = "$i" ] || ip -n "$ns" route add "$PODS.$other.0/24" via "$(node_address "$other")"
  done
  nsenter --net="/run/netns/$ns" sysctl -qw net.ipv4.ip_forward=1
  # The host reaches pods directly and ClusterIPs through node 1: load generators need no port-forward.
  ip route add "$PODS.$i.0/24" via "$(node_address "$i")"
  [ "$i" != 1 ] || ip route add 10.96.0.0/16 via "$(node_address 1)"
}

network_down() {
  local ns link
  # before their namespaces, which would take them along at a time of the kernel's choice
  for link in $(ip -o link show 2>/dev/null | awk -F'[ @:]+' -v prefix="$ID-v" 'index($2, prefix) == 1 {print $2}'); do
    ip link del "$link" 2>/dev/null || true
  done
  for ns in $(ip netns list 2>/dev/null | awk '{print $1}' | grep "^$ID-[0-9]" || true); do
    ip netns del "$ns" || true
  done
  ip link del "$ID" 2>/dev/null || true
  # `ip netns add` turns the folder into a mount point; without a namespace in it nobody needs that.
  [ -n "$(ip netns list 2>/dev/null)" ] || umount /run/netns 2>/dev/null || true
}
