"""Redrives a million dead letters while leaders are killed, and counts what becomes of each.

`make redrive-nightly LETTERS=N`.  Letters of 37 kinds die by rejection in five quorum queues of
three members.  Then one of these queues is deleted, one has no consumers, and the consumers of the
others acknowledge most and reject some kinds' letters again.  The consumers' own books must give
each letter exactly one fate, and the receipt must say the same of each kind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pika
import pika.exceptions

from tests.integration.management.test_http_api import ask
from tests.integration.members import Member, cluster, eventually, select_nothing, wait_acquainted

KINDS = 37
DEAD = "dead"
#: Consumers of these are there while the job runs; those of the next see nothing; the last is
#: deleted before the job begins.
WORKED, IDLE, GONE = ("orders", "mails", "bills"), "idle", "gone"
ORIGINS = (*WORKED, IDLE, GONE)
#: Each kill is a delivery of what consumers held, so there is no limit of these; and no letter may
#: be lost on its second way to the dead letters.
ORIGIN_ARGUMENTS = {
    "x-queue-type": "quorum",
    "x-delivery-limit": -1,
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": DEAD,
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}
REDRIVE_HEADER = "x-redrive-id"
PREFETCH = 500
#: Nothing moves for so long: something is lost.
STILL_SECONDS = 90.0
LOST = (pika.exceptions.AMQPError, OSError)
FATES = ("acknowledged", "died_again", "waiting", "stayed")


def kind_of(letter: int) -> int:
    return letter % KINDS


def origin_of(letter: int) -> str:
    return ORIGINS[kind_of(letter) % len(ORIGINS)]


def dies_again(letter: int) -> bool:
    """Say whether consumers reject it: of some kinds a third, so that groups have several fates."""
    return kind_of(letter) % 7 == 3 and letter // KINDS % 3 == 0


@dataclass
class Books:
    """What consumers saw of each letter.  Threads of different queues share no letter."""

    letters: int
    #: The place in the redrive's id by which a letter came; -1: it did not come.
    places: array[int] = field(init=False)
    #: Fates of letters, as bits in the order of FATES.
    fates: bytearray = field(init=False)
    #: What the place follows in all ids.
    sources: set[str] = field(default_factory=set)
    #: Letters that came once more: surely as another copy, or delivered again as the same one.
    copies: Counter[str] = field(default_factory=Counter)
    redelivered: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.places = array("q", [-1]) * self.letters
        self.fates = bytearray(self.letters)

    def came(self, queue: str, letter: int, headers: dict[str, Any], is_redelivered: bool) -> None:
        """Note a delivery of a copy."""
        source, _, place = str(headers.get(REDRIVE_HEADER, "")).partition(":")
        self.sources.add(source)
        known = self.places[letter]
        if not place or origin_of(letter) != queue or known not in (-1, int(place)):
            self.wrong.append(f"letter {letter} in {queue!r} with {headers}, before: {known}")
        elif known == -1:
            self.places[letter] = int(place)
        else:
            (self.redelivered if is_redelivered else self.copies)[queue] += 1

    def settle(self, letter: int, fate: str) -> None:
        """Note what became of it."""
        self.fates[letter] |= 1 << FATES.index(fate)

    def settled(self) -> int:
        """Return of how many letters a fate is known."""
        return self.letters - self.fates.count(0)

    def by_kind(self) -> dict[int, dict[str, int]]:
        """Return how many letters of each kind have which fate."""
        found: dict[int, dict[str, int]] = {}
        for kind in range(KINDS):
            counted = Counter(self.fates[kind::KINDS])
            found[kind] = {name: counted[1 << bit] for bit, name in enumerate(FATES)}
        return found

    def check(self) -> None:
        """Each letter has one fate and one id, and no two have the same."""
        assert not self.wrong, (len(self.wrong), self.wrong[:5])
        odd = [n for n, fate in enumerate(self.fates) if fate.bit_count() != 1]
        assert not odd, (len(odd), [(n, origin_of(n), self.fates[n]) for n in odd[:10]])
        places = [place for place in self.places if place >= 0]
        assert len(set(places)) == len(places)
        assert len(self.sources) == 1, self.sources


@dataclass(slots=True)
class Figures:
    """What a run has shown."""

    letters: int
    kills: int = 0
    dying_s: float = 0.0
    job_s: float = 0.0
    sent_a_second: int = 0
    #: Second copies: as the receipt counts them, as consumers saw them for sure, and what was
    #: delivered to a consumer again, which may be of either.
    duplicates: int = 0
    copies_seen: int = 0
    redelivered: int = 0
    #: Letters that came to the dead letters twice, as at-least-once allows.
    died_twice: int = 0
    fates: dict[str, int] = field(default_factory=dict)


# ---- letters die ---------------------------------------------------------------------------------


def let_die(member: Member, letters: int) -> None:
    """Publish and reject, and wait until all are dead letters."""
    with channel_to([member]) as channel:
        channel.queue_declare(DEAD, durable=True, arguments={"x-queue-type": "quorum"})
        for queue in ORIGINS:
            channel.queue_declare(queue, durable=True, arguments=ORIGIN_ARGUMENTS)
        rejecter = threading.Thread(target=_reject, args=(member, letters))
        rejecter.start()
        for letter in range(letters):
            properties = pika.BasicProperties(type=f"kind-{kind_of(letter)}", delivery_mode=2)
            channel.basic_publish("", origin_of(letter), b"%d" % letter, properties)
        rejecter.join()
        wait_moving(lambda: count(channel, DEAD), letters, "dead letters")
        channel.queue_delete(GONE)


def _reject(member: Member, letters: int) -> None:
    with channel_to([member]) as channel:
        channel.basic_qos(prefetch_count=4 * PREFETCH, global_qos=False)
        rejected = 0

        def reject(_channel: object, method: Any, *_: object) -> None:
            nonlocal rejected
            rejected += 1
            if rejected % 100 == 0 or rejected > letters - len(ORIGINS) * PREFETCH:
                channel.basic_nack(method.delivery_tag, multiple=True, requeue=False)

        for queue in ORIGINS:
            channel.basic_consume(queue, reject)
        while rejected < letters:
            channel.connection.process_data_events(1)


@contextlib.contextmanager
def channel_to(members: list[Member], turn: int = 0) -> Iterator[Any]:
    """Connect to a member; raises one of LOST where it is down."""
    connection = members[turn % len(members)].connect(heartbeat=0)
    try:
        yield connection.channel()
    finally:
        with contextlib.suppress(*LOST):
            connection.close()


def count(channel: Any, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def wait_moving(look: Callable[[], int], target: int, what: str) -> None:
    """Wait for a number that grows; fail when it stands still, or is passed."""
    last, moved_s = -1, time.monotonic()
    while (now := look()) != target:
        assert now < target, f"{what}: {now}, more than {target}"
        if now != last:
            last, moved_s = now, time.monotonic()
        assert time.monotonic() - moved_s < STILL_SECONDS, f"{what}: {now} of {target}"
        select_nothing(0.2)


# ---- they go back --------------------------------------------------------------------------------


def work(members: list[Member], queue: str, books: Books, is_over: threading.Event) -> None:
    """Consume a queue until told to stop, whoever is killed."""
    turn = WORKED.index(queue)
    while not is_over.is_set():
        turn += 1
        with contextlib.suppress(*LOST), channel_to(members, turn) as channel:
            channel.basic_qos(prefetch_count=PREFETCH)
            for method, properties, body in channel.consume(queue, inactivity_timeout=0.5):
                if is_over.is_set():
                    return
                if method is None:
                    continue
                letter = int(body)
                books.came(queue, letter, properties.headers or {}, method.redelivered)
                if dies_again(letter):
                    channel.basic_nack(method.delivery_tag, requeue=False)
                    books.settle(letter, "died_again")
                else:
                    channel.basic_ack(method.delivery_tag)
                    books.settle(letter, "acknowledged")
        is_over.wait(0.1)


def http(members: list[Member], method: str, path: str, body: Any = None) -> Any:
    """Return what the first member answers that can; None: none can."""
    raw = None if body is None else json.dumps(body).encode()
    for member in members:
        with contextlib.suppress(OSError):
            status, _, text = ask(member, method, f"/api/{path}", raw)
            if status in (200, 201):
                return json.loads(text)
    return None


def newest_job(members: list[Member]) -> Any:
    found = http(members, "GET", f"queues/%2F/{DEAD}/jobs")
    return found[0] if found else None


def kinds_by_group(members: list[Member], letters: int) -> dict[str, int]:
    """Triage: each kind is a group, of all its letters.  Return the kinds by fingerprint."""
    kinds: dict[str, int] = {}
    counted: Counter[int] = Counter()
    token = ""
    while token is not None:
        page = http(members, "GET", f"queues/%2F/{DEAD}/triage?page_token={token}")
        for row in page["groups"]:
            kind = int(row["type"].removeprefix("kind-"))
            assert kinds.setdefault(row["fingerprint"], kind) == kind
            counted[kind] += row["messages"]
        token = page["next_page_token"]
    assert len(kinds) == KINDS, kinds
    assert counted == Counter(kind_of(letter) for letter in range(letters))
    return kinds


def kill_leaders(members: list[Member], every_s: float, kills_max: int, figures: Figures) -> None:
    """Kill the leader of the dead letters or of an origin, by turns, until the job has ended."""
    last_s = time.monotonic()
    last, moved_s = -1, last_s
    while (job := newest_job(members)) is None or job["ended_ms"] is None:
        now_s = time.monotonic()
        if job is not None and job["looked_at"] + job["total"]["sent"] != last:
            last, moved_s = job["looked_at"] + job["total"]["sent"], now_s
        assert now_s - moved_s < STILL_SECONDS, f"the job stands still: {job}"
        if figures.kills < kills_max and now_s - last_s >= every_s:
            queue = (DEAD, *WORKED)[figures.kills % 4] if figures.kills % 2 else DEAD
            row = http(members, "GET", f"queues/%2F/{queue}")
            victim = next((m for m in members if row and m.name == row["leader"]), None)
            if victim is not None:
                victim.kill()
                figures.kills += 1
                victim.start()
                victim.wait_ready()
                wait_acquainted(members)
                last_s = time.monotonic()
        select_nothing(0.1)


def drain(members: list[Member], queue: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Take all that is there."""
    with channel_to(members) as channel:
        for method, properties, body in channel.consume(
            queue, auto_ack=True, inactivity_timeout=3.0
        ):
            if method is None:
                if not count(channel, queue):
                    return
                continue
            yield int(body), properties.headers or {}


def run(
    folder: Path, letters: int, every_s: float, kills_max: int = 1 << 30, rate: int = 0
) -> Figures:
    """Return what was seen; AssertionError: a letter without its one fate, or a wrong receipt."""
    figures, books = Figures(letters), Books(letters)
    with cluster(folder, 3, BROKERD_AUTH_SCRYPT_LOG2_N="10") as members:
        began_s = time.monotonic()
        let_die(members[0], letters)
        figures.dying_s = round(time.monotonic() - began_s, 1)
        groups = kinds_by_group(members, letters)
        say(f"{letters} letters are dead after {figures.dying_s} s")
        is_over = threading.Event()
        threads = [
            threading.Thread(target=work, args=(members, queue, books, is_over)) for queue in WORKED
        ]
        for thread in threads:
            thread.start()
        try:
            order = {"kind": "redrive", "rate": rate}
            assert http(members, "POST", f"queues/%2F/{DEAD}/jobs", order) is not None
            kill_leaders(members, every_s, kills_max, figures)
            worked = sum(origin_of(n) in WORKED for n in range(letters))
            wait_moving(books.settled, worked, "letters that consumers have settled")
            receipt = _quiet_receipt(members, worked)
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        for letter, headers in drain(members, IDLE):
            books.came(IDLE, letter, headers, is_redelivered=False)
            books.settle(letter, "waiting")
        _drain_dead(members, books, figures)
    _compare(receipt, groups, books, figures)
    return figures


def _quiet_receipt(members: list[Member], worked: int) -> Any:
    """Return the receipt once targets have counted what consumers did."""
    return eventually(
        lambda: (
            (job := newest_job(members))
            and job["total"]["acknowledged"] + job["total"]["died_again"] >= worked
            and job
        ),
        f"{worked} settled letters in {newest_job(members)}",
    )


def _drain_dead(members: list[Member], books: Books, figures: Figures) -> None:
    """What was redriven died again, under the id by which it came; the rest stayed."""
    again = bytearray(books.letters)
    for letter, headers in drain(members, DEAD):
        place = str(headers.get(REDRIVE_HEADER, "")).partition(":")[2]
        if not place:
            books.settle(letter, "stayed")
        elif int(place) != books.places[letter]:
            books.wrong.append(f"letter {letter} is dead with {place}")
        figures.died_twice += bool(again[letter])
        again[letter] = 1
    died = 1 << FATES.index("died_again")
    gone = [n for n, fate in enumerate(books.fates) if fate & died and not again[n]]
    assert not gone, f"{len(gone)} letters died again and are nowhere: {gone[:10]}"


def _compare(receipt: Any, groups: dict[str, int], books: Books, figures: Figures) -> None:
    total = receipt["total"]
    figures.job_s = round((receipt["ended_ms"] - receipt["started_ms"]) / 1000, 1)
    figures.sent_a_second = round(total["sent"] / figures.job_s)
    figures.duplicates = total["duplicates"]
    figures.copies_seen = books.copies.total()
    figures.redelivered = books.redelivered.total()
    books.check()
    counted = books.by_kind()
    figures.fates = {name: sum(each[name] for each in counted.values()) for name in FATES}
    assert receipt["state"] == "done", receipt
    for name, kind in groups.items():
        found = receipt["groups"][name]
        said = {fate: found[fate] for fate in FATES[:3]} | {"stayed": sum(found["stayed"].values())}
        assert said == counted[kind], (kind, said, counted[kind], figures)
        assert found["sent"] == sum(said[fate] for fate in FATES[:3]), (kind, found)
        assert (found["removed"], found["unknown"]) == (0, 0), (kind, found)
    assert total["stayed"] == {"origin is gone": figures.fates["stayed"]}
    most = figures.copies_seen + figures.redelivered
    assert figures.copies_seen <= figures.duplicates <= most, figures


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Print the figures as JSON; the status says whether all agreed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--letters", type=int, default=1_000_000)
    parser.add_argument("--every-s", type=float, default=10.0, help="between kills")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-kills-") as name:
        figures = run(Path(name), options.letters, options.every_s)
    print(json.dumps(asdict(figures)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
