"""Puts the compiled rooms into a wheel (ADR 32): a build hook of hatch, off unless it is asked for.

    HATCH_BUILD_HOOK_ENABLE_CUSTOM=true pip wheel --no-deps .

`make wheel` and the broker's image ask for it.  What `make compiled` made of the same sources is
taken.  Where there is no C compiler the wheel is the plain one, and the build says so.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface[Any]):
    """Named as hatch wants it."""

    def dependencies(self) -> list[str]:
        """What `tools/compiled.py` imports, for builds that are isolated: as it is locked."""
        lock = (Path(self.root) / "requirements" / "build.txt").read_text()
        return re.findall(r"^(?:mypy|setuptools)==[^ ]+", lock, re.MULTILINE)

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the extensions; an editable install stays as the checkout is."""
        if version == "editable":
            return
        place = Path(self.root) / "tools" / "compiled.py"
        spec = importlib.util.spec_from_file_location("brokerd_compile", place)
        assert spec is not None
        assert spec.loader is not None
        compiled = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(compiled)
        try:
            folder = compiled.cached()
        except compiled.NotCompiledError as error:
            print(f"brokerd: a wheel of plain Python: {error}", file=sys.stderr)
            return
        place_in_wheel = compiled.form().INSTALLED.relative_to(self.root)
        build_data["force_include"][str(folder)] = str(place_in_wheel)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
