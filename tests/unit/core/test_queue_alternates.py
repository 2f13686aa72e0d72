"""The alternate exchange of a queue (profile mrg, R-MQ) in machine, catalog and declares."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core import annotations as message_annotations
from brokerd.core.annotations import Annotations
from brokerd.core.catalog import catalog_checks, catalog_commands, declare, policy
from brokerd.core.profiles import profile
from brokerd.core.queue import effects, queue_commands
from tests.unit.core.catalog.test_declare import with_rights
from tests.unit.core.catalog_driver import CatalogDriver, is_refused
from tests.unit.core.queue_driver import QueueDriver, consumer, dead, numbers, only

ALTERNATE = {"qpid.alternate-exchange": "alt"}


def queue(**options: Any) -> QueueDriver:
    return QueueDriver(alternate_exchange="alt", **options)


def rerouted(outcome: Any) -> list[tuple[str, str, list[int]]]:
    """Return (reason, exchange, numbers) of each Reroute effect."""
    return [
        (effect.reason, effect.exchange, numbers(effect.runs))
        for effect in outcome.effects
        if isinstance(effect, effects.Reroute)
    ]


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_rejected_message_goes_to_the_alternate_exchange(queue_type: str) -> None:
    """R-MQ-1, R-MQ-2"""
    q = queue(queue_type=queue_type)
    q.consume(prefetch=3)
    q.fill(3)
    assert rerouted(q.discard((0, 2))) == [("rejected", "alt", [0, 1])]
    assert (q.count("rejected"), q.count("dl_out"), q.unacked) == (2, 0, 1)


@pytest.mark.parametrize(("scope", "orphans"), [("all", [0, 1, 2, 3, 4]), ("unacked", [0, 1])])
def test_what_a_deleted_queue_leaves_goes_there_before_its_end(
    scope: str, orphans: list[int]
) -> None:
    """R-MQ-2, R-MQ-3: 3 ready and 2 unacked; S2's literal reading by mrg.orphan_scope."""
    q = queue(orphan_scope=scope)
    q.consume(prefetch=2)
    q.fill(5)
    outcome = q.send(queue_commands.encode_delete(False, False, "client"))
    assert rerouted(outcome) == [("orphaned", "alt", orphans)]
    kinds = [type(effect) for effect in outcome.effects]
    assert kinds.index(effects.Reroute) < kinds.index(effects.QueueDeleted)


@pytest.mark.parametrize("cause", ["expired", "auto-delete"])
def test_a_queue_that_ends_by_itself_leaves_orphans_as_well(cause: str) -> None:
    """R-MQ-2"""
    q = queue(auto_delete=cause == "auto-delete", expires_ms=50)
    q.fill(2)
    if cause == "expired":
        outcome = q.tick(60)
    else:
        q.consume(prefetch=1)
        outcome = q.send(queue_commands.encode_cancel(consumer()))
    assert only(outcome, effects.QueueDeleted).cause == cause
    assert rerouted(outcome) == [("orphaned", "alt", [0, 1])]


def test_delayed_messages_are_orphans_too() -> None:
    """R-MQ-3, R-QQ-24"""
    q = queue(
        queue_type="quorum",
        delayed_retry="all",
        delayed_retry_min_ms=9,
        delayed_retry_max_ms=9,
    )
    q.consume(prefetch=1)
    q.fill(2)
    q.requeue((0, 1))
    outcome = q.send(queue_commands.encode_delete(False, False, "client"))
    assert rerouted(outcome) == [("orphaned", "alt", [0, 1])]


def test_expired_and_purged_messages_are_not_rerouted() -> None:
    """R-MQ-11"""
    q = queue(message_ttl_ms=10)
    q.fill(1)
    assert rerouted(q.tick(20)) == []
    q.fill(1)
    assert rerouted(q.send(queue_commands.encode_purge())) == []


@pytest.mark.parametrize("does", [True, False])
def test_overflow_is_rerouted_where_the_switch_says_so(does: bool) -> None:
    """R-MQ-11: mrg.reroute_overflow"""
    q = queue(max_length=1, reroute_overflow=does)
    assert rerouted(q.fill(3)) == ([("maxlen", "alt", [0, 1])] if does else [])


def test_a_dead_letter_exchange_comes_first_but_never_for_orphans() -> None:
    """R-MQ-12, R-DLX-3"""
    q = queue(dead_letter_exchange="dlx", max_length=4, reroute_overflow=True)
    q.consume(prefetch=2)
    outcome = q.fill(8)
    assert (dead(outcome), rerouted(outcome)) == ([("maxlen", [2, 3])], [])
    outcome = q.discard((0, 1))
    assert (dead(outcome), rerouted(outcome)) == ([("rejected", [0])], [])
    outcome = q.send(queue_commands.encode_delete(False, False, "client"))
    assert dead(outcome) == []
    assert len(rerouted(outcome)) == 1


def test_an_empty_queue_leaves_nothing() -> None:
    q = queue()
    assert rerouted(q.send(queue_commands.encode_delete(False, False, "client"))) == []


def test_the_mark_is_kept_beside_the_message() -> None:
    """R-MQ-7: internal, and old messages have none."""
    raw = message_annotations.encode(Annotations(rerouted=True))
    assert message_annotations.decode(raw).rerouted
    assert message_annotations.encode(Annotations()) == b""
    assert not message_annotations.decode(b'{"ttl_ms":5}').rerouted


@pytest.fixture
def catalog() -> CatalogDriver:
    catalog = CatalogDriver(profile("rabbitmq-4.3+mrg"))
    catalog.exchange("alt", "fanout")
    return catalog


def test_argument_or_policy_names_the_alternate_of_a_queue_in_mrg_only(
    catalog: CatalogDriver,
) -> None:
    """R-MQ-1, O-9"""
    catalog.queue("q", arguments=ALTERNATE)
    catalog.queue("p")
    definition = {"queue-alternate-exchange": "other"}
    catalog.put("policy", "p", {"pattern": ".", "apply-to": "queues", "definition": definition})
    found = [
        policy.effective_queue_options(catalog.view, catalog.found(name), catalog.profile)
        for name in ("q", "p")
    ]
    assert [each.alternate_exchange for each in found] == ["alt", "other"]
    assert [each.orphan_scope for each in found] == ["all", "all"]
    plain = policy.effective_queue_options(catalog.view, catalog.found("q"), profile())
    assert plain.alternate_exchange is None


def test_the_alternate_must_be_text_exist_and_be_writable(catalog: CatalogDriver) -> None:
    """R-MQ-9, R-MQ-13"""
    is_refused(
        catalog.queue("q", arguments={"qpid.alternate-exchange": 5}),
        406,
        "invalid type 'signedint' for arg 'qpid.alternate-exchange' in queue 'q' in vhost '/'",
    )
    missing = {"qpid.alternate-exchange": "nope"}
    is_refused(catalog.queue("q", arguments=missing), 404, "no exchange 'nope' in vhost '/'")
    user = with_rights(catalog, configure="^q$")
    text = "read access to queue 'q' in vhost '/' refused for user 'u'"
    is_refused(catalog.queue("q", arguments=ALTERNATE, access=user), 403, text)
    user = with_rights(catalog, configure="^q$", read="^q$")
    text = "write access to exchange 'alt' in vhost '/' refused for user 'u'"
    is_refused(catalog.queue("q", arguments=ALTERNATE, access=user), 403, text)
    user = with_rights(catalog, configure="^q$", read="^q$", write="^alt$")
    assert isinstance(catalog.queue("q", arguments=ALTERNATE, access=user), declare.Create)


def test_a_redeclaration_must_name_the_same_alternate(catalog: CatalogDriver) -> None:
    """R-MQ-1, R-Q-4"""
    catalog.queue("q", arguments=ALTERNATE)
    assert isinstance(catalog.queue("q", arguments=ALTERNATE), declare.Exists)
    is_refused(
        catalog.queue("q"),
        406,
        "inequivalent arg 'qpid.alternate-exchange' for queue 'q' in vhost '/': received none "
        "but current is the value 'alt' of type 'longstr'",
    )


def test_an_exchange_in_use_as_alternate_cannot_be_deleted_in_mrg(catalog: CatalogDriver) -> None:
    """R-MQ-9; O-8: only alternates of queues count; R-EX-6 elsewhere."""
    catalog.exchange("over", arguments={"alternate-exchange": "free"})
    catalog.exchange("free")
    catalog.queue("q", arguments=ALTERNATE)
    is_refused(
        declare.delete_exchange(catalog.view, catalog.access, "alt", False, catalog.profile),
        530,
        "exchange 'alt' in vhost '/' in use as alternate exchange of queue 'q'",
        connection_level=True,
    )
    for name, chosen in (("alt", profile()), ("free", catalog.profile)):
        found = declare.delete_exchange(catalog.view, catalog.access, name, False, chosen)
        assert isinstance(found, declare.Delete)


def test_elsewhere_the_argument_is_one_that_nobody_knows() -> None:
    """R-Q-5, O-9: stored and ignored, neither checked nor compared."""
    catalog = CatalogDriver(profile("reference"))
    catalog.queue("q", arguments={"qpid.alternate-exchange": 5})
    assert isinstance(catalog.queue("q"), declare.Exists)


@pytest.mark.parametrize("kind", ["policy", "queue"])
def test_the_key_of_a_policy_or_queue_is_unknown_outside_mrg(
    catalog: CatalogDriver, kind: str
) -> None:
    """O-19, R-POL-1: the node that proposes it knows its profile, the machine has none."""
    values = {"queue-alternate-exchange": "alt"}
    specs = {
        "policy": {"pattern": ".", "definition": values},
        "queue": {"type": "classic", "settings": values},
    }
    more: dict[str, Any] = {"uid": 7, "members": ["n1"]} if kind == "queue" else {}
    for chosen, code in ((profile(), "REFUSED"), (catalog.profile, "OK")):
        operation = catalog_commands.put(kind, "/", "p", specs[kind], cause="admin", **more)
        batch = {"do": "batch", "operations": [operation]}
        catalog_checks.judge(batch, chosen, catalog.view)
        reply = catalog.do(batch)["results"][0]
        assert reply["code"] == code
        refused = "['queue-alternate-exchange'] are not recognised"
        assert (refused in reply["text"]) is (code == "REFUSED")
    harmless = catalog_commands.put(
        "policy", "/", "h", {"pattern": ".", "definition": {"max-length": 1}}, cause="admin"
    )
    catalog_checks.judge(harmless, profile(), catalog.view)
    assert "verdict" not in harmless
    deletion = catalog_commands.delete(kind, "/", "p", cause="admin")
    catalog_checks.judge(deletion, profile(), catalog.view)
    assert "verdict" not in deletion


def test_administration_does_not_delete_an_alternate_in_use_either(catalog: CatalogDriver) -> None:
    """R-MQ-9: over the Admin service and for the operator."""
    catalog.queue("q", arguments=ALTERNATE)
    for chosen, name, code in (
        (catalog.profile, "alt", "REFUSED"),
        (catalog.profile, "nowhere", "NOT_FOUND"),
        (profile(), "alt", "OK"),
    ):
        operation = catalog_commands.delete("exchange", "/", name, cause="admin")
        catalog_checks.judge(operation, chosen, catalog.view)
        reply = catalog.do(operation)
        assert reply["code"] == code
        if code == "REFUSED":
            assert reply["amqp"] == 530
            assert reply["text"].endswith("in use as alternate exchange of queue 'q'")
