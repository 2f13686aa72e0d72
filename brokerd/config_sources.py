"""Where settings come from: a file, the environment, flags; later ones win.

Whatever cannot be understood is collected, so that all of it is said at once (config_problems.py).
For config.py, which owns the settings.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from brokerd import config_problems
from brokerd.config_problems import ConfigError

#: The model of each section; those whose name has an underscore before the shorter ones.
Sections = Mapping[str, type[BaseModel]]
Model = TypeVar("Model", bound=BaseModel)

PREFIX = "BROKERD_"
#: Before a name that older members may not know. It keeps their hands off: they read only names
#: that begin with the prefix, and refuse those of them that they do not know.
OPTIONAL = "OPTIONAL_"
#: Variables of ours that are no settings of a member (brokerctl and the set-up scripts read them).
_OTHER_VARIABLES = frozenset(
    {
        "BROKERD_ADDRESS",
        "BROKERD_CACHE",
        "BROKERD_COMPILED",
        "BROKERD_NODES",
        "BROKERD_PASSWORD",
        "BROKERD_USER",
    }
)
#: What Kubernetes and Docker put into the environment because something is called "brokerd".
_SERVICE_LINK = re.compile(r"BROKERD_(SERVICE_(HOST|PORT.*)|PORT(_\d+_(TCP|UDP|SCTP).*)?|NAME)")


def gather(
    sections: Sections,
    file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, Mapping[str, Any]],
) -> GivenSettings:
    """Return what was given; ConfigError if the file cannot be read."""
    given = GivenSettings(sections)
    if file is not None:
        given.add_file(file)
    for name, text in environ.items():
        if name.startswith(OPTIONAL + PREFIX):
            known = name.removeprefix(OPTIONAL)
            if _is_known(sections, known):
                given.add_variable(known, text, name)
    for name, text in environ.items():
        if name.startswith(PREFIX):
            given.add_variable(name, text, name)
    for section, settings in flags.items():
        for key, value in settings.items():
            if value is not None:
                given.add(section, key, value, f"{section}.{key}")
    return given


def unknown(sections: Sections, environ: Mapping[str, str]) -> list[str]:
    """Return the optional settings that this release does not know; they change nothing."""
    return sorted(
        name
        for name in environ
        if name.startswith(OPTIONAL + PREFIX)
        and not _is_known(sections, name.removeprefix(OPTIONAL))
    )


def _is_known(sections: Sections, name: str) -> bool:
    section, key = _split(sections, name)
    return section in sections and key in sections[section].model_fields


def _split(sections: Sections, name: str) -> tuple[str, str]:
    """Return section and key of a variable; no section if there is none that it begins with."""
    rest = name.removeprefix(PREFIX).lower()
    for section in sections:
        if rest.startswith(section + "_"):
            return section, rest.removeprefix(section + "_")
    return "", rest


def flattened(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the switches of a table and of the tables in it (one level: `dlx.…`)."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            found[key] = value
    return found


class GivenSettings:
    """What was given, by whom, and what is wrong with it so far."""

    def __init__(self, sections: Sections) -> None:
        self._sections = sections
        self._values: dict[str, dict[str, Any]] = {section: {} for section in sections}
        #: What a setting was called by who gave it.
        self._origins: dict[tuple[str, str], str] = {}
        self._problems: list[str] = []

    def add(self, section: str, key: str, value: Any, origin: str) -> None:
        """Take a setting; it wins over the same one before."""
        self._values[section][key] = value
        self._origins[section, key] = origin

    def add_file(self, file: Path) -> None:
        """Take what a TOML file says; ConfigError if there is nothing to be read in it."""
        try:
            parsed = tomllib.loads(file.read_text())
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} is not TOML: {error}") from error
        for section, settings in parsed.items():
            if section not in self._sections:
                self._problems.append(
                    f"{file}: {_unknown_section(self._sections, section, settings)}"
                )
            elif not isinstance(settings, dict):
                self._problems.append(f"{file}: {section} must be a section, [{section}]")
            else:
                for key, value in settings.items():
                    self._add_of_file(file, section, key, value)

    def _add_of_file(self, file: Path, section: str, key: str, value: Any) -> None:
        known = self._sections[section].model_fields
        if key in known:
            self.add(section, key, value, f"{file}: {section}.{key}")
            return
        meant = config_problems.suggestion(f"{section}_{key}", self._sections)
        self._problems.append(
            f"{file}: unknown setting {section}.{key}; "
            + _advice(
                meant and _dotted(self._sections, meant), f"[{section}] has {', '.join(known)}"
            )
        )

    def add_variable(self, name: str, text: str, origin: str) -> None:
        """Take an environment variable that begins with our prefix."""
        if name in _OTHER_VARIABLES or _SERVICE_LINK.fullmatch(name):
            return
        section, key = _split(self._sections, name)
        is_switch = section == "compat" and not difflib.get_close_matches(key, ["profile"])
        if is_switch and key not in self._sections[section].model_fields:
            # Over the file's, whichever way it spells the name.
            switches = self._values[section].get("switches", {})
            flat = flattened(switches) if isinstance(switches, dict) else {}
            kept = {name: v for name, v in flat.items() if name.replace(".", "_") != key}
            self.add(section, "switches", kept | {key: text}, origin)
        elif section and key in self._sections[section].model_fields:
            self.add(section, key, text, origin)
        else:
            meant = config_problems.suggestion(name.removeprefix(PREFIX), self._sections)
            self._problems.append(
                f"{origin}: unknown setting; "
                + _advice(
                    meant and PREFIX + meant.upper(),
                    "names are BROKERD_<SECTION>_<KEY> with the sections "
                    + ", ".join(sorted(self._sections)),
                )
            )

    def checked(self, model: type[Model]) -> Model:
        """Return the configuration; ConfigError with all that is wrong."""
        try:
            made = model.model_validate(self._values)
        except ValidationError as error:
            self._problems += [self._problem(item) for item in error.errors()]
        if self._problems:
            raise ConfigError("configuration cannot be used:\n  " + "\n  ".join(self._problems))
        return made

    def _problem(self, item: ErrorDetails) -> str:
        # A section's own checks have no key, those of the whole no section either.
        section, key, *_ = [*map(str, item["loc"]), "", ""]
        origin = self._origins.get((section, key), f"{section}.{key}".strip("."))
        field = self._sections[section].model_fields.get(key) if section else None
        if item["type"] == "value_error" or field is None:
            # A sentence of ours.
            sentence = item["msg"].removeprefix("Value error, ")
            return f"{origin}: {sentence}" if origin else sentence
        return (
            f"{origin}: must be {config_problems.expected(field)}, "
            f"{config_problems.shown(key, item['input'])}"
        )


def _advice(meant: str, otherwise: str) -> str:
    return f"did you mean {meant}?" if meant else otherwise


def _dotted(sections: Sections, name: str) -> str:
    """Return `section_key` as a file has it."""
    section, key = _split(sections, PREFIX + name)
    return f"{section}.{key}"


def _unknown_section(sections: Sections, section: str, settings: Any) -> str:
    if not isinstance(settings, dict):
        # A key before the first section, as in rabbitmq.conf.
        meant = config_problems.suggestion(section, sections)
        if meant:
            return f"unknown setting {section}; did you mean {_dotted(sections, meant)}?"
    close = difflib.get_close_matches(section, sections, 1)
    known = f"there are {', '.join(sorted(sections))}"
    return f"unknown section [{section}]; " + _advice(f"[{close[0]}]" if close else "", known)
