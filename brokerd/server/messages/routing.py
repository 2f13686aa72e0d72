"""Where this member's messages go, and who counts those that go nowhere (ports.Routing).

One for all publishing channels; what a message carries beside it is encoded here too, since that
depends on what all members can read.  Built by composition.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from brokerd.amqp import errors as amqp_errors
from brokerd.amqp.properties import BasicProperties
from brokerd.core.catalog.router import Router
from brokerd.server.messages.dropped import Dropped
from brokerd.server.messages.repeated_warnings import RepeatedWarnings

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_state import CatalogState
    from brokerd.core.catalog.router import RouteResult
    from brokerd.core.profiles import Profile
    from brokerd.telemetry.counters import Counters


def property_of(header: bytes, name: str) -> object:
    """Return a property of a message by its name, None where it has none.

    header: the message's properties, as stored.
    """
    try:
        return getattr(BasicProperties.decode(header), name, None)
    except amqp_errors.AmqpError:
        # It was checked when it was published; a message must not stop its queue all the same.
        return None


class MemberRouting:
    """State: how many messages no queue took, and which warnings were given lately."""

    def __init__(
        self,
        view: CatalogState,
        profile: Profile,
        counters: Counters,
        dropped: Dropped | None = None,
        leads: Callable[[int], bool] | None = None,
    ) -> None:
        """leads: tells of a queue's uid whether its leader is at this member; None: of none."""
        self.router = Router(view, property_of)
        if leads is not None:
            self.router.leads = leads
        self.profile = profile
        self.counters = counters
        #: Messages that no queue took, since this member's start; for the metrics.
        self.unroutable_total = 0
        self.down_homes = view.down_homes
        self.dropped = dropped or Dropped()
        self._view = view
        self._warnings = RepeatedWarnings()

    def unroutable(self, vhost: str, exchange: str, result: RouteResult, count: int) -> None:
        """Count; warn of a missing alternate exchange, once a minute for each (R-AE-4)."""
        self.unroutable_total += count
        if result.ae_missing is None or not self.profile.ae_warn_missing:
            return
        source, alternate = result.ae_missing
        self.warn(
            f"alternate exchange '{alternate}' in vhost '{vhost}' of exchange '{source}' "
            f"in vhost '{vhost}' does not exist"
        )

    def warn(self, text: str) -> None:
        """Log a warning, the same one at most once a minute."""
        self._warnings.warn(text, time.monotonic())
