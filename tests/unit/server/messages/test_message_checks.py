"""What the properties of a message must be."""

from __future__ import annotations

import pytest

from brokerd.amqp import errors
from brokerd.server.messages import message_checks
from brokerd.server.messages.reply_to import PREFIX, PSEUDO_QUEUE


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no_integer"),
        ("abc", "no_integer"),
        ("-5", "{value_negative,-5}"),
        ("5x", '{leftover_string,"x"}'),
        ("-5x", '{leftover_string,"x"}'),
        ("+-5", "no_integer"),
        ("315360000001", "{value_too_large,"),
        ("9" * 100_000, "{value_too_large,"),
    ],
)
def test_wrong_expirations(text: str, problem: str) -> None:
    """R-PUB-4, R-ERR-31."""
    with pytest.raises(errors.PreconditionFailed) as refused:
        message_checks._expiration_ms(text)
    assert problem in str(refused.value)


def test_right_expirations() -> None:
    """R-PUB-4."""
    assert message_checks._expiration_ms("0") == message_checks._expiration_ms("-0") == 0
    assert message_checks._expiration_ms("+5") == 5
    assert message_checks._expiration_ms("315360000000") == message_checks.EXPIRATION_MS_MAX


def test_only_the_default_exchange_leads_to_pseudo_queues() -> None:
    """R-DRT-3, R-RT-C1: its key, CC and BCC; each once."""
    keys = (PREFIX + "x", "q", PREFIX + "x", PREFIX + "y")
    assert message_checks.replies_of("", *keys) == (PREFIX + "x", PREFIX + "y")
    assert message_checks.replies_of("amq.direct", *keys) == ()
    assert message_checks.replies_of("", PSEUDO_QUEUE) == ()
