"""Who may come in: logins and the opening of vhosts, for AMQP connections and gRPC calls alike.

Hashing is auth.py's; here the member's view of users, permissions and limits decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerd.core import catalog_commands
from brokerd.server import auth

if TYPE_CHECKING:
    from brokerd.core.catalog_objects import User
    from brokerd.server.broker import Broker


async def authenticate(
    broker: Broker,
    credentials: auth.Credentials | None,
    address: str,
    *,
    is_login: bool = True,
) -> tuple[str, tuple[str, ...]] | None:
    """Return (user, tags), or None; both refusals take the same time (SEC-9).

    is_login: False where somebody only asks whether a password is right.
    """
    if credentials is None:
        return None
    user = broker.view.user(credentials.user)
    stored = user.password_hash if user is not None and user.password_hash else None
    good = await broker.checker.check(stored, credentials.password)
    if not good or user is None:
        return None
    loopback_only = broker.variables.loopback_users
    if credentials.user in loopback_only and not auth.is_loopback(address):
        return None
    if (
        is_login
        and auth.is_imported(user.password_hash)
        and broker.checker.begin_renewal(user.name)
    ):
        broker.spawn(_renew(broker, user, credentials.password))
    return credentials.user, tuple(user.tags)


async def _renew(broker: Broker, user: User, password: str) -> None:
    """SEC-14: now that the password is known, an imported hash makes way for one of ours.

    Not where the user is somebody's resource: its hash is what was asked for.
    """
    try:
        if user.owner is None:
            spec = user.value | {"password_hash": await broker.checker.hash(password)}
            precondition = {"hash": user.hash()}
            broker.write_later(
                catalog_commands.put(
                    "user", "", user.name, spec, cause="login", precondition=precondition
                )
            )
    finally:
        broker.checker.end_renewal(user.name)


def may_send_password(broker: Broker, tls: bool, address: str) -> bool:
    """Tell whether a client on this connection may log in with a password (SEC-7)."""
    rule = broker.config.auth.passwords_without_tls
    return tls or rule == "allow" or (rule == "loopback" and auth.is_loopback(address))


async def authenticate_certificate(
    broker: Broker, name: str | None, address: str
) -> tuple[str, tuple[str, ...]] | None:
    """Return (user, tags) for the name in a verified certificate (SEC-6): no password is asked."""
    user = None if name is None else broker.view.user(name)
    if name is None or user is None:
        return None
    if name in broker.variables.loopback_users and not auth.is_loopback(address):
        return None
    return name, tuple(user.tags)


def may_open(broker: Broker, user: str, vhost: str) -> str | None:
    """Return why this user may not open this vhost, None if it may (R-CON-11, R-CON-12)."""
    settings = broker.view.spec("vhost", "", vhost)
    if settings is None:
        return f"vhost {vhost} not found"
    if broker.view.spec("permission", vhost, user) is None:
        return f"access to vhost '{vhost}' refused for user '{user}'"
    limit = broker.config.limits.connections
    if limit <= len(broker.connections):
        return f"connection refused: node connection limit ({limit}) is reached"
    limit = settings.get("limits", {}).get("max-connections", -1)
    if 0 <= limit <= broker.shared_counts.count("vhost", vhost):
        return (
            f"access to vhost '{vhost}' refused for user '{user}': "
            f"connection limit ({limit}) is reached"
        )
    limit = _user_limit(broker, user, "max-connections")
    if 0 <= limit <= broker.shared_counts.count("user", user):
        return f"connection refused for user '{user}': user connection limit ({limit}) is reached"
    return None


def may_open_channel(broker: Broker, user: str) -> str | None:
    """Return why this user may not open one more channel, None if it may (R-CH-3, SEC-44)."""
    limit = broker.config.limits.channels
    if 0 < limit <= broker.connections.channel_count:
        return (
            f"number of channels opened on node '{broker.node}' has reached "
            f"the maximum allowed limit of ({limit})"
        )
    limit = _user_limit(broker, user, "max-channels")
    if 0 <= limit <= broker.shared_counts.count("channels", user):
        return (
            f"number of channels opened for user '{user}' has reached "
            f"the maximum allowed user limit of ({limit})"
        )
    return None


def _user_limit(broker: Broker, user: str, name: str) -> int:
    """Return a limit of the user; negative: none, 0 forbids (O-4)."""
    settings = broker.view.spec("user", "", user) or {}
    return int(settings.get("limits", {}).get(name, -1))
