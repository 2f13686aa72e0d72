"""How clients and people reach a cluster, in words: for `kubectl brokerd connect` and `manage`."""

from __future__ import annotations

from brokerd_operator.manifests.naming import (
    PORT_AMQP,
    PORT_AMQPS,
    PORT_MANAGEMENT,
    PORT_MANAGEMENT_TLS,
)
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
    is_plain = _is_plain(cluster)
    host = f"{name}.{namespace}.svc"
    amqps = text(endpoints, "amqps") or f"{host}:{PORT_AMQPS}"
    amqp = text(endpoints, "amqp") or (f"{host}:{PORT_AMQP}" if is_plain else "")
    authority = member_access.authority_secret(cluster)
    port = PORT_AMQP if amqp else PORT_AMQPS
    scheme, management = way_to_page(cluster)
    found = [f"BrokerCluster {namespace}/{name}", "", "From pods of this Kubernetes:"]
    found += [f"  AMQP over TLS  amqps://{amqps}"]
    found += [f"  AMQP           amqp://{amqp}"] if amqp else []
    found += [
        f"  HTTP API       {scheme}://{host}:{management}/api/",
        f"  authority      Secret {authority}, key ca.crt",
        "",
        "From this machine:",
        f"  kubectl -n {namespace} port-forward service/{name} {port}",
        f"  then {'amqp' if amqp else 'amqps'}://localhost:{port}",
        "  the page for people, and the HTTP API:",
        f"  kubectl brokerd -n {namespace} manage {name}",
        "",
        *administrator(cluster, user, password),
        "",
        "Users of applications: the resources users.brokerd.io, each with a Secret of its own:",
        f"  kubectl -n {namespace} get users.brokerd.io",
    ]
    return found


def administrator(cluster: Body, user: str = "", password: str = "") -> list[str]:
    """Where the administrator's login is, or the login itself if it is given."""
    secret = member_access.admin_secret(cluster)
    found = [f"Administrator: Secret {secret}, keys username and password"]
    if password:
        return [*found, f"  user           {user}", f"  password       {password}"]
    namespace = text(part(cluster, "metadata"), "namespace")
    return [*found, f"  {_READ.format(namespace=namespace, name=secret, key='password')}"]


def page_lines(
    cluster: Body, member: str, url: str, user: str = "", password: str = ""
) -> list[str]:
    """What to tell while the page can be reached at a URL of this machine."""
    found = [f"{url} leads to {member}, until Ctrl-C", ""]
    if url.startswith("https:"):
        metadata = part(cluster, "metadata")
        host = f"{text(metadata, 'name')}.{text(metadata, 'namespace')}.svc"
        found[1:1] = [f"  the certificate is for {host}: browsers ask whether to go on"]
    return [*found, *administrator(cluster, user, password)]


def way_to_page(cluster: Body) -> tuple[str, int]:
    """Scheme and port of the page and the HTTP API at a member."""
    return ("http", PORT_MANAGEMENT) if _is_plain(cluster) else ("https", PORT_MANAGEMENT_TLS)


def _is_plain(cluster: Body) -> bool:
    return part(part(cluster, "spec"), "tls").get("disablePlain") is not True
