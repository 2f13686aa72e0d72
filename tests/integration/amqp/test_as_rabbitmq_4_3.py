"""What RabbitMQ 4.3.6 answered where 3.10.8, which tests/compat has beside it, does otherwise.

In the default profile and in rabbitmq-4.3: the expected values were taken from a live 4.3.6.
"""

from __future__ import annotations

import itertools
import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pika
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.federation_rig import Admin
from tests.integration.management.test_brokerctl import Ctl
from tests.integration.management.test_http_api import ask
from tests.integration.members import Member, cluster, eventually

PROFILES = ("brokerd", "rabbitmq-4.3")
_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=PROFILES)
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def member(profile: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp(profile), 1, BROKERD_COMPAT_PROFILE=profile) as [one]:
        yield one


@pytest.fixture
def channel(member: Member) -> Iterator[Any]:
    with member.connect() as connection:
        yield connection.channel()


def declared(channel: Any, name: str, /, **arguments: Any) -> str:
    """Declare a durable queue of a name of its own."""
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    unique = f"{name}-{next(_numbers)}"
    return str(channel.queue_declare(unique, durable=True, arguments=table).method.queue)


def taken(channel: Any, name: str) -> Any:
    """Get a message, which may be on its way."""

    def got() -> Any:
        answer = channel.basic_get(name)
        return None if answer[0] is None else answer

    return eventually(got, f"a message in {name}")


def counts(headers: dict[str, Any] | None) -> tuple[int, int]:
    known = headers or {}
    return known.get("x-acquired-count", 0), known.get("x-delivery-count", 0)


#: What happens to a message, and how often it has failed when it is a dead letter.
FATES = {"R": 1, "N": 0, "rR": 2, "rN": 1, "nR": 1, "nN": 0, "cR": 2, "cN": 1}


@pytest.mark.parametrize("target", ["classic", "quorum"])
@pytest.mark.parametrize("source", ["classic", "quorum"])
@pytest.mark.parametrize("fate", FATES)
def test_a_dead_letter_that_failed_is_redelivered(
    channel: Any, fate: str, source: str, target: str
) -> None:
    """R-DLX-35: r and R are basic.reject, n and N basic.nack, c the end of the channel."""
    dead = declared(channel, "dead", x_queue_type=target)
    letters = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": dead}
    name = declared(channel, "q", x_queue_type=source, **letters)
    channel.basic_publish("", name, b"")
    for step in fate:
        consumer = channel.connection.channel()
        tag = taken(consumer, name)[0].delivery_tag
        if step == "c":
            consumer.close()
        elif step in "rR":
            consumer.basic_reject(tag, requeue=step == "r")
        else:
            consumer.basic_nack(tag, requeue=step == "n")
    method, properties, _ = taken(channel, dead)
    failures = FATES[fate]
    assert method.redelivered == (failures > 0)
    expected = (failures, failures) if target == "quorum" else (0, 0)
    assert counts(properties.headers) == expected
    channel.basic_nack(method.delivery_tag)
    method, properties, _ = taken(channel, dead)
    assert method.redelivered
    assert counts(properties.headers) == ((1, failures) if target == "quorum" else (0, 0))


def test_the_failures_of_a_dead_letter_count_against_the_limit_of_its_queue(channel: Any) -> None:
    """R-DLX-35, R-DL-9: rejected once before, limit 3 is three deliveries."""
    dead = declared(channel, "dead", x_queue_type="quorum", x_delivery_limit=3)
    letters = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": dead}
    name = declared(channel, "q", **letters)
    channel.basic_publish("", name, b"")
    channel.basic_reject(taken(channel, name)[0].delivery_tag, requeue=False)
    for _ in range(3):
        channel.basic_reject(taken(channel, dead)[0].delivery_tag, requeue=True)
    assert channel.basic_get(dead)[0] is None


def test_a_limit_of_minus_one_serves_first_what_comes_back(channel: Any) -> None:
    """R-DL-7, R-QQ-14."""
    name = declared(channel, "q", x_queue_type="quorum", x_delivery_limit=-1)
    for body in (b"0", b"1", b"2", b"3"):
        channel.basic_publish("", name, body)
    last = [taken(channel, name)[0].delivery_tag for _ in range(2)][-1]
    channel.basic_nack(last, multiple=True)
    assert [taken(channel, name)[2] for _ in range(4)] == [b"0", b"1", b"2", b"3"]


def test_a_new_routing_key_of_a_dead_letter_is_its_only_one(channel: Any) -> None:
    """R-DLX-12, R-DLX-22: CC stands in the headers only."""
    third = declared(channel, "third")
    second = declared(channel, "second", x_dead_letter_exchange="", x_dead_letter_routing_key=third)
    first = declared(channel, "first", x_dead_letter_exchange="", x_dead_letter_routing_key=second)
    properties = pika.BasicProperties(headers={"CC": ["cc"]})
    channel.basic_publish("", first, b"", properties)
    for name in (first, second):
        channel.basic_reject(taken(channel, name)[0].delivery_tag, requeue=False)
    headers = taken(channel, third)[1].headers
    assert headers["CC"] == ["cc"]
    assert [death["routing-keys"] for death in headers["x-death"]] == [[second], [first, "cc"]]


# ---- the HTTP API, as rabbitmqadmin 2 reads it ---------------------------------------------------


def asked(
    member: Member, method: str, path: str, body: Any = None, user: str = "guest:guest"
) -> tuple[int, Any]:
    raw = None if body is None else json.dumps(body).encode()
    status, _, answer = ask(member, method, f"/api/{path}", raw, user)
    return status, json.loads(answer) if answer else None


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_every_queue_has_its_type_among_its_arguments(
    member: Member, channel: Any, kind: str
) -> None:
    arguments = {} if kind == "classic" else {"x_queue_type": kind}
    name = declared(channel, "typed", x_max_length=9, **arguments)
    row = asked(member, "GET", f"queues/%2F/{name}")[1]
    assert row["arguments"] == {"x-max-length": 9, "x-queue-type": kind}
    assert row["single_active_consumer_tag"] is None
    for path in ("definitions", "definitions/%2F"):
        file = asked(member, "GET", path)[1]
        [row] = [each for each in file["queues"] if each["name"] == name]
        assert row["arguments"] == {"x-max-length": 9, "x-queue-type": kind}
        assert asked(member, "POST", path, file)[0] == 204
    # It says the same with and without.
    for table in ({"x-max-length": 9}, {"x-max-length": 9, "x-queue-type": kind}):
        if kind == "classic" or "x-queue-type" in table:
            channel.queue_declare(name, durable=True, arguments=table)
    assert "kept as it is" not in member.log()


def test_delayed_messages_are_seen(member: Member, channel: Any) -> None:
    """R-QQ-24."""
    delay = {"x_delayed_retry_type": "all", "x_delayed_retry_min": 60_000}
    name = declared(channel, "delayed", x_queue_type="quorum", **delay)
    channel.basic_publish("", name, b"")
    channel.basic_nack(taken(channel, name)[0].delivery_tag)

    def delayed() -> bool:
        return bool(asked(member, "GET", f"queues/%2F/{name}")[1]["messages_delayed"] == 1)

    eventually(delayed, "the message waits")
    row = asked(member, "GET", f"queues/%2F/{name}")[1]
    assert row["delayed_retry"] == "all (min: 60000ms, max: 60000ms)"
    assert samples(member, "/metrics")["brokerd_queue_messages_delayed", of()] >= 1


def test_priorities_and_returned_messages_are_seen(member: Member, channel: Any) -> None:
    """R-PRI-2, R-QQ-14."""
    name = declared(channel, "levels", x_queue_type="quorum")
    for priority in (1, 5, 9):
        channel.basic_publish("", name, b"", pika.BasicProperties(priority=priority))
    channel.basic_nack(taken(channel, name)[0].delivery_tag)

    def row() -> Any:
        found = asked(member, "GET", f"queues/%2F/{name}")[1]
        return found if found["messages_ready"] == 3 else None

    found = eventually(row, "all are ready")
    assert found["messages_by_priority"] == {"1": 1, "5": 1}
    assert (found["messages_active_priorities"], found["messages_ready_returned"]) == (2, 1)
    assert (found["publishers"], found["internal"]) == (1, False)
    assert found["delayed_retry"] == "disabled"


def test_a_vhost_that_one_may_not_enter_is_not_found(member: Member) -> None:
    for user, tag in (("manager", "management"), ("policies", "policymaker")):
        asked(member, "PUT", f"users/{user}", {"password": "p", "tags": tag})
    unknown = (404, {"error": "not_found", "reason": "Not Found"})
    for path in ("queues/%2F", "exchanges/%2F", "bindings/%2F", "policies/%2F"):
        assert asked(member, "GET", path, user="manager:p") == unknown
    assert asked(member, "PUT", "queues/%2F/q", {}, "manager:p") == unknown
    policy = {"pattern": "x", "definition": {"max-length": 1}}
    assert asked(member, "PUT", "policies/%2F/x", policy, "manager:p")[0] == 401
    assert asked(member, "PUT", "policies/%2F/x", policy, "policies:p") == unknown


def test_users_have_pages(member: Member) -> None:
    status, page = asked(member, "GET", "users?page=1&page_size=1")
    assert (status, len(page["items"]), page["page"]) == (200, 1, 1)


def test_what_is_not_there_has_no_bindings(member: Member) -> None:
    status, rows = asked(member, "GET", "queues/%2F/nope/bindings")
    assert (status, [row["destination"] for row in rows]) == (200, ["nope"])
    assert asked(member, "GET", "exchanges/%2F/nope/bindings/source") == (200, [])
    assert asked(member, "GET", "exchanges/%2F/nope/bindings/destination") == (200, [])
    assert asked(member, "GET", "queues/nope/nope/bindings")[0] == 404


def test_a_wrong_policy_failed_its_validation(member: Member) -> None:
    policy = {"pattern": "x", "definition": {"max-length": "x"}}
    status, error = asked(member, "PUT", "policies/%2F/x", policy)
    assert (status, error["error"]) == (400, "bad_request")
    assert error["reason"].startswith("Validation failed\n\n")


def test_memory_has_all_parts_of_rabbitmq(member: Member) -> None:
    [node] = asked(member, "GET", "nodes")[1]
    memory = asked(member, "GET", f"nodes/{node['name']}/memory")[1]["memory"]
    assert len([part for part in memory if type(memory[part]) is int]) >= 26
    assert {"quorum_queue_dlx_procs", "mgmt_db", "reserved_unallocated"} <= memory.keys()


def test_flags_of_rabbitmq_are_enabled_by_name(member: Member) -> None:
    for name in ("khepri_db", "rabbitmq_4.3.0", "stream_filtering"):
        assert asked(member, "PUT", f"feature-flags/{name}/enable", {})[0] == 204
    assert asked(member, "PUT", "feature-flags/rabbitmq_9/enable", {})[0] == 400
    deprecated = {
        each["name"]: each["state"] for each in asked(member, "GET", "deprecated-features")[1]
    }
    assert deprecated["transient_nonexcl_queues"] == "permitted"
    assert (len(deprecated), deprecated["global_qos"]) == (8, "denied")


def test_logins_over_grpc_count_as_http(member: Member) -> None:
    [node] = asked(member, "GET", "nodes")[1]
    admin = Admin(member)
    admin.feature_flags()
    admin.close()
    rows = asked(member, "GET", f"auth/attempts/{node['name']}")[1]
    assert "grpc" not in {row["protocol"] for row in rows}
    assert len({row["protocol"] for row in rows}) == len(rows)


def test_an_import_leaves_out_what_is_not_here_and_says_so(member: Member) -> None:
    queue = {"vhost": "/", "durable": True, "auto_delete": False}
    stream = queue | {"name": "imported-stream", "arguments": {"x-queue-type": "stream"}}
    policy = {"vhost": "/", "name": "ha", "pattern": "^$", "definition": {"ha-mode": "all"}}
    file = {"queues": [stream, queue | {"name": "imported", "arguments": {}}], "policies": [policy]}
    assert asked(member, "POST", "definitions", file)[0] == 400
    status, answer = asked(member, "POST", "definitions?skip_unsupported=true", file)
    assert (status, len(answer["left_out"])) == (200, 2)
    assert asked(member, "GET", "queues/%2F/imported")[0] == 200
    assert asked(member, "GET", "queues/%2F/imported-stream")[0] == 404


def test_policies_of_streams_are_taken_and_match_nothing(member: Member, channel: Any) -> None:
    """R-POL-1, R-POL-9, O-19."""
    name = declared(channel, "no-stream")
    keys = {"max-age": "7D", "stream-max-segment-size-bytes": 5_000_000, "initial-cluster-size": 3}
    policy = {"pattern": f"^{name}$", "apply-to": "streams", "definition": {"max-length": 9}}
    voided = policy | {"apply-to": "all", "definition": keys | {"max-length": 9}}
    assert asked(member, "PUT", "policies/%2F/of-streams", policy)[0] == 201
    assert asked(member, "PUT", "policies/%2F/voided", voided)[0] == 201
    row = asked(member, "GET", f"queues/%2F/{name}")[1]
    assert (row["policy"], row["effective_policy_definition"]) == (None, {})
    file = asked(member, "GET", "definitions")[1]
    for each in ("of-streams", "voided"):
        asked(member, "DELETE", f"policies/%2F/{each}")
    assert asked(member, "POST", "definitions", file)[0] == 204
    assert asked(member, "GET", "policies/%2F/voided")[1]["definition"] == voided["definition"]
    wrong = policy | {"definition": {"max-age": "1W"}}
    assert asked(member, "PUT", "policies/%2F/wrong", wrong)[0] == 400


def test_consumers_say_who_is_active_alone_and_their_timeout(member: Member, channel: Any) -> None:
    """R-CS-7, R-QQ-22."""
    alone = {"x_single_active_consumer": True}
    single = declared(channel, "single", x_queue_type="quorum", **alone)
    timed = declared(channel, "timed", x_queue_type="quorum", x_consumer_timeout=90_000)
    for name in (single, single, timed):
        channel.basic_consume(name, lambda *_: None)

    def found() -> Any:
        rows = asked(member, "GET", "consumers")[1]
        mine = [row for row in rows if row["queue"]["name"] in (single, timed)]
        return sorted((row["activity_status"], row["consumer_timeout"]) for row in mine)

    wanted = [("single_active", 1_800_000), ("up", 90_000), ("waiting", 1_800_000)]
    eventually(lambda: found() == wanted, "three consumers")
    # Those of the API itself may be among them.
    connections = asked(member, "GET", "connections")[1]
    assert {row["peer_cert_serial_number"] for row in connections} == {None}


def test_who_one_is(member: Member) -> None:
    assert asked(member, "GET", "whoami")[1]["is_internal_user"] is True
    unknown = {"error": "not_authorized", "reason": "Not_Authorized"}
    assert asked(member, "GET", "whoami", user="guest:wrong") == (401, unknown)
    tags = ["policymaker", "management"]
    asked(member, "PUT", "users/flags", {"password": "p", "tags": ",".join(tags)})
    assert asked(member, "GET", "users/flags")[1]["tags"] == tags
    assert asked(member, "GET", "whoami", user="flags:p")[1]["tags"] == tags
    assert asked(member, "GET", "feature-flags", user="flags:p")[0] == 200


def test_the_default_queue_type_of_a_vhost_is_always_said(member: Member) -> None:
    assert asked(member, "PUT", "vhosts/typed", {})[0] == 201
    row = asked(member, "GET", "vhosts/typed")[1]
    assert row["default_queue_type"] == row["metadata"]["default_queue_type"] == "classic"
    empty = {"default_queue_type": ""}
    reason = "default_queue_type must not be an empty string"
    assert asked(member, "PUT", "vhosts/typed", empty)[1]["reason"] == reason
    file = asked(member, "GET", "definitions/typed")[1]
    assert file["rabbitmq_definition_format"] == "single_virtual_host"
    assert (file["original_vhost_name"], file["limits"]) == ("typed", {})
    assert file["metadata"] == row["metadata"]
    file = asked(member, "GET", "definitions")[1]
    name = asked(member, "GET", "cluster-name")[1]["name"]
    assert file["rabbitmq_definition_format"] == "cluster"
    assert (file["original_cluster_name"], name in file["explanation"]) == (name, True)


def test_what_is_not_there_is_said_in_the_words_of_4_3(member: Member) -> None:
    message = {"properties": {}, "routing_key": "", "payload": "", "payload_encoding": "string"}
    missing = (404, {"error": "not_found", "reason": "exchange_not_found"})
    assert asked(member, "POST", "exchanges/%2F/nope/publish", message) == missing
    wanted = {"ackmode": "ack_requeue_true", "count": 1, "encoding": "auto"}
    missing = (404, {"error": "not_found", "reason": "queue_not_found"})
    assert asked(member, "POST", "queues/%2F/nope/get", wanted) == missing
    topic = {"exchange": "nope", "write": "", "read": ""}
    status, error = asked(member, "PUT", "topic-permissions/%2F/guest", topic)
    assert (status, error["reason"]) == (400, ["no_such_exchange", "nope"])
    queue = {"name": "q", "vhost": "nope", "durable": True, "auto_delete": False, "arguments": {}}
    status, error = asked(member, "POST", "definitions", {"queues": [queue]})
    assert (status, "create virtual host" in error["reason"]) == (400, True)
    asked(member, "PUT", "users/bulk", {"password": "p", "tags": ""})
    assert asked(member, "POST", "users/bulk-delete", {"users": ["nobody", "bulk"]})[0] == 204
    assert asked(member, "GET", "users/bulk")[0] == 404


def test_endpoints_of_4_3(member: Member, channel: Any) -> None:
    name = declared(channel, "detailed")
    assert name in {row["name"] for row in asked(member, "GET", "queues/detailed")[1]}
    status, error = asked(member, "POST", f"queues/%2F/{name}/actions", {"action": "sync"})
    assert (status, error["reason"]) == (400, ["unknown", "sync"])
    for path in ("initialized", "initialized/with-data"):
        check = f"health/checks/metadata-store/{path}"
        assert asked(member, "GET", check) == (200, {"status": "ok"})
    found = asked(member, "GET", "health/checks/protocol-listener/amqp")[1]["protocols"]
    assert {"amqp", "http"} <= set(found)
    status, answer = asked(member, "GET", "health/checks/protocol-listener/mqtt")
    assert (status, answer["missing"]) == (503, ["mqtt"])
    overview = asked(member, "GET", "overview")[1]
    assert overview["cluster_tags"] == overview["node_tags"] == {}
    assert ask(member, "GET", "/api/overview")[1]["allow"] == "HEAD, GET, OPTIONS"
    rows = {row["name"]: row for row in asked(member, "GET", "deprecated-features")[1]}
    provider = rows["management_metrics_collection"]["provided_by"]
    assert provider == "rabbitmq_management_agent"


# ---- metrics -------------------------------------------------------------------------------------


def samples(member: Member, path: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return what a page says, by name and labels."""
    with urlopen(f"http://127.0.0.1:{member.http_port}{path}", timeout=60) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(**labels: str) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


#: Names of 4.3 after `rabbitmq_`, and what `work` makes of them.
WORK = {
    "exchange_messages_published_total": 5,
    "exchange_messages_confirmed_total": 5,
    "exchange_messages_unroutable_dropped_total": 1,
    "exchange_messages_unroutable_returned_total": 1,
    "queue_exchange_messages_published_total": 3,
    "queue_get_ack_total": 1,
    "queue_get_total": 1,
    "queue_get_empty_total": 1,
    "queue_messages_acked_total": 2,
    "queue_messages_delivered_ack_total": 1,
    "queue_messages_delivered_total": 0,
    "queue_messages_redelivered_total": 0,
}


def work(channel: Any, name: str) -> None:
    """Do what counters count."""
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", name, b"")
    channel.basic_publish("", "nowhere", b"")
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "nowhere", b"", mandatory=True)
    channel.basic_ack(channel.basic_get(name)[0].delivery_tag)
    channel.basic_get(name, auto_ack=True)
    for method, *_ in channel.consume(name):
        channel.basic_ack(method.delivery_tag)
        break
    channel.cancel()
    assert channel.basic_get(name)[0] is None


def test_counters_have_the_names_of_4_3(member: Member, channel: Any) -> None:
    name = declared(channel, "counted")
    before = samples(member, "/metrics")
    work(channel, name)

    def counted() -> dict[str, float]:
        now = samples(member, "/metrics")
        names = {key: (f"rabbitmq_{key}", of()) for key in WORK}
        return {key: now[name] - before[name] for key, name in names.items()}

    eventually(lambda: counted() == WORK, "all is counted")
    assert before["rabbitmq_unreachable_cluster_peers_count", of()] == 0


def test_queues_and_exchanges_are_told_one_by_one(member: Member, channel: Any) -> None:
    name = declared(channel, "told", x_queue_type="quorum")
    channel.exchange_declare(name, "topic", durable=True)
    channel.exchange_declare(f"{name}-alone", "topic", durable=True)
    for key in ("a", "b"):
        channel.queue_bind(name, name, key)
    channel.basic_publish(name, "a", b"")
    queue = {"vhost": "/", "queue": name}
    info = of(**queue, queue_type="rabbit_quorum_queue", membership="leader")
    for family in ("queue_metrics", "queue_coarse_metrics"):
        found = samples(member, f"/metrics/detailed?family={family}")
        assert found["rabbitmq_detailed_queue_info", info] == 1
    found = samples(member, "/metrics/detailed?family=exchange_bindings")
    exchange = of(vhost="/", exchange=name, type="topic")
    assert found["rabbitmq_cluster_exchange_bindings", exchange] == 2
    assert found["rabbitmq_cluster_exchange_bindings", of(
        vhost="/", exchange=f"{name}-alone", type="topic"
    )] == 0  # fmt: skip

    def ready() -> bool:
        page = samples(member, "/metrics/per-object")
        return page["rabbitmq_queue_messages_ready", of(**queue)] == 1

    eventually(ready, "the message is told")
    page = samples(member, "/metrics/per-object")
    assert page["rabbitmq_queue_info", info] == 1
    assert ("rabbitmq_alarms_memory_used_watermark", of()) in page
    assert "rabbitmq_cluster_exchange_bindings" not in {key for key, _ in page}
    [who] = [dict(labels) for key, labels in page if key == "rabbitmq_identity_info"]
    assert who["rabbitmq_endpoint"] == "per-object"


def test_traffic_is_counted_by_queue(member: Member, channel: Any) -> None:
    dead = declared(channel, "dead")
    name = declared(channel, "traffic", x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    work(channel, name)
    channel.basic_publish("", name, b"")
    tag = channel.basic_get(name)[0].delivery_tag
    channel.basic_nack(tag, requeue=True)
    channel.basic_nack(channel.basic_get(name)[0].delivery_tag, requeue=False)

    def counted() -> dict[str, float]:
        found = samples(member, "/metrics/detailed?family=queue_traffic_metrics&vhost=/")
        queue = of(vhost="/", queue=name)
        return {
            key.removeprefix("rabbitmq_detailed_queue_messages_"): value
            for (key, labels), value in found.items()
            if labels == queue
        }

    expected = {
        "published_total": 4,
        "handed_out_total": 5,
        "redelivered_total": 1,
        "acked_total": 3,
        "dead_lettered_total": 1,
    }
    eventually(lambda: counted() == expected, "all is counted")


def test_a_member_that_is_not_heard_is_counted(tmp_path: Path) -> None:
    with cluster(tmp_path, 3) as members:
        members[2].kill()

        def silent() -> bool:
            page = samples(members[0], "/metrics")
            return page["rabbitmq_unreachable_cluster_peers_count", of()] == 1

        eventually(silent, "one is not heard")


def test_a_mandatory_reply_to_who_has_gone(member: Member, channel: Any, profile: str) -> None:
    """R-DRT-3: RabbitMQ 4.3.6 counts it as routed; by default the server learns of it."""
    requester = channel.connection.channel()
    requester.basic_consume("amq.rabbitmq.reply-to", lambda *_: None, auto_ack=True)
    name = declared(channel, "requests")
    reply_to = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
    requester.basic_publish("", name, b"", reply_to)
    address = taken(channel, name)[1].reply_to
    requester.close()
    channel.confirm_delivery()
    if profile == "brokerd":
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish("", address, b"", mandatory=True)
    else:
        channel.basic_publish("", address, b"", mandatory=True)


def test_hashes_that_rabbitmq_takes_are_made_where_they_are_wanted(tmp_path: Path) -> None:
    """SEC-14: auth.password_hashing."""
    hashing = "rabbit_password_hashing_sha256"
    with cluster(tmp_path, 1, BROKERD_AUTH_PASSWORD_HASHING=hashing) as [member]:
        user = {"password": "secret", "tags": "administrator"}
        assert asked(member, "PUT", "users/mover", user)[0] == 201
        before = asked(member, "GET", "definitions")[1]["users"]
        assert {row["hashing_algorithm"] for row in before} == {hashing}
        assert all(len(b64decode(row["password_hash"])) == 4 + 32 for row in before)
        assert asked(member, "GET", "whoami", user="mover:secret")[0] == 200
        assert asked(member, "GET", "whoami", user="mover:other")[0] == 401
        assert asked(member, "GET", "definitions")[1]["users"] == before


@pytest.mark.parametrize("sent", ["060000", "+60000", "60000"])
def test_an_expiration_is_delivered_as_the_number_that_it_is(channel: Any, sent: str) -> None:
    """R-TTL-9: nothing else of the message changes."""
    name = declared(channel, "q")
    properties = pika.BasicProperties(
        headers={"a": 1}, expiration=sent, message_id="m", content_type="text/plain"
    )
    channel.basic_publish("", name, b"body", properties)
    _, got, body = taken(channel, name)
    assert (got.expiration, got.message_id, got.content_type) == ("60000", "m", "text/plain")
    assert (got.headers, body) == ({"a": 1}, b"body")


def test_a_maximum_priority_of_0_has_two_levels(channel: Any) -> None:
    """R-PRI-1."""
    name = declared(channel, "q", x_max_priority=0)
    for body, priority in ((b"a", None), (b"b", 1), (b"c", 0), (b"d", 7)):
        channel.basic_publish("", name, body, pika.BasicProperties(priority=priority))
    assert [taken(channel, name)[2] for _ in range(4)] == [b"b", b"d", b"a", b"c"]


def test_the_version_that_a_profile_follows_is_announced_and_stands_in_exports(
    member: Member,
) -> None:
    """R-VER-1: to AMQP clients, and as the maker of a file of definitions."""
    with member.connect() as connection:
        assert connection._impl.server_properties["version"] == "4.3.6"  # type: ignore[attr-defined]
    exported = json.loads(Ctl(f"127.0.0.1:{member.grpc_port}")("export_definitions", "-"))
    assert exported["rabbit_version"] == exported["rabbitmq_version"] == "4.3.6"


class Anonymous:
    """Credentials of pika for a client that has none."""

    TYPE = "ANONYMOUS"
    erase_on_connect = False

    def response_for(self, start: Any) -> tuple[str | None, bytes]:
        """Return the mechanism and what is sent with it, if it is offered."""
        is_offered = self.TYPE.encode() in start.mechanisms.split()
        return (self.TYPE, b"a trace") if is_offered else (None, b"")

    def erase_credentials(self) -> None:
        """There is nothing to erase."""


@pytest.fixture
def anonymous(monkeypatch: pytest.MonkeyPatch) -> Callable[[Member], Any]:
    """Return what dials a member without credentials."""
    monkeypatch.setattr(pika.credentials, "VALID_TYPES", [*pika.credentials.VALID_TYPES, Anonymous])

    def dialled(at: Member) -> Any:
        nobody: Any = Anonymous()
        return pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", at.amqp_port, credentials=nobody)
        )

    return dialled


def test_clients_without_credentials_are_not_let_in(
    member: Member, anonymous: Callable[[Member], Any]
) -> None:
    """R-CON-3, R-CON-6: unlike RabbitMQ's, which makes them guest."""
    with pytest.raises(pika.exceptions.AuthenticationError):
        anonymous(member)


def test_clients_without_credentials_are_the_user_of_the_setting(
    tmp_path: Path, anonymous: Callable[[Member], Any]
) -> None:
    """R-CON-3, R-PERM-1: with its rights and no others."""
    setting = {"BROKERD_AUTH_ANONYMOUS_LOGIN_USER": "passer-by"}
    with cluster(tmp_path, 1, **setting) as [one]:
        said = "anonymous_login_user names 'passer-by', and there is no such user"
        eventually(lambda: said in one.log(), "a warning at the start")
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            anonymous(one)
        assert "refused login of user 'passer-by'" in one.log()
        assert asked(one, "PUT", "users/passer-by", {"tags": "", "password_hash": ""})[0] == 201
        rights = {"configure": "^public", "write": "", "read": ""}
        assert asked(one, "PUT", "permissions/%2F/passer-by", rights)[0] == 201
        [node] = asked(one, "GET", "nodes")[1]
        mechanisms = [row["name"] for row in node["auth_mechanisms"]]
        assert mechanisms == ["AMQPLAIN", "PLAIN", "ANONYMOUS"]
        with anonymous(one) as connection:
            channel = connection.channel()
            channel.queue_declare("public", exclusive=True)
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
                channel.queue_declare("private")
            assert refused.value.reply_code == 403


#: Arguments of streams, with values that 4.3.6 refuses on queues of other types.
STREAM_ARGUMENTS = {
    "x-max-age": "1h",
    "x-stream-max-segment-size-bytes": 1000,
    "x-stream-filter-size-bytes": 20,
    "x-initial-cluster-size": 3,
}


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_arguments_of_streams_on_other_queues(
    member: Member, channel: Any, profile: str, kind: str
) -> None:
    """R-Q-5: refused as by RabbitMQ 4.3.6, or taken with one warning."""
    name = f"of-streams-{profile}-{kind}"
    table = {"x-queue-type": kind}
    if profile == "brokerd":
        for _ in range(2):
            channel.queue_declare(name, durable=True, arguments=table | STREAM_ARGUMENTS)
        idle = [line for line in member.log().splitlines() if f"queue '{name}'" in line]
        assert len(idle) == 1
        assert "arguments without effect: x-max-age (of streams), " in idle[0]
        return
    for argument, value in STREAM_ARGUMENTS.items():
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            channel.queue_declare(name, durable=True, arguments=table | {argument: value})
        assert (refused.value.reply_code, refused.value.reply_text) == (
            406,
            f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{name}' in vhost '/' of "
            f"queue type rabbit_{kind}_queue",
        )
        channel = channel.connection.channel()


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_locator_of_masters(member: Member, channel: Any, profile: str, kind: str) -> None:
    """R-Q-5: gone in RabbitMQ 4, an error of the connection for classic queues."""
    name = f"master-{profile}-{kind}"
    table = {"x-queue-type": kind, "x-queue-master-locator": "min-masters"}
    if profile == "brokerd":
        channel.queue_declare(name, durable=True, arguments=table)
        assert "x-queue-master-locator (use x-queue-leader-locator)" in member.log()
        return
    level: Any = pika.exceptions.ConnectionClosedByBroker
    if kind == "quorum":
        level = pika.exceptions.ChannelClosedByBroker
    with member.connect() as connection, pytest.raises(level) as refused:
        connection.channel().queue_declare(name, durable=True, arguments=table)
    assert refused.value.reply_code == (541 if kind == "classic" else 406)


@pytest.mark.parametrize("argument", ["x-stream-filter", "x-stream-match-unfiltered"])
def test_what_consumers_of_streams_say_on_other_queues(
    member: Member, channel: Any, profile: str, argument: str
) -> None:
    """R-CS-5."""
    name = declared(channel, "filtered")
    if profile == "brokerd":
        channel.basic_consume(name, lambda *_: None, arguments={argument: "a"})
        assert f"'{name}' in vhost '/' has an argument without effect: {argument}" in member.log()
        return
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.basic_consume(name, lambda *_: None, arguments={argument: "a"})
    assert refused.value.reply_text == (
        f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{name}' in vhost '/' of queue "
        "type rabbit_classic_queue"
    )


@pytest.mark.parametrize(
    ("delays", "reason"),
    [
        ({"type": "all"}, "delayed-retry-min is required when delayed-retry-type is all"),
        ({"min": 9, "max": 5}, "delayed-retry-max (5) must not be smaller than delayed-retry-min"),
    ],
)
def test_policies_whose_delays_do_not_fit_together(
    member: Member, delays: dict[str, Any], reason: str
) -> None:
    """R-QQ-24."""
    definition = {f"delayed-retry-{key}": value for key, value in delays.items()}
    policy = {"pattern": "^nothing$", "definition": definition, "apply-to": "queues"}
    status, answer = asked(member, "PUT", "policies/%2F/delays", policy)
    assert status == 400
    assert answer["reason"].startswith(f"Validation failed\n\ndefinition: {reason}")
    assert asked(member, "GET", "policies/%2F/delays")[0] == 404


def test_what_a_get_holds_is_a_consumer(channel: Any, profile: str) -> None:
    """R-Q-3: of a quorum queue, by message, until it is settled; by default autoscalers that read
    the count see consumers only.
    """
    name = declared(channel, "got", x_queue_type="quorum")
    for _ in range(4):
        channel.basic_publish("", name, b"")
    getter, other = channel.connection.channel(), channel.connection.channel()

    def consumers() -> int:
        return int(channel.queue_declare(name, passive=True).method.consumer_count)

    tags = [taken(each, name)[0].delivery_tag for each in (getter, getter, other)]
    found = [consumers()]
    taken(channel, name)
    found.append(consumers())
    getter.basic_ack(tags[1], multiple=True)
    eventually(lambda: consumers() == (2 if profile == "rabbitmq-4.3" else 0), "two are settled")
    assert found == ([3, 4] if profile == "rabbitmq-4.3" else [0, 0])


#: Arguments that 4.3.6 takes though their values are none, by type of queue.
IDLE = {
    "classic": {"x-queue-mode": "odd"},
    "quorum": {
        "x-delivery-limit": "x",
        "x-consumer-timeout": 0,
        "x-delayed-retry-type": "odd",
        "x-delayed-retry-min": -1,
        "x-delayed-retry-max": "x",
    },
}


@pytest.mark.parametrize("kind", IDLE)
def test_values_without_effect_are_taken(
    member: Member, channel: Any, profile: str, kind: str
) -> None:
    """R-Q-4, R-Q-6: with one line in the log for each queue, stored and compared."""
    name = f"idle-{profile}-{kind}"
    table = IDLE[kind] | {"x-queue-type": kind}
    for _ in range(2):
        channel.queue_declare(name, durable=True, arguments=table)
    [line] = [each for each in member.log().splitlines() if f"queue '{name}'" in each]
    assert "has arguments without effect: " in line
    for argument in IDLE[kind]:
        assert f"{argument} (its value is '{IDLE[kind][argument]}')" in line
    assert asked(member, "GET", f"queues/%2F/{name}")[1]["arguments"] == table
    channel.basic_publish("", name, b"")
    method, _, _ = taken(channel, name)
    channel.basic_nack(method.delivery_tag)
    assert taken(channel, name)[0].redelivered
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
    assert "received none but current is the value" in refused.value.reply_text


def test_an_empty_queue_type_is_none(channel: Any) -> None:
    """R-Q-1."""
    name = declared(channel, "typeless", x_queue_type="")
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": ""})
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "classic"})


def test_a_flag_of_mirrors_may_be_anything(member: Member, channel: Any) -> None:
    """R-CS-5."""
    name = declared(channel, "mirrorless")
    channel.basic_consume(name, lambda *_: None, arguments={"x-cancel-on-ha-failover": "text"})
    assert f"'{name}' in vhost '/' has an argument without effect: x-cancel-on" in member.log()


@pytest.mark.parametrize("definition", [{"consumer-timeout": 0}, {"queue-version": 1}])
def test_policies_without_effect_are_taken(member: Member, definition: dict[str, Any]) -> None:
    """R-POL-1."""
    policy = {"pattern": "^nothing$", "definition": definition, "apply-to": "queues"}
    assert asked(member, "PUT", "policies/%2F/idle", policy)[0] == 201
    assert asked(member, "GET", "policies/%2F/idle")[1]["definition"] == definition
    assert asked(member, "DELETE", "policies/%2F/idle")[0] == 204


@pytest.mark.parametrize(
    ("there", "again", "text"),
    [
        ("quorum", {}, "received 'classic' but current is 'quorum'"),
        ("quorum", {"x-queue-type": "classic"}, "received 'classic' but current is 'quorum'"),
        ("classic", {"x-queue-type": "quorum"}, "received 'quorum' but current is 'classic'"),
    ],
)
def test_another_type_of_a_queue_is_told(
    channel: Any, there: str, again: dict[str, Any], text: str
) -> None:
    """R-ERR-6."""
    name = declared(channel, "other", x_queue_type=there)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.queue_declare(name, durable=True, arguments=again)
    assert refused.value.reply_text == (
        f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue '{name}' in vhost '/': "
        + text
    )


def test_too_many_wildcards_of_a_binding_are_counted(channel: Any) -> None:
    """R-BND-8."""
    name = declared(channel, "bound")
    channel.queue_bind(name, "amq.topic", "#.a.#")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.queue_bind(name, "amq.topic", "#.a.#.b.#")
    assert refused.value.reply_text == (
        "PRECONDITION_FAILED - Topic binding key '#.a.#.b.#' uses 3 '#' wildcards, "
        "at most 2 are allowed"
    )
