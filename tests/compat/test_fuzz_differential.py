"""A few sequences of the differential fuzzer against both servers, and the fuzzer itself.

The thousands are `make fuzz-differential SEEDS=1000`, between two brokerds with REFERENCE=brokerd.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from brokerd.amqp import methods
from tests.compat import fuzz, fuzz_compare
from tests.compat.fuzz_compare import Difference, Servers
from tests.compat.fuzz_sequences import (
    OPERATIONS_MAX,
    OPERATIONS_MIN,
    Step,
    sequence,
)
from tests.compat.servers import Server
from tests.integration import members

#: Sequences in CI, in portions, so that one test does not take a minute.
PORTIONS, PER_PORTION = 6, 10
#: Portions between two brokerds.
METAMORPHIC_PORTIONS = 3


@pytest.fixture(scope="session")
def servers(rabbitmq: Server, brokerd: Server) -> Servers:
    """Where both listen."""
    return Servers((rabbitmq.port,), (brokerd.port,))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("portion", range(PORTIONS))
def test_random_sequences_are_answered_alike(servers: Servers, portion: int) -> None:
    """O-10: no difference but those that docs/compatibility.md lists."""
    first = 1 + portion * PER_PORTION
    outcomes = fuzz.run(range(first, first + PER_PORTION), servers, True, 1)
    assert outcomes["different"] == 0
    assert sum(outcomes.values()) == PER_PORTION


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A lone member in plain Python, and three in the form that the tests run."""
    with fuzz.two_clusters(tmp_path_factory.mktemp("clusters"), 3, members.FORM) as servers:
        yield servers


@pytest.mark.timeout(600)
@pytest.mark.parametrize("portion", range(METAMORPHIC_PORTIONS))
def test_a_lone_member_and_three_answer_alike(clusters: Servers, portion: int) -> None:
    """Members, forms and where a client is change no answer, and no order of a channel."""
    first = 10_001 + portion * PER_PORTION
    outcomes = fuzz.run(range(first, first + PER_PORTION), clusters, True, 1)
    assert outcomes["different"] == 0
    assert sum(outcomes.values()) == PER_PORTION


def test_nothing_explains_a_difference_between_two_brokerds(servers: Servers) -> None:
    alike = dataclasses.replace(servers, are_alike=True)
    odd = Step(0, 1, methods.BasicPublish(exchange="amq.direct"), fuzz.ODD_PROPERTIES, b"x")
    found = fuzz_compare.play([odd], alike)
    assert found is not None
    assert found.explanation == ""


def test_a_difference_is_seen_and_made_short(servers: Servers) -> None:
    """D-62 taken for a finding: the publish and nothing else is left of ten steps."""
    steps = [step for step in sequence(4) if isinstance(step.method, methods.QueueDeclare)][:4]
    odd = Step(0, 1, methods.BasicPublish(exchange="amq.direct"), fuzz.ODD_PROPERTIES, b"x")
    steps = [*steps, odd, *steps]
    found = fuzz_compare.play(steps, servers)
    assert found is not None
    assert found.explanation == "D-62"
    assert "delivery_mode_unknown" in found.text()
    rules = dict(fuzz_compare.RULES)
    fuzz_compare.RULES.clear()
    try:
        shorter, last = fuzz_compare.shrink(steps, servers)
    finally:
        fuzz_compare.RULES.update(rules)
    assert shorter == [odd]
    assert last is not None


def test_a_seed_is_a_sequence() -> None:
    for seed in range(1, 50):
        steps = sequence(seed)
        assert OPERATIONS_MIN <= len(steps) <= OPERATIONS_MAX
        assert list(map(str, steps)) == list(map(str, sequence(seed)))


@pytest.mark.parametrize(
    ("rabbitmq", "brokerd", "row"),
    [
        (["c0.1 {delivery_mode_unknown,3}"], [], "D-62"),
        (["c0.1 other"], [], ""),
        (
            ["c0.1 basic.deliver (('consumer_tag', 'a'), ('delivery_tag', ('int', 1)), x) m1"],
            ["c0.1 basic.deliver (('consumer_tag', 'b'), ('delivery_tag', ('int', 1)), x) m1"],
            "D-63",
        ),
        (
            ["c0.1 basic.deliver (('consumer_tag', 'a'), ('delivery_tag', ('int', 1)), x) m1"],
            ["c0.1 basic.deliver (('consumer_tag', 'b'), ('delivery_tag', ('int', 1)), x) m2"],
            "",
        ),
        (["~q1: 3 ready"], ["~q1: 1 ready"], "D-203"),
        (["~q2: 3 ready"], ["~q2: 1 ready"], ""),
        (["~q2: 1 ready"], ["~q2: 3 ready"], ""),
        (
            ["basic.deliver ('delivery_tag', ('int', 1)), 'x-delivery-count': 1"],
            ["basic.deliver ('delivery_tag', ('int', 2)), 'x-delivery-count': 1"],
            "D-207",
        ),
        (
            ["basic.deliver ('delivery_tag', ('int', 1)), 'x-delivery-count': 1"],
            ["basic.deliver ('delivery_tag', ('int', 1)), 'x-delivery-count': 2"],
            "",
        ),
    ],
)
def test_only_what_the_table_says_is_explained(
    rabbitmq: list[str], brokerd: list[str], row: str
) -> None:
    step = Step(0, 1, methods.BasicGet())
    found = Difference(1, step, rabbitmq, brokerd)
    assert fuzz_compare.explain(found, frozenset({"~q1"})) == row


@pytest.mark.parametrize(
    ("rabbitmq", "brokerd", "row"),
    [("~q1: 0 ready", "~q1: 1 ready", "D-206"), ("~q1: 1 ready", "~q1: 0 ready", "")],
)
def test_only_an_end_of_a_connection_explains_messages_that_are_left(
    rabbitmq: str, brokerd: str, row: str
) -> None:
    step = Step(0, 1, methods.ConnectionClose())
    found = Difference(1, step, [rabbitmq, "x"], [brokerd, "x"])
    assert fuzz_compare.explain(found, frozenset()) == row
