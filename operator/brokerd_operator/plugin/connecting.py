"""How clients reach a cluster, in words: for `kubectl brokerd connect`."""

from __future__ import annotations

from brokerd_operator.manifests.naming import PORT_AMQP, PORT_AMQPS
from brokerd_operator.plugin import member_access
from brokerd_operator.plugin.health import part, text
from brokerd_operator.plugin.kubectl import Body

#: Keys of a Secret whose values a terminal shows with a command of kubectl.
_READ = "kubectl -n {namespace} get secret {name} -o jsonpath='{{.data.{key}}}' | base64 -d"


def lines(cluster: Body, user: str = "", password: str = "") -> list[str]:
    """What to tell; the password is in it only if it is given."""
    metadata, status = part(cluster, "metadata"), part(cluster, "status")
    namespace, name = text(metadata, "namespace"), text(metadata, "name")
    endpoints = part(status, "endpoints")
    is_plain = part(part(cluster, "spec"), "tls").get("disablePlain") is not True
    host = f"{name}.{namespace}.svc"
    amqps = text(endpoints, "amqps") or f"{host}:{PORT_AMQPS}"
    amqp = text(endpoints, "amqp") or (f"{host}:{PORT_AMQP}" if is_plain else "")
    secret, authority = member_access.admin_secret(cluster), member_access.authority_secret(cluster)
    port = PORT_AMQP if amqp else PORT_AMQPS
    found = [f"BrokerCluster {namespace}/{name}", "", "From pods of this Kubernetes:"]
    found += [f"  AMQP over TLS  amqps://{amqps}"]
    found += [f"  AMQP           amqp://{amqp}"] if amqp else []
    found += [
        f"  authority      Secret {authority}, key ca.crt",
        "",
        "From this machine:",
        f"  kubectl -n {namespace} port-forward service/{name} {port}",
        f"  then {'amqp' if amqp else 'amqps'}://localhost:{port}",
        "",
        f"Administrator: Secret {secret}, keys username and password",
    ]
    if password:
        found += [f"  user           {user}", f"  password       {password}"]
    else:
        read = _READ.format(namespace=namespace, name=secret, key="password")
        found += [f"  {read}"]
    found += [
        "",
        "Users of applications: the resources users.brokerd.io, each with a Secret of its own:",
        f"  kubectl -n {namespace} get users.brokerd.io",
    ]
    return found
