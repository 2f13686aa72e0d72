#!/usr/bin/env bash
# Makes a level of the test cluster ready: Debian packages, then the binaries (build.sh). Root installs
# packages; anybody else is told the line to run. Says nothing when all is there.
#
#   setup.sh              all that the tests take: node and the images for root, api for anybody else
#   setup.sh api          for api.sh
#   setup.sh node         for node.sh and images.sh
#   setup.sh compose      the same, and Docker for the compose file
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
  node | compose) packages+=(containerd runc containernetworking-plugins iptables conntrack iproute2
    buildah debootstrap busybox-static)
    [ "$level" = node ] || packages+=(docker.io docker-compose) ;;
  *) die "usage: setup.sh [check] [api | node | compose]" ;;
esac
# The federation tests have a real RabbitMQ at the other end; the tests of established clients take
# rabbitmq-c's tools, Maven for the Java client, and tshark to look at what went over the wire. Charts
# and images are pushed to a real registry. The pages for people are looked at in Chromium. PHP's
# frameworks have ways of their own to deliver later.
if [ -n "$with_images" ]; then
  packages+=(rabbitmq-server amqp-tools tshark prometheus docker-registry chromium
    php-cli php-amqp php-amqplib php-symfony-amqp-messenger php-symfony-event-dispatcher)
  command -v mvn >/dev/null || packages+=(maven)
fi

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
# Another apt, such as the machine's own upgrade, is waited for so long.
LOCK_TIMEOUT_S=${CLUSTER_LOCK_TIMEOUT:-600}
# The file system that gets the packages; tests name another.
ROOT=${CLUSTER_ROOT:-}
POLICY=$ROOT/usr/sbin/policy-rc.d

# Links that start something with the next boot: units that a target wants, and System V's.
started_at_boot() {
  { find "$ROOT/etc/systemd/system" "$ROOT"/etc/rc[2-5].d \( -path '*.wants/*' -o -path '*/rc?.d/S*' \) \
    -type l 2>/dev/null || true; } | sort   # a machine without one of the two has no such folder
}

# Our containerd runs inside the nodes, and RabbitMQ inside the tests: the packages must start none
# on this machine, neither now (policy-rc.d) nor with the next boot. What was there before stays.
leave_services_as_found() {
  local link
  [ -z "${made_policy:-}" ] || rm -f "$POLICY"
  while read -r link; do
    case $link in
      *.wants/*) rm -f "$link" ;;   # what systemctl disable does; there may be no systemctl
      */rc?.d/S*) [ ! -L "$link" ] || update-rc.d "$(basename "$link" | cut -c4-)" disable >&2 ;;
    esac
  done < <(comm -13 <(printf '%s\n' "$boot_before") <(started_at_boot))
}

# apt waits for the lock of installing by itself, and fails at once on the lock of its lists.
update_lists() {
  local end=$((SECONDS + LOCK_TIMEOUT_S)) said
  until said=$(LC_ALL=C apt-get -o DPkg::Lock::Timeout="$LOCK_TIMEOUT_S" update -q 2>&1 | tee >(cat >&2)); do
    case $said in *"Could not get lock"*) ;; *) die "apt-get update failed" ;; esac
    [ "$SECONDS" -lt "$end" ] || die "apt's lists are locked by another process for $LOCK_TIMEOUT_S s"
    say "apt's lists are locked by another process; waiting"
    sleep 2
  done
}

install_packages() {
  local line="apt-get update && apt-get install -y --no-install-recommends $*"
  [ -z "$check_only" ] || { say "missing packages, install them with: $line"; exit 1; }
  [ "$(id -u)" = 0 ] || die "missing packages; run as root: $line"
  command -v apt-get >/dev/null || die "no apt-get here; install what corresponds to: $*"
  say "installing $*"
  boot_before=$(started_at_boot)
  trap leave_services_as_found EXIT
  if [ ! -e "$POLICY" ]; then
    made_policy=1
    printf '#!/bin/sh\nexit 101\n' >"$POLICY"
    chmod 755 "$POLICY"
  fi
  export DEBIAN_FRONTEND=noninteractive
  update_lists
  apt-get -o DPkg::Lock::Timeout="$LOCK_TIMEOUT_S" install -y -q --no-install-recommends "$@" >&2
  leave_services_as_found
  trap - EXIT
}

[ "${#missing[@]}" = 0 ] || install_packages "${missing[@]}"
[ -n "$check_only" ] || "$CLUSTER_HOME/build.sh" "$([ "$level" = api ] && echo api || echo all)" 2> >(grep --line-buffered -v 'up to date' >&2)
if [ -n "$with_images" ] && [ -z "$check_only" ]; then "$CLUSTER_HOME/images.sh" build >/dev/null; fi
