"""Resource and topic permissions (R-PERM, R-TP)."""

from __future__ import annotations

import pytest

from brokerd.core.catalog import patterns, permissions
from brokerd.core.catalog.identity import Identity
from brokerd.core.catalog.permissions import Access
from tests.unit.core.catalog_driver import VHOST, CatalogDriver, is_refused


@pytest.fixture
def catalog() -> CatalogDriver:
    driver = CatalogDriver()
    driver.put("user", "u", {}, vhost="")
    return driver


def grant(catalog: CatalogDriver, configure: str = "", write: str = "", read: str = "") -> Access:
    catalog.put("permission", "u", {"configure": configure, "write": write, "read": read})
    return Access(catalog.view, VHOST, "u")


@pytest.mark.parametrize(
    ("pattern", "name", "granted"),
    [
        ("", "q", False),
        ("", "", True),
        (".*", "q", True),
        ("q", "my-queue-q1", True),
        ("^q$", "qq", False),
        ("^(?!secret)", "secret.1", False),
        ("(", "q", False),
    ],
)
def test_patterns_are_unanchored_and_empty_means_nothing(
    catalog: CatalogDriver, pattern: str, name: str, granted: bool
) -> None:
    """R-PERM-1; one that does not compile grants nothing."""
    assert permissions._is_granted(pattern, name) is granted


def test_each_permission_stands_for_itself(catalog: CatalogDriver) -> None:
    """R-PERM-3."""
    access = grant(catalog, configure="^c", write="^w", read="^r")
    for permission in permissions.PERMISSIONS:
        for kind in ("queue", "exchange"):
            allowed = permission[0] + "1"
            assert access.check(permission, kind, allowed) is None
            is_refused(
                access.check(permission, kind, "z"),
                403,
                f"{permission} access to {kind} 'z' in vhost '/' refused for user 'u'",
            )


def test_default_exchange_is_matched_as_amq_default(catalog: CatalogDriver) -> None:
    """R-PERM-2."""
    access = grant(catalog, write=r"^amq\.default$")
    assert access.check("write", "exchange", "") is None
    assert access.check("write", "queue", "") is not None


def test_revocation_is_seen_at_once(catalog: CatalogDriver) -> None:
    """R-PERM-5, better than RabbitMQ."""
    access = grant(catalog, write=".*")
    assert access.check("write", "queue", "q") is None
    catalog.delete("permission", "u")
    assert access.check("write", "queue", "q") is not None


def test_memory_of_answers_is_bounded(catalog: CatalogDriver) -> None:
    access = grant(catalog, write=".*")
    for number in range(3 * permissions.REMEMBERED_MAX):
        assert access.check("write", "queue", f"q{number}") is None
    assert len(access._remembered) <= permissions.REMEMBERED_MAX


def test_vhost_needs_a_permission_record(catalog: CatalogDriver) -> None:
    """SEC-15, R-PERM-1, R-CON-11, R-ERR-20, R-ERR-21."""
    view = catalog.view
    answer = permissions.check_vhost(view, "nosuch", "u")
    is_refused(answer, 530, "vhost nosuch not found", connection_level=True)
    answer = permissions.check_vhost(view, "/", "u")
    text = "access to vhost '/' refused for user 'u'"
    is_refused(answer, 530, text, connection_level=True)
    grant(catalog)
    assert permissions.check_vhost(view, "/", "u") is None


def test_topic_permission_covers_every_key_of_topic_exchanges_only(
    catalog: CatalogDriver,
) -> None:
    """SEC-16, R-TP-1, R-TP-2, R-RT-C3."""
    access = grant(catalog, write=".*", read=".*")
    catalog.exchange("t", "topic")
    catalog.exchange("d", "direct")
    topic, direct = catalog.view.exchange("/", "t"), catalog.view.exchange("/", "d")
    assert access.check_topic("write", topic, ("z",)) is None
    rights = {"write": "^a", "read": "^b"}
    for exchange in ("t", "d"):
        catalog.put("topic_permission", f"u|{exchange}", rights)
    assert access.check_topic("write", topic, ("a.1", "a.2")) is None
    assert access.check_topic("write", direct, ("z",)) is None
    is_refused(
        access.check_topic("write", topic, ("a.1", "b.1")),
        403,
        "write access to topic 'b.1' in exchange 't' in vhost '/' refused for user 'u'",
    )
    assert access.check_topic("read", topic, ("b.1",)) is None


def test_topic_permission_guards_bindings(catalog: CatalogDriver) -> None:
    """R-BND-6, R-TP-2: bind and unbind."""
    catalog.exchange("t", "topic")
    catalog.queue("q")
    catalog.access = grant(catalog, write=".*", read=".*")
    catalog.put("topic_permission", "u|t", {"write": "", "read": "^ok"})
    text = "read access to topic 'no' in exchange 't' in vhost '/' refused for user 'u'"
    is_refused(catalog.bind("t", "q", "no"), 403, text)
    is_refused(catalog.unbind("t", "q", "no"), 403, text)
    catalog.bind("t", "q", "ok.1")
    assert catalog.routed("t", "ok.1") == ["q"]


def test_variables_in_topic_permissions_are_escaped(catalog: CatalogDriver) -> None:
    """R-TP-3: a user named `.*` does not match everything."""
    catalog.put("user", ".*", {}, vhost="")
    catalog.put("permission", ".*", {"configure": "", "write": ".*", "read": ""})
    catalog.exchange("t", "topic")
    catalog.put("topic_permission", ".*|t", {"write": "^{username}{vhost}$", "read": ""})
    access = Access(catalog.view, VHOST, ".*")
    topic = catalog.view.exchange("/", "t")
    assert access.check_topic("write", topic, (".*/",)) is None
    assert access.check_topic("write", topic, ("anything/",)) is not None


def test_pattern_made_to_explode_ends_in_time_and_grants_nothing() -> None:
    """SEC-19."""
    # Deterministic: whether by engine or by time-out, the answer is no and comes soon.
    assert not patterns.matches(r"^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 250)


def test_cache_of_patterns_is_bounded() -> None:
    for number in range(patterns.CACHE_SIZE_MAX + 10):
        patterns.matches(f"^{number}$", "x")
    assert len(patterns._compiled) <= patterns.CACHE_SIZE_MAX


def test_the_broker_itself_may_do_everything(catalog: CatalogDriver) -> None:
    """What a shovel does here without a user needs no permission, to resources or to topics."""
    catalog.put("exchange", "t", {"type": "topic"})
    own = permissions.Unlimited(catalog.view, VHOST, "")
    for permission in permissions.PERMISSIONS:
        assert own.check(permission, "queue", "q") is None
    assert own.check_any("queue", "q") is None
    topology = catalog.view.vhosts[VHOST]
    assert own.check_topic("write", topology.exchanges["t"], ["k"]) is None


def test_a_user_of_the_catalog_has_its_permissions_and_comes_in_with_any() -> None:
    """R-CON-11."""
    driver = CatalogDriver()
    driver.put("user", "u", {}, vhost="")
    access = Identity("u").access(driver.view, VHOST)
    refused = access.check_vhost()
    assert refused is not None
    assert "refused for user 'u'" in refused.text
    driver.put("permission", "u", {"configure": "", "write": "", "read": ""})
    assert access.check_vhost() is None
