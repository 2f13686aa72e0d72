"""Writes `brokerd/amqp/methods.py` from the method table below.

The table is our own: class and method ids, field names and types of AMQP 0-9-1 with RabbitMQ's
extensions (exchange.bind, basic.nack, confirm.select, connection.blocked, update-secret).
Each method becomes a slotted class with straight-line `decode` and `encode`; neighbouring fields
of fixed size are packed by one struct.

Use: `python tools/generate_amqp.py` rewrites the file, `--check` fails when it is not fresh.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "brokerd" / "amqp" / "methods.py"

#: class -> (id, {method: (id, fields)}).  A field is `name:type`; `name!type` is a credential and
#: is not shown by repr.  Types: octet short long longlong bit shortstr longstr table.
#: A star after the method's name says that content follows it.
TABLE: dict[str, tuple[int, dict[str, tuple[int, str]]]] = {
    "connection": (
        10,
        {
            "start": (
                10,
                "version_major:octet version_minor:octet server_properties:table"
                " mechanisms:longstr locales:longstr",
            ),
            "start-ok": (
                11,
                "client_properties:table mechanism:shortstr response!longstr locale:shortstr",
            ),
            "secure": (20, "challenge:longstr"),
            "secure-ok": (21, "response!longstr"),
            "tune": (30, "channel_max:short frame_max:long heartbeat:short"),
            "tune-ok": (31, "channel_max:short frame_max:long heartbeat:short"),
            "open": (40, "virtual_host:shortstr reserved_1:shortstr reserved_2:bit"),
            "open-ok": (41, "reserved_1:shortstr"),
            "close": (50, "reply_code:short reply_text:shortstr class_id:short method_id:short"),
            "close-ok": (51, ""),
            "blocked": (60, "reason:shortstr"),
            "unblocked": (61, ""),
            "update-secret": (70, "new_secret!longstr reason:shortstr"),
            "update-secret-ok": (71, ""),
        },
    ),
    "channel": (
        20,
        {
            "open": (10, "reserved_1:shortstr"),
            "open-ok": (11, "reserved_1:longstr"),
            "flow": (20, "active:bit"),
            "flow-ok": (21, "active:bit"),
            "close": (40, "reply_code:short reply_text:shortstr class_id:short method_id:short"),
            "close-ok": (41, ""),
        },
    ),
    "access": (
        30,
        {
            "request": (
                10,
                "realm:shortstr exclusive:bit passive:bit active:bit write:bit read:bit",
            ),
            "request-ok": (11, "ticket:short"),
        },
    ),
    "exchange": (
        40,
        {
            "declare": (
                10,
                "ticket:short exchange:shortstr type:shortstr passive:bit durable:bit"
                " auto_delete:bit internal:bit nowait:bit arguments:table",
            ),
            "declare-ok": (11, ""),
            "delete": (20, "ticket:short exchange:shortstr if_unused:bit nowait:bit"),
            "delete-ok": (21, ""),
            "bind": (
                30,
                "ticket:short destination:shortstr source:shortstr routing_key:shortstr"
                " nowait:bit arguments:table",
            ),
            "bind-ok": (31, ""),
            "unbind": (
                40,
                "ticket:short destination:shortstr source:shortstr routing_key:shortstr"
                " nowait:bit arguments:table",
            ),
            # 51, not 41: RabbitMQ's number, kept by everyone since.
            "unbind-ok": (51, ""),
        },
    ),
    "queue": (
        50,
        {
            "declare": (
                10,
                "ticket:short queue:shortstr passive:bit durable:bit exclusive:bit"
                " auto_delete:bit nowait:bit arguments:table",
            ),
            "declare-ok": (11, "queue:shortstr message_count:long consumer_count:long"),
            "bind": (
                20,
                "ticket:short queue:shortstr exchange:shortstr routing_key:shortstr"
                " nowait:bit arguments:table",
            ),
            "bind-ok": (21, ""),
            "purge": (30, "ticket:short queue:shortstr nowait:bit"),
            "purge-ok": (31, "message_count:long"),
            "delete": (40, "ticket:short queue:shortstr if_unused:bit if_empty:bit nowait:bit"),
            "delete-ok": (41, "message_count:long"),
            "unbind": (
                50,
                "ticket:short queue:shortstr exchange:shortstr routing_key:shortstr"
                " arguments:table",
            ),
            "unbind-ok": (51, ""),
        },
    ),
    "basic": (
        60,
        {
            "qos": (10, "prefetch_size:long prefetch_count:short global_qos:bit"),
            "qos-ok": (11, ""),
            "consume": (
                20,
                "ticket:short queue:shortstr consumer_tag:shortstr no_local:bit no_ack:bit"
                " exclusive:bit nowait:bit arguments:table",
            ),
            "consume-ok": (21, "consumer_tag:shortstr"),
            "cancel": (30, "consumer_tag:shortstr nowait:bit"),
            "cancel-ok": (31, "consumer_tag:shortstr"),
            "publish*": (
                40,
                "ticket:short exchange:shortstr routing_key:shortstr mandatory:bit immediate:bit",
            ),
            "return*": (
                50,
                "reply_code:short reply_text:shortstr exchange:shortstr routing_key:shortstr",
            ),
            "deliver*": (
                60,
                "consumer_tag:shortstr delivery_tag:longlong redelivered:bit"
                " exchange:shortstr routing_key:shortstr",
            ),
            "get": (70, "ticket:short queue:shortstr no_ack:bit"),
            "get-ok*": (
                71,
                "delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr"
                " message_count:long",
            ),
            "get-empty": (72, "reserved_1:shortstr"),
            "ack": (80, "delivery_tag:longlong multiple:bit"),
            "reject": (90, "delivery_tag:longlong requeue:bit"),
            "recover-async": (100, "requeue:bit"),
            "recover": (110, "requeue:bit"),
            "recover-ok": (111, ""),
            "nack": (120, "delivery_tag:longlong multiple:bit requeue:bit"),
        },
    ),
    "confirm": (85, {"select": (10, "nowait:bit"), "select-ok": (11, "")}),
    "tx": (
        90,
        {
            "select": (10, ""),
            "select-ok": (11, ""),
            "commit": (20, ""),
            "commit-ok": (21, ""),
            "rollback": (30, ""),
            "rollback-ok": (31, ""),
        },
    ),
}

FIXED = {"octet": ("B", 1), "short": ("H", 2), "long": ("I", 4), "longlong": ("Q", 8)}
PYTHON = {"bit": "bool", "shortstr": "str", "longstr": "bytes", "table": "Table"}
DEFAULT = {"bool": "False", "str": '""', "bytes": 'b""', "Table": "None", "int": "0"}

HEAD = '''"""The AMQP methods: one slotted class each, with straight-line decode and encode.

Generated by tools/generate_amqp.py; never edited.  `decode` reads a method frame's payload from
`offset` on (4: behind class and method id) and demands that it ends exactly with the last field;
`encode` returns the complete frame.  `METHODS` finds the class by `(class_id << 16) | method_id`.
"""

# Slots stand in wire order.
# ruff: noqa: RUF023

from __future__ import annotations

from abc import ABC, abstractmethod
from struct import Struct
from struct import error as StructError
from typing import ClassVar

from brokerd.amqp.errors import EncodeError, FrameError, erlang_octets
from brokerd.amqp.values import (
    Table,
    decode_table,
    encode_longstr,
    encode_shortstr,
    encode_table,
)


def _cannot_decode(payload: bytes) -> FrameError:
    # R-FRM-5, R-ERR-28: missing or extra field bytes.
    class_id = int.from_bytes(payload[:2], "big")
    method_id = int.from_bytes(payload[2:4], "big")
    return FrameError(
        f"cannot decode {erlang_octets(payload[4:])}", class_id=class_id, method_id=method_id
    )


class Method(ABC):
    """What all methods have.  Equality compares class and fields; credentials are not shown."""

    __slots__: tuple[str, ...] = ()
    CLASS_ID: ClassVar[int]
    METHOD_ID: ClassVar[int]
    NAME: ClassVar[str]
    HAS_CONTENT: ClassVar[bool] = False
    FIELDS: ClassVar[tuple[str, ...]] = ()
    SECRETS: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def decode(cls, payload: bytes, offset: int = 4) -> Method:
        """The method in `payload`, whose fields start at `offset`."""

    @abstractmethod
    def encode(self, channel: int) -> bytes:
        """The complete frame for `channel`."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.FIELDS)

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{name}=***" if name in self.SECRETS else f"{name}={getattr(self, name)!r}"
            for name in self.FIELDS
        )
        return f"{type(self).__name__}({fields})"

'''


class Field:
    """One field of the table: its name, its AMQP type, whether it is a credential."""

    def __init__(self, text: str) -> None:
        found = re.fullmatch(r"(\w+)([:!])(\w+)", text)
        assert found is not None, text
        self.name, mark, self.kind = found.groups()
        self.is_secret = mark == "!"
        self.python = PYTHON.get(self.kind, "int")


class Writer:
    """Collects the generated text and the structs it needs."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.structs: dict[str, str] = {}

    def struct(self, layout: str) -> str:
        """The name of the module constant for a struct layout."""
        return self.structs.setdefault(layout, f"_S_{layout.replace('?', 'b')}")


def groups(fields: list[Field]) -> list[list[Field]]:
    """Neighbouring fixed-size fields together; neighbouring bits together; others alone."""
    out: list[list[Field]] = []
    for field in fields:
        same = bool(out) and (
            (field.kind in FIXED and out[-1][0].kind in FIXED)
            or (field.kind == "bit" and out[-1][0].kind == "bit")
        )
        if same:
            out[-1].append(field)
        else:
            out.append([field])
    return out


def decode_lines(writer: Writer, fields: list[Field]) -> list[str]:
    """The body of decode, inside its try."""
    lines = []
    for group in groups(fields):
        first = group[0]
        if first.kind in FIXED:
            layout = "".join(FIXED[f.kind][0] for f in group)
            size = sum(FIXED[f.kind][1] for f in group)
            names = ", ".join(f.name for f in group)
            comma = "," if len(group) == 1 else ""
            lines.append(f"{names}{comma} = {writer.struct(layout)}.unpack_from(payload, offset)")
            lines.append(f"offset += {size}")
        elif first.kind == "bit":
            lines.append("bits = payload[offset]")
            lines.append("offset += 1")
        elif first.kind == "shortstr":
            lines.append("end = offset + 1 + payload[offset]")
            lines.append(
                f'{first.name} = payload[offset + 1 : end].decode("utf-8", "surrogateescape")'
            )
            lines.append("offset = end")
        elif first.kind == "longstr":
            lines.append(f"end = offset + 4 + {writer.struct('I')}.unpack_from(payload, offset)[0]")
            lines.append(f"{first.name} = payload[offset + 4 : end]")
            lines.append("offset = end")
        else:
            lines.append(f"{first.name}, offset = decode_table(payload, offset)")
    return lines


def encode_parts(writer: Writer, fields: list[Field]) -> list[str]:
    """Expressions whose concatenation is the payload behind the ids."""
    parts = []
    for group in groups(fields):
        first = group[0]
        if first.kind in FIXED:
            layout = "".join(FIXED[f.kind][0] for f in group)
            names = ", ".join(f"self.{f.name}" for f in group)
            parts.append(f"{writer.struct(layout)}.pack({names})")
        elif first.kind == "bit":
            bits = " | ".join(
                f"self.{f.name}" if i == 0 else f"self.{f.name} << {i}" for i, f in enumerate(group)
            )
            parts.append(f"_BITS[{bits}]")
        else:
            parts.append(f"encode_{first.kind}(self.{first.name})")
    return parts


def class_text(
    writer: Writer, class_name: str, class_id: int, key: str, method_id: int, spec: str
) -> str:
    """Writes one class and returns its name."""
    has_content = key.endswith("*")
    key = key.rstrip("*")
    name = class_name.title() + "".join(part.title() for part in key.split("-"))
    fields = [Field(text) for text in spec.split()]
    names = [f.name for f in fields]
    out = writer.lines
    out += ["", f"class {name}(Method):", f'    """{class_name}.{key}"""', ""]
    out.append(f"    __slots__ = {tuple(names)!r}")
    out += [f"    CLASS_ID = {class_id}", f"    METHOD_ID = {method_id}"]
    out.append(f'    NAME = "{class_name}.{key}"')
    if has_content:
        out.append("    HAS_CONTENT = True")
    if fields:
        out.append(f"    FIELDS = {tuple(names)!r}")
    if any(f.is_secret for f in fields):
        out.append(f"    SECRETS = {tuple(f.name for f in fields if f.is_secret)!r}")
    if fields:
        out += ["", "    def __init__(", "        self,"]
        for f in fields:
            kind = "Table | None" if f.python == "Table" else f.python
            out.append(f"        {f.name}: {kind} = {DEFAULT[f.python]},")
        out.append("    ) -> None:")
        for f in fields:
            if f.python == "Table":
                out.append(f"        self.{f.name}: Table = {{}} if {f.name} is None else {f.name}")
            else:
                out.append(f"        self.{f.name} = {f.name}")
    decode_method(writer, name, fields)
    encode_method(writer, class_id, method_id, fields)
    return name


def decode_method(writer: Writer, name: str, fields: list[Field]) -> None:
    """Writes `decode`."""
    out = writer.lines
    out += ["", "    @classmethod"]
    out.append(f"    def decode(cls, payload: bytes, offset: int = 4) -> {name}:")
    if fields:
        out.append("        try:")
        out += ["            " + line for line in decode_lines(writer, fields)]
        out.append("        except (IndexError, StructError):")
        out.append("            raise _cannot_decode(payload) from None")
    out += ["        if offset != len(payload):", "            raise _cannot_decode(payload)"]
    arguments = []
    for group in groups(fields):
        if group[0].kind == "bit":
            arguments += [f"bits & {1 << i} != 0" for i, _ in enumerate(group)]
        else:
            arguments += [f.name for f in group]
    out.append(f"        return cls({', '.join(arguments)})")


def encode_method(writer: Writer, class_id: int, method_id: int, fields: list[Field]) -> None:
    """Writes `encode`."""
    out = writer.lines
    ids = class_id.to_bytes(2, "big") + method_id.to_bytes(2, "big")
    out += ["", "    def encode(self, channel: int) -> bytes:"]
    if not fields:
        out.append("        return _HEAD.pack(1, channel, 4) + " + repr(ids + b"\xce"))
        return
    out.append("        try:")
    parts = [repr(ids), *encode_parts(writer, fields)]
    out.append("            payload = (")
    out.append(f"                {parts[0]}")
    out += [f"                + {part}" for part in parts[1:]]
    out.append("            )")
    out.append('            return _HEAD.pack(1, channel, len(payload)) + payload + b"\\xce"')
    out.append("        except StructError as error:")
    out.append('            raise EncodeError(f"{self.NAME}: {error}") from error')


def generate() -> str:
    """The whole file, before formatting."""
    writer = Writer()
    names: list[str] = []
    for class_name, (class_id, methods) in TABLE.items():
        for key, (method_id, spec) in methods.items():
            names.append(class_text(writer, class_name, class_id, key, method_id, spec))
    structs = [f'{name} = Struct(">{layout}")' for layout, name in writer.structs.items()]
    fixed = ['_HEAD = Struct(">BHI")', "_BITS = tuple(bytes((octet,)) for octet in range(32))"]
    table = ["", "", "METHODS: dict[int, type[Method]] = {"]
    table += ["    (cls.CLASS_ID << 16) | cls.METHOD_ID: cls", "    for cls in ("]
    table += [f"        {name}," for name in names] + ["    )", "}"]
    return HEAD + "\n".join([*fixed, *structs, *writer.lines, *table]) + "\n"


def formatted(text: str) -> str:
    """The text as ruff writes it."""
    ruff = Path(sys.executable).parent / "ruff"
    done = subprocess.run(
        [str(ruff), "format", "--stdin-filename", str(TARGET), "-"],
        input=text.encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    return done.stdout.decode()


def main() -> int:
    """Writes or checks the file."""
    text = formatted(generate())
    if "--check" in sys.argv[1:]:
        if TARGET.read_text() != text:
            print("brokerd/amqp/methods.py is not fresh: run tools/generate_amqp.py")
            return 1
        return 0
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
