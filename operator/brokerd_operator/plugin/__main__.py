"""`kubectl-brokerd`, which kubectl runs as `kubectl brokerd`; also `python -m`."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import click

from brokerd import standard_streams
from brokerd.ctl.errors import CtlError
from brokerd_operator.plugin.commands import brokerd

#: What a shell says of a process that Ctrl-C ended.
EXIT_INTERRUPTED = 130


def main() -> None:
    """Run a command and end the process with its status."""
    standard_streams.open_closed()
    # A signal must not leave a port-forward behind: what is open is closed on the way out.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        brokerd.main(prog_name="kubectl brokerd", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except CtlError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has enough.
        sys.stderr.close()
    except OSError as error:
        standard_streams.give_up_output()
        click.echo(f"Error: {standard_streams.in_words(error)}", err=True)
        sys.exit(standard_streams.EXIT_IO)


def _leave(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
