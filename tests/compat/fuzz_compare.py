"""Plays one sequence on two servers, step by step, and compares what each answers.

The reference is RabbitMQ, or a brokerd of another form and size (a metamorphic run).  After a step
both are read until they agree, or until they had time enough: what is compared is therefore what
the servers end at, and in which order on each channel, not how quickly.  A difference from RabbitMQ
that docs/compatibility.md explains ends the sequence as explained; `shrink` takes away what a
difference does not need.  Used by `fuzz.py` and the tests of the fuzzer.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from brokerd.amqp import methods
from tests.compat.fuzz_player import Event, Player, Silent
from tests.compat.fuzz_sequences import Step

#: Two loaded cores; a difference costs this much, agreement costs nothing.
PATIENCE_SECONDS = 2.0
SHRINK_PATIENCE_SECONDS = 1.0
SHRINK_RUNS_MAX = 150
_runs = itertools.count(1)


@dataclass(slots=True)
class Difference:
    """The first step after which the servers do not agree, with what each of them said."""

    number: int
    step: Step
    reference: list[str]
    brokerd: list[str]
    #: The row of docs/compatibility.md, "" when nothing explains it.
    explanation: str = ""

    def text(self) -> str:
        """What each server said and the other did not."""
        lines = [f"step {self.number}: {self.step}"]
        expected, found = self.reference, self.brokerd
        lines += [f"  only the reference: {line}" for line in expected if line not in found]
        lines += [f"  only brokerd:       {line}" for line in found if line not in expected]
        return "\n".join(lines)


@dataclass(slots=True, frozen=True)
class Servers:
    """AMQP ports of the two servers' members, and the vhost of the runs in both."""

    reference: tuple[int, ...]
    brokerd: tuple[int, ...]
    vhost: str = "/"
    #: The reference is a brokerd too: docs/compatibility.md explains nothing.
    are_alike: bool = False


def play(
    steps: list[Step], servers: Servers, patience: float = PATIENCE_SECONDS
) -> Difference | None:
    """Play a sequence on both; return the first difference."""
    prefix = f"fz{next(_runs)}-"
    ranked: frozenset[str] = frozenset()
    reference = Player("the reference", servers.reference, servers.vhost, prefix)
    brokerd = Player("brokerd", servers.brokerd, servers.vhost, prefix)
    try:
        for number, step in enumerate(steps):
            if isinstance(step.method, methods.QueueDeclare):
                arguments = step.method.arguments
                if "x-max-priority" in arguments:
                    ranked |= {step.method.queue}
            found = _one(number, step, (reference, brokerd), patience)
            if found is not None:
                found.explanation = "" if servers.are_alike else explain(found, ranked)
                return found
        return None
    finally:
        reference.close()
        brokerd.close()


def _one(
    number: int,
    step: Step,
    players: tuple[Player, Player],
    patience: float,
) -> Difference | None:
    tag = None
    if step.pick is not None:
        tags = players[0].outstanding(step.connection, step.channel)
        if not tags:
            return None
        tag = tags[min(step.pick, len(tags) - 1)]
    try:
        for player in players:
            player.begin()
            player.perform(step, tag)
        for player in players:
            player.probe()
        if step.pause_ms:
            for player in players:
                player.wait(step.pause_ms / 1000)
        waited = 0.0
        while True:
            for player in players:
                player.settle()
            views = [_view(player) for player in players]
            if views[0] == views[1]:
                return None
            if waited >= patience:
                return Difference(number, step, *views)
            # Whatever is on its way in one of them gets a little longer each time.
            pause = 0.01 + waited / 4
            for player in players:
                player.wait(pause / 2)
            waited += pause
    except Silent as error:
        return Difference(number, step, [f"{error}"], [])


def _view(player: Player) -> list[str]:
    """The events and counts as lines, in an order that does not depend on chance."""
    lines = []
    for at, events in sorted(player.events.items()):
        # Consumers that lose their queue are told in any order, confirms come in any grouping.
        is_set = at[2] in ("cancel", "confirm")
        for event in sorted(events) if is_set else events:
            lines.append(f"c{at[0]}.{at[1]} {_text(event)}")
    for name, found in sorted(player.counts.items()):
        if isinstance(found, int):
            lines.append(f"{name}: error {found}")
        else:
            lines.append(f"{name}: {found[0]} ready, {found[1]} consumers")
    return lines


def _text(event: Event) -> str:
    return " ".join(map(str, event))


@dataclass(slots=True, frozen=True)
class Rule:
    """What recognises a difference that docs/compatibility.md explains: texts of either side."""

    rabbitmq: str
    brokerd: str = ""

    def explains(self, found: Difference) -> bool:
        """Whether each side said what the rule expects of it."""
        return _says(found.reference, found.brokerd, self.rabbitmq) and _says(
            found.brokerd, found.reference, self.brokerd
        )


def _says(lines: list[str], others: list[str], text: str) -> bool:
    # Lines show texts as Python does, which escapes quotes at times.
    own = (line.replace("\\'", "'") for line in lines if line not in others)
    return not text or any(text in line for line in own)


#: Row of docs/compatibility.md to what recognises it.
RULES: dict[str, Rule] = {
    "D-61": Rule("user_id property set to", "PRECONDITION_FAILED - invalid "),
    "D-62": Rule("{delivery_mode_unknown,"),
    "D-8": Rule("", "unsupported queue version '1'"),
    "D-10": Rule("", "invalid arg 'x-delivery-limit'"),
    "D-201": Rule("'INTERNAL_ERROR"),
    "D-25": Rule("invalid arg 'x-cancel-on-ha-failover'"),
}


def explain(found: Difference, ranked: frozenset[str]) -> str:
    """Return the id of the row that explains a difference, "" if none does."""
    if _is_other_share(found):
        return "D-63"
    if _are_only_counts(found, ranked):
        return "D-203"
    if isinstance(found.step.method, methods.ConnectionClose) and _keeps_more(found):
        return "D-206"
    if _is_other_order(found):
        return "D-207"
    return next((name for name, rule in RULES.items() if rule.explains(found)), "")


_SHARE = re.compile(
    r"(c\d\.\d basic\.deliver) \(\('consumer_tag', '([^']*)'\), \('delivery_tag', [^)]*\)\), (.*)"
)


def _is_other_share(found: Difference) -> bool:
    """Whether the same messages were delivered to consumers, only in other shares."""
    shares = []
    for lines, others in ((found.reference, found.brokerd), (found.brokerd, found.reference)):
        matches = [_SHARE.fullmatch(line) for line in lines if line not in others]
        if not matches or None in matches:
            return False
        shares.append([match for match in matches if match is not None])
    tags = {match[2] for share in shares for match in share}
    one, two = (sorted(match[3] for match in share) for share in shares)
    return len(tags) > 1 and one == two


def _are_only_counts(found: Difference, ranked: frozenset[str]) -> bool:
    """Whether RabbitMQ counts more messages in queues with priorities, and nothing else differs."""
    lines = [line for line in found.reference if line not in found.brokerd]
    names = {line.partition(":")[0] for line in lines if " ready" in line}
    return (
        len(lines) == len(names) > 0
        and names <= ranked
        and len(found.reference) == len(found.brokerd)
    )


def _is_other_order(found: Difference) -> bool:
    """Whether messages that a quorum queue has delivered before come in another order."""
    pairs = ((found.reference, found.brokerd), (found.brokerd, found.reference))
    lines = [line for own, others in pairs for line in own if line not in others]
    if not lines or not all("basic.deliver " in each and _COUNTED in each for each in lines):
        return False
    one, two = (sorted(_TAG.sub("", line) for line in own) for own, _ in pairs)
    return one == two


_COUNTED = "'x-delivery-count': "
_TAG = re.compile(r"\('delivery_tag', \('int', \d+\)\), ")
_READY = re.compile(r"(~[^:]*): (\d+) ready")


def _keeps_more(found: Difference) -> bool:
    """Whether nothing differs but that brokerd has more messages left."""
    if len(found.reference) != len(found.brokerd):
        return False
    for one, two in zip(found.reference, found.brokerd, strict=True):
        left, right = _READY.match(one), _READY.match(two)
        if one != two and not (
            left and right and left[1] == right[1] and int(left[2]) < int(right[2])
        ):
            return False
    return True


def shrink(steps: list[Step], servers: Servers) -> tuple[list[Step], Difference | None]:
    """Take steps away while an unexplained difference stays; return the rest and its difference."""
    best, last = steps, play(steps, servers, SHRINK_PATIENCE_SECONDS)
    if last is None:
        return steps, None
    best = steps[: last.number + 1]
    size, runs = max(1, len(best) // 2), 0
    while runs < SHRINK_RUNS_MAX:
        start, is_shorter = 0, False
        while start < len(best) and runs < SHRINK_RUNS_MAX:
            less = best[:start] + best[start + size :]
            runs += 1
            found = play(less, servers, SHRINK_PATIENCE_SECONDS) if less else None
            if found is not None and not found.explanation:
                best, last, is_shorter = less[: found.number + 1], found, True
            else:
                start += size
        if size == 1 and not is_shorter:
            break
        size = max(1, size // 2)
    return best, last
