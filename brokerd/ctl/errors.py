"""Errors of brokerctl and its exit statuses, as rabbitmqctl has them (sysexits.h).

docs/reference/brokerctl.md lists them for people who write scripts.
"""

from __future__ import annotations

import click

#: Done.
EXIT_OK = 0
#: The command line is wrong; a queue that is to be deleted is not there or in use.
EXIT_USAGE = 64
#: A value was refused, a vhost is not there, a password is wrong.
EXIT_DATA = 65
#: No such user.
EXIT_NO_USER = 67
#: The member (or a majority of the members) cannot be reached, or it refused.
EXIT_UNAVAILABLE = 69
#: It exists already, another one manages it, it is not safe.
EXIT_SOFTWARE = 70
#: The output, or a file that was named, cannot be read or written.
EXIT_IO = 74
#: No answer in time.
EXIT_TEMPORARY = 75
#: Wrong user or password, or the user's tags do not allow it.
EXIT_NO_PERMISSION = 77


class CtlError(Exception):
    """A command failed; the text is shown below "Error:", or as it stands (`is_bare`)."""

    def __init__(self, text: str, exit_code: int = EXIT_SOFTWARE, *, is_bare: bool = False) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.is_bare = is_bare


class BadArgument(CtlError):
    """An argument was understood and cannot be, status 65."""

    #: Of the command, for its usage.
    context: click.Context | None = None

    def __init__(self, text: str = "") -> None:
        super().__init__(f"Bad argument: {text}" if text else "Bad argument.", EXIT_DATA)


def no_vhost(name: str) -> CtlError:
    """Return what rabbitmqctl says to a vhost that is not there."""
    return CtlError(f"Virtual host '{name}' does not exist", EXIT_DATA, is_bare=True)


def no_user(name: str) -> CtlError:
    """Return what rabbitmqctl says to a user that is not there."""
    return CtlError(f'User "{name}" does not exist', EXIT_NO_USER)
