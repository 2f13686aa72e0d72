"""Says how to install the packages that a part of brokerd needs and that are not there.

For brokerctl, the operator and the telemetry job: one text, for an installed wheel and a checkout.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path

#: Of a checkout; of an installed wheel what lies around it.
_ROOT = Path(__file__).parents[1]


def how_to_install(extra: str) -> str:
    """Return the command that brings an extra of this distribution into this very Python.

    brokerd is on no index.  An installer that finds it installed here, from a wheel or a checkout,
    takes the extra's list of packages from it, and asks the index only for these.  In the
    environment of a checkout, make takes them as they are locked.
    """
    is_locked = (_ROOT / "requirements" / f"{extra}.txt").is_file()
    if is_locked and Path(sys.prefix) == _ROOT / ".venv":
        return f"make -C {shlex.quote(str(_ROOT))} install EXTRAS={extra}"
    has_pip = importlib.util.find_spec("pip") is not None
    # An environment that uv made has no pip of its own.
    tool = [sys.executable, "-m", "pip", "install"]
    if not has_pip:
        tool = ["uv", "pip", "install", "--python", sys.executable]
    return f"{shlex.join(tool)} 'brokerd[{extra}]'"
