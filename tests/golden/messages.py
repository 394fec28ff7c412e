"""A sample of everything that crosses the wire between two processes, in bytes, as one version of minflinkd sends it.

They are filled by type (`samples`), so that no field is forgotten when a message grows.
"""

from __future__ import annotations

from typing import Any

import msgspec

from minflinkd.rpc import messages as between_processes
from minflinkd.rpc.codec import Answer, Ask, Codec, Failure, Tell
from minflinkd.rpc.handshake import Challenge, Hello, Refusal, Welcome
from minflinkd.rpc.messages import Message, Notice, Request, answer_type
from minflinkd.taskmanager.child import protocol as to_the_session
from tests.golden.samples import sample

FRAMES: tuple[type[msgspec.Struct], ...] = (Challenge, Hello, Welcome, Refusal, Ask, Tell, Answer, Failure)


def message_types() -> dict[str, type[Message]]:
    """Return the messages that cross a wire, by name.

    Those of a session child are among them: after an upgrade, an earlier TaskManager may start a later child. The
    questions of the HTTP endpoint to the Dispatcher (`rpc.jobs`, `rpc.job_state`,
    `checkpoint.messages`) do not leave their process.
    """
    found = [*vars(between_processes).values(), *vars(to_the_session).values()]
    kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, Request | Notice)]
    return {kind.__name__: kind for kind in kinds if kind not in (Request, Notice)}


def wire_types() -> dict[str, Any]:
    """Return the type of everything that is sent, by name: messages, answers, frames."""
    kinds = message_types()
    answers = {f"the answer to {name}": answer_type(kind) for name, kind in kinds.items() if issubclass(kind, Request)}
    return {**kinds, **answers, **{kind.__name__: kind for kind in FRAMES}}


def encoded_samples() -> dict[str, bytes]:
    codec = Codec()
    return {name: bytes(codec.encode(sample(kind))) for name, kind in sorted(wire_types().items())}
