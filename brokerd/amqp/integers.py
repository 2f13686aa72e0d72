"""Integers that go out as a field type of their own.  For `values.py`, which offers them to others.

A module of its own because mypyc compiles no class that inherits from a built-in type: this one
stays Python where the rest of the room is compiled.
"""

from __future__ import annotations


class Timestamp(int):
    """Seconds since 1970, type `T`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Timestamp({int(self)})"


class Long(int):
    """An integer that goes out as type `l` however small, as RabbitMQ sends its counts (R-DLX-22):
    Java's clients cast them.  Never comes in.
    """

    __slots__ = ()
