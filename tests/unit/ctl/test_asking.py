"""A person is asked before messages go; a script is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import click
import pytest

from brokerd.ctl import objects
from brokerd.ctl.client import AdminClient
from brokerd.ctl.settings import Settings

Ask = Callable[..., None]


class OneQueue:
    """A member with three messages in the queue q."""

    def live_rows(self, kind: str, vhost: str) -> list[dict[str, Any]]:
        assert (kind, vhost) == ("queues", "/")
        return [{"name": "q", "messages": 3}, {"name": "empty", "messages": 0}]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Ask at a terminal."""
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)

    def asked(name: str, *, stands_in: bool = False) -> None:
        client = cast(AdminClient, OneQueue())
        chosen = Settings(stands_in=stands_in)
        objects._ask(client, chosen, name, "Delete", ("messages", "messages"))

    return asked


def test_a_no_ends_the_command_and_says_what_did_not_happen(
    monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "n")
    told: list[str] = []
    monkeypatch.setattr(click, "echo", lambda text, err: told.append(text))
    with pytest.raises(click.Abort):
        ask("q")
    assert told == ["nothing was deleted"]


def test_a_yes_goes_on(monkeypatch: pytest.MonkeyPatch, ask: Ask) -> None:
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "y")
    ask("q")


@pytest.mark.parametrize("name", ["empty", "nothing"])
def test_where_no_message_goes_nothing_is_asked(ask: Ask, name: str) -> None:
    ask(name)


def test_rabbitmqctl_does_not_ask(ask: Ask) -> None:
    ask("q", stands_in=True)


def test_a_script_is_not_asked(monkeypatch: pytest.MonkeyPatch, ask: Ask) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    ask("q")
