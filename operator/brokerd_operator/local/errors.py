"""Errors of the embedded mode, each a sentence for the person who typed the command."""

from __future__ import annotations


class EmbeddedError(Exception):
    """The embedded mode cannot go on."""


class PortsExhausted(EmbeddedError):
    """No set of ports is free."""


class MemberFailed(EmbeddedError):
    """A member ended or did not become ready; the text holds its last log lines."""
