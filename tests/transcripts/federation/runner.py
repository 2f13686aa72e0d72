"""Runs link transcripts: a line per event, the actions it leads to indented below.

    > link [max-hops=N] [ack-mode=MODE] [reconnect-delay=S] [trust-user-id=true] [cleanup=never]
           [ends-after=N|queue-length] [unroutable=drop]
    > start     > connected     > prepared [messages=N]    > failed TEXT     > stop     > remove
    > deliver TAG [from=CLUSTER/VHOST,…] [user=NAME] [stamp=MS] [redelivered] [size=BYTES] [broken]
              [count=N]
    > answer TAG… [refused=TAG,…] [old]     > alarm [REASON]     > at MS     > status
    > blocked [REASON] [old]     > demand yes|no [old]     > returned TAG… [key=KEY] [old]
    > due [old]

Our cluster is `orders`, vhost `/`; the upstream is `warehouse`, vhost `up`, exchange `stock`.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.amqp.properties import BasicProperties, headers, user_id
from brokerd.amqp.values import Table, Value
from brokerd.federation import link_events, upstream
from brokerd.federation.link_events import Action
from brokerd.federation.link_headers import ExchangePassage
from brokerd.federation.link_state import FederationLink
from tests.transcripts.scenarios import Runner

Words = list[str]
Values = dict[str, str]


class Transcript(Runner):
    """One link, driven by lines."""

    def __init__(self) -> None:
        self.now_ms = 0
        #: As they were forwarded, by tag.
        self.headers: dict[int, bytes] = {}
        self.link = self._make({})

    def _make(self, values: Values) -> FederationLink:
        definition: dict[str, object] = {"uri": "amqp://u:p@upstream:1/up"}
        ends_after: int | str | None = None
        drops = values.pop("unroutable", "") == "drop"
        for key, text in values.items():
            if key in ("max-hops", "reconnect-delay"):
                definition[key] = int(text)
            elif key == "trust-user-id":
                definition[key] = text == "true"
            elif key == "ends-after":
                ends_after = int(text) if text.isdigit() else text
            elif key == "cleanup":
                definition["resource-cleanup-mode"] = text
            else:
                definition[key] = text
        warehouse = upstream.parse("warehouse", definition)
        passage = ExchangePassage("orders", "/", "stock", warehouse)
        return FederationLink(warehouse, passage, ends_after, drops_unroutable=drops)

    def check(self) -> None:
        """See Runner."""
        self.link.check_invariants()

    def step(self, line: str) -> list[str]:
        """Handle one event."""
        command, *words = line.split()
        plain = [word for word in words if "=" not in word]
        values = dict(word.split("=", 1) for word in words if "=" in word)
        return _STEPS[command](self, plain, values)

    def _handle(self, event: link_events.Event) -> list[str]:
        actions = self.link.handle(event)
        for action in actions:
            if isinstance(action, link_events.Forward):
                tags = range(action.tag, action.tag + len(action.bodies))
                self.headers.update(dict.fromkeys(tags, action.header))
        return [shown(action) for action in actions] or ["nothing"]

    def make(self, _: Words, values: Values) -> list[str]:
        self.link = self._make(values)
        return ["ok"]

    def at(self, words: Words, _: Values) -> list[str]:
        self.now_ms = int(words[0])
        return ["ok"]

    def start(self, _: Words, __: Values) -> list[str]:
        return self._handle(link_events.Started(self.now_ms))

    def connected(self, _: Words, __: Values) -> list[str]:
        uri = "amqp://upstream:1/up"
        return self._handle(link_events.Connected(self.now_ms, uri, "warehouse", "up", "local:9"))

    def prepared(self, _: Words, values: Values) -> list[str]:
        messages = int(values.get("messages", "0"))
        return self._handle(link_events.Prepared(self.now_ms, messages))

    def failed(self, words: Words, _: Values) -> list[str]:
        return self._handle(link_events.Failed(self.now_ms, " ".join(words)))

    def stop(self, _: Words, __: Values) -> list[str]:
        return self._handle(link_events.StopRequested(self.now_ms, False))

    def remove(self, _: Words, __: Values) -> list[str]:
        return self._handle(link_events.StopRequested(self.now_ms, True))

    def alarm(self, words: Words, _: Values) -> list[str]:
        return self._handle(link_events.AlarmChanged(self.now_ms, " ".join(words)))

    def blocked(self, words: Words, _: Values) -> list[str]:
        reason = " ".join(word for word in words if word != "old")
        event = link_events.DestinationBlocked(self.now_ms, self._session(words), reason)
        return self._handle(event)

    def demand(self, words: Words, _: Values) -> list[str]:
        return self._handle(link_events.DemandChanged(self._session(words), words[0] == "yes"))

    def missed(self, words: Words, _: Values) -> list[str]:
        return self._handle(link_events.DemandMissed(self._session(words)))

    def _session(self, words: Words) -> int:
        return self.link.session - 1 if "old" in words else self.link.session

    def deliver(self, words: Words, values: Values) -> list[str]:
        table: Table = {}
        if "from" in values:
            entries: list[Value] = []
            for place in values["from"].split(","):
                cluster, vhost = place.split("/", 1)
                entries.append({"cluster-name": cluster, "vhost": vhost})
            table["x-received-from"] = entries
        if "stamp" in values:
            table["timestamp_in_ms"] = int(values["stamp"])
        header = BasicProperties(
            headers=table or None, user_id=values.get("user"), message_id="m"
        ).encode()
        if "broken" in words:
            # A headers table that ends in the middle of a value.
            header = b"\x20\x00\x00\x00\x00\x04\x01aS\x00"
        return self._handle(
            link_events.Delivered(
                int(words[0]),
                "redelivered" in words,
                "stock",
                "key",
                header,
                [b"x" * int(values.get("size", "4"))] * int(values.get("count", "1")),
                self.now_ms,
            )
        )

    def answer(self, words: Words, values: Values) -> list[str]:
        answers = [(int(word), 1, True) for word in words if word != "old"]
        answers += [(int(tag), 1, False) for tag in values.get("refused", "").split(",") if tag]
        return self._handle(link_events.Answered(self._session(words), answers, self.now_ms))

    def returned(self, words: Words, values: Values) -> list[str]:
        """Messages come back from the exchange `out`."""
        key = values.get("key", "key")
        back = [
            link_events.Unrouted(int(tag), "out", key, self.headers[int(tag)], b"back")
            for tag in words
            if tag != "old"
        ]
        return self._handle(link_events.Returned(self._session(words), back, self.now_ms))

    def due(self, words: Words, _: Values) -> list[str]:
        return self._handle(link_events.RouteDue(self._session(words), self.now_ms))

    def status(self, _: Words, __: Values) -> list[str]:
        row = self.link.status()
        figures = self.link.overview()
        keys: tuple[str, ...] = (
            "in",
            "in_bytes",
            "in_flight",
            "drop_maxhops",
            "drop_loop",
            "drop_malformed",
        )
        keys += ("refused", "reconnects", "lag_count", "lag_sum_ms", "lag_max_ms")
        keys += ("unrouted", "unroutable", "unroutable_dropped")
        counted = " ".join(f"{key}={figures[key]!r}" for key in keys if figures[key])
        return [
            f"{row['status']} since={row['since_ms']} uri={row['uri']} error={row['error']!r}",
            counted or "nothing counted",
        ]


def shown(action: Action) -> str:
    """Write an action down."""
    if isinstance(action, link_events.Forward):
        received = headers(action.header)["x-received-from"]
        assert isinstance(received, list)
        places = []
        for entry in received:
            assert isinstance(entry, dict)
            mark = "*" if entry.get("redelivered") else ""
            places.append(f"{entry['cluster-name']!s}/{entry['vhost']!s}{mark}")
        name = user_id(action.header)
        tags = str(action.tag)
        if len(action.bodies) > 1:
            tags += f"-{action.tag + len(action.bodies) - 1}"
        again = f" again to {action.exchange} {action.routing_key}" if action.exchange else ""
        who = f" user {name}" if name else ""
        return f"forward {tags} from {' '.join(places)}{who}{again}"
    return _SHOWN[type(action)](action)


_SHOWN: dict[type, Callable[..., str]] = {
    link_events.Connect: lambda a: f"connect session={a.session} in {a.delay_ms} ms",
    link_events.Acknowledge: lambda a: f"ack {a.tag}" + (" multiple" if a.multiple else ""),
    link_events.Requeue: lambda a: f"requeue {a.tag} in {a.delay_ms} ms",
    link_events.Consume: lambda a: "consume",
    link_events.CancelConsume: lambda a: "cancel",
    link_events.AwaitDemand: lambda a: f"await demand {a.delay_ms} ms",
    link_events.AwaitRoute: lambda a: f"try again in {a.delay_ms} ms",
    link_events.TellDropped: lambda a: f"dropped {a.count} for {a.exchange} {a.routing_key}",
    link_events.HoldReading: lambda a: "hold reading",
    link_events.ResumeReading: lambda a: "read on",
    link_events.Disconnect: lambda a: "disconnect" + (" and clean up" if a.cleans_up else ""),
    link_events.Finish: lambda a: "finish",
}
_STEPS: dict[str, Callable[[Transcript, Words, Values], list[str]]] = {
    "link": Transcript.make,
    "at": Transcript.at,
    "start": Transcript.start,
    "connected": Transcript.connected,
    "prepared": Transcript.prepared,
    "failed": Transcript.failed,
    "stop": Transcript.stop,
    "remove": Transcript.remove,
    "alarm": Transcript.alarm,
    "blocked": Transcript.blocked,
    "demand": Transcript.demand,
    "missed": Transcript.missed,
    "deliver": Transcript.deliver,
    "answer": Transcript.answer,
    "returned": Transcript.returned,
    "due": Transcript.due,
    "status": Transcript.status,
}
