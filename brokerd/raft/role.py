"""Roles of a member; apart from node.py so that its parts can name them."""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """What a member is doing (Raft thesis §3.3, pre-candidate §9.6)."""

    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3
