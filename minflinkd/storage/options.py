"""Options of storage backends (S7): `storage.<scheme>.<option>`, as strings until the backend parses them.

Some apply to every backend (`CommonOptions`). The others are the fields of the backend's `options_type`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec

from minflinkd.runtime.errors import Consequence
from minflinkd.runtime.units import decode_unit
from minflinkd.storage.interface import StorageError

O = TypeVar("O", bound=msgspec.Struct)  # noqa: E741


class InvalidStorageOption(StorageError):
    """An option that the backend does not have, or a value that the option does not allow."""

    code = "storage-invalid-option"
    consequence = Consequence.REFUSED


class CommonOptions(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """How long and how often a backend's requests are tried. Times in seconds."""

    request_timeout: Annotated[float, msgspec.Meta(gt=0)] = 60.0  # of one request; of a stream, without a byte
    deadline: Annotated[float, msgspec.Meta(gt=0)] = 180.0  # of an operation with all its retries
    retries: Annotated[int, msgspec.Meta(ge=0)] = 5
    pause: Annotated[float, msgspec.Meta(ge=0)] = 0.2  # before the first retry; doubles with each, with jitter
    longest_pause: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    parallelism: Annotated[int, msgspec.Meta(ge=1)] = 32  # requests at a time


def for_scheme(options: Mapping[str, str], scheme: str) -> dict[str, str]:
    """Return the options of one scheme, without the scheme in their names."""
    prefix = f"{scheme}."
    return {key.removeprefix(prefix): value for key, value in options.items() if key.startswith(prefix)}


def common(given: Mapping[str, str], scheme: str) -> tuple[CommonOptions, dict[str, str]]:
    """Split into the common options and the backend's own. Raises InvalidStorageOption."""
    names = {field.encode_name for field in msgspec.structs.fields(CommonOptions)}
    mine = {key: value for key, value in given.items() if key in names}
    return parse(CommonOptions, mine, scheme), {key: value for key, value in given.items() if key not in names}


def parse(kind: type[O], given: Mapping[str, str], scheme: str) -> O:
    """Parse a backend's options. Raises InvalidStorageOption, naming every unknown one or the first bad value."""
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    if unknown := sorted(set(given) - known):
        names = ", ".join(f"storage.{scheme}.{name}" for name in unknown)
        raise InvalidStorageOption(f"{names}: no such option", hint=f"there are: {', '.join(sorted(known)) or 'none'}")
    try:
        return msgspec.convert(dict(given), kind, strict=False, dec_hook=decode_unit)
    except msgspec.ValidationError as error:
        raise InvalidStorageOption(f"storage.{scheme}: {error}", hint="see docs/storage.md") from None
