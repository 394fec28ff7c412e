"""Which cluster a command talks to, and which files prove who the user is: options, contexts and environment (E10).

The address comes from the first of these that is there:

1. `--url`;
2. the context that `--context` names;
3. $MINFLINKD_URL;
4. the context that $MINFLINKD_CONTEXT names;
5. the context that `minflinkd context use` has chosen;
6. the default, a daemon on this machine.

Each file comes from its option, otherwise from the context, if the address does, otherwise from the environment. So the
token of a context goes to no other address. Imports next to nothing, as completion in a shell needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from minflinkd.cli.contexts import VARIABLE, Context, read_contexts

_FILES = ("token_file", "ca_file", "cert_file", "key_file")


class Target(NamedTuple):
    url: str  # or several, separated by commas
    context: str | None = None  # the name of the context that the address is from
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


def target_of(click_context: click.Context, values: Mapping[str, Any], environ: Mapping[str, str]) -> Target:
    """Return what the options (`values`, by name) mean. Raises click.UsageError and Failure."""

    def given(name: str) -> bool:
        return click_context.get_parameter_source(name) is ParameterSource.COMMANDLINE

    named = values.get("context")
    if given("url") and named is not None:
        raise click.UsageError("--url and --context both say where the daemon is: leave one out.")
    name, context = (None, None) if given("url") else _context(named, environ)
    files = {each: _text(values.get(each)) for each in _FILES}
    if context is None:
        return Target(url=values["url"], **files)
    files |= {each: own for each in _FILES if (own := getattr(context, each)) is not None and not given(each)}
    return Target(url=context.address, context=name, **files)


def _context(named: str | None, environ: Mapping[str, str]) -> tuple[str | None, Context | None]:
    """Raises Failure."""
    if named is None:
        if environ.get("MINFLINKD_URL"):
            return None, None
        named = environ.get(VARIABLE) or None
    known = read_contexts(environ)
    name = named or known.current
    return name, None if name is None else known.named(name)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
