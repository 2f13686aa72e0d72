"""Errors of brokerctl and its exit statuses, as rabbitmqctl has them (sysexits.h).

docs/reference/brokerctl.md lists them for people who write scripts.
"""

from __future__ import annotations

#: Done.
EXIT_OK = 0
#: The command line is wrong.
EXIT_USAGE = 64
#: What was asked for is not there, or a value was refused.
EXIT_DATA = 65
#: No such user.
EXIT_NO_USER = 67
#: The member (or a majority of the members) cannot be reached.
EXIT_UNAVAILABLE = 69
#: The broker refused for another reason (it exists already, it is in use).
EXIT_SOFTWARE = 70
#: No answer in time.
EXIT_TEMPORARY = 75
#: Wrong user or password, or the user's tags do not allow it.
EXIT_NO_PERMISSION = 77


class CtlError(Exception):
    """A command failed; the text is shown behind "Error:"."""

    def __init__(self, text: str, exit_code: int = EXIT_SOFTWARE) -> None:
        super().__init__(text)
        self.exit_code = exit_code
