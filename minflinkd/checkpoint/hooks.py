"""Master hooks (C27): participants in a job's checkpoints besides its tasks, called by the coordinator.

A hook is found by its name among the entry points of the group `minflinkd.checkpoint.hooks`. An entry point is called
with a job's id, once for each JobMaster of the job, and returns a `MasterHook`. A job names its hooks in
`checkpointing.master-hooks`. The daemon names hooks for all jobs in `execution.checkpointing.master-hooks`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar, cast

import structlog

from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import JobId

log = structlog.get_logger(__name__)

GROUP = "minflinkd.checkpoint.hooks"
CLOSE_TIMEOUT = 5.0  # seconds

R = TypeVar("R")


class UnknownMasterHook(MinflinkError):
    """No installed package provides a hook of this name, or it cannot be loaded."""

    code = "unknown-master-hook"
    consequence = Consequence.REFUSED


class MasterHookFailed(MinflinkError):
    """A hook raised, or did not answer in time. The checkpoint is aborted, or the restore is retried."""

    code = "master-hook-failed"
    consequence = Consequence.RETRYABLE


class MasterHookMissing(MinflinkError):
    """A checkpoint holds the state of a hook that the job no longer has."""

    code = "master-hook-missing"


class MasterHook(ABC):
    """Called on the daemon's event loop, so it must not block. Other jobs' checkpoints run at the same time.

    An exception ends that checkpoint and nothing else. A call that takes longer than the checkpoint's timeout is
    cancelled.
    """

    @abstractmethod
    async def trigger(self, checkpoint_id: int) -> bytes:
        """A checkpoint begins. Its tasks are triggered when all hooks have returned.

        The returned state is kept in the checkpoint's metadata, so it should be small. The ids grow from call to call.
        A checkpoint may fail later, and the hook is not told.
        """

    @abstractmethod
    async def restore(self, checkpoint_id: int | None, state: bytes | None) -> None:
        """The job restores from this checkpoint. Its tasks are deployed when all hooks have returned.

        `checkpoint_id` is None if the job starts without a checkpoint. `state` is None if the checkpoint was taken
        without this hook. May be called again for the same checkpoint.
        """

    async def aclose(self) -> None:
        """Close the hook. No call follows."""
        return


Factory = Callable[[JobId], MasterHook]


def installed() -> Mapping[str, Any]:
    """Return the entry points by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def unknown(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that no installed package provides."""
    names = tuple(names)
    known = installed() if names else ()  # scanning all packages takes a while
    return tuple(name for name in names if name not in known)


def require(names: Iterable[str]) -> None:
    """Raises UnknownMasterHook for the first hook that is not installed."""
    for name in unknown(names):
        raise UnknownMasterHook(
            f"no master hook {name!r} is installed", hint=f"installed are: {', '.join(sorted(installed())) or 'none'}"
        )


def load(names: Iterable[str], job_id: JobId) -> dict[str, MasterHook]:
    """Return the hooks of a job by name. Raises UnknownMasterHook."""
    require(names := tuple(dict.fromkeys(names)))
    hooks = dict[str, MasterHook]()
    known = installed() if names else {}
    for name in names:
        try:
            factory: Factory = known[name].load()
            hooks[name] = factory(job_id)
        except Exception as error:
            raise UnknownMasterHook(f"the master hook {name!r} cannot be loaded: {error}") from error
    return hooks


class MasterHooks:
    """The hooks of one job. Cancelling the caller gives up the call, even if the hook ignores the cancellation.

    In that case the hook gets no further call until it has returned.
    """

    def __init__(self, hooks: Mapping[str, MasterHook]) -> None:
        self._hooks = dict(hooks)
        self._calls: dict[str, asyncio.Task[Any]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._hooks)

    async def trigger(self, name: str, checkpoint_id: int) -> bytes:
        """Call the hook and return its state. Raises MasterHookFailed."""
        state = await self._call(name, lambda hook: hook.trigger(checkpoint_id))
        if not isinstance(state, bytes):
            raise MasterHookFailed(f"master hook {name} returned a {type(state).__name__}, not bytes")
        return state

    async def restore(self, point: CompletedCheckpoint | None, timeout: float) -> None:
        """Restore all hooks at once. Raises MasterHookFailed, MasterHookMissing."""
        states = {} if point is None else {state.name: state.state for state in point.hooks}
        if point is not None and (missing := sorted(states.keys() - self._hooks.keys())):
            raise MasterHookMissing(
                f"checkpoint {point.checkpoint_id} holds the state of the master hook {missing[0]}, which the job does "
                "not name any more",
                hint="name it in checkpointing.master-hooks again",
            )
        checkpoint_id = None if point is None else point.checkpoint_id

        async def restore_one(name: str) -> None:
            try:
                async with asyncio.timeout(timeout):
                    await self._call(name, lambda hook: hook.restore(checkpoint_id, states.get(name)))
            except TimeoutError as error:
                raise MasterHookFailed(f"master hook {name} did not restore within {timeout:g} s") from error

        await asyncio.gather(*(restore_one(name) for name in self._hooks))

    async def aclose(self) -> None:
        """Close all hooks. Never raises and never takes long."""
        for call in self._calls.values():
            call.cancel()
        for name, hook in self._hooks.items():
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await hook.aclose()
            except Exception as error:
                log.warning("a master hook failed to close", hook=name, error=str(error))

    async def _call(self, name: str, call: Callable[[MasterHook], Coroutine[Any, Any, R]]) -> R:
        if name in self._calls:
            raise MasterHookFailed(f"master hook {name} is still busy with an earlier checkpoint")
        task = self._calls[name] = asyncio.create_task(call(self._hooks[name]), name=f"master hook {name}")
        task.add_done_callback(lambda ended: self._ended(name, ended))
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.cancelled():
            raise MasterHookFailed(f"master hook {name} was cancelled")
        if (error := task.exception()) is not None:
            raise MasterHookFailed(f"master hook {name}: {type(error).__name__}: {error}") from error
        return cast(R, task.result())

    def _ended(self, name: str, task: asyncio.Task[Any]) -> None:
        del self._calls[name]
        if not task.cancelled():
            task.exception()  # whoever waited got the exception; for an abandoned call nobody asks, so retrieve it here
