"""Shovels whose destination is their own cluster: they publish without a connection of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.amqp.test_channel_flow import alarm
from tests.integration.federation.test_shovels import Ends, bodies, count, fill, wait_back
from tests.integration.federation_rig import admin, amqp, take
from tests.integration.members import cluster, eventually

pytestmark = pytest.mark.timeout(240)

#: With the profile of 2009 federation does not heed alarms, publishers do.
PROFILES = ["brokerd", "reference"]
HERE = {"dest_uri": "amqp://"}


@pytest.fixture(scope="module", params=PROFILES)
def ends(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder: Path = tmp_path_factory.mktemp("here")
    with (
        cluster(folder, 1, BROKERD_COMPAT_PROFILE=request.param) as (member,),
        admin(member) as client,
    ):
        yield Ends(member, member, client)


def own_connections(ends: Ends) -> list[str]:
    """The names of connections of the member to itself."""
    names = [str(row["name"]) for row in ends.admin.rows("connections")]
    return [name for name in names if name.startswith("in-process")]


@pytest.mark.parametrize("ack_mode", ["on-confirm", "on-publish"])
def test_messages_move_in_order_and_the_shovel_ends(ends: Ends, ack_mode: str) -> None:
    name = f"here-{ack_mode}"
    with amqp(ends.here.amqp_port) as channel:
        fill(channel, name, 300, content_type="text/plain")
        ends.shovel(
            *(name,),
            **HERE,
            dest_queue=f"{name}-to",
            ack_mode=ack_mode,
            src_delete_after="queue-length",
        )
        ends.wait_gone(name)
        taken = [take(channel, f"{name}-to") for _ in range(300)]
        assert [body for _, _, body in taken] == [b"%d" % i for i in range(300)]
        assert {properties.content_type for _, properties, _ in taken} == {"text/plain"}
        assert count(channel, name) == 0


def test_an_exchange_takes_them_and_one_that_is_deleted_is_waited_for(ends: Ends) -> None:
    """Nothing is lost, and the row says what is missing."""
    with amqp(ends.here.amqp_port) as channel:

        def declare() -> None:
            channel.exchange_declare("press", "direct", durable=True)
            channel.queue_declare("press", durable=True)
            channel.queue_bind("press", "press", "all")

        # Between the exchange and its binding the shovel may find the exchange as it is.
        to = {"dest_exchange": "press", "dest_exchange_key": "all", "dest_unroutable": "keep"}
        ends.shovel("news", **HERE, **to)
        assert "no exchange 'press'" in ends.wait("news", "error")["error"]
        fill(channel, "news", 3)
        declare()
        assert bodies(channel, "press", 3) == [b"0", b"1", b"2"]
        channel.exchange_delete("press")
        fill(channel, "news", 5)
        assert "no exchange 'press'" in ends.wait("news", "error")["error"]
        assert count(channel, "press") == 0
        declare()
        assert sorted(bodies(channel, "press", 5)) == [b"%d" % i for i in range(5)]


def test_what_an_exchange_routes_nowhere_stays_until_it_does(ends: Ends) -> None:
    """Or is dropped where the profile or the definition says so: counted, and the log tells."""
    with amqp(ends.here.amqp_port) as channel:
        channel.exchange_declare("blind", "direct", durable=True)
        fill(channel, "seeks", 3)
        ends.shovel(
            *("seeks",),
            **HERE,
            dest_exchange="blind",
            dest_exchange_key="k",
            dest_unroutable="keep",
        )
        row = ends.wait("seeks", "unroutable")
        eventually(lambda: (ends.row("seeks") or {}).get("unrouted") == 3, "all are held")
        assert "exchange 'blind', routing key 'k'" in row["error"]
        channel.queue_declare("found", durable=True)
        channel.queue_bind("found", "blind", "k")
        assert bodies(channel, "found", 3) == [b"0", b"1", b"2"]
        ends.wait("seeks")
        row = ends.row("seeks") or {}
        assert (row["moved"], row["unroutable"], row["unroutable_dropped"]) == (3, 3, 0)
        channel.queue_unbind("found", "blind", "k")
        ends.shovel(
            *("drops",),
            **HERE,
            dest_exchange="blind",
            dest_exchange_key="k",
            dest_unroutable="drop",
        )
        fill(channel, "drops", 4)
        eventually(lambda: (ends.row("drops") or {}).get("unroutable_dropped") == 4, "counted")
        ends.wait("drops")
        eventually(lambda: count(channel, "drops") == 0, "they are gone")
        for name in ("seeks", "drops"):
            ends.admin.delete("parameter", f"shovel/{name}")
            channel.queue_delete(name)


def test_without_a_word_in_the_definition_the_profile_decides(
    ends: Ends, request: pytest.FixtureRequest
) -> None:
    profile = request.node.callspec.params["ends"]
    with amqp(ends.here.amqp_port) as channel:
        channel.exchange_declare("void", "fanout", durable=True)
        fill(channel, "undecided", 2)
        ends.shovel("undecided", **HERE, dest_exchange="void")
        figure = "unrouted" if profile == "brokerd" else "unroutable_dropped"
        eventually(lambda: (ends.row("undecided") or {}).get(figure) == 2, figure)
        ends.admin.delete("parameter", "shovel/undecided")


def test_a_queue_that_is_deleted_is_made_again(ends: Ends) -> None:
    with amqp(ends.here.amqp_port) as channel:
        ends.shovel("again", **HERE, dest_queue="again-to")
        ends.wait("again")
        channel.queue_delete("again-to")
        fill(channel, "again", 50)
        wait_back(ends.here, "again-to", 50)
        ends.wait("again")
        # The source's is a client's as any other here, the destination has none.
        eventually(lambda: not own_connections(ends), "the one that declared it is closed")


def test_an_internal_exchange_is_refused_as_it_is_to_clients(ends: Ends) -> None:
    with amqp(ends.here.amqp_port) as channel:
        channel.exchange_declare("inner", "fanout", durable=True, internal=True)
        channel.queue_declare("inner-to", durable=True)
        channel.queue_bind("inner-to", "inner")
        fill(channel, "to-inner", 3)
        ends.shovel("to-inner", **HERE, dest_exchange="inner")
        assert (
            "exchange 'inner' in vhost '/' is internal" in ends.wait("to-inner", "error")["error"]
        )
        assert (count(channel, "to-inner"), count(channel, "inner-to")) == (3, 0)
        ends.admin.delete("parameter", "shovel/to-inner")
        eventually(lambda: ends.row("to-inner") is None, "the shovel has ended")


def test_what_is_refused_goes_back_and_comes_when_there_is_room(ends: Ends) -> None:
    """reject-publish; the session goes on."""
    with amqp(ends.here.amqp_port) as channel:
        fill(channel, "full", 20)
        limits = {"x-max-length": 5, "x-overflow": "reject-publish"}
        ends.shovel("full", **HERE, dest_queue="full-to", dest_queue_args=limits)
        eventually(lambda: (ends.row("full") or {}).get("refused", 0) > 0, "some are refused")
        got = sorted(int(body) for body in bodies(channel, "full-to", 20))
        assert got == list(range(20))
        eventually(lambda: count(channel, "full") == 0, "nothing is left")
        assert ends.wait("full")["reconnects"] == 0


def test_an_alarm_holds_it_as_any_publisher(ends: Ends) -> None:
    """R-ALM-9."""
    with amqp(ends.here.amqp_port) as channel:
        ends.shovel("held", **HERE, dest_queue="held-to")
        ends.wait("held")
        with alarm(ends.here, ends.admin):
            ends.wait("held", "blocked")
        ends.wait("held")
        fill(channel, "held", 10)
        assert bodies(channel, "held-to", 10) == [b"%d" % i for i in range(10)]
