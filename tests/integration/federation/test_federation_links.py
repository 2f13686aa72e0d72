"""Links of clusters that know nothing of each other, changed definitions, links listed anywhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from brokerd.config import CLUSTER_NAME
from tests.integration.federation_rig import Admin, admin, amqp, uri
from tests.integration.management.test_brokerctl import Ctl
from tests.integration.members import Member, cluster, eventually

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

BUFFERED = 300


@dataclass
class Pair:
    """A cluster upstream, one downstream, an Admin client of each."""

    up: Member
    down: Member
    upstream: Admin
    downstream: Admin


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    for name in ("up", "down"):
        (tmp_path / name).mkdir()
    with (
        cluster(tmp_path / "up", 1) as (up,),
        cluster(tmp_path / "down", 1) as (down,),
        admin(up) as upstream,
        admin(down) as downstream,
    ):
        yield Pair(up, down, upstream, downstream)


def brokerctl(member: Member, *words: str, status: int = 0) -> str:
    """Run a command against a member; return all that it says."""
    done = Ctl(f"127.0.0.1:{member.grpc_port}").run(*words)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def follow(member: Member, upstream: Member, exchange: str = "stock", /, **definition: Any) -> None:
    """Federate a fanout exchange with one bound queue of its name."""
    with amqp(member.amqp_port) as channel, admin(member) as client:
        channel.exchange_declare(exchange, "fanout", durable=True)
        channel.queue_declare(exchange, durable=True)
        channel.queue_bind(exchange, exchange, "")
        client.federate("up", uri(upstream.amqp_port), f"^{exchange}$", **definition)


def publish(member: Member, count: int, exchange: str = "stock") -> None:
    with amqp(member.amqp_port) as channel:
        for number in range(count):
            channel.basic_publish(exchange, "k", b"%d" % number)


def depth(member: Member, queue: str = "stock") -> int:
    with amqp(member.amqp_port) as channel:
        count: int = channel.queue_declare(queue, passive=True).method.message_count
        return count


def upstream_queue(client: Admin) -> str:
    (name,) = [name for name in client.objects("queue") if name.startswith("federation: ")]
    return name


def test_two_downstreams_with_default_settings_get_every_message_each(tmp_path: Path) -> None:
    """R-FED-8, R-FX-2: their names differ, so do their upstream queues."""
    for name in ("up", "east", "west"):
        (tmp_path / name).mkdir()
    # As good as none: the tests' members have names otherwise.
    unnamed = {"BROKERD_CLUSTER_NAME": CLUSTER_NAME}
    with (
        cluster(tmp_path / "up", 1, **unnamed) as (up,),
        cluster(tmp_path / "east", 1, **unnamed) as (east,),
        cluster(tmp_path / "west", 1, **unnamed) as (west,),
        admin(up) as upstream,
    ):
        for member in (east, west):
            follow(member, up)
            with admin(member) as client:
                client.wait_link("stock")
        publish(up, 200)
        for member in (east, west):
            eventually(lambda at=member: depth(at) == 200, "all messages at each")
        found = [name for name in upstream.objects("queue") if name.startswith("federation: ")]
        assert len(found) == 2
        assert not any(name.endswith(f"-> {CLUSTER_NAME}") for name in found)


def test_a_name_that_was_made_outlives_restarts(tmp_path: Path) -> None:
    """R-FED-8: a link that started anew under another name would leave what waits upstream."""
    for name in ("up", "down"):
        (tmp_path / name).mkdir()
    with (
        cluster(tmp_path / "up", 1) as (up,),
        cluster(tmp_path / "down", 1, BROKERD_CLUSTER_NAME=CLUSTER_NAME) as (down,),
        admin(up) as upstream,
    ):
        follow(down, up)
        with admin(down) as client:
            client.wait_link("stock")
        name = upstream_queue(upstream)
        down.kill()
        publish(up, 20)
        down.start()
        down.wait_ready()
        eventually(lambda: depth(down) == 20, "what waited upstream")
        assert upstream_queue(upstream) == name
        # One that is given stays, too, however the member ends.
        brokerctl(down, "set_cluster_name", "shop")
        eventually(lambda: "federation: stock -> shop" in upstream.objects("queue"), "its queue")
        with amqp(up.amqp_port) as channel:

            def consumers() -> int:
                answer = channel.queue_declare("federation: stock -> shop", passive=True)
                return int(answer.method.consumer_count)

            eventually(consumers, "the link has bound and consumes")
        assert down.stop() == 0
        publish(up, 20)
        down.start()
        down.wait_ready()
        eventually(lambda: depth(down) == 40, "what waited upstream")
        with admin(down) as client:
            client.wait_link("stock")
        found = {name for name in upstream.objects("queue") if name.startswith("federation: ")}
        assert found == {name, "federation: stock -> shop"}


def test_a_switch_over_that_a_crash_has_cut_short_loses_nothing(pair: Pair) -> None:
    """R-FX-5: both internal exchanges are there, and the new one has no bindings yet."""
    follow(pair.down, pair.up)
    pair.downstream.wait_link("stock")
    name = upstream_queue(pair.upstream)
    pair.down.kill()
    present = {each for each in pair.upstream.objects("exchange") if each.startswith(name)}
    (new,) = {f"{name} A", f"{name} B"} - present
    is_running = threading.Event()

    def wait_running() -> None:
        pair.down.start()
        pair.down.wait_ready()
        with admin(pair.down) as client:
            client.wait_link("stock")
        is_running.set()

    with amqp(pair.up.amqp_port) as channel:
        channel.exchange_declare(new, "fanout", durable=True)
        waiter = threading.Thread(target=wait_running)
        waiter.start()
        count = 0
        while not is_running.is_set():
            channel.basic_publish("stock", "k", b"%d" % count)
            count += 1
        waiter.join()
    eventually(lambda: depth(pair.down) == count, f"all {count} messages")
    with admin(pair.up) as client:
        after = {each for each in client.objects("exchange") if each.startswith(name)}
    assert len(after) == 1


def test_a_shovel_of_an_upstreams_name_is_another_thing(pair: Pair) -> None:
    """Each is listed, restarted, changed and deleted without the other."""
    follow(pair.down, pair.up)
    link = pair.downstream.wait_link("stock")
    shovel = {"src-uri": "amqp://", "src-queue": "from", "dest-uri": "amqp://", "dest-queue": "to"}

    def shovels() -> list[str]:
        return [row["status"] for row in pair.downstream.rows("shovels")]

    def local_connections() -> list[str]:
        return [row["local_connection"] for row in pair.downstream.rows("links")]

    pair.downstream.put("parameter", "shovel/up", {"value": shovel})
    eventually(lambda: shovels() == ["running"], "the shovel runs")
    brokerctl(pair.down, "restart_shovel", "up")
    eventually(lambda: shovels() == ["running"], "the shovel runs again")
    brokerctl(pair.down, "delete_shovel", "up")
    eventually(lambda: not shovels(), "the shovel is gone")
    assert local_connections() == [link["local_connection"]]

    pair.downstream.put("parameter", "shovel/up", {"value": shovel})
    eventually(lambda: shovels() == ["running"], "the shovel runs")
    brokerctl(pair.down, "restart_federation_link", link["id"])
    after = eventually(
        lambda: next(
            (row for row in pair.downstream.rows("links") if row["status"] == "running"), None
        ),
        "the link runs again",
    )
    name = upstream_queue(pair.upstream)
    # The link cleans up after itself, and the shovel of its name runs on.
    pair.downstream.delete("policy", "federate-up")
    eventually(lambda: name not in pair.upstream.objects("queue"), "the link has cleaned up")
    pair.downstream.delete("parameter", "federation-upstream/up")
    assert shovels() == ["running"]
    assert after["upstream"] == pair.downstream.rows("shovels")[0]["upstream"] == "up"


def test_a_link_does_not_share_its_queue_with_another_cluster_of_its_name(tmp_path: Path) -> None:
    """R-FED-8: an error with the reason, and removing that link leaves the other's queue."""
    for name in ("up", "east", "west"):
        (tmp_path / name).mkdir()
    with (
        cluster(tmp_path / "up", 1) as (up,),
        cluster(tmp_path / "east", 1, BROKERD_CLUSTER_NAME="shop") as (east,),
        cluster(tmp_path / "west", 1, BROKERD_CLUSTER_NAME="shop") as (west,),
        admin(up) as upstream,
        admin(east) as first,
        admin(west) as second,
    ):
        follow(east, up)
        first.wait_link("stock")
        follow(west, up)
        row = second.wait_link("stock", "error")
        assert "another consumer is on the upstream queue" in row["error"]
        assert "set_cluster_name" in row["error"]
        publish(up, 50)
        eventually(lambda: depth(east) == 50, "all messages at the first")
        second.delete("policy", "federate-up")
        eventually(lambda: not second.rows("links"), "the second link is gone")
        assert upstream_queue(upstream) == "federation: stock -> shop"
        publish(up, 50)
        eventually(lambda: depth(east) == 100, "the first goes on")
        # With a name of its own it gets its share.
        brokerctl(west, "set_cluster_name", "shop-west")
        follow(west, up)
        second.wait_link("stock")
        publish(up, 5)
        eventually(lambda: depth(west) == 5, "both have them")
        eventually(lambda: depth(east) == 105, "both have them")


def test_a_changed_upstream_keeps_what_waits_upstream(pair: Pair) -> None:
    """R-FX-17, against RabbitMQ: no change that needs no other queue costs a message."""
    follow(pair.down, pair.up, reconnect_delay=1)
    pair.downstream.wait_link("stock")
    pair.downstream.set("vm_memory_high_watermark", "0.00001")
    pair.downstream.wait_link("stock", "blocked")
    publish(pair.up, BUFFERED)
    name = upstream_queue(pair.upstream)
    for change in (
        {"reconnect-delay": 2},
        {"reconnect-delay": 2, "prefetch-count": 10, "ack-mode": "on-publish"},
        {"max-hops": 3, "trust-user-id": True, "uri": uri(pair.up.amqp_port, query="?heartbeat=7")},
    ):
        before = pair.downstream.wait_link("stock", "blocked")
        value = {"uri": uri(pair.up.amqp_port)} | change
        pair.downstream.put("parameter", "federation-upstream/up", {"value": value})

        def is_new(before: dict[str, Any] = before) -> bool:
            row = pair.downstream.wait_link("stock", "blocked")
            return bool(row["local_connection"] != before["local_connection"])

        eventually(is_new, "the link has another session")
        assert depth(pair.up, name) == BUFFERED
    row = pair.downstream.wait_link("stock", "blocked")
    eventually(lambda: pair.downstream.rows("links")[0]["backlog"] == BUFFERED, "the backlog")
    assert row["last_error"] == ""
    pair.downstream.set("vm_memory_high_watermark", "0.6")
    eventually(lambda: depth(pair.down) == BUFFERED, "all that waited")


def test_a_change_that_needs_another_queue_is_confirmed(pair: Pair) -> None:
    """R-FX-17: refused until somebody says that what waits upstream may go."""
    follow(pair.down, pair.up)
    pair.downstream.wait_link("stock")
    value = f'{{"uri": "{uri(pair.up.amqp_port)}", "expires": 600000}}'
    words = ("set_parameter", "federation-upstream", "up", value)
    refused = brokerctl(pair.down, *words, status=69)
    assert "with another expires the link of exchange 'stock'" in refused
    assert "would be lost" in refused
    assert "brokerctl set_parameter --force" in refused
    assert "arguments" not in str(pair.downstream.wait_link("stock")["error"])
    brokerctl(pair.down, *words[:1], "--force", *words[1:])

    def expires() -> Any:
        queues = pair.upstream.objects("queue")
        name = next((each for each in queues if each.startswith("federation: ")), None)
        return name and queues[name]["arguments"].get("x-expires")

    eventually(lambda: expires() == 600000, "another queue")
    pair.downstream.wait_link("stock")
    publish(pair.up, 5)
    eventually(lambda: depth(pair.down) == 5, "the link forwards again")


def test_links_of_all_members_are_listed_and_restarted_from_any(tmp_path: Path) -> None:
    """R-FED-6, R-FED-7."""
    for name in ("up", "down"):
        (tmp_path / name).mkdir()
    with cluster(tmp_path / "up", 1) as (up,), cluster(tmp_path / "down", 3) as members:
        follow(members[0], up)

        def local() -> list[tuple[Member, dict[str, Any]]]:
            found = []
            for member in members:
                with admin(member) as client:
                    found += [(member, row) for row in client.rows("links")]
            return found if [row["status"] for _, row in found] == ["running"] else []

        ((owner, row),) = eventually(local, "one link runs")
        for member in members:
            with admin(member) as client:
                assert [each["id"] for each in client.rows("all_links")] == [row["id"]]
            table = brokerctl(member, "-q", "list_links")
            assert table.splitlines()[0].split("\t") == [
                *("vhost", "type", "exchange", "queue", "upstream", "status", "uri"),
                *("since", "backlog", "last_error"),
            ]
            assert f"amqp://127.0.0.1:{up.amqp_port}" in table
            assert "guest" not in table
        assert row["id"] in brokerctl(members[1], "-q", "federation_status")
        assert row["id"] not in brokerctl(members[1], "-q", "federation_status", "--only-down")
        publish(up, 5)
        other = next(member for member in members if member is not owner)
        brokerctl(other, "restart_federation_link", row["id"])

        def again() -> bool:
            found = local()
            return bool(found) and found[0][1]["local_connection"] != row["local_connection"]

        eventually(again, "the link has connected anew")
        brokerctl(other, "restart_federation_link", "no such link", status=69)
        publish(up, 5)
        eventually(lambda: depth(members[0]) == 10, "nothing was lost")


def test_definitions_that_nobody_could_use_are_refused(pair: Pair) -> None:
    """R-FED-2, R-FED-3: as RabbitMQ refuses them, naming the key; no password is repeated."""
    for component, value, said in (
        ("federation-upstream", '{"uri": "http://u:secret@x"}', "uri must begin with amqp://"),
        ("federation-upstream", '{"url": "amqp://u:secret@x"}', "unknown key 'url'"),
        ("federation-upstream", "{}", "uri is missing"),
        ("federation-upstream", "[]", "must be a table"),
        ("federation-upstream", '{"uri": "amqp://", "ack-mode": "on_confirm"}', "ack-mode must"),
        ("federation-upstream-set", '[{"upstream": "up", "bogus": 1}]', "unknown key 'bogus'"),
        ("federation-upstream-set", '{"upstream": "up"}', "must be a list"),
        ("federation-upstream-set", '[{"exchange": "x"}]', "key upstream"),
    ):
        refused = brokerctl(pair.down, "set_parameter", component, "x", value, status=69)
        assert said in refused, refused
        assert "secret" not in refused.partition("Error")[2]
    assert pair.downstream.objects("parameter") == {}
    # A set may come before its upstreams, as in RabbitMQ; what is missing is shown.
    brokerctl(pair.down, "set_parameter", "federation-upstream-set", "s", '[{"upstream": "later"}]')
    brokerctl(pair.down, "set_policy", "f", "^stock$", '{"federation-upstream-set": "s"}')
    with amqp(pair.down.amqp_port) as channel:
        channel.exchange_declare("stock", "fanout", durable=True)
    row = pair.downstream.wait_link("stock", "error")
    assert row["upstream"] == "later"
    assert row["error"] == "there is no upstream of this name"
