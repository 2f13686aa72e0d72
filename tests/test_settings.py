"""Every documented setting has somebody who reads it: a switch that does nothing is a defect.

By the syntax trees of the packages and the text of the chart's templates; nothing is run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from brokerd_operator.settings import Settings

from brokerd.config import BrokerConfig
from brokerd.core.profiles import Profile

ROOT = Path(__file__).resolve().parents[1]
#: Packages, with the classes of their settings and the sections that have them.
CLASSES: dict[str, dict[str, list[str]]] = {
    # The protocol of the telemetry room stands for its section.
    "brokerd": {"Profile": ["profile"], "Settings": ["telemetry"]},
    "operator": {"Settings": ["settings"]},
}
for section, info in BrokerConfig.model_fields.items():
    assert info.annotation is not None
    CLASSES["brokerd"].setdefault(info.annotation.__name__, []).append(section)


def name_of(node: ast.expr | None) -> str:
    """Return the last word of a name, without underscores in front: `self._limits` is limits."""
    if isinstance(node, ast.Attribute):
        return node.attr.lstrip("_")
    return node.id.lstrip("_") if isinstance(node, ast.Name) else ""


def words_of(annotation: ast.expr | None) -> set[str]:
    """Return the names in an annotation, which may be a text."""
    if annotation is None:
        return set()
    return set(re.findall(r"\w+", ast.unparse(annotation)))


def aliases(tree: ast.Module, classes: dict[str, list[str]]) -> dict[str, set[str]]:
    """Return what objects of settings are called in one file: name to sections."""
    found = {section: {section} for sections in classes.values() for section in sections}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            name = node.arg if isinstance(node, ast.arg) else name_of(node.target)
            for word in words_of(node.annotation):
                if word in classes:
                    found.setdefault(name.lstrip("_"), set()).update(classes[word])
        elif isinstance(node, ast.ClassDef) and node.name in classes and node.decorator_list == []:
            found.setdefault("self", set()).update(classes[node.name])
    for _ in range(2):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = name_of(node.targets[0]), name_of(node.value)
                if target and value in found:
                    found.setdefault(target, set()).update(found[value])
    return found


@cache
def reads(package: str) -> frozenset[tuple[str, str]]:
    """Return (section, setting) of all that a package reads."""
    found: set[tuple[str, str]] = set()
    for path in (ROOT / package).rglob("*.py"):
        tree = ast.parse(path.read_text())
        known = aliases(tree, CLASSES[package])
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                for section in known.get(name_of(node.value), ()):
                    found.add((section, node.attr))
            elif (
                isinstance(node, ast.Call)
                and name_of(node.func) == "port"
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                # BrokerConfig.port takes the listener's name.
                found.add(("listeners", str(node.args[0].value)))
    return frozenset(found)


def test_every_setting_of_a_member_is_read() -> None:
    """R-OLD-2 was documented once and read by nobody."""
    documented = {
        (section, name)
        for section, info in BrokerConfig.model_fields.items()
        for name in getattr(info.annotation, "model_fields", {})
    }
    assert len(documented) > 60
    assert sorted(documented - reads("brokerd")) == []


def test_every_switch_of_a_profile_is_read() -> None:
    """R-VER-2: a switch that nobody reads would be a promise without effect."""
    switches = {("profile", field.name) for field in fields(Profile)}
    assert sorted(switches - reads("brokerd")) == []


def test_every_setting_of_the_operator_is_read() -> None:
    documented = {("settings", name) for name in Settings.model_fields}
    assert len(documented) > 5
    assert sorted(documented - reads("operator")) == []


def leaves(values: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each value of a chart."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*before, key))
        else:
            yield (*before, key)


def test_every_value_of_the_chart_is_used() -> None:
    """As a whole or as part of a table that is copied (toYaml, range, with)."""
    for chart in sorted((ROOT / "charts").glob("*/Chart.yaml")):
        folder = chart.parent
        values = yaml.safe_load((folder / "values.yaml").read_text())
        templates = [*folder.glob("templates/**/*"), *folder.glob("files/**/*")]
        text = "\n".join(path.read_text() for path in templates if path.is_file())
        used = set(re.findall(r"\.Values\.([\w.]+)", text))
        unused = []
        for path in leaves(values):
            tables = {".".join(path[:count]) for count in range(1, len(path) + 1)}
            if not tables & used:
                unused.append(".".join(path))
        assert unused == [], folder.name
