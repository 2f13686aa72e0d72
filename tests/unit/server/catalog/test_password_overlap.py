"""Two passwords of a user after a rotation: what is stored, who gets in, how it ends (ADR 21)."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_objects import PREVIOUS_PASSWORD, User
from brokerd.server.access import auth, authentication
from brokerd.server.catalog import admin_objects, topology_batch
from brokerd.server.catalog.keyring import Keyring
from tests.unit.server.access import test_imported_hashes
from tests.unit.server.catalog import fakes, test_topology_batch

MINUTE_MS = 60_000


class Cluster(fakes.Member):
    """A catalog with a user `app` whose password is `old`."""

    def __init__(self) -> None:
        super().__init__()
        spec = {"password_hash": "hash of old", "tags": ["management"]}
        self.driver.do(catalog_commands.put("user", "", "app", spec, cause="admin"))

    @property
    def user(self) -> User:
        found = self.view.user("app")
        assert found is not None
        return found

    async def change(self, **spec: Any) -> str:
        operation = test_topology_batch.put(
            "user", "app", {"tags": ["management"], **spec}, vhost=""
        )
        (code,) = test_topology_batch.codes(await self.apply(operation))
        return code


class Clock:
    """The module `time`, at a time that the test says."""

    s = 1000.0

    def time(self) -> float:
        return self.s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    now = Clock()
    for module in (topology_batch, authentication):
        monkeypatch.setattr(module, "time", now)
    return now


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def test_both_passwords_are_right_until_the_time_is_over(
    cluster: Cluster, clock: Clock
) -> None:
    assert await cluster.change(password="new", password_overlap_ms=MINUTE_MS) == "OK"
    assert cluster.user.accepted_hashes(1_059_999) == ("hash of new", "hash of old")
    assert cluster.user.accepted_hashes(1_060_000) == ("hash of new",)


async def test_without_an_overlap_the_old_password_is_wrong_at_once(
    cluster: Cluster, clock: Clock
) -> None:
    await cluster.change(password="new", password_overlap_ms=MINUTE_MS)
    await cluster.change(password="newer")
    assert cluster.user.accepted_hashes(0) == ("hash of newer",)
    await cluster.change(password="newest", password_overlap_ms=MINUTE_MS)
    await cluster.change(password_hash="")
    assert cluster.user.accepted_hashes(0) == ()
    await cluster.change(password="again", password_overlap_ms=MINUTE_MS)
    assert cluster.user.accepted_hashes(0) == ("hash of again",)


async def test_a_change_of_something_else_leaves_the_overlap(
    cluster: Cluster, clock: Clock
) -> None:
    await cluster.change(password="new", password_overlap_ms=MINUTE_MS)
    await cluster.change(password="new", tags=["administrator"])
    await cluster.change(tags=[])
    assert cluster.user.tags == []
    assert cluster.user.accepted_hashes(0) == ("hash of new", "hash of old")


@pytest.mark.parametrize("overlap", [-1, True, "60s", topology_batch.PASSWORD_OVERLAP_MS_MAX + 1])
async def test_an_overlap_that_is_none_is_refused(cluster: Cluster, overlap: Any) -> None:
    assert await cluster.change(password="new", password_overlap_ms=overlap) == "REFUSED"
    assert cluster.user.password_hash == "hash of old"


async def test_neither_listing_nor_hash_tells_of_the_old_password(
    cluster: Cluster, clock: Clock
) -> None:
    await cluster.change(password="new", password_overlap_ms=MINUTE_MS)
    shown = cluster.user.hash()
    assert set(cluster.user.listed_spec()) == {"tags", "limits"}
    exported = admin_objects.exported(
        cluster.user, Keyring(()), with_passwords=True, with_types=True
    )
    assert set(exported) == {"tags", "limits", "password_hash"}
    value = {k: v for k, v in cluster.user.value.items() if k not in PREVIOUS_PASSWORD}
    assert User("user", "", "app", value).hash() == shown


async def test_login_takes_both_and_then_the_new_one_only(clock: Clock) -> None:
    rig = test_imported_hashes.Rig(auth.hash_password("new", 10))
    rig.user.value |= {
        "previous_password_hash": auth.hash_password("old", 10),
        "previous_until_ms": 1_000_001,
    }
    assert [await rig.login(word) for word in ("new", "old", "other")] == [True, True, False]
    clock.s = 1000.001
    assert [await rig.login(word) for word in ("new", "old")] == [True, False]
    rig.checker.close()


async def test_the_old_password_never_takes_the_place_of_an_imported_new_one(
    clock: Clock,
) -> None:
    """SEC-14 hashes anew what somebody logged in with, which may be either here."""
    rig = test_imported_hashes.Rig(test_imported_hashes.IMPORTED)
    rig.user.value |= {
        "previous_password_hash": auth.hash_password("old", 10),
        "previous_until_ms": 1_000_001,
    }
    assert await rig.login("old")
    assert rig.written == []
    clock.s = 1000.001
    assert await rig.login("secret")
    assert len(rig.written) == 1
    rig.checker.close()
