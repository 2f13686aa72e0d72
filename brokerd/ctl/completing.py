"""What a shell may complete: words that are known, and names that the broker is asked for.

A broker that is away, or lets nobody in, completes nothing; it is asked for two seconds at most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import click

from brokerd.ctl import errors
from brokerd.ctl.settings import Settings

Complete = Callable[[click.Context, click.Parameter, str], list[str]]

#: A person waits for this at a prompt.
TIMEOUT_S = 2.0
#: Names that one listing offers.
NAMES_MAX = 500


def of_words(words: Iterable[str]) -> Complete:
    """Return what completes one of these words."""
    known = tuple(words)

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        return [word for word in known if word.startswith(incomplete)]

    return complete


def _of_objects(kind: str) -> Complete:
    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        from brokerd.ctl.client import connect

        chosen = dataclasses.replace(context.ensure_object(Settings), timeout_s=TIMEOUT_S)
        try:
            with connect(chosen) as client:
                found = [item.name for item in client.objects(kind, chosen.vhost)]
        except errors.CtlError:
            return []
        return sorted(name for name in found if name and name.startswith(incomplete))[:NAMES_MAX]

    return complete


queue_names = _of_objects("queue")
exchange_names = _of_objects("exchange")
