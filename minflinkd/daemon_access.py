"""Who is let in at the HTTP endpoint of this process: its tokens and its Unix socket, as the configuration says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from minflinkd.config import Config
from minflinkd.config import directories as where
from minflinkd.rest.identity.access import Access
from minflinkd.rest.identity.own_token import FILE, own_token
from minflinkd.rest.identity.proving import TokenProver
from minflinkd.rest.identity.scheme import new_schemes
from minflinkd.rest.identity.tokens import UnusableTokens, read_tokens
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.local_socket import Admitted, LocalSocket, admitted

log = structlog.get_logger(__name__)


class UnknownGroup(MinflinkError):
    """`security.socket-group` names a group that this host does not have."""

    code = "unknown-group"
    consequence = Consequence.REFUSED


@dataclass(frozen=True)
class Door:
    """`tokens`: the file that a reload reads again; None: nobody is asked for a token."""

    access: Access
    local: Admitted
    tokens: Path | None

    async def read_tokens_again(self) -> None:
        """Let revoked tokens end. If the file is wrong, the tokens so far stay. Raises nothing."""
        if self.tokens is None:
            return
        try:
            found = await asyncio.to_thread(read_tokens, self.tokens)
        except UnusableTokens as error:
            log.error("the tokens were not read again: those from before stay valid", error=str(error))
            return
        self.access.replace_tokens(found)
        log.info("tokens read", file=str(self.tokens), tokens=len(found))


def new_door(config: Config, environ: Mapping[str, str], state: Path, shared_secret: bytes | None = None) -> Door:
    """Blocking, but quick. `shared_secret`: that of a cluster of several daemons.

    Raises UnusableTokens, UnknownGroup, InvalidAuthOption.
    """
    try:
        local = admitted(config.security.socket_group)
    except KeyError as error:
        raise UnknownGroup(
            f"there is no group {config.security.socket_group!r} on this host (security.socket-group)",
            hint="`getent group` lists the groups",
        ) from error
    if config.security.allow_unauthenticated:
        log.warning(
            "HTTP asks nobody for a token: whoever reaches it can run code",
            option="security.allow-unauthenticated",
            address=config.rest.bind_address,
        )
        return Door(Access.open_to_all(), local, None)
    file = where.tokens_file(config, state, environ)
    hint = (
        f"send Authorization: Bearer TOKEN; the daemon's own token is in {state / FILE}. `minflinkd` takes one from "
        "--token-file, and needs none on the daemon's host as root, as the daemon's user, or in its group"
    )
    prover = TokenProver(own_token(state, shared_secret), read_tokens(file), SystemClock(), hint=hint)
    schemes = new_schemes(config.security.auth)
    return Door(Access(prover, local=local, schemes=schemes, hint=hint), local, file)


def bind_local(config: Config, environ: Mapping[str, str], port: int, local: Admitted) -> LocalSocket | None:
    """Return the socket for the command line; None if there is to be none, or none can be made. Blocking, but quick."""
    directory = where.socket_directory(config, environ)
    if directory is None:
        return None
    try:
        return LocalSocket.bind(directory, port, local)
    except OSError as error:
        log.warning(
            "there is no Unix socket for the command line, which needs a token now",
            directory=str(directory),
            error=str(error),
            option="security.socket-directory",
        )
        return None
