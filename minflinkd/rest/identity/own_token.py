"""The token that a daemon makes at its first start, so that HTTP is closed without any configuration (E40)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from minflinkd.rest.identity.tokens import Token, UnusableTokens
from minflinkd.runtime.private_files import OTHERS, write_whole

FILE: Final = "http.token"


def own_token(state: Path, shared_secret: bytes | None = None) -> Token:
    """Return the token in `state`, made at the first start. Blocking, but quick. Raises UnusableTokens.

    Daemons of one cluster take the same token, which follows from their `shared_secret`: the next leader must let in
    whom this one lets in.
    """
    path = state / FILE
    try:
        if shared_secret is not None:
            token = Token.derived(shared_secret)
            if not path.exists() or path.read_text(errors="replace").strip() != token.text:
                write_whole(path, f"{token.text}\n".encode(), 0o600)
        elif not path.exists():
            write_whole(path, f"{Token.new().text}\n".encode(), 0o600)
        content = path.read_text(errors="replace").strip()
        open_to = path.stat().st_mode & OTHERS
    except OSError as error:
        raise UnusableTokens(
            f"{path}, the file of the daemon's token, cannot be used: {error.strerror or error}",
            hint="correct its owner and mode, or delete it to have one made",
        ) from error
    if open_to:
        raise UnusableTokens(
            f"every user of this machine can read or change {path}, the file of the daemon's token",
            hint="delete it to have another one made: somebody may have read it",
        )
    found = Token.parsed(content)
    if found is None:
        raise UnusableTokens(f"{path} holds no token", hint="delete it to have one made")
    return found
