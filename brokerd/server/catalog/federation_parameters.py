"""Runtime parameters of federation and shovels as they are set: refused if they cannot be used, or
if links would lose what waits upstream and the loss is not confirmed.

What is refused here never gets into the log, with whatever password stands in it.  For
topology_batch.py.
"""

from __future__ import annotations

from typing import Any, Protocol

from brokerd.core.catalog import policy
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.profiles import Profile
from brokerd.federation import definitions, shovel
from brokerd.federation.definitions import UPSTREAM, UPSTREAM_SET
from brokerd.federation.errors import UpstreamError
from brokerd.federation.upstream import Choice
from brokerd.server.catalog import sealed_parameters
from brokerd.server.catalog.keyring import Keyring


class Room(Protocol):
    """The catalog with what opens its secrets."""

    @property
    def view(self) -> CatalogState:
        """Return what this member has applied."""
        ...

    @property
    def keyring(self) -> Keyring:
        """Return what opens sealed parameters."""
        ...

    @property
    def profile(self) -> Profile:
        """Return the switches of this member's profile."""
        ...


class NeedsConfirmation(Exception):
    """The change would lose messages; the text says which."""


def is_checked(parameter: str) -> bool:
    """Tell whether a parameter is one of these.  parameter: component/name."""
    return parameter.partition("/")[0] in (UPSTREAM, UPSTREAM_SET, shovel.COMPONENT)


def problem(room: Room, vhost: str, parameter: str, value: Any) -> str | None:
    """Return why a value cannot be set.  parameter: component/name."""
    component, _, name = parameter.partition("/")
    found: str | None = None
    if component == UPSTREAM:
        stored = room.view.parameters(vhost, UPSTREAM).get(name)
        has_uri = isinstance(stored, dict) and stored.get("uri") is not None
        found = definitions.problem_of_upstream(value, has_uri=has_uri)
    elif component == UPSTREAM_SET:
        found = definitions.problem_of_set(value)
    elif component == shovel.COMPONENT:
        found = _problem_of_shovel(room.view, vhost, name, value)
    return None if found is None else f"{parameter}: {found}"


def _problem_of_shovel(view: CatalogState, vhost: str, name: str, value: Any) -> str | None:
    stored = view.parameters(vhost, shovel.COMPONENT).get(name)
    if isinstance(value, dict) and isinstance(stored, dict):
        # An export has no passwords, so that its import leaves those that are there.
        kept = {key: "amqp://" for key in shovel.URI_KEYS if stored.get(key) is not None}
        value = kept | {key: item for key, item in value.items() if item is not None}
    try:
        shovel.parse(vhost, name, value)
    except UpstreamError as error:
        return str(error)
    return None


def check_loss(room: Room, vhost: str, parameter: str, value: Any) -> None:
    """Raise NeedsConfirmation if links would need another upstream queue (R-FX-17).

    value: one that can be set.
    """
    component, _, name = parameter.partition("/")
    if component not in (UPSTREAM, UPSTREAM_SET) or not room.profile.federation_confirm_loss:
        return
    before = _definitions(room, vhost)
    upstreams, sets = (dict(each) for each in before)
    if component == UPSTREAM:
        stored = upstreams.get(name)
        if value.get("uri") is None and isinstance(stored, dict):
            value = value | {"uri": stored.get("uri")}
        upstreams[name] = value
    else:
        sets[name] = value
    lost = definitions.new_queues(vhost, _choices(room, vhost), before, (upstreams, sets))
    if not lost:
        return
    first = lost[0]
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    raise NeedsConfirmation(
        f"{parameter}: with another {', '.join(first.keys)} the link of exchange "
        f"'{first.exchange}' to '{first.upstream}'{more} needs another upstream queue, and what "
        "waits in the present one would be lost: let its backlog fall to 0, then confirm the "
        "change (brokerctl set_parameter --force)"
    )


def _definitions(room: Room, vhost: str) -> definitions.Definitions:
    found = room.view.parameters(vhost, UPSTREAM)
    opened = sealed_parameters.of_vhost(vhost, UPSTREAM, found, room.keyring)
    return opened, room.view.parameters(vhost, UPSTREAM_SET)


def _choices(room: Room, vhost: str) -> list[tuple[str, Choice]]:
    topology = room.view.vhosts.get(vhost)
    found = []
    for exchange in [] if topology is None else topology.exchanges.values():
        options = policy.effective_exchange(room.view, exchange)
        choice = Choice(
            options.federation_upstream,
            options.federation_upstream_set,
            options.federation_upstream_pattern,
        )
        if choice != Choice():
            found.append((exchange.name, choice))
    return found
