"""Filters of messages: a text in a subset of CEL, compiled once, asked about each message.

    chosen = compile_filter('death.reason == "rejected" && headers["tenant"] == "a"')
    chosen.matches(view)

For whatever looks at messages or takes some of them out of many (browse, triage, redrive).  Pure.
The view of a message (`ports.py`) is the caller's.  docs/reference/filters.md is the language.
"""

from __future__ import annotations

from brokerd.core.filters.compiler import Compiler
from brokerd.core.filters.fields import Part
from brokerd.core.filters.ports import MessageView
from brokerd.core.filters.syntax import parse
from brokerd.core.filters.tokens import tokens_of, without_literals


class Filter:
    """A compiled filter.  It holds no state of messages; any thread may use it."""

    __slots__ = ("_evaluate", "_shown", "needs_body", "needs_head", "searches", "text")

    def __init__(self, text: str) -> None:
        tokens = tokens_of(text)
        compiler = Compiler(text)
        self._evaluate = compiler.condition(parse(tokens, text))
        self._shown = without_literals(tokens)
        self.text = text
        #: It asks for the body.
        self.needs_body = compiler.part is Part.BODY
        #: It asks for more than the queue knows without the message.
        self.needs_head = compiler.part is not Part.QUEUE
        #: It has regular expressions: evaluate it in a thread.  A hostile one on a hostile text of
        #: 64 KiB takes up to 0.8 s, without the interpreter's lock; a condition of anything else is
        #: done in microseconds.
        self.searches = compiler.program_size > 0

    def matches(self, message: MessageView) -> bool:
        """Say whether the filter is true for a message; never raises for what is in it."""
        return self._evaluate(message) is True

    def without_literals(self) -> str:
        """Return the text with `?` for each literal: those are often personal data (audit log)."""
        return self._shown

    def __repr__(self) -> str:
        return f"Filter({self._shown})"


def compile_filter(text: str) -> Filter:
    """Return the filter; FilterError says what is wrong with the text, where, and what to do."""
    return Filter(text)
