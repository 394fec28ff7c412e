"""The coordinator's calls to the job's master hooks for a checkpoint (C27)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import structlog

from minflinkd.checkpoint.hooks import MasterHooks
from minflinkd.checkpoint.machine import events as e
from minflinkd.runtime.errors import error_info
from minflinkd.runtime.supervision import TaskOwner

log = structlog.get_logger(__name__)


class HookCalls:
    """`feed` reports the outcome of a call to the coordinator."""

    def __init__(self, hooks: MasterHooks, *, feed: Callable[[e.Event], None], tasks: TaskOwner, name: str) -> None:
        self._hooks = hooks
        self._feed = feed
        self._tasks = tasks
        self._name = name
        self._calls: dict[int, set[asyncio.Task[None]]] = {}  # under way, by checkpoint

    def trigger(self, hook: str, number: int) -> None:
        call = self._tasks.job(f"master hook {hook} for {number}", self._trigger(hook, number))
        self._calls.setdefault(number, set()).add(call)

    def cancel(self, number: int) -> None:
        for call in self._calls.pop(number, ()):
            call.cancel()

    async def _trigger(self, hook: str, number: int) -> None:
        try:
            state = await self._hooks.trigger(hook, number)
        except Exception as error:
            log.warning("a master hook failed", component=self._name, hook=hook, checkpoint=number, error=str(error))
            self._feed(e.HookFailed(number, error_info(error)))
        else:
            self._feed(e.HookAnswered(number, hook, state))
        finally:
            calls = self._calls.get(number, set())
            calls.discard(cast(Any, asyncio.current_task()))
            if not calls:
                self._calls.pop(number, None)
