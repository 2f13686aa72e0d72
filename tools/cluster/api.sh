#!/usr/bin/env bash
# The API level: etcd, kube-apiserver and kube-controller-manager on loopback. Real resources, CEL,
# server-side apply, RBAC, watches, garbage collection, namespace deletion; pods are never run.
#
#   api.sh up [--bare] [FLAG...]   print the kubeconfig's path (--bare: no controllers, 4 s instead of 7);
#                                  further flags are kube-apiserver's
#   api.sh down                    end it and delete its folder
#
# Any user; any number at once, each with its own CLUSTER_STATE (see env.sh).
# shellcheck source=env.sh
. "$(cd "$(dirname "$0")" && pwd)/env.sh"
# shellcheck source=pki.sh
. "$CLUSTER_HOME/pki.sh"
# shellcheck source=control_plane.sh
. "$CLUSTER_HOME/control_plane.sh"

up() {
  local bare='' etcd peer api flags
  if [ "${1:-}" = --bare ]; then bare=yes; shift; fi
  need_binaries etcd kube-apiserver kubectl
  command -v openssl >/dev/null || die "openssl is missing: run tools/cluster/setup.sh api"
  [ ! -e "$CLUSTER_STATE" ] || die "$CLUSTER_STATE exists: a cluster is up there; api.sh down ends it"
  mkdir -p "$PKI"
  end_on_failure
  read -r etcd peer api < <(free_ports 3)
  pki_init IP:127.0.0.1 DNS:localhost DNS:kubernetes.default.svc
  control_kubeconfigs "https://127.0.0.1:$api"
  start_etcd "$etcd" "$peer"
  # The advertised address is loopback, which an Endpoints object must not hold: no reconciler for it.
  flags=(--endpoint-reconciler-type=none "$@")
  # Without controllers no namespace gets its default ServiceAccount, and admission would refuse pods.
  [ -z "$bare" ] || flags+=(--disable-admission-plugins=ServiceAccount)
  start_apiserver "$etcd" 127.0.0.1 "$api" "${flags[@]}"
  wait_for 180 kube-apiserver kubectl_admin get --raw /readyz
  if [ -z "$bare" ]; then
    need_binaries kube-controller-manager
    start_controller_manager
    wait_for 120 kube-controller-manager kubectl_admin -n default get serviceaccount default
  fi
  wait_for 120 kube-apiserver kubectl_admin get namespace default
  keep_up
  echo "$KUBECONFIG_FILE"
}

down() {
  stop kube-controller-manager kube-apiserver etcd
  remove_state
}

case "${1:-}" in
  up) up "${@:2}" ;;
  down) down ;;
  *) die "usage: api.sh up [--bare] [FLAG...] | down" ;;
esac
