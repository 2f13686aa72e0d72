"""The settings in force of a queue: what is out of range or of a wrong type."""

from __future__ import annotations

import json

import pytest

from brokerd.core.queue import queue_commands, queue_decoders
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue_options import QueueOptions
from tests.unit.core.queue_driver import QueueDriver


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"delivery_limit": -1}, "delivery_limit", None),
        ({"max_priority": 999}, "max_priority", queue_decoders.PRIORITY_MAX),
        ({"max_length": -5}, "max_length", 0),
        ({"consumer_timeout_ms": -5}, "consumer_timeout_ms", 0),
    ],
)
def test_options_out_of_range_are_brought_into_it(
    options: dict[str, int], name: str, value: int | None
) -> None:
    """R-DL-1, R-PRI-1"""
    q = QueueDriver()
    q.configure(**options)
    assert getattr(q.machine.options, name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("auto_delete", 1),
        ("alternate_exchange", 5),
        ("delayed_retry", None),
        ("delayed_retry_min_ms", "5"),
        ("max_priority", True),
        ("delivery_limit", "5"),
    ],
)
def test_options_of_a_wrong_type_are_refused(name: str, value: object) -> None:
    q = QueueDriver()
    before = q.machine.options
    right = queue_commands.encode_update_options(QueueOptions())
    wrong = json.dumps(json.loads(right[2:]) | {name: value}).encode()
    assert q.reply(right[:2] + wrong)["refused"] == 400
    assert q.machine.options is before


def test_a_field_that_an_earlier_release_does_not_send_has_its_default() -> None:
    q = QueueDriver()
    whole = queue_commands.encode_update_options(QueueOptions(max_length=3))
    fields = json.loads(whole[2:])
    del fields["delayed_retry"]
    q.reply(whole[:2] + json.dumps(fields).encode())
    assert (q.machine.options.max_length, q.machine.options.delayed_retry) == (3, "disabled")


def test_a_checkout_of_an_earlier_release_has_no_timeout() -> None:
    consumer = ConsumerId("n", 1, 1, "c")
    whole = queue_commands.encode_checkout(Checkout(consumer, 10, False, False, 0, "guest", 1_000))
    fields = json.loads(whole[2:])
    del fields["timeout_ms"]
    _, checkout = queue_decoders.decode(whole[:2] + json.dumps(fields).encode())
    assert (checkout.consumer, checkout.timeout_ms) == (consumer, None)
