"""What a member says when it is ready: where it listens, and who can log in.

For a person at a terminal or in front of a container's log; a line each.
"""

from __future__ import annotations

from brokerd.config import BrokerConfig, ListenerConfig

GUEST = "guest"
#: Listeners in the order in which they are shown: label and scheme.  Others follow by their name;
#: the peers' listener is not shown.
_LISTENERS = {
    "amqp": ("AMQP", "amqp://"),
    "amqps": ("AMQP, TLS", "amqps://"),
    "management": ("management", "http://"),
    "management_tls": ("management, TLS", "https://"),
    "http": ("health, metrics", "http://"),
    "grpc": ("gRPC, brokerctl", ""),
}
_NO_LISTENERS = ("peer", "backlog")
_NEEDS_CERTIFICATE = ("amqps", "management_tls")
_WIDTH = 17


def lines(config: BrokerConfig, users: list[str], *, guest_is_guest: bool) -> list[str]:
    """Return what to say.

    users: all there are; guest_is_guest: guest is one of them, with the password `guest`.
    """
    found = []
    names = [name for name in ListenerConfig.model_fields if name not in _NO_LISTENERS]
    for name in sorted(names, key=lambda name: [*_LISTENERS, name].index(name)):
        port = config.port(name)
        if not port or (name in _NEEDS_CERTIFICATE and not config.tls.cert_file):
            continue
        label, scheme = _LISTENERS.get(name, (name, ""))
        found.append((label, f"{scheme}{_host(config)}:{port}{_path(name)}"))
    found.append(("user", _user(config, users, guest_is_guest)))
    return [f"  {label:<{_WIDTH}}{text}" for label, text in found]


def _host(config: BrokerConfig) -> str:
    """Return what somebody on this machine connects to."""
    bind = config.node.bind
    if bind in ("", "0.0.0.0", "::"):
        return "localhost"
    return f"[{bind}]" if ":" in bind else bind


def _path(name: str) -> str:
    return "/metrics" if name == "http" else ""


def _user(config: BrokerConfig, users: list[str], guest_is_guest: bool) -> str:
    auth = config.auth
    if auth.admin_user and auth.admin_user in users:
        where = auth.admin_password_file and f"in {auth.admin_password_file}"
        where = where or "of auth.admin_password"
        return f"{auth.admin_user}, with the password {where} when the cluster was founded"
    if guest_is_guest:
        is_here_only = GUEST in [name.strip() for name in auth.loopback_users.split(",")]
        where = "from this machine only" if is_here_only else "from everywhere"
        return f"{GUEST}, password {GUEST}, {where}"
    if not users:
        return "none: nobody can log in"
    shown = ", ".join(users[:3]) + (f" and {len(users) - 3} more" if len(users) > 3 else "")
    if config.definitions.path:
        return f"{shown}; definitions: {config.definitions.path}"
    return shown
