"""The loop of `kubectl brokerd top`: look, show, wait; members that went away are reached anew."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import rich.console
import rich.live

from brokerd.ctl import columns, listings
from brokerd.ctl.client import connect
from brokerd.ctl.errors import CtlError
from brokerd_operator.plugin import figures, showing
from brokerd_operator.plugin.figures import Look
from brokerd_operator.plugin.kubectl import KubectlError
from brokerd_operator.plugin.member_access import Access

#: A member that hangs must not stop the view for long.
CALL_TIMEOUT_S = 10.0

Open = Callable[[], AbstractContextManager[Access]]
#: Shows one picture.
Show = Callable[[rich.console.RenderableType], None]


def look(access: Access) -> Look:
    """Ask all members that can be reached."""
    settings = access.settings()
    settings.timeout_s = CALL_TIMEOUT_S
    queues = listings.live_rows(columns.QUEUES, settings)
    with connect(settings) as client:
        members = client.live_rows("members")
    return Look(time.monotonic(), queues, members)


def once(title: str, open_: Open, out: rich.console.Console, interval_s: float, rows: int) -> None:
    """Two looks, for the rates between them."""
    with open_() as access:
        before = look(access)
        threading.Event().wait(interval_s)
        out.print(showing.top(title, figures.screen(before, look(access), rows)))


def follow(
    title: str, open_: Open, out: rich.console.Console, interval_s: float, rows: int
) -> None:
    """Until somebody interrupts: in place on a terminal, else one table after the other."""
    pause = threading.Event()
    before: Look | None = None
    with _shown(out) as show, contextlib.ExitStack() as held:
        access: Access | None = None
        while True:
            trouble = ""
            now = before
            try:
                access = access or held.enter_context(open_())
                now = look(access)
            except (CtlError, KubectlError) as error:
                # Its pod may have been replaced: what leads to it is made anew.
                held.close()
                access = None
                trouble = str(error)
            if now is None:
                show(trouble)
            else:
                screen = figures.screen(None if now is before else before, now, rows)
                show(showing.top(title, screen, trouble))
            before = now
            pause.wait(interval_s)


@contextlib.contextmanager
def _shown(out: rich.console.Console) -> Iterator[Show]:
    if not out.is_terminal:

        def show(picture: rich.console.RenderableType) -> None:
            out.print(picture)
            out.print()
            out.file.flush()

        yield show
        return
    with rich.live.Live(console=out, auto_refresh=False, screen=True) as live:
        yield lambda picture: live.update(picture, refresh=True)
