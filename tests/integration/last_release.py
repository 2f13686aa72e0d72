"""A member as the last release had it, for tests of rolling upgrades: `python -m` this module.

It understands no feature flag of this version, and what came with one is an error to it, as it
would be to the real thing.
"""

from __future__ import annotations

import json

from brokerd.core import annotations
from brokerd.core.annotations import Annotations
from brokerd.core.catalog import features
from brokerd.core.queue import queue_commands, queue_decoders
from brokerd.core.queue.queue_commands import Kind, ReturnCause
from brokerd.core.queue_options import QueueOptions

_decode = annotations.decode
_decode_options = queue_decoders._DECODERS[Kind.UPDATE_OPTIONS]
_decode_get = queue_decoders._DECODERS[Kind.GET]
_decode_checkout = queue_decoders._DECODERS[Kind.CHECKOUT]
_decode_channel_down = queue_decoders._DECODERS[Kind.CHANNEL_DOWN]
_decode_return = queue_decoders._DECODERS[Kind.RETURN]


def _decode_json_only(raw: bytes) -> Annotations:
    if raw:
        json.loads(raw)
    return _decode(raw)


def _decode_options_of_old(data: bytes) -> QueueOptions:
    fields = queue_commands.decode_json(data)
    # A machine that refused what others apply would go on in another state, and nobody would see.
    assert "delivery_limit_is_default" not in fields, "options of a later version"
    assert "keeps_letters" not in fields, "options of a later version"
    assert fields["delivery_count_mode"] in ("3.x", "4.0", "4.3"), "options of a later version"
    options: QueueOptions = _decode_options(data)
    return options


def _decode_get_of_old(data: bytes) -> queue_decoders.Get:
    queue_commands.decode_json(data)
    command: queue_decoders.Get = _decode_get(data)
    return command


def _decode_checkout_of_old(data: bytes) -> queue_commands.Checkout:
    assert "credit" not in queue_commands.decode_json(data), "a checkout of a later version"
    command: queue_commands.Checkout = _decode_checkout(data)
    return command


def _decode_channel_down_of_old(data: bytes) -> queue_decoders.Node:
    # One that is passed over counts what others do not.
    assert "written" not in queue_commands.decode_json(data), "a channel's end of a later version"
    command: queue_decoders.Node = _decode_channel_down(data)
    return command


def _decode_return_of_old(data: bytes) -> queue_decoders.Ranges:
    command: queue_decoders.Ranges = _decode_return(data)
    assert command.cause is not ReturnCause.UNWRITTEN, "a return of a later version"
    return command


if __name__ == "__main__":
    features.FEATURES = ()
    annotations.decode = _decode_json_only
    queue_decoders._DECODERS[Kind.UPDATE_OPTIONS] = _decode_options_of_old
    queue_decoders._DECODERS[Kind.GET] = _decode_get_of_old
    queue_decoders._DECODERS[Kind.CHECKOUT] = _decode_checkout_of_old
    queue_decoders._DECODERS[Kind.CHANNEL_DOWN] = _decode_channel_down_of_old
    queue_decoders._DECODERS[Kind.RETURN] = _decode_return_of_old
    from brokerd.cli import main

    main()
