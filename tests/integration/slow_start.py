"""brokerd, run as a program, with a start that is never through: clients are in all the same."""

import asyncio

from brokerd.cli import main
from brokerd.server import app


async def _never(*_: object) -> None:
    await asyncio.Event().wait()


if __name__ == "__main__":
    app._log_banner = _never  # type: ignore[assignment]
    main()
