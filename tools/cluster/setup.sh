#!/usr/bin/env bash
# Makes a level of the test cluster ready: Debian packages, then the binaries (build.sh). Root installs
# packages; anybody else is told the line to run. Says nothing when all is there.
#
#   setup.sh              all that the tests take: node and the images for root, api for anybody else
#   setup.sh api          for api.sh
#   setup.sh node         for node.sh and images.sh
#   setup.sh check LEVEL  only say which packages are missing: exit status 1 if any
# shellcheck source=env.sh
. "$(cd "$(dirname "$0")" && pwd)/env.sh"
check_only=
[ "${1:-}" != check ] || { check_only=1; shift; }
level=${1:-}
with_images=
if [ -z "$level" ] && [ "$(id -u)" = 0 ]; then level=node with_images=1; fi
level=${level:-api}
packages=(openssl)
case $level in
  api) ;;
  node) packages+=(containerd runc containernetworking-plugins iptables conntrack iproute2
    buildah debootstrap busybox-static) ;;
  *) die "usage: setup.sh [check] [api | node]" ;;
esac
# The federation tests have a real RabbitMQ at the other end; the tests of established clients take
# rabbitmq-c's tools, Maven for the Java client, and tshark to look at what went over the wire.
if [ -n "$with_images" ]; then
  packages+=(rabbitmq-server amqp-tools tshark)
  command -v mvn >/dev/null || packages+=(maven)
fi

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
install_packages() {
  local line="apt-get update && apt-get install -y --no-install-recommends $*" policy=/usr/sbin/policy-rc.d
  [ -z "$check_only" ] || { say "missing packages, install them with: $line"; exit 1; }
  [ "$(id -u)" = 0 ] || die "missing packages; run as root: $line"
  command -v apt-get >/dev/null || die "no apt-get here; install what corresponds to: $*"
  say "installing $*"
  # Our containerd runs inside the nodes; the package must not start one on the host.
  if [ ! -e "$policy" ]; then
    # shellcheck disable=SC2064
    trap "rm -f $policy" EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q >&2
  apt-get install -y -q --no-install-recommends "$@" >&2
}

[ "${#missing[@]}" = 0 ] || install_packages "${missing[@]}"
[ -n "$check_only" ] || "$CLUSTER_HOME/build.sh" "$([ "$level" = api ] && echo api || echo all)" 2> >(grep -v 'up to date' >&2)
if [ -n "$with_images" ] && [ -z "$check_only" ]; then "$CLUSTER_HOME/images.sh" build >/dev/null; fi
