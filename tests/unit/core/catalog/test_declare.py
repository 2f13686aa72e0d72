"""AMQP's declare, bind, unbind and delete: order of checks, codes and texts."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.catalog import declare
from brokerd.core.catalog.permissions import Access
from brokerd.core.catalog.refusals import Refused
from brokerd.core.profiles import profile
from tests.unit.core.catalog_driver import OTHER, OWN, VHOST, CatalogDriver, is_refused

QUORUM = {"x-queue-type": "quorum"}

LOCKED = (
    "cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be originally "
    "declared on another connection or the exclusive property value does not match that of the "
    "original declaration."
)


@pytest.fixture
def catalog() -> CatalogDriver:
    return CatalogDriver()


def with_rights(
    catalog: CatalogDriver, configure: str = "", write: str = "", read: str = ""
) -> Access:
    catalog.put("user", "u", {}, vhost="")
    catalog.put("permission", "u", {"configure": configure, "write": write, "read": read})
    return Access(catalog.view, VHOST, "u")


# Exchanges


def test_unknown_exchange_type_is_told_before_everything_else(catalog: CatalogDriver) -> None:
    """R-EX-2, R-EX-3, R-ERR-8."""
    text = "unknown exchange type 'zz'"
    is_refused(catalog.exchange("", "zz", access=with_rights(catalog)), 406, text)
    older = CatalogDriver(profile("rabbitmq-3.10"))
    is_refused(older.exchange("x", "zz"), 503, text, connection_level=True)


def test_default_exchange_cannot_be_declared_or_deleted(catalog: CatalogDriver) -> None:
    """R-ERR-10, R-AE-13."""
    text = "operation not permitted on the default exchange"
    is_refused(catalog.exchange(""), 403, text)
    is_refused(catalog.exchange("", passive=True), 403, text)
    is_refused(declare.delete_exchange(catalog.view, catalog.access, "", False), 403, text)


def test_reserved_names_can_only_be_redeclared(catalog: CatalogDriver) -> None:
    """R-NAM-2, R-ERR-9."""
    text = "exchange name 'amq.foo' contains reserved prefix 'amq.*'"
    is_refused(catalog.exchange("amq.foo"), 403, text)
    assert isinstance(catalog.exchange("amq.direct", durable=True), declare.Exists)
    text = "queue name 'amq.foo' contains reserved prefix 'amq.*'"
    is_refused(catalog.queue("amq.foo"), 403, text)


def test_configure_permission_precedes_the_reserved_prefix(catalog: CatalogDriver) -> None:
    """R-EX-2, R-PERM-3."""
    is_refused(
        catalog.exchange("amq.foo", access=with_rights(catalog)),
        403,
        "configure access to exchange 'amq.foo' in vhost '/' refused for user 'u'",
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"type_": "fanout"}, "'type' {}: received 'fanout' but current is 'direct'"),
        ({"durable": False}, "'durable' {}: received 'false' but current is 'true'"),
        ({"auto_delete": True}, "'auto_delete' {}: received 'true' but current is 'false'"),
        ({"internal": True}, "'internal' {}: received 'true' but current is 'false'"),
        (
            {"arguments": {}},
            "'alternate-exchange' {}: received none but current is the value 'b' of type 'longstr'",
        ),
        (
            {"arguments": {"alternate-exchange": "c"}},
            "'alternate-exchange' {}: received 'c' but current is 'b'",
        ),
    ],
)
def test_exchange_redeclared_differently(
    catalog: CatalogDriver, change: dict[str, Any], text: str
) -> None:
    """R-EX-4, R-AE-9, R-ERR-7."""
    first: dict[str, Any] = {
        "type_": "direct",
        "durable": True,
        "arguments": {"alternate-exchange": "b"},
    }
    catalog.exchange("x", **first)
    text = "inequivalent arg " + text.format("for exchange 'x' in vhost '/'")
    is_refused(catalog.exchange("x", **(first | change)), 406, text)


def test_other_exchange_arguments_and_settings_are_not_compared(catalog: CatalogDriver) -> None:
    """R-EX-4, R-EX-11, design/operator.md §5.2."""
    catalog.put("exchange", "x", {"type": "direct", "settings": {"alternate-exchange": "inline"}})
    again = catalog.exchange("x", durable=True, arguments={"whatever": 1})
    assert isinstance(again, declare.Exists)


def test_alternate_exchange_argument_is_checked_on_new_exchanges_only(
    catalog: CatalogDriver,
) -> None:
    """SEC-17, R-AE-6, R-AE-7, R-ERR-38."""
    is_refused(
        catalog.exchange("x", arguments={"alternate-exchange": 1}),
        406,
        "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'",
    )
    wanted: dict[str, Any] = {"arguments": {"alternate-exchange": "ae"}}
    for rights, text in (
        ({"configure": "x"}, "read access to exchange 'x' in vhost '/' refused for user 'u'"),
        (
            {"configure": "x", "read": "x"},
            "write access to exchange 'ae' in vhost '/' refused for user 'u'",
        ),
    ):
        access = with_rights(catalog, **rights)
        is_refused(catalog.exchange("x", access=access, **wanted), 403, text)
    access = with_rights(catalog, configure="x", read="x", write="ae")
    assert isinstance(catalog.exchange("x", access=access, **wanted), declare.Create)
    access = with_rights(catalog, configure="x")
    assert isinstance(catalog.exchange("x", access=access, **wanted), declare.Exists)


def test_passive_declare_needs_any_permission_by_default(catalog: CatalogDriver) -> None:
    """R-EX-5, R-Q-7, R-ERR-3."""
    catalog.exchange("x")
    catalog.queue("q")
    for right in ("configure", "write", "read"):
        access = with_rights(catalog, **{right: "^[xq]$"})
        answer = catalog.exchange("x", "ignored", passive=True, access=access)
        assert isinstance(answer, declare.Exists)
        assert isinstance(catalog.queue("q", passive=True, access=access), declare.Exists)
    nobody = with_rights(catalog)
    text = "configure access to exchange 'x' in vhost '/' refused for user 'u'"
    is_refused(catalog.exchange("x", passive=True, access=nobody), 403, text)
    is_refused(catalog.exchange("no", passive=True), 404, "no exchange 'no' in vhost '/'")
    is_refused(catalog.queue("no", passive=True), 404, "no queue 'no' in vhost '/'")


def test_passive_declare_needs_nothing_in_older_profiles() -> None:
    """R-EX-5."""
    catalog = CatalogDriver(profile("rabbitmq-3.10"))
    catalog.exchange("x")
    answer = catalog.exchange("x", passive=True, access=with_rights(catalog))
    assert isinstance(answer, declare.Exists)


def test_delete_of_exchanges(catalog: CatalogDriver) -> None:
    """R-EX-6, R-PERM-6."""
    catalog.exchange("x", "fanout")
    catalog.queue("q")
    catalog.bind("x", "q")
    view, access = catalog.view, catalog.access
    is_refused(
        declare.delete_exchange(view, with_rights(catalog), "amq.direct", False),
        403,
        "deletion of system exchange 'amq.direct' in vhost '/' not allowed",
    )
    is_refused(
        declare.delete_exchange(view, with_rights(catalog), "missing", False),
        403,
        "configure access to exchange 'missing' in vhost '/' refused for user 'u'",
    )
    assert declare.delete_exchange(view, access, "missing", False) == declare.Exists(None)
    is_refused(
        declare.delete_exchange(view, access, "x", True), 406, "exchange 'x' in vhost '/' in use"
    )
    assert isinstance(declare.delete_exchange(view, access, "x", False), declare.Delete)


# Queues


@pytest.mark.parametrize(
    ("first", "again", "text"),
    [
        # R-ERR-4
        ({}, {"durable": False}, "'durable' {}: received 'false' but current is 'true'"),
        ({}, {"auto_delete": True}, "'auto_delete' {}: received 'true' but current is 'false'"),
        # R-ERR-5
        (
            {"arguments": {"x-max-length": 5}},
            {"arguments": {"x-max-length": 6}},
            "'x-max-length' {}: received '6' but current is '5'",
        ),
        (
            {},
            {"arguments": {"x-max-length": 6}},
            "'x-max-length' {}: received the value '6' of type 'signedint' but current is none",
        ),
        (
            {"arguments": {"x-max-length": 2**40}},
            {},
            "'x-max-length' {}: received none but current is "
            "the value '1099511627776' of type 'long'",
        ),
        # R-ERR-6
        (
            {},
            {"arguments": {"x-queue-type": "quorum"}},
            "'x-queue-type' {}: received 'quorum' but current is 'classic'",
        ),
        (
            {"arguments": {"x-single-active-consumer": True}},
            {"arguments": {"x-single-active-consumer": False}},
            "'x-single-active-consumer' {}: received 'false' but current is 'true'",
        ),
    ],
)
def test_queue_redeclared_differently(
    catalog: CatalogDriver, first: dict[str, Any], again: dict[str, Any], text: str
) -> None:
    """R-Q-4."""
    catalog.queue("q", **first)
    text = "inequivalent arg " + text.format("for queue 'q' in vhost '/'")
    is_refused(catalog.queue("q", **again), 406, text)


@pytest.mark.parametrize(
    ("first", "again", "text"),
    [
        ({}, QUORUM, "received the value 'quorum' of type 'longstr' but current is none"),
        (QUORUM, {}, "received none but current is the value 'quorum' of type 'longstr'"),
        (QUORUM, {"x-queue-type": "classic"}, "received 'classic' but current is 'quorum'"),
    ],
)
def test_a_queue_of_another_type_in_the_words_of_3_10(
    first: dict[str, Any], again: dict[str, Any], text: str
) -> None:
    """R-ERR-6: the argument is none of a classic queue that was declared without it."""
    catalog = CatalogDriver(profile("rabbitmq-3.10"))
    catalog.queue("q", arguments=first)
    text = f"inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': {text}"
    is_refused(catalog.queue("q", arguments=again), 406, text)


def test_arguments_that_no_type_knows_are_neither_compared_nor_refused(
    catalog: CatalogDriver,
) -> None:
    """R-Q-4, R-Q-5."""
    catalog.queue("q", arguments={"mine": 1})
    assert isinstance(catalog.queue("q", arguments={"yours": [1, 2]}), declare.Exists)


def test_classic_queues_know_a_consumer_timeout_where_the_profile_says_so() -> None:
    """R-Q-5, R-QQ-22: in profiles of RabbitMQ it is refused, and not compared."""
    timed = {"x-consumer-timeout": 5000}
    ours = CatalogDriver()
    assert isinstance(ours.queue("q", arguments=timed), declare.Create)
    text = (
        "inequivalent arg 'x-consumer-timeout' for queue 'q' in vhost '/': "
        "received none but current is the value '5000' of type 'signedint'"
    )
    is_refused(ours.queue("q"), 406, text)
    theirs = CatalogDriver(profile("rabbitmq-4.3"))
    text = (
        "invalid arg 'x-consumer-timeout' for queue 'q' in vhost '/' "
        "of queue type rabbit_classic_queue"
    )
    is_refused(theirs.queue("q", arguments=timed), 406, text)
    theirs.queue("q")
    assert isinstance(theirs.queue("q", arguments=timed), declare.Exists)


def test_inline_settings_take_no_part_in_equivalence(catalog: CatalogDriver) -> None:
    """design/operator.md §5.2: a client that declares the queue plainly does not get 406."""
    spec = {"type": "classic", "settings": {"max-length": 5, "dead-letter-exchange": "d"}}
    catalog.put("queue", "q", spec, uid=5, members=["n1"])
    assert isinstance(catalog.queue("q"), declare.Exists)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        # R-Q-6, R-ERR-36
        ({"x-message-ttl": -1}, "'x-message-ttl' {}: {value_negative,-1}"),
        ({"x-expires": 0}, "'x-expires' {}: {value_zero,0}"),
        ({"x-message-ttl": "5"}, "'x-message-ttl' {}: \"expected integer, got longstr\""),
        ({"x-message-ttl": True}, "'x-message-ttl' {}: \"expected integer, got bool\""),
        (
            {"x-message-ttl": 315_360_000_001},
            "'x-message-ttl' {}: {value_too_large,315360000001}",
        ),
        ({"x-max-priority": 256}, "'x-max-priority' {}: {max_value_exceeded,256}"),
        # R-ERR-37
        (
            {"x-dead-letter-routing-key": "k"},
            "'x-dead-letter-routing-key' {}: routing_key_but_no_dlx_defined",
        ),
        ({"x-overflow": "spill"}, "'x-overflow' {}: invalid_overflow"),
        ({"x-queue-version": 1}, "'x-queue-version' {}: \"unsupported queue version '1'\""),
        (
            {"x-queue-type": "quorum", "x-dead-letter-strategy": "maybe"},
            "'x-dead-letter-strategy' {}: invalid_dlx_strategy",
        ),
        # R-Q-1
        ({"x-queue-type": "zz"}, "'x-queue-type' {}: \"unsupported queue type 'zz'\""),
        # R-Q-5, R-ERR-40
        ({"x-delivery-limit": 3}, "'x-delivery-limit' {} of queue type rabbit_classic_queue"),
        (
            {"x-queue-type": "quorum", "x-max-priority": 3},
            "'x-max-priority' {} of queue type rabbit_quorum_queue",
        ),
    ],
)
def test_bad_queue_arguments(catalog: CatalogDriver, arguments: dict[str, Any], error: str) -> None:
    text = "invalid arg " + error.replace("{}", "for queue 'q' in vhost '/'", 1)
    is_refused(catalog.queue("q", arguments=arguments), 406, text)


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ({"durable": False}, "non-durable"),
        ({"exclusive": True}, "exclusive-owner"),
        ({"auto_delete": True}, "auto-delete"),
    ],
)
def test_quorum_queues_are_plain(catalog: CatalogDriver, more: dict[str, Any], wrong: str) -> None:
    """R-QQ-1, R-ERR-39."""
    quorum = {"x-queue-type": "quorum"}
    text = f"invalid property '{wrong}' for queue 'q' in vhost '/'"
    is_refused(catalog.queue("q", arguments=quorum, **more), 406, text)
    is_refused(
        catalog.queue("", arguments=quorum, **more),
        406,
        "Cannot declare a server-named queue for type rabbit_quorum_queue",
    )


def test_dead_letter_exchange_is_checked_on_new_queues_only(catalog: CatalogDriver) -> None:
    """R-DLX-5, R-DLX-6, R-ERR-38, R-Q-2."""
    is_refused(
        catalog.queue("q", arguments={"x-dead-letter-exchange": 1}),
        406,
        "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'",
    )
    access = with_rights(catalog, configure="q", read="q")
    is_refused(
        catalog.queue("q", arguments={"x-dead-letter-exchange": ""}, access=access),
        403,
        "write access to exchange 'amq.default' in vhost '/' refused for user 'u'",
    )


def test_default_queue_type_of_vhost_and_node(catalog: CatalogDriver) -> None:
    """R-Q-1: not for declares that the default type cannot serve."""
    create = catalog.queue("by-node", node_default_type="quorum")
    assert create.spec["type"] == "quorum"
    catalog.put("vhost", "/", {"default_queue_type": "quorum"}, vhost="")
    assert catalog.queue("by-vhost").spec["type"] == "quorum"
    assert catalog.queue("t", durable=False, exclusive=True).spec["type"] == "classic"
    assert catalog.queue("a", auto_delete=True).spec["type"] == "classic"
    assert catalog.queue("c", arguments={"x-queue-type": "classic"}).spec["type"] == "classic"


def test_exclusive_queue_belongs_to_its_connection(catalog: CatalogDriver) -> None:
    """R-Q-9, R-ERR-11, R-BND-9: stored as transient, whatever was asked for."""
    create = catalog.queue("q", exclusive=True, durable=True)
    assert (create.exclusive_owner, create.spec["durable"]) == (OWN, False)
    assert isinstance(catalog.queue("q", exclusive=True), declare.Exists)
    catalog.exchange("x")
    catalog.bind("x", "q", "k")
    view, access = catalog.view, catalog.access
    missing = declare.unbind(view, access, "x", "queue", "q", "other", {}, OTHER)
    assert isinstance(missing, declare.Exists)
    for answer in (
        catalog.queue("q", exclusive=True, connection=OTHER),
        catalog.queue("q", passive=True, connection=OTHER),
        catalog.queue("q", durable=False),
        catalog.bind("x", "q", "k", connection=OTHER),
        declare.unbind(view, access, "x", "queue", "q", "k", {}, OTHER),
        declare.use_queue(view, access, "q", OTHER),
        declare.delete_queue(
            view,
            catalog.profile,
            access,
            "q",
            if_unused=False,
            if_empty=False,
            connection=OTHER,
        ),
    ):
        is_refused(answer, 405, LOCKED)
    assert declare.use_queue(view, access, "q", OWN) is catalog.found("q")


def test_exclusive_cannot_be_added_by_redeclaring(catalog: CatalogDriver) -> None:
    """R-Q-9."""
    catalog.queue("q")
    is_refused(catalog.queue("q", exclusive=True), 405, LOCKED)


def test_queue_without_a_name_gets_the_generated_one(catalog: CatalogDriver) -> None:
    """R-NAM-3, R-Q-2; the generated name is what permissions are matched on (R-PERM-2)."""
    assert catalog.queue("", exclusive=True).name == "amq.gen-1"
    is_refused(
        catalog.queue("", access=with_rights(catalog, configure="^q")),
        403,
        "configure access to queue 'amq.gen-1' in vhost '/' refused for user 'u'",
    )


def test_line_ends_in_names_are_dropped(catalog: CatalogDriver) -> None:
    assert catalog.queue("q\r\n").name == "q"


def test_queue_and_exchange_limits_of_the_vhost(catalog: CatalogDriver) -> None:
    """R-NAM-5, R-VH-3, O-4: 0 forbids, negative is no limit."""
    catalog.put("vhost", "/", {"limits": {"max-queues": 1, "max-exchanges": 8}}, vhost="")
    catalog.queue("q1")
    text = "cannot declare queue 'q2': queue limit in vhost '/' (1) is reached"
    is_refused(catalog.queue("q2"), 406, text)
    assert isinstance(catalog.queue("q1"), declare.Exists)
    catalog.exchange("x1")
    refused = catalog.put("exchange", "x2", {"type": "fanout"})
    text = "cannot declare exchange 'x2' in vhost '/': exchange limit of 8 is reached"
    assert (refused["code"], refused["amqp"], refused["text"]) == ("REFUSED", 406, text)
    catalog.put("vhost", "/", {"limits": {"max-queues": 0}}, vhost="")
    assert isinstance(catalog.queue("q3"), Refused)
    catalog.put("vhost", "/", {"limits": {"max-queues": -1}}, vhost="")
    assert isinstance(catalog.queue("q3"), declare.Create)


@pytest.mark.parametrize(
    ("profile_", "refused", "warnings"),
    [("brokerd", False, 1), ("rabbitmq-3.10", False, 0)],
)
def test_transient_non_exclusive_queues(profile_: str, refused: bool, warnings: int) -> None:
    """R-Q-8, O-1."""
    create = CatalogDriver(profile(profile_)).queue("q", durable=False)
    assert len(create.warnings) == warnings


def test_transient_non_exclusive_queues_denied_by_switch() -> None:
    """R-ERR-45: assert the code only (R-OPEN-3)."""
    strict = profile("brokerd", queues_transient_nonexclusive="deny")
    answer = CatalogDriver(strict).queue("q", durable=False)
    assert isinstance(answer, Refused)
    assert (answer.code, answer.connection_level) == (541, True)
    assert "transient_nonexcl_queues" in answer.text


def test_delete_of_queues(catalog: CatalogDriver) -> None:
    """R-Q-12, R-PERM-6, R-ERR-35."""
    catalog.queue("quorum", arguments={"x-queue-type": "quorum"})
    catalog.queue("classic")

    def delete(
        name: str, if_unused: bool = False, if_empty: bool = False, like: str = "brokerd"
    ) -> Any:
        return declare.delete_queue(
            catalog.view,
            profile(like),
            catalog.access,
            name,
            if_unused=if_unused,
            if_empty=if_empty,
            connection=OWN,
        )

    assert delete("missing") == declare.Exists(None)
    assert isinstance(delete("classic", if_unused=True, if_empty=True), declare.Delete)
    assert isinstance(delete("quorum"), declare.Delete)
    for flags, flag in (({"if_unused": True}, "if-unused"), ({"if_empty": True}, "if-empty")):
        text = (
            "cannot delete queue 'quorum' in vhost '/'. queue.delete operations with "
            f"{flag} flag set are not supported by quorum queues"
        )
        assert isinstance(delete("quorum", **flags), declare.Delete)
        for like in ("rabbitmq-4.3", "rabbitmq-3.13", "rabbitmq-3.10"):
            refused = delete("quorum", **flags, like=like)
            is_refused(refused, 540, text, connection_level=True)


# Bindings


def test_bind_reports_the_missing_source_first(catalog: CatalogDriver) -> None:
    """R-BND-3."""
    is_refused(catalog.bind("x", "q"), 404, "no exchange 'x' in vhost '/'")
    catalog.exchange("x")
    is_refused(catalog.bind("x", "q"), 404, "no queue 'q' in vhost '/'")
    is_refused(catalog.bind("x", "y", kind="exchange"), 404, "no exchange 'y' in vhost '/'")


def test_nothing_binds_to_or_from_the_default_exchange(catalog: CatalogDriver) -> None:
    """R-BND-2, R-ERR-10."""
    catalog.queue("q")
    catalog.exchange("x")
    text = "operation not permitted on the default exchange"
    is_refused(catalog.bind("", "q"), 403, text)
    is_refused(catalog.bind("x", "", kind="exchange"), 403, text)
    is_refused(catalog.unbind("", "q"), 403, text)


def test_reply_to_queues_cannot_be_bound(catalog: CatalogDriver) -> None:
    """R-BND-7."""
    text = "cannot bind or unbind to a volatile (direct reply-to) queue"
    is_refused(catalog.bind("amq.direct", "amq.rabbitmq.reply-to.abc"), 403, text)
    # The bare name is a queue that is not there.
    bare = "amq.rabbitmq.reply-to"
    is_refused(catalog.bind("amq.direct", bare), 404, f"no queue '{bare}' in vhost '/'")
    assert catalog.unbind("amq.direct", bare) == declare.Exists(None)


def test_rebinding_is_a_no_op_and_unbinding_what_is_not_there_too(
    catalog: CatalogDriver,
) -> None:
    """R-BND-1, R-BND-4: arguments count in any order."""
    catalog.exchange("h", "headers")
    catalog.queue("q")
    assert isinstance(catalog.bind("h", "q", "k", {"a": 1, "b": 2}), declare.Create)
    assert isinstance(catalog.bind("h", "q", "k", {"b": 2, "a": 1}), declare.Exists)
    assert isinstance(catalog.bind("h", "q", "k", {"a": 1}), declare.Create)
    assert catalog.unbind("h", "q", "other") == declare.Exists(None)
    assert catalog.unbind("nope", "nope") == declare.Exists(None)


def test_binding_needs_write_on_destination_and_read_on_source(catalog: CatalogDriver) -> None:
    """R-BND-6, R-PERM-4, R-PERM-7: 403 even where nothing exists."""
    for rights, text in (
        ({}, "write access to queue 'q' in vhost '/' refused for user 'u'"),
        ({"write": "q"}, "read access to exchange 'x' in vhost '/' refused for user 'u'"),
    ):
        catalog.access = with_rights(catalog, **rights)
        is_refused(catalog.bind("x", "q"), 403, text)
        is_refused(catalog.unbind("x", "q"), 403, text)


def test_more_hash_words_than_the_switch_allows_are_refused() -> None:
    """R-BND-8."""
    catalog = CatalogDriver()
    catalog.exchange("t", "topic")
    catalog.queue("q")
    assert isinstance(catalog.bind("t", "q", "#.a.#"), declare.Create)
    answer = catalog.bind("t", "q", "#.a.#.b.#")
    assert isinstance(answer, Refused)
    assert answer.code == 406
    older = CatalogDriver(profile("rabbitmq-3.10"))
    older.exchange("t", "topic")
    older.queue("q")
    assert isinstance(older.bind("t", "q", "#.a.#.b.#"), declare.Create)


# Publishing


def test_publish_is_refused_in_rabbitmqs_order(catalog: CatalogDriver) -> None:
    """R-PERM-7, R-ERR-1, R-ERR-41, R-EX-10."""
    catalog.exchange("inner", "fanout", internal=True)

    def check(name: str, access: Access | None = None) -> Any:
        exchange = catalog.route(name, "k").exchange
        return declare.check_publish(access or catalog.access, name, exchange, ("k",))

    nobody = with_rights(catalog)
    text = "write access to exchange 'nope' in vhost '/' refused for user 'u'"
    is_refused(check("nope", nobody), 403, text)
    is_refused(check("nope"), 404, "no exchange 'nope' in vhost '/'")
    text = "cannot publish to internal exchange 'inner' in vhost '/'"
    is_refused(check("inner"), 403, text)
    assert check("") is None
    assert check("amq.fanout") is None


def test_arguments_without_effect_are_said_once_by_default() -> None:
    """R-Q-1, R-Q-5: an empty type is none."""
    catalog = CatalogDriver()
    table = {"x-queue-type": "", "x-max-age": "1h", "x-queue-master-locator": "random"}
    created = catalog.queue("q", durable=True, arguments=table)
    assert created.spec["arguments"] == {
        "x-max-age": "1h",
        "x-queue-master-locator": "random",
    }
    assert created.warnings == [
        "queue 'q' in vhost '/' has arguments without effect: x-max-age (of streams), "
        "x-queue-master-locator (use x-queue-leader-locator)"
    ]


@pytest.mark.parametrize(
    ("name", "table", "code"),
    [
        ("rabbitmq-4.3", {"x-queue-master-locator": "random"}, 541),
        ("rabbitmq-4.3", QUORUM | {"x-queue-master-locator": "random"}, 406),
        ("rabbitmq-4.3", {"x-stream-filter-size-bytes": 20}, 406),
        ("rabbitmq-3.10", QUORUM | {"x-queue-master-locator": "random"}, 406),
        ("rabbitmq-3.10", {"x-max-age": "1h"}, 406),
        ("rabbitmq-3.10", {"x-queue-type": ""}, 406),
        ("rabbitmq-3.10", {"x-queue-master-locator": "random"}, None),
        ("rabbitmq-3.10", {"x-stream-filter-size-bytes": 20}, None),
    ],
)
def test_arguments_of_others_in_the_profiles_of_rabbitmq(
    name: str, table: dict[str, Any], code: int | None
) -> None:
    """R-Q-5; tried with both."""
    answer = CatalogDriver(profile(name)).queue("q", durable=True, arguments=table)
    if code is None:
        assert answer.warnings == []
    else:
        assert (answer.code, answer.connection_level) == (code, code == 541)
