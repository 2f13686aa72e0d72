"""Calls of Messages as the register of connections sees them: whose they are, and their end from
outside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import grpc

from brokerd.server.grpc import rpc_auth

if TYPE_CHECKING:
    from brokerd.server.grpc.publish_channel import Caller


class CallGuest(ABC):
    """See access/connections.py: GuestCall."""

    def __init__(self, caller: Caller, uid: int, peer: str, connected_ms: int) -> None:
        """peer: as gRPC spells it."""
        self.vhost = caller.vhost
        self.user = caller.user
        self.identity = caller.identity
        self.name = caller.name
        self.caller = caller
        self.uid = uid
        self.peer = rpc_auth.peer_address(peer), rpc_auth.peer_port(peer)
        self.connected_ms = connected_ms

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Tell whether it has not been ended."""

    @abstractmethod
    def end(self, code: grpc.StatusCode, text: str) -> None:
        """End it with a status."""

    def close(self, code: int, text: str) -> None:
        """End it: its user or vhost is gone, or an administrator has said so."""
        self.end(grpc.StatusCode.ABORTED, f"{code}: {text}")

    def rights_changed(self) -> None:
        """End what its user has no right to any more: a Consume call that may not read its queue.

        A publish is refused with the next message, when what was sent before is answered.
        """
        caller = self.caller
        view = caller.access.view
        if self.identity.is_gone(view):
            self.close(320, f"user '{self.user}' is deleted")
            return
        if self.vhost not in view.vhosts:
            self.close(320, f"vhost '{self.vhost}' is deleted")
            return
        caller.tags = tuple(sorted(self.identity.tags_in(view)))
        if caller.reads is None:
            return
        refused = caller.access.check("read", "queue", caller.reads)
        if refused is not None:
            self.end(grpc.StatusCode.PERMISSION_DENIED, refused.text)
