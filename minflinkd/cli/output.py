"""In which form a command answers: for people, or as one document for programs, in JSON or YAML (E10).

Which one is wanted is remembered in click's context, so that whatever prints or fails within a command can see it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar, cast

import click

F = TypeVar("F", bound=Callable[..., Any])

_META = "minflinkd.output"  # its key in click's context


class Output(StrEnum):
    TABLE = "table"  # tables, and sentences where there is no table
    JSON = "json"
    YAML = "yaml"


def wanted() -> Output:
    """Return the form in which the command that runs answers."""
    context = click.get_current_context(silent=True)
    return Output.TABLE if context is None else context.meta.get(_META, Output.TABLE)


def output_options(command: F) -> F:
    """Add --output and --json. The command gets `as_json`: whether it prints one document, with `print_json`."""

    @functools.wraps(command)
    def with_output(*args: Any, output: str | None, as_json: bool, **kwargs: Any) -> Any:
        if as_json and output not in (None, Output.JSON):
            raise click.UsageError(f"--json is short for --output json: leave it out, or --output {output}.")
        form = Output.JSON if as_json else Output(output or Output.TABLE)
        click.get_current_context().meta[_META] = form
        return command(*args, as_json=form is not Output.TABLE, **kwargs)

    for option in (
        click.option("--json", "as_json", is_flag=True, help="Short for --output json."),
        click.option(
            "-o",
            "--output",
            type=click.Choice([form.value for form in Output]),
            help="For people (table, the default), or one document for programs.",
        ),
    ):
        option(with_output)
    return cast(F, with_output)


def print_json(value: Any) -> None:
    """Print a value as one document: JSON, or YAML if the user wants that."""
    click.echo(document(value, wanted()))


def document(value: Any, form: Output) -> str:
    """Return a value, or the JSON in a `msgspec.Raw`, as a document without a last newline."""
    import msgspec

    encoded = bytes(value) if isinstance(value, msgspec.Raw) else msgspec.json.encode(value)
    if form is not Output.YAML:
        return encoded.decode()
    from io import StringIO

    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel declares it None
    yaml.allow_unicode = True
    yaml.width = 4096  # no text is folded
    text = StringIO()
    yaml.dump(msgspec.json.decode(encoded), text)
    return text.getvalue().removesuffix("...\n").rstrip("\n")  # a document that is one value ends with `...`
