"""Bounds and timings of a Raft group; every limit of the raft room stands here with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.raft.errors import ConfigurationError

#: Terms and indexes stay below 2**62: they fit every wire and disk format (u64), and a message that
#: carries more is damaged or hostile.  At a million entries per second that is 146,000 years.
NUMBER_MAX = 1 << 62


@dataclass(slots=True)
class RaftConfig:
    """Settings of one group; equal on all members, though nothing breaks when they differ."""

    #: Milliseconds between two Tick inputs. 100 ms is fine enough for election time-outs of a
    #: second and coarse enough that ticking a few hundred busy groups costs nothing.
    tick_ms: int = 100

    #: A follower that has heard no leader for a random number of ticks between the two bounds
    #: starts a pre-vote. The lower bound is also the leader's lease: below it votes are refused,
    #: and a leader that has not heard a majority for that long steps down (Raft thesis §4.2.3,
    #: §6.2). 1-2 s at 100 ms: service is back well inside the 5 s of guarantee G9, two lost
    #: heartbeats are no reason.
    election_ticks_min: int = 10
    #: Upper bound, inclusive, of the randomised election time-out; the spread avoids split votes
    #: (§3.4).
    election_ticks_max: int = 20

    #: Ticks that a follower waits at most when the leader's process is known to have ended
    #: (NodeGone): long enough that the others know it too, and do not stand at the same moment.
    gone_leader_ticks_max: int = 4

    #: Ticks between a leader's heartbeats, sent to members that got nothing else. A fifth of
    #: the shortest election time-out, so that several may be lost.
    heartbeat_ticks: int = 2

    #: Payload of one APPEND at most (one entry always goes, however large). 256 KiB is one
    #: transport flush; larger gains no throughput and delays other groups on the same stream.
    append_bytes_max: int = 256 * 1024

    #: Entries of one APPEND at most; bounds what a receiver must look at for one message.
    append_entries_max: int = 1024

    #: APPENDs that may be on their way to one follower. With `append_bytes_max` it bounds a
    #: member's backlog per group to 16 MiB.
    inflight_max: int = 64

    #: Entries applied since the last snapshot at which the next one is saved ...
    snapshot_entries: int = 4096
    #: ... or bytes of commands, whichever comes first: it bounds replay after a restart.
    snapshot_bytes: int = 64 * 1024 * 1024
    #: ... but a state that is larger than this waits until the log has grown by the rest of it.
    #: The state of a deep queue has 40 bytes per entry; written again after every 4,096 entries it
    #: would make each publish dearer the deeper the queue is.
    snapshot_state_bytes: int = 1024 * 1024

    #: Ticks of silence after which a follower that got a snapshot gets it again. Installing a large
    #: one takes time, so this is generous; a broken stream (PeerUnreachable) retries at once.
    snapshot_resend_ticks: int = 300

    #: Commands proposed and not yet applied, in bytes. Beyond it proposals are refused with
    #: `leader` naming this very node, which the host maps to OVERLOADED: the log cannot outrun its
    #: disks. A single command larger than this is taken when nothing else is in flight.
    proposals_bytes_max: int = 64 * 1024 * 1024
    #: The same bound as a count, for tiny commands.
    proposals_max: int = 65_536

    #: Largest command or entry that is accepted at all: AMQP's largest message (128 MiB) and 1 MiB
    #: of properties around it.
    command_bytes_max: int = 129 * 1024 * 1024

    #: Bytes of committed entries that one step applies, roughly, so that a long replay does not
    #: hold the whole log in memory.
    apply_bytes_max: int = 4 * 1024 * 1024

    #: Committed entries at which a follower no longer waits for its next tick to apply them ...
    #: One by one they cost twice as much, and they would be in the way of what the leader waits
    #: for.
    apply_entries_min: int = 32
    #: ... or bytes of them: large entries gain nothing by waiting.
    apply_bytes_min: int = 64 * 1024

    #: Newest terms whose beginnings a snapshot names.  A term takes an election, so these reach
    #: back for months, or through the worst of days.
    snapshot_terms: int = 64

    def validate(self) -> None:
        """Raise ConfigurationError if a bound makes no sense."""
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1")
        if self.election_ticks_min > self.election_ticks_max:
            raise ConfigurationError("election_ticks_min exceeds election_ticks_max")
        if self.heartbeat_ticks * 2 > self.election_ticks_min:
            raise ConfigurationError("heartbeat_ticks must be at most half of election_ticks_min")
