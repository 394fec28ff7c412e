"""Where settings come from: YAML with line numbers, the environment, the command line. All give strings by key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

from minflinkd.config.options import option_named, options
from minflinkd.config.origin import Layer, Origin
from minflinkd.runtime import private_files

_PREFIX: Final = "MINFLINKD_"
_DEEPEST: Final = 50

# Variables with the prefix that are not options: the file to read, and variables of the command line tools.
RESERVED_VARIABLES: Final = frozenset(
    {
        *("MINFLINKD_CONFIG", "MINFLINKD_URL", "MINFLINKD_TOKEN", "MINFLINKD_TOKEN_FILE", "MINFLINKD_CA_FILE"),
        *("MINFLINKD_CERT_FILE", "MINFLINKD_KEY_FILE"),
        *("MINFLINKD_CRASH_AT", "MINFLINKD_TASKMANAGER_TOKEN", private_files.VARIABLE),  # between our processes
        *("MINFLINKD_POD_IP", "MINFLINKD_POD_NAME"),  # what Kubernetes tells a Pod about itself
    }
)

_SECRETS: Final = "MINFLINKD_SECRET_"  # secrets that jobs name, for TaskManagers

# Kubernetes sets these variables in every pod if there is a Service named `minflinkd`.
_SERVICE_LINK: Final = re.compile(r"MINFLINKD(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)")


@dataclass(frozen=True, slots=True)
class Setting:
    """One value, as text, for one key. None stands for YAML's null."""

    key: str
    value: str | None
    origin: Origin
    structure: bool = False  # there is a list or an empty map instead of a value


class Malformed(Exception):
    """The text is not a YAML map. Lines are counted from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def from_yaml(text: str, name: str) -> list[Setting]:
    """Return the settings of a document with nested or dotted keys, or both. Raises Malformed."""
    try:
        root = YAML(typ="rt", pure=True).compose(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise Malformed(line, ": ".join(str(part) for part in (error.context, error.problem) if part)) from error
    except YAMLError as error:
        raise Malformed(1, str(error)) from error
    if root is None:
        return []
    if not isinstance(root, MappingNode):
        raise Malformed(root.start_mark.line + 1, "a map of options is wanted, such as `rest.port: 8081`")
    return list(_settings(root, "", name))


def _settings(node: Node, prefix: str, name: str) -> Iterator[Setting]:
    if prefix.count(".") > _DEEPEST:  # a YAML alias may contain itself
        raise Malformed(node.start_mark.line + 1, "nested too deeply")
    for key_node, value in node.value:
        key = f"{prefix}.{key_node.value}" if prefix else str(key_node.value)
        origin = Origin(Layer.FILE, f"{name}:{key_node.start_mark.line + 1}")
        if isinstance(value, MappingNode) and value.value:
            yield from _settings(value, key, name)
        elif isinstance(value, ScalarNode):
            missing = value.tag == "tag:yaml.org,2002:null"
            if not (missing and (_is_section(key) or _is_map(key))):  # all its entries are commented out
                yield Setting(key, None if missing else value.value, origin)
        elif not (isinstance(value, MappingNode) and (_is_section(key) or _is_map(key))):
            yield Setting(key, "[...]" if value.value else "", origin, structure=True)


def _is_section(key: str) -> bool:
    return any(option.key.startswith(key + ".") for option in options())


def _is_map(key: str) -> bool:
    option = option_named(key)
    return option is not None and option.kind is dict


def from_environment(environ: Mapping[str, str]) -> list[Setting]:
    """Return the settings in `MINFLINKD_...` variables. A variable of no option keeps its own name as its key."""
    keys = {option.variable: option.key for option in options()}
    found: list[Setting] = []
    for variable in sorted(environ):
        foreign = (
            variable in RESERVED_VARIABLES
            or variable.startswith(_SECRETS)
            or (variable not in keys and _SERVICE_LINK.fullmatch(variable))
        )
        if variable.startswith(_PREFIX) and not foreign:
            known = variable in keys
            origin = Origin(Layer.ENVIRONMENT, variable if known else "")
            found += _text_setting(keys[variable] if known else variable, environ[variable], origin)
    return found


def from_overrides(overrides: Mapping[str, str]) -> list[Setting]:
    """Return the settings of the command line."""
    found: list[Setting] = []
    for key, text in overrides.items():
        found += _text_setting(key, text, Origin(Layer.COMMAND_LINE))
    return found


def _text_setting(key: str, text: str, origin: Origin) -> list[Setting]:
    if not _is_map(key):
        return [Setting(key, text, origin)]
    try:  # a whole map as JSON or YAML
        entries = from_yaml(text, "")
    except Malformed:
        return [Setting(key, text, origin)]
    return [Setting(f"{key}.{entry.key}", entry.value, origin, entry.structure) for entry in entries]
