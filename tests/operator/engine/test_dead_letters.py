"""status.deadLetters of Queues: where dead letters wait, by one call for all queues."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokerd_operator import columns, conditions
from brokerd_operator.engine import dead_letters
from brokerd_operator.engine.cache import ResourceCache
from brokerd_operator.engine.dead_letters import DeadLetters
from brokerd_operator.engine.keys import Key
from brokerd_operator.specs.model import Reference

from tests.operator.engine.test_engine import Bench, bench
from tests.operator.resources import resource
from tests.operator.specs.test_crds_validation import NOW, VALIDATOR

__all__ = ["bench"]

REPOSITORY = Path(__file__).resolve().parents[3]
BROKER = Reference("BrokerConnection", "default", "prod")


def row(name: str, waiting: int, **more: Any) -> dict[str, Any]:
    queues = [{"name": "dead", "messages": waiting}]
    found = {"vhost": "/", "name": name, "exchange": "dlx", "routing_key": "k"}
    return found | {"queues": queues, "queues_more": 0, "held": 0, "waiting": waiting} | more


def told(bench: Bench, name: str) -> Any:
    body = bench.store.get(Key("Queue", "default", name))
    return None if body is None else (body.get("status") or {}).get("deadLetters")


async def test_status_says_how_many_wait_and_where_and_what_shows_them(bench: Bench) -> None:
    bench.add("Queue", "q", deadLetter={"exchange": "dlx", "routingKey": "k"})
    bench.add("Queue", "plain")
    await bench.until_reason("Queue", "q", "Applied")
    await bench.until_reason("Queue", "plain", "Applied")
    bench.broker.dead_letters = [row("q", 3), row("nobody's", 9)]
    await bench.until("it is told", lambda: told(bench, "q"))
    assert told(bench, "q") == {
        "exchange": "dlx", "routingKey": "k", "queues": [{"name": "dead", "messages": 3}],
        "held": 0, "waiting": 3, "hint": "brokerctl triage dead",
    }  # fmt: skip
    assert told(bench, "plain") is None
    body = bench.store.get(Key("Queue", "default", "q"))
    assert body is not None
    kind = VALIDATOR.kinds["Queue"]
    wide = dict(zip(columns.header(kind, True), columns.cells(kind, body, NOW, True), strict=True))
    assert wide["DEAD-LETTERS"] == "3"
    # An answer that says the same writes nothing.
    written: list[Any] = []
    write = bench.store.write_status

    async def counted(body: Any, status: Any) -> None:
        written.append(status)
        await write(body, status)

    bench.store.write_status = counted  # type: ignore[method-assign]
    asked = bench.broker.dead_letters_asked
    await bench.until("asked again", lambda: bench.broker.dead_letters_asked >= asked + 3)
    assert written == []
    bench.broker.dead_letters = [row("q", 0)]
    await bench.until("they went", lambda: told(bench, "q")["waiting"] == 0)
    assert "hint" not in told(bench, "q")
    bench.broker.dead_letters = []
    await bench.until("it dead-letters no more", lambda: told(bench, "q") is None)


async def test_all_queues_cost_one_call_and_none_without_queues(bench: Bench) -> None:
    await bench.until_reason("BrokerConnection", "prod", "Available")
    calls = bench.broker.member_calls
    await bench.until("rounds went by", lambda: bench.broker.member_calls >= calls + 3)
    assert bench.broker.dead_letters_asked == 0
    names = [f"q{number}" for number in range(30)]
    for name in names:
        bench.add("Queue", name)
    for name in names:
        await bench.until_reason("Queue", name, "Applied")
    asked = bench.broker.dead_letters_asked
    bench.broker.dead_letters = [row(name, 1) for name in names]
    await bench.until("all are told", lambda: all(told(bench, name) for name in names))
    assert bench.broker.dead_letters_asked - asked <= 10


async def test_nonsense_of_a_broker_is_left_out(bench: Bench) -> None:
    bench.add("Queue", "q")
    await bench.until_reason("Queue", "q", "Applied")
    nonsense: list[Any] = [
        *(7, [], {"vhost": "/"}, row("q", 1, queues=7)),
        *(row("q", 1) | {"waiting": "x"}, row("q", 1) | {"name": []}),
    ]
    bench.broker.dead_letters = nonsense
    asked = bench.broker.dead_letters_asked
    await bench.until("asked", lambda: bench.broker.dead_letters_asked >= asked + 2)
    assert told(bench, "q") is None
    bench.broker.dead_letters = [*nonsense, row("q", 2, queues=[3, {"name": 4, "messages": "x"}])]
    await bench.until("what is sound is told", lambda: told(bench, "q"))
    assert told(bench, "q")["queues"] == [{"name": "4"}]


async def test_status_stays_while_the_broker_is_away(bench: Bench) -> None:
    bench.add("Queue", "q")
    bench.broker.dead_letters = [row("q", 3)]
    await bench.until("it is told", lambda: told(bench, "q"))
    await bench.broker.stop()
    await bench.until_reason("Queue", "q", "WaitingForBroker")
    assert told(bench, "q")["waiting"] == 3


def _entries(count: int) -> ResourceCache:
    cache = ResourceCache()
    ready = conditions.Condition(conditions.READY, "True", "Applied", "", 1, "")
    for number in range(count):
        body = resource("Queue", f"q{number:05}", brokerRef={"name": "prod"})
        body["metadata"] |= {"uid": str(number), "resourceVersion": "1", "generation": 1}
        body["status"] = {"conditions": [ready.to_json()]}
        cache.put(body)
    return cache


def test_ten_thousand_changed_counts_are_written_in_parts_and_none_is_left_out() -> None:
    said = DeadLetters()
    cache = _entries(450)
    keys = [Key("Queue", "default", f"q{number:05}") for number in range(450)]
    said.replace(BROKER, [row(key.name, 1) for key in keys])
    woken: list[Key] = []
    for _ in range(3):
        entries = [(key, cache.get(key)) for key in keys]
        differing = [key for key, entry in entries if entry and said.differs(BROKER, entry)]
        part = said.next_of(BROKER, differing)
        assert len(part) <= dead_letters.WOKEN_MAX
        # None of them is written: those that cannot be must not keep the others from it.
        woken += part
    assert set(woken) == set(keys)


@pytest.mark.parametrize("reason", ["WaitingForBroker", "NameConflict"])
def test_resource_that_has_no_queue_is_not_woken(reason: str) -> None:
    said = DeadLetters()
    entry = copy.deepcopy(_entries(1).get(Key("Queue", "default", "q00000")))
    assert entry is not None
    said.replace(BROKER, [row("q00000", 1)])
    assert said.differs(BROKER, entry)
    entry.body["status"]["conditions"][0]["reason"] = reason
    assert not said.differs(BROKER, entry)


def test_schema_has_a_place_for_all_that_is_said() -> None:
    crd = yaml.safe_load((REPOSITORY / "crds/queues.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    place = status["properties"]["deadLetters"]["properties"]
    assert place["queues"]["maxItems"] == dead_letters.NAMED_MAX
    said = DeadLetters()
    said.replace(BROKER, [row("q", 1, queues_more=3)])
    field = said.of_queue(BROKER, "/", "q")
    assert field is not None
    assert field.keys() == place.keys()
    assert field["queues"][0].keys() == place["queues"]["items"]["properties"].keys()


def test_hint_can_be_pasted() -> None:
    said = DeadLetters()
    queues = [{"name": "it's dead", "messages": 1}]
    said.replace(BROKER, [row("q", 1, vhost="a b", queues=queues)])
    field = said.of_queue(BROKER, "a b", "q")
    assert field is not None
    assert field["hint"] == "brokerctl triage --vhost 'a b' 'it'\"'\"'s dead'"
