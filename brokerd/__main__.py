"""`python -m brokerd`: the form used in images."""

import os
import signal

# The first process of a container ignores signals that it does not handle, and an orchestrator
# that stops a member in its first second would wait for it in vain.  At once and by no exception:
# one that is raised in the middle of an import may be swallowed there, and the signal is lost.
# Nothing is served yet, and a log that was being opened is one after a kill.  server/app.py takes
# over.
signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))

from brokerd.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
