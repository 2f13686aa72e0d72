"""Commands whose JSON is not what it should be: answered, and the state stays sound (SEC-44).

Fuzzing bytes (tests/fuzz) rarely leaves JSON intact; here a field is missing, of another type or
far too large.  A committed command that made a machine raise would stop its group everywhere.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.state_targets import (
    catalog_command_seeds,
    catalog_commands_target,
    joined,
    pieces,
    queue_command_seeds,
    queue_commands_target,
)

#: What stands in the place of something else.
OTHERS: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 1.5, float("inf"), 2**63, 2**64, 10**30, -(10**30)),
    *("", "x", "n1", "classic", "quorum", "\ud800", "\x00" * 300),
    *([], [1], [[1, 2]], [[3, 0]], {}, {"a": 1}),
    *(["n1", 7, 1, "c"], [["n1", 7, 1, "c"]]),
)
QUEUE_LOGS = [seed for seed in queue_command_seeds() if len(pieces(seed[1:])) > 1]
CATALOG_LOGS = [seed for seed in catalog_command_seeds() if len(pieces(seed)) > 1]


def changed(value: Any, chance: Random) -> Any:
    """Return a JSON value with one thing in it missing, added or replaced."""
    if not value or not isinstance(value, dict | list) or chance.random() < 0.2:
        return chance.choice(OTHERS)
    if isinstance(value, list):
        place = chance.randrange(len(value))
        return [*value[:place], changed(value[place], chance), *value[place + 1 :]]
    key = chance.choice(sorted(value))
    what = chance.random()
    if what < 0.1:
        return {name: value[name] for name in value if name != key}
    if what < 0.15:
        return value | {"another": chance.choice(OTHERS)}
    return value | {key: changed(value[key], chance)}


def hostile(command: bytes, chance: Random) -> bytes:
    """Return the command with other JSON, if it has any, or with another byte."""
    start = command.find(b"{")
    if start >= 0:
        try:
            fields, end = json.JSONDecoder().raw_decode(command[start:].decode("latin-1"))
        except ValueError:
            pass
        else:
            text = json.dumps(changed(fields, chance)).encode()
            return command[:start] + text + command[start + end :]
    place = chance.randrange(len(command))
    return command[:place] + bytes((chance.choice((0, 1, 127, 128, 255)),)) + command[place + 1 :]


def with_hostile_ones(commands: list[bytes], chance: Random) -> list[bytes]:
    """Return a log in which some commands are replaced, doubled or moved."""
    log = list(commands)
    for _ in range(chance.randrange(1, 6)):
        place = chance.randrange(len(log))
        log[place : place + chance.randrange(2)] = [hostile(log[place], chance)]
    if chance.random() < 0.2:
        chance.shuffle(log)
    return log


@pytest.mark.timeout(300)
@settings(max_examples=400)
@given(st.randoms(use_true_random=False))
def test_a_queue_answers_whatever_json_comes(chance: Random) -> None:
    log = chance.choice(QUEUE_LOGS)
    queue_commands_target(log[:1] + joined(with_hostile_ones(pieces(log[1:]), chance)))


@pytest.mark.timeout(300)
@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_the_catalog_answers_whatever_json_comes(chance: Random) -> None:
    catalog_commands_target(joined(with_hostile_ones(pieces(chance.choice(CATALOG_LOGS)), chance)))
