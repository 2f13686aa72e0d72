"""`python -m brokerd`: the form used in images."""

import signal
import sys

# The first process of a container ignores signals that it does not handle, and an orchestrator
# that stops a member in its first second would wait for it in vain.  server/app.py takes over.
signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))

from brokerd.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
