"""Puts the compiled rooms into a wheel (ADR 32): a build hook of hatch, off unless it is asked for.

    HATCH_BUILD_HOOK_ENABLE_CUSTOM=true pip wheel --no-deps .

Where there is no C compiler the wheel is the plain one, and the build says so.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface[Any]):
    """Named as hatch wants it."""

    def dependencies(self) -> list[str]:
        """What `tools/compiled.py` imports, for builds that are isolated."""
        return ["mypy>=2.4", "setuptools>=80"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add an extension beside each source; an editable install stays as the checkout is."""
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
        for file in folder.rglob("*.so"):
            build_data["force_include"][str(file)] = str(file.relative_to(folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
