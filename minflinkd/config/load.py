"""Reads a configuration: file, then environment, then command line. Reports everything that is wrong at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from minflinkd.config.combinations import impossible
from minflinkd.config.declaration import Option
from minflinkd.config.options import Config, option_named, options
from minflinkd.config.origin import Origin
from minflinkd.config.source import Malformed, Setting, from_environment, from_overrides, from_yaml
from minflinkd.config.values import NotAllowed, allowed, parse
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.secrets import MASK

SYSTEM_FILE: Final = Path("/etc/minflinkd/minflinkd.yaml")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a configuration."""

    origin: str  # `minflinkd.yaml:12`, an environment variable, the command line; empty: the default
    key: str
    value: str  # masked if the option is sensitive
    problem: str  # what is wrong and what is allowed

    def __str__(self) -> str:
        place = f"{self.origin}: " if self.origin else ""
        return f"{place}{self.key}: {self.value}: {self.problem}" if self.key else f"{place}{self.problem}"


class ConfigError(MinflinkError):
    """A configuration that cannot be used, with all its faults."""

    code = "invalid-config"
    consequence = Consequence.REFUSED

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        count = "1 fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        lines = "".join(f"\n  {fault}" for fault in self.faults)
        super().__init__(f"the configuration has {count}:{lines}")


def configuration_file(environ: Mapping[str, str]) -> Path | None:
    """Return the default file: $MINFLINKD_CONFIG, otherwise the system's, if it exists."""
    if named := environ.get("MINFLINKD_CONFIG"):
        return Path(named)
    return SYSTEM_FILE if SYSTEM_FILE.exists() else None


def load_config(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str]) -> Config:
    """Load the configuration in `path` (None: the defaults), with overrides from the environment and the command line.

    `overrides` are strings by option key. Raises ConfigError with every fault.
    """
    text = ""
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError([Fault(str(path), "", "", f"cannot be read: {reason}")]) from error
    return parse_config(text, environ, overrides, name=str(path))


def parse_config(
    text: str, environ: Mapping[str, str], overrides: Mapping[str, str], *, name: str = "minflinkd.yaml"
) -> Config:
    """Like load_config, but from a text. Errors call it `name`."""
    faults: list[Fault] = []
    layers = [from_environment(environ), from_overrides(overrides)]
    try:
        layers.insert(0, from_yaml(text, name))
    except Malformed as error:
        faults.append(Fault(f"{name}:{error.line}", "", "", f"not valid YAML: {error}"))
    reader = _Reader(faults)
    for layer in layers:
        reader.read(layer)
    config = Config(origins=reader.origins).with_values(reader.values)
    if not faults:  # a combination with a refused value means nothing
        faults += (reader.combination_fault(keys, problem) for keys, problem in impossible(config))
    if faults:
        raise ConfigError(faults)
    return config


class _Reader:
    """Collects values and faults; a later layer wins over an earlier one."""

    def __init__(self, faults: list[Fault]) -> None:
        self.values: dict[Option, object] = {}
        self._faults = faults
        self._settings: dict[str, Setting] = {}  # the last one of each option, and entry of a map, by their keys
        self._origins: dict[str, dict[str, Origin]] = {}  # by the option's key, and the entry of a map

    @property
    def origins(self) -> dict[str, tuple[Origin, ...]]:
        return {key: tuple(found.values()) for key, found in self._origins.items()}

    def read(self, layer: Iterable[Setting]) -> None:
        seen: dict[tuple[Option, str], Setting] = {}
        for setting in layer:
            option, entry = _option_of(setting.key)
            if option is None:
                self._fault(setting, _unknown(setting.key))
            elif (first := seen.setdefault((option, entry), setting)) is not setting:
                self._fault(setting, f"is set a second time; the first is {first.key} at {first.origin}", option)
            else:
                self._take(setting, option, entry)

    def _take(self, setting: Setting, option: Option, entry: str) -> None:
        text = setting.value
        is_map = option.kind is dict
        if setting.structure or (is_map and (text is None or not entry)):
            self._fault(setting, f"is not allowed: {allowed(option)}", option)
            return
        if is_map:
            entries = self.values.setdefault(option, {})
            assert isinstance(entries, dict)
            entries[entry] = text
            self._settings[f"{option.key}.{entry}"] = setting
        else:
            try:
                self.values[option] = parse(option, text)
            except NotAllowed as error:
                self._fault(setting, f"is not allowed: {error}", option)
                return
        self._settings[option.key] = setting
        self._origins.setdefault(option.key, {})[entry] = replace(setting.origin, entry=entry)

    def _fault(self, setting: Setting, problem: str, option: Option | None = None) -> None:
        value = "null" if setting.value is None else repr(setting.value)
        shown = MASK if option is not None and option.sensitive else value
        self._faults.append(Fault(str(setting.origin), setting.key, shown, problem))

    def combination_fault(self, keys: Iterable[str], problem: str) -> Fault:
        """Return the fault, named after the setting that was read last: the defaults alone are a valid combination."""
        found = [self._settings[key] for key in keys if key in self._settings]
        if not found:
            return Fault("", "", "", problem)
        return Fault(str(found[-1].origin), found[-1].key, repr(found[-1].value), problem)


def _option_of(key: str) -> tuple[Option | None, str]:
    """Return the option that a key sets and, for a map, the entry."""
    if option := option_named(key):
        return option, ""
    for option in options():
        for name in (option.key, *option.aliases):
            if option.kind is dict and key.startswith(name + "."):
                return option, key.removeprefix(name + ".")
    return None, ""


def _unknown(key: str) -> str:
    names = {name: name for option in options() for name in (option.key, *option.aliases)}
    names |= {option.variable: option.variable for option in options()}
    known = {name.lower(): name for name in names}
    nearest = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.6)
    return "no such option" + (f"; did you mean {known[nearest[0]]}?" if nearest else "")
