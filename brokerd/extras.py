"""Says how to install the packages that a part of brokerd needs and that are not there.

For brokerctl, the operator and the telemetry job: one text, for an installed wheel and a checkout.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys


def how_to_install(extra: str) -> str:
    """Return the command that brings an extra of this distribution into this very Python.

    brokerd is on no index.  An installer that finds it installed here, from a wheel or a checkout,
    takes the extra's list of packages from it, and asks the index only for these.
    """
    has_pip = importlib.util.find_spec("pip") is not None
    # An environment that uv made has no pip of its own.
    tool = [sys.executable, "-m", "pip", "install"]
    if not has_pip:
        tool = ["uv", "pip", "install", "--python", sys.executable]
    return f"{shlex.join(tool)} 'brokerd[{extra}]'"
