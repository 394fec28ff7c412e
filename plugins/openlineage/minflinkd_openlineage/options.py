"""The options of the emitter, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from minflinkd.listeners.interface import InvalidListenerOption
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.units import Duration


class OpenLineageOptions(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """One of `url` and `file` is needed; with both, events go to both."""

    url: str = ""  # of the server; events are posted to its endpoint
    endpoint: str = "api/v1/lineage"
    file: str = ""  # events are appended to it, one JSON document a line
    namespace: str = "minflinkd"  # of the jobs
    token_file: str = ""  # with the token that the server asks for
    timeout: Duration = Duration(5.0)  # of one request
    attempts: int = 5  # for an event that the server does not take; then it is dropped, and that is logged

    @property
    def token(self) -> str:
        """Read anew each time, so that it can be replaced. Raises OSError."""
        return Path(self.token_file).read_text().strip() if self.token_file else ""


def parsed(options: Mapping[str, str]) -> OpenLineageOptions:
    """Raises InvalidListenerOption."""
    names = {field.encode_name for field in msgspec.structs.fields(OpenLineageOptions)}
    for name in options:
        if name not in names:
            raise InvalidListenerOption(
                f"listeners.openlineage.{name[:64]} is not known", hint=f"there are: {', '.join(sorted(names))}"
            )
    try:
        timeout = Duration.parse(options.get("timeout", "5 s"))
        attempts = int(options.get("attempts", "5"))
    except (MinflinkError, ValueError) as error:
        raise InvalidListenerOption(
            f"listeners.openlineage: {error}", hint="such as timeout: 5 s, attempts: 5"
        ) from error
    texts = {name.replace("-", "_"): value for name, value in options.items() if name not in ("timeout", "attempts")}
    found = OpenLineageOptions(**texts, timeout=timeout, attempts=attempts)
    if not found.url and not found.file:
        raise InvalidListenerOption("OpenLineage events go nowhere", hint="set listeners.openlineage.url or .file")
    if found.url and urlsplit(found.url).scheme not in ("http", "https"):
        raise InvalidListenerOption(
            f"listeners.openlineage.url is no http or https URL: {found.url[:100]}", hint="http://marquez:5000"
        )
    if not 1 <= found.attempts <= 20 or not 0 < found.timeout <= 30:
        raise InvalidListenerOption(
            "listeners.openlineage: attempts is from 1 to 20, timeout up to 30 s", hint="leave them out"
        )
    return found
