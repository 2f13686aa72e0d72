"""What a link declares upstream, and which of the downstream bindings it leaves out."""

from __future__ import annotations

import pytest

from brokerd.amqp.values import Table
from brokerd.federation import link_bindings, upstream
from brokerd.federation.link_bindings import Ends
from brokerd.federation.upstream import UpstreamError

ENDS = Ends("here", "v", "x", "A", "there", "u", 2)


def test_the_internal_exchange_says_for_whom_it_is_and_how_far_it_carries() -> None:
    """R-FX-4."""
    assert upstream.internal_exchange_arguments(3, "brokerd@example", "down") == {
        "x-max-hops": 3,
        "x-downstream-name": "brokerd@example",
        "x-downstream-vhost": "down",
        "x-internal-purpose": "federation",
    }


def test_bindings_at_their_last_hop_leave_no_gap_in_the_others() -> None:
    """R-FX-9: a binding that may not be carried further is left out, and only that one."""
    entry = {"cluster-name": "far", "vhost": "v", "exchange": "v:x A", "hops": 1}
    bindings: list[tuple[str, Table]] = [
        ("first", {}),
        ("worn out", {"x-bound-from": [entry]}),
        ("last", {}),
    ]
    wanted = link_bindings.desired(bindings, ENDS)
    assert [binding.routing_key for binding in wanted.values()] == ["first", "last"]


@pytest.mark.parametrize("value", ["true", 1, []])
def test_switches_of_an_upstream_are_true_or_false(value: object) -> None:
    """R-FED-2."""
    with pytest.raises(UpstreamError, match="trust-user-id must be true or false"):
        upstream.parse("u", {"uri": "amqp://h", "trust-user-id": value})
