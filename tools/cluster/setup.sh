#!/usr/bin/env bash
# Installs the Debian packages that a level of the test cluster needs. Root installs them; anybody
# else is told the line to run. Says nothing when all are there.
#
#   setup.sh api      for api.sh
#   setup.sh node     for node.sh and images.sh
#   setup.sh check LEVEL   only say what is missing: exit status 1 if anything
# shellcheck source=env.sh
. "$(cd "$(dirname "$0")" && pwd)/env.sh"
check_only=
[ "${1:-}" != check ] || { check_only=1; shift; }
packages=(openssl)
case "${1:-}" in
  api) ;;
  node) packages+=(containerd runc containernetworking-plugins iptables conntrack iproute2
    buildah debootstrap busybox-static) ;;
  *) die "usage: setup.sh [check] api | node" ;;
esac

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ "${#missing[@]}" -gt 0 ] || exit 0
line="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
if [ -n "$check_only" ]; then say "missing packages, install them with: $line"; exit 1; fi
[ "$(id -u)" = 0 ] || die "missing packages; run as root: $line"
command -v apt-get >/dev/null || die "no apt-get here; install what corresponds to: ${missing[*]}"
say "installing ${missing[*]}"
# Our containerd runs inside the nodes; the package must not start one on the host.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >&2
apt-get install -y -q --no-install-recommends "${missing[@]}" >&2
