"""Runs router transcripts: a line per command, what came of it indented below.

    > exchange NAME TYPE [durable auto_delete internal] [alternate-exchange=AE …]
    > queue NAME [x-queue-type=quorum …]
    > bind SOURCE DESTINATION KEY [argument=value …]     bind-exchange, unbind, unbind-exchange too
    > policy NAME PATTERN key=value …     > delete KIND NAME     > vhost NAME
    > publish EXCHANGE KEY [cc=KEY …] [header=value …]

`''` stands for the empty name or key.  Changes are shown as + or -, refusals with their code,
routes as queues and the alternates that were used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brokerd.core.catalog.refusals import Refused
from tests.transcripts.scenarios import Runner
from tests.unit.core.catalog_driver import CatalogDriver

_FLAGS = ("durable", "auto_delete", "internal", "exclusive")


class Transcript(Runner):
    """One catalog and its router, driven by lines."""

    def __init__(self) -> None:
        self.catalog = CatalogDriver()

    def step(self, line: str) -> list[str]:
        self.catalog.effects = []
        command, *words = line.split()
        plain = [word.strip("'") for word in words if "=" not in word]
        values = [tuple(word.split("=", 1)) for word in words if "=" in word]
        return _STEPS[command](self, plain, [(key, _value(text)) for key, text in values])

    def _changes(self, answer: Any = None) -> list[str]:
        if isinstance(answer, Refused):
            return [f"{answer.code} {answer.text}"]
        return [f"{sign} {kind} {name}" for sign, kind, name in self.catalog.changed()] or [
            "nothing changed"
        ]

    def exchange(self, words: list[str], values: list[tuple[str, Any]]) -> list[str]:
        name, type_, *flags = words
        more = dict.fromkeys([flag for flag in flags if flag in _FLAGS], True)
        return self._changes(self.catalog.exchange(name, type_, arguments=dict(values), **more))

    def queue(self, words: list[str], values: list[tuple[str, Any]]) -> list[str]:
        more = dict.fromkeys([flag for flag in words[1:] if flag in _FLAGS], True)
        return self._changes(self.catalog.queue(words[0], arguments=dict(values), **more))

    def _bind(
        self, method: str, words: list[str], values: list[tuple[str, Any]], kind: str = "queue"
    ) -> Any:
        source, destination, key = words
        return getattr(self.catalog, method)(source, destination, key, dict(values), kind)

    def bind(self, words: list[str], values: list[tuple[str, Any]]) -> list[str]:
        return self._changes(self._bind("bind", words, values))

    def bind_exchange(self, words: list[str], values: list[tuple[str, Any]]) -> list[str]:
        return self._changes(self._bind("bind", words, values, "exchange"))

    def unbind(self, words: list[str], values: list[tuple[str, Any]]) -> list[str]:
        return self._changes(self._bind("unbind", words, values))

    def unbind_exchange(self, words: list[str], values: list[tuple[str, Any]]) -> list[str]:
        return self._changes(self._bind("unbind", words, values, "exchange"))

    def policy(self, words: list[str], values: list[tuple[str, Any]]) -> list[str]:
        spec = {"pattern": words[1], "definition": dict(values)}
        self.catalog.put("policy", words[0], spec)
        return self._changes()

    def vhost(self, words: list[str], values: list[tuple[str, Any]]) -> list[str]:
        self.catalog.put("vhost", words[0], dict(values), vhost="")
        return self._changes()

    def delete(self, words: list[str], values: list[tuple[str, Any]]) -> list[str]:
        reply = self.catalog.delete(words[0], words[1])
        return self._changes() if reply["code"] == "OK" else [f"{reply['code']} {reply['text']}"]

    def publish(self, words: list[str], values: list[tuple[str, Any]]) -> list[str]:
        keys = tuple(str(value) for key, value in values if key == "cc")
        headers = {key: value for key, value in values if key != "cc"}
        result = self.catalog.route(words[0], words[1], extra_keys=keys)
        shown = []
        if result.needs_headers:
            shown.append("headers decide")
            result = self.catalog.route(words[0], words[1], headers=headers, extra_keys=keys)
        if result.exchange is None:
            return [*shown, "no such exchange"]
        shown += [f"{source} has no match: on to {target}" for source, target in result.alternates]
        if result.ae_missing is not None:
            shown.append("alternate {1} of {0} does not exist".format(*result.ae_missing))
        if result.ae_cycle:
            shown.append("the chain of alternates comes back to where it was")
        names = [queue.name for queue in result.queues]
        return [*shown, f"to {', '.join(names)}" if names else "unroutable"]


def _value(text: str) -> Any:
    return int(text) if text.lstrip("-").isdigit() else text


_STEPS: dict[str, Callable[[Transcript, list[str], list[tuple[str, Any]]], list[str]]] = {
    "exchange": Transcript.exchange,
    "queue": Transcript.queue,
    "bind": Transcript.bind,
    "bind-exchange": Transcript.bind_exchange,
    "unbind": Transcript.unbind,
    "unbind-exchange": Transcript.unbind_exchange,
    "policy": Transcript.policy,
    "vhost": Transcript.vhost,
    "delete": Transcript.delete,
    "publish": Transcript.publish,
}
