"""A shovel to a broker that stops its publishers by channel.flow, as in 2009 (R-OLD-1, R-OLD-2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.amqp.test_channel_flow import alarm
from tests.integration.federation.test_shovels import Ends, count, fill
from tests.integration.federation_rig import admin, amqp, take
from tests.integration.members import cluster, eventually

pytestmark = pytest.mark.timeout(240)

MESSAGES = 3000
OLD = {"BROKERD_COMPAT_PROFILE": "reference"}
BOTH = {"BROKERD_COMPAT_THROTTLE_MODE": "both"}


@pytest.mark.parametrize("settings", [OLD, BOTH], ids=["reference", "both"])
def test_a_shovel_stops_and_goes_on_in_the_same_session(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    """R-OLD-1: who publishes behind its answer loses the connection (503), and there is an alarm
    for half of these messages.
    """
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    with (
        cluster(tmp_path / "here", 1) as [here],
        cluster(tmp_path / "there", 1, **settings) as [there],
        admin(here) as near_admin,
        admin(there) as far_admin,
        amqp(here.amqp_port) as near,
        amqp(there.amqp_port) as far,
    ):
        ends = Ends(here, there, near_admin)
        ends.shovel("paused", dest_queue="far", src_prefetch_count=50)
        fill(near, "paused", MESSAGES // 2)
        row = ends.wait("paused")
        eventually(lambda: count(far, "far") > 0, "it has published")
        with alarm(there, far_admin):
            fill(near, "paused", MESSAGES // 2)
            blocked = ends.wait("paused", "blocked")
            assert blocked["error"] == ""
            assert count(near, "paused") > 0
        bodies = [take(far, "far")[2] for _ in range(MESSAGES)]
        eventually(lambda: count(near, "paused") == 0, "nothing is left")
        after = ends.wait("paused")
    assert bodies == 2 * [b"%d" % i for i in range(MESSAGES // 2)]
    assert after["reconnects"] == row["reconnects"] == 0
