"""The declaration of a link's internal exchange, in the one encoding that RabbitMQ takes.

Used by upstream_side.py; compiled with the class that it inherits from (tools/compiled.py).
"""

from __future__ import annotations

import struct

from brokerd.amqp import methods, spec, values
from brokerd.core.catalog import federation_type

_HEAD = struct.Struct(">BHI")
_WIDE = struct.Struct(">cq")


class InternalDeclare(methods.ExchangeDeclare):
    """exchange.declare whose x-max-hops is written as a 64-bit integer: RabbitMQ refuses the type
    x-federation-upstream with any narrower one (R-FX-4).
    """

    __slots__ = ()

    def encode(self, channel: int) -> bytes:
        """The complete frame; the arguments are its last field."""
        hops = self.arguments.get(federation_type.MAX_HOPS)
        frame = super().encode(channel)
        if type(hops) is not int:
            return frame
        narrow = values.encode_table(self.arguments)
        rest = {
            key: item for key, item in self.arguments.items() if key != federation_type.MAX_HOPS
        }
        wide = values.encode_table(rest)[4:] + values.encode_shortstr(federation_type.MAX_HOPS)
        wide += _WIDE.pack(b"l", hops)
        payload = frame[_HEAD.size : -len(narrow) - 1] + values.encode_longstr(wide)
        return _HEAD.pack(spec.FRAME_METHOD, channel, len(payload)) + payload + frame[-1:]
