"""One connection between two processes: length-prefixed MessagePack frames, requests both ways, one-way messages.

Used between a TaskManager and its daemon and, over a socketpair, between a supervisor and its session child. When the
connection is closed, by either side or by a fault, every open request ends with Unreachable (outcome unknown).
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import structlog

from minflinkd.rpc.codec import Answer, Ask, Codec, Failure, Frame, ProtocolError, Tell, UnreadableMessage
from minflinkd.rpc.local import answer_of, deliver_notice
from minflinkd.rpc.messages import Notice, Offloaded, Request
from minflinkd.rpc.network import Address, Fenced, Mailbox, RpcTimeout, Unreachable
from minflinkd.rpc.parties import NotAllowed, check
from minflinkd.rpc.peer import Peer
from minflinkd.rpc.seal import SIZE as SEAL
from minflinkd.rpc.seal import Seal
from minflinkd.rpc.turns import Turns
from minflinkd.runtime.doorkeeper import SeldomTold
from minflinkd.runtime.errors import Consequence, ErrorInfo, MinflinkError, RemoteError, class_of, error_info
from minflinkd.runtime.ids import LeaderId
from minflinkd.runtime.supervision import TaskOwner

log = structlog.get_logger(__name__)

R = TypeVar("R")
_LENGTH = struct.Struct("!I")
MAX_FRAME = 64 * 1024 * 1024  # bytes; larger messages travel as blobs (B3)
WRITE_BUFFER = 8 * 1024 * 1024  # bytes; a peer that lets more than this pile up after a message is cut off
UNKNOWN = "unknown"  # the label under which messages of unknown types are counted
LOGGED_TYPES = 100
FLUSH_TIMEOUT = 1.0  # seconds that a peer has to read the rest when the connection closes


class FrameTooLarge(ProtocolError):
    """A message that must not be sent: the peer would cut the connection that all parties share."""


async def read_frame(reader: asyncio.StreamReader, limit: int = MAX_FRAME, seal: Seal | None = None) -> bytes:
    """Return the body of the next frame.

    Raises ProtocolError, also for a wrong seal, OSError, asyncio.IncompleteReadError at the end.
    """
    (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if seal is not None:
        size -= SEAL
    if not 0 <= size <= limit:
        raise ProtocolError(f"a frame of {size} bytes; at most {limit} are taken")
    data = await reader.readexactly(size)
    if seal is not None:
        seal.check(data, await reader.readexactly(SEAL))
    return data


def write_frame(writer: asyncio.StreamWriter, data: bytes, seal: Seal | None = None) -> None:
    # One write: each costs a system call and a packet.
    if seal is None:
        writer.write(_LENGTH.pack(len(data)) + data)
    else:
        writer.write(b"".join((_LENGTH.pack(len(data) + SEAL), data, seal.next(data))))


class Connection:
    """A Route to the parties at the other end. `local` finds the mailbox for a frame.

    `peer`: what was agreed with the other end. `protocol` is the version that both ends speak (A15a). A message that
    none of the peer's parties may send closes the connection (`rpc.parties`). `told` bounds how often the log says so.

    If a message of another version cannot be read, the connection and everything else on it continue. A request is
    answered with an error. An unreadable answer leaves the outcome open, so it counts as lost. A notice is dropped and
    counted by type in `unreadable`. A TaskManager and a daemon may drop a notice, because a request repeats its
    content:

        SlotsFree          the next HeartbeatFromTaskManager has the same report; until then slots are idle
        JobMasterChanged   HeartbeatAnswer names all JobMasters; until then a job's tasks wait for their new leader
        TaskManagerLost    the JobMaster's own heartbeat times out; the job restarts later by that timeout
        TaskProgress       the next TaskProgress, and JobHeartbeatAnswer, have all figures

    Do not add a notice that no request repeats. Make it a request instead, which is repeated until it is answered.

    A session child's notices are not repeated. After a lost TaskFailed or InputEnded, everybody else would believe
    forever that the task is running. So this connection has no `unreadable`: a notice that cannot be read, or that is
    too large to be sent, closes it, and the session is lost and replaced.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        local: Callable[[str], Mailbox | None],
        name: str,
        peer: Peer,
        unreadable: Counter[str] | None = None,
        on_close: Callable[[], None] | None = None,
        told: SeldomTold | None = None,
    ) -> None:
        self.name = name
        self.protocol = peer.protocol
        self._parties = peer.parties
        self._seals = peer.seals
        self._seldom = told or SeldomTold()
        self._reader = reader
        self._writer = writer
        self._local = local
        self._unreadable = unreadable
        self._told: set[str] = set()  # the unreadable messages that are already logged
        self._on_close = on_close
        self._codec = Codec()
        self._open: dict[int, tuple[type[Request[Any]], asyncio.Future[Any]]] = {}
        self._next_id = 0
        self._largest_waiting = 0  # bytes of the largest message that the peer may not have read yet
        self._tasks = TaskOwner(f"connection {name}")
        self._closed = asyncio.Event()
        self.heard_at = 0.0  # loop time of the last frame; 0: none yet

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def start(self, turns: Turns | None = None) -> None:
        """`turns`: those of all connections that may send much at once."""
        self._tasks.job("reader", self._read(turns))

    async def wait_closed(self) -> None:
        await self._closed.wait()

    async def aclose(self) -> None:
        self._close()
        await self._tasks.aclose()
        last_resort = asyncio.get_running_loop().call_later(FLUSH_TIMEOUT, self._writer.transport.abort)
        try:
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        finally:
            last_resort.cancel()
            self._writer.transport.abort()

    async def ask(self, target: Address, request: Request[R], *, timeout: float, fence: LeaderId | None = None) -> R:
        """Raises RemoteError, Fenced, Unreachable, RpcTimeout. A request too large for a frame is refused unsent."""
        if self.closed:
            raise Unreachable(f"the connection {self.name} is closed")
        self._next_id += 1
        number = self._next_id
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._open[number] = (type(request), future)
        name = type(request).__name__
        try:
            self._send(Ask(number, target, name, self._codec.encode(request), fence))
            async with asyncio.timeout(timeout):
                return await future
        except FrameTooLarge as error:
            raise RemoteError(error.info()) from error
        except TimeoutError as error:
            raise RpcTimeout(f"{target} did not answer {name} within {timeout:g} s") from error
        finally:
            del self._open[number]

    def tell(self, target: Address, notice: Notice, *, fence: LeaderId | None = None) -> None:
        if self.closed:
            return
        try:
            self._send(Tell(target, type(notice).__name__, self._codec.encode(notice), fence))
        except FrameTooLarge as error:
            log.error("a notice is not sent", connection=self.name, message=type(notice).__name__, error=str(error))
            if self._unreadable is None:
                self._close()  # otherwise nobody would learn what it says

    def _send(self, frame: Frame) -> None:
        """Raises FrameTooLarge."""
        if self.closed:
            return
        waiting = self._writer.transport.get_write_buffer_size()
        if waiting > self._largest_waiting + WRITE_BUFFER:
            log.error("the peer reads nothing; the connection is cut", connection=self.name)
            self._close()
            self._writer.transport.abort()  # unsent data would keep it open
            return
        data = self._codec.encode_frame(frame)
        if len(data) > MAX_FRAME:
            raise FrameTooLarge(f"a message of {len(data)} bytes; at most {MAX_FRAME} are sent")
        self._largest_waiting = max(len(data), self._largest_waiting if waiting else 0)
        write_frame(self._writer, data, None if self._seals is None else self._seals.sent)

    async def _read(self, turns: Turns | None) -> None:
        seal = None if self._seals is None else self._seals.received
        try:
            while True:
                data = await read_frame(self._reader, seal=seal)
                if turns is not None:
                    await turns.admitted()
                frame = self._codec.decode_frame(data)
                self.heard_at = asyncio.get_running_loop().time()
                match frame:
                    case Answer(number, body):
                        self._resolve(number, body)
                    case Failure(number, error):
                        self._reject(number, error)
                    case Ask():
                        self._admit(frame)
                        self._tasks.job(f"{frame.type} {frame.id}", self._answer(frame))
                    case Tell():
                        self._admit(frame)
                        self._tell(frame)
        except (asyncio.IncompleteReadError, OSError):
            pass  # the other end is gone
        except ProtocolError as error:
            self._cut(error)
        finally:
            self._close()

    def _cut(self, error: ProtocolError) -> None:
        self._seldom.warn("the connection is cut", connection=self.name, error=str(error), code=error.code)
        self._close()

    def _admit(self, frame: Ask | Tell) -> None:
        """Raises NotAllowed, after an answer. What this version does not know is refused when it is read."""
        if not self._codec.knows(frame.type):
            return
        try:
            check(self._parties, frame.target, frame.type)
        except NotAllowed as error:
            if isinstance(frame, Ask):
                self._send(Failure(frame.id, error_info(error)))
            raise

    def _resolve(self, number: int, body: msgspec.Raw) -> None:
        kind, future = self._open.get(number, (None, None))
        if kind is not None and future is not None and not future.done():
            try:
                future.set_result(self._codec.decode_answer(kind, body))
            except UnreadableMessage as error:  # the request was carried out, but its result is unknown
                self._tell_unreadable(f"the answer to {kind.__name__}", error)
                future.set_exception(Unreachable(error.message, hint=error.hint))

    def _reject(self, number: int, error: ErrorInfo) -> None:
        _, future = self._open.get(number, (None, None))
        if future is not None and not future.done():
            future.set_exception(_as_exception(error))

    async def _answer(self, frame: Ask) -> None:
        try:
            mailbox = self._mailbox(frame.target)
            message: Any = self._codec.decode_message(frame.type, frame.body)
            if isinstance(message, Offloaded):
                check(self._parties, frame.target, message.type)
            fence = LeaderId(frame.fence) if frame.fence is not None else None
            answer: Any = await answer_of(mailbox, message, fence)
            self._send(Answer(frame.id, self._codec.encode(answer)))
        except Exception as error:
            if isinstance(error, UnreadableMessage):
                self._tell_unreadable(frame.type, error)
            elif not isinstance(error, MinflinkError):
                log.exception("a request could not be answered", connection=self.name, message=frame.type)
            self._send(Failure(frame.id, error_info(error)))
            if isinstance(error, NotAllowed):
                self._cut(error)

    def _mailbox(self, target: str) -> Mailbox:
        mailbox = self._local(target)
        if mailbox is None:
            raise Unreachable(f"nobody answers at {target}")
        return mailbox

    def _tell(self, frame: Tell) -> None:
        mailbox = self._local(frame.target)
        if mailbox is None:
            return
        try:
            notice: Any = self._codec.decode_message(frame.type, frame.body)
        except UnreadableMessage as error:
            if self._unreadable is None:
                raise
            self._unreadable[frame.type if self._codec.knows(frame.type) else UNKNOWN] += 1
            self._tell_unreadable(frame.type, error)
            return
        fence = LeaderId(frame.fence) if frame.fence is not None else None
        self._tasks.job(frame.type, deliver_notice(mailbox, notice, fence))

    def _tell_unreadable(self, what: str, error: UnreadableMessage) -> None:
        """Log it once, because the peer may send such a message again and again."""
        if what not in self._told and len(self._told) < LOGGED_TYPES:
            self._told.add(what)
            log.warning("a message cannot be read and is ignored", connection=self.name, message=what, error=str(error))

    def _close(self) -> None:
        if self.closed:
            return
        self._closed.set()
        self._writer.close()
        for _, future in self._open.values():
            if not future.done():
                future.set_exception(Unreachable(f"the connection {self.name} ended before the answer"))
        if self._on_close is not None:
            self._on_close()


def _as_exception(error: ErrorInfo) -> MinflinkError:
    found = class_of(error, (Fenced, Unreachable, RpcTimeout))
    if found is None and error.consequence is Consequence.FENCED:
        found = Fenced
    return RemoteError(error) if found is None else found(error.message, hint=error.hint)
