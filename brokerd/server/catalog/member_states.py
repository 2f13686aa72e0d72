"""What the catalog says of a member besides its address: whether it rests or leaves, and where it
runs.
"""

from __future__ import annotations

from brokerd.cluster.groups.failure_domains import Domain, Domains
from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.raft.messages import NodeId

#: States of a member, besides "" (core/catalog/catalog_commands.py: member_state).
MAINTENANCE = "maintenance"
LEAVING = "leaving"


def state_of(view: CatalogState, node: str) -> str:
    """Return "maintenance", "leaving" or ""."""
    return str(view.setting(catalog_commands.member_state(node), ""))


def resting(view: CatalogState) -> set[NodeId]:
    """Return the members that shall get no new replicas and leaders."""
    return {NodeId(node) for node in view.members() if state_of(view, node)}


def holds_replicas(view: CatalogState, node: str) -> bool:
    """Tell whether a quorum queue's group still counts on a member, or is to."""
    return any(
        node in queue.members or node in queue.wanted_members
        for queue in view.queues()
        if queue.type == "quorum"
    )


def is_leaving(view: CatalogState, node: str) -> bool:
    """Tell whether a member is on its way out."""
    return state_of(view, node) == LEAVING


def domain_of(view: CatalogState, node: str) -> Domain:
    """Return where a member says that it runs; what is no name counts as unknown."""
    said = view.setting(catalog_commands.member_domain(node))
    fields = said if isinstance(said, dict) else {}
    host, zone = fields.get("host"), fields.get("zone")
    return Domain(host if isinstance(host, str) else "", zone if isinstance(zone, str) else "")


def domains(view: CatalogState) -> Domains:
    """Return where all members run."""
    return Domains({NodeId(node): domain_of(view, node) for node in view.members()})
