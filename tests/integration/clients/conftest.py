"""One member for the tests of a file; a test that restarts it leaves it running."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.integration.federation_rig import admin
from tests.integration.members import Member, cluster


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    """Give a lone member with the profile that existing applications know."""
    folder = tmp_path_factory.mktemp("member")
    with cluster(folder, 1, BROKERD_COMPAT_PROFILE="rabbitmq-3.10") as [member]:
        yield member


@pytest.fixture
def restart(member: Member) -> Callable[[], None]:
    """Give the act of killing the member and starting it on the same port and data."""

    def act() -> None:
        member.kill()
        member.start()
        member.wait_ready()

    return act


@pytest.fixture
def alarm(member: Member) -> Iterator[Callable[[bool], None]]:
    """Give the switch of the memory alarm; it is off afterwards."""
    with admin(member) as settings:

        def switch(on: bool) -> None:
            settings.set("vm_memory_high_watermark", "0" if on else "0.9")

        yield switch
        switch(False)
