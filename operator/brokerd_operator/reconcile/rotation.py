"""When certificates and their authority are renewed, and in which order (ADR 22). PURE.

One question: given what the Secrets hold and the time, what is the next thing to do? Trust comes
first: a new authority is in every bundle before it issues anything, and an old one stays there
until nothing that it issued can be in use. For sources/cluster_certificates.py, which reads and
writes.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field

#: A certificate is renewed when so much of its life is over.
RENEWED_AT = 2 / 3
#: Old authorities that are trusted besides; more are not to be had but by damage after damage.
PREVIOUS_MAX = 4
#: Time before its end at which a certificate is reported, or a sixth of its life if that is less:
#: one that is renewed in time never comes there.
WARNED_S = 14 * 86_400.0
WARNED_PART = 1 / 6


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long things live, in seconds."""

    authority_s: float = 3650 * 86_400.0
    certificate_s: float = 365 * 86_400.0
    #: Until every member has loaded what a Secret holds: the kubelet refreshes volumes about every
    #: minute, and may be late.
    settle_s: float = 600.0
    #: For those who trust a copy of ca.crt: from the moment a new authority is in the bundle until
    #: it issues.
    notice_s: float = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when, in seconds since 1970."""

    not_before: float
    not_after: float

    @property
    def renew_at(self) -> float:
        return self.not_before + (self.not_after - self.not_before) * RENEWED_AT

    @property
    def warn_at(self) -> float:
        life = self.not_after - self.not_before
        return self.not_after - min(WARNED_S, life * WARNED_PART)


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA's certificate; `pem` is who it is."""

    pem: bytes
    validity: Validity


@dataclass(frozen=True, slots=True)
class Trust:
    """What the Secret of the authority holds."""

    #: Issues certificates; None: there is none that can be used.
    current: Authority | None = None
    #: Since when every bundle holds it; None: not yet, or not known.
    current_since: float | None = None
    #: Will issue.
    coming: Authority | None = None
    coming_since: float | None = None
    #: Trusted for what they issued, until then.
    previous: tuple[Authority, ...] = ()
    previous_until: float | None = None
    #: Somebody else's Secret is used as it is and never written.
    is_ours: bool = True

    def bundle(self, now: float) -> tuple[bytes, ...]:
        """Certificates of all that are trusted, each once."""
        found = [item for item in (self.current, self.coming, *self.previous) if item is not None]
        valid = [item.pem for item in found if item.validity.not_after > now]
        return tuple(dict.fromkeys(valid))


@dataclass(frozen=True, slots=True)
class Leaf:
    """What a Secret with a certificate of the operator's holds."""

    secret: str
    #: None: nothing that can be used.
    validity: Validity | None
    wanted_names: frozenset[str]
    names: frozenset[str] = frozenset()
    #: The authority that issued it, of those that are trusted or in its bundle; empty if none did.
    issuer: bytes = b""
    bundle: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class MakeAuthority:
    """There is no authority: make one that issues at once. `previous` stay trusted."""

    previous: tuple[Authority, ...]
    previous_until: float
    #: No member has to learn of it first.
    is_first: bool


@dataclass(frozen=True, slots=True)
class Keep:
    """Somebody put another authority in place: what issued the present certificates stays trusted,
    and the new one issues when all know it."""

    previous: tuple[Authority, ...]
    previous_until: float


@dataclass(frozen=True, slots=True)
class MakeComing:
    """Make the authority that will issue."""


@dataclass(frozen=True, slots=True)
class MarkTrusted:
    """Write down that all bundles hold the current, or the coming, authority."""

    is_coming: bool


@dataclass(frozen=True, slots=True)
class Switch:
    """The coming authority issues from now on; the key of the current one goes."""

    previous: tuple[Authority, ...]
    previous_until: float


@dataclass(frozen=True, slots=True)
class Issue:
    """Make a certificate."""

    secret: str
    why: str


@dataclass(frozen=True, slots=True)
class WriteBundle:
    """Give a certificate's Secret the authorities that are trusted now."""

    secret: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Old authorities are trusted no more."""


Step = MakeAuthority | Keep | MakeComing | MarkTrusted | Switch | Issue | WriteBundle | Drop


def next_step(
    trust: Trust,
    leaves: Sequence[Leaf],
    known: Sequence[Authority],
    now: float,
    lifetimes: Lifetimes,
) -> Step | None:
    """What is to be done first; None: nothing, or nothing that may be done.

    `known` are the authorities in the bundles of `leaves`.
    """
    current = trust.current
    if current is None or current.validity.not_after <= now:
        return _anew(trust, leaves, known, now, lifetimes) if trust.is_ours else None
    bundle = trust.bundle(now)
    issuers = {leaf.issuer for leaf in leaves} - set(bundle)
    foreign = {
        item.pem: item for item in known if item.pem in issuers and item.validity.not_after > now
    }
    if foreign and trust.is_ours:
        kept = (*foreign.values(), *trust.previous)[:PREVIOUS_MAX]
        return Keep(kept, _until(leaves, now, lifetimes))
    for leaf in leaves:
        why = _why_issue(leaf, trust, current, now, lifetimes)
        if why:
            return Issue(leaf.secret, why)
    if trust.is_ours and trust.coming is None and now >= current.validity.renew_at:
        return MakeComing()
    for leaf in leaves:
        if leaf.bundle != bundle:
            return WriteBundle(leaf.secret)
    return _stage(trust, leaves, current, now, lifetimes) if trust.is_ours else None


def _anew(
    trust: Trust,
    leaves: Sequence[Leaf],
    known: Sequence[Authority],
    now: float,
    lifetimes: Lifetimes,
) -> MakeAuthority:
    """What was issued by the authority that is lost stays good."""
    found = {item.pem: item for item in (*trust.previous, *known)}
    previous = tuple(item for item in found.values() if item.validity.not_after > now)
    return MakeAuthority(
        previous[:PREVIOUS_MAX], _until(leaves, now, lifetimes), is_first=not previous
    )


def _stage(
    trust: Trust, leaves: Sequence[Leaf], current: Authority, now: float, lifetimes: Lifetimes
) -> Step | None:
    """All bundles are complete: does the authority take its next step?"""
    if trust.current_since is None:
        return MarkTrusted(is_coming=False)
    if trust.coming is not None:
        if trust.coming_since is None:
            return MarkTrusted(is_coming=True)
        if now >= _switch_at(trust.coming_since, current, lifetimes):
            previous = (current, *trust.previous)[:PREVIOUS_MAX]
            return Switch(previous, _until(leaves, now, lifetimes))
    if trust.previous and trust.previous_until is not None and now >= trust.previous_until:
        return Drop()
    return None


def _switch_at(since: float, current: Authority, lifetimes: Lifetimes) -> float:
    """After the notice, unless the current authority will not live that long."""
    noticed = since + max(lifetimes.notice_s, lifetimes.settle_s)
    if noticed < current.validity.not_after:
        return noticed
    return since + lifetimes.settle_s


def _until(leaves: Sequence[Leaf], now: float, lifetimes: Lifetimes) -> float:
    """When nothing that was issued so far can be in use: members load what is new by then."""
    ends = [leaf.validity.not_after for leaf in leaves if leaf.validity is not None]
    return max([*ends, now]) + lifetimes.settle_s


def _why_issue(
    leaf: Leaf, trust: Trust, current: Authority, now: float, lifetimes: Lifetimes
) -> str:
    """Why a certificate must be made now; empty if it must not."""
    if leaf.validity is None:
        return "there is none that can be used"
    if leaf.validity.not_after <= now:
        return "it expired"
    if not _may_issue(trust, now, lifetimes):
        return ""
    if not leaf.issuer:
        return "nobody knows who issued it"
    if leaf.names != leaf.wanted_names:
        return "its names changed"
    if leaf.issuer != current.pem:
        return "its authority was replaced"
    # An authority near its own end issues nothing that lives longer.
    is_gain = min(now + lifetimes.certificate_s, current.validity.not_after) > (
        leaf.validity.not_after
    )
    return "two thirds of its life are over" if now >= leaf.validity.renew_at and is_gain else ""


def _may_issue(trust: Trust, now: float, lifetimes: Lifetimes) -> bool:
    if not trust.is_ours:
        return True
    return trust.current_since is not None and now >= trust.current_since + lifetimes.settle_s


@dataclass(frozen=True, slots=True)
class Shown:
    """A certificate that somebody may have to hear of."""

    secret: str
    validity: Validity | None
    #: The operator renews it.
    is_renewed: bool
    #: Why it cannot be used.
    problem: str = field(default="")
    #: Subject, issuer and end of its life, of one that the operator does not make.
    shown: str = field(default="")


def health(found: Sequence[Shown], now: float) -> tuple[bool, str, str]:
    """Whether all certificates are good for a while, the reason, and a text that holds no time but
    the certificates' own, so that it does not change while they do not."""
    expired = [
        item for item in found if item.validity is not None and item.validity.not_after <= now
    ]
    bad = [
        item for item in found if (item.validity is None or item.problem) and item not in expired
    ]
    if bad:
        shown = f" (TLS certificate: {bad[0].shown})" if bad[0].shown else ""
        return False, "Unusable", f"Secret {bad[0].secret}: {bad[0].problem}{shown}"
    dated = [(item.validity.not_after, item) for item in found if item.validity is not None]
    if not dated:
        return True, "Valid", "there are no certificates"
    dated.sort(key=lambda pair: (pair[0], pair[1].secret))
    end, first = dated[0]
    due = [item for _, item in dated if item.validity is not None and now >= item.validity.warn_at]
    if not due:
        return True, "Valid", f"the first to expire is Secret {first.secret}, at {time_text(end)}"
    first = due[0]
    assert first.validity is not None
    end = first.validity.not_after
    shown = f" (TLS certificate: {first.shown})" if first.shown else ""
    care = "" if first.is_renewed else f"; the operator does not renew it{shown}"
    if end <= now:
        return False, "Expired", f"Secret {first.secret} expired at {time_text(end)}{care}"
    return False, "Expiring", f"Secret {first.secret} expires at {time_text(end)}{care}"


def look_again_s(
    trust: Trust, leaves: Sequence[Leaf], now: float, lifetimes: Lifetimes
) -> float | None:
    """In how many seconds the next step may be due; None: none is known."""
    dates = [leaf.validity.renew_at for leaf in leaves if leaf.validity is not None]
    if trust.previous_until is not None and trust.previous:
        dates.append(trust.previous_until)
    if trust.current is not None:
        dates.append(trust.current.validity.renew_at)
        if trust.coming is not None and trust.coming_since is not None:
            dates.append(_switch_at(trust.coming_since, trust.current, lifetimes))
    if trust.current_since is not None:
        dates.append(trust.current_since + lifetimes.settle_s)
    return min((date - now for date in dates if date > now), default=None)


def date(validity: Validity) -> str:
    """When it ends, for people."""
    return time_text(validity.not_after)


def time_text(seconds: float) -> str:
    """A time, for people."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
