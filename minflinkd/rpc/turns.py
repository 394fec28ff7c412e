"""Shares the event loop between what arrives over many connections and everything else (A4).

Example: 1,000 TaskManagers register at once. Without a limit, the loop would handle all of their messages before it
looks at a timer or an HTTP request again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

AT_A_TIME: Final = 32  # messages; one takes some 0.1 to 0.4 ms with what follows from it


class Turns:
    """Admits `most` messages in each turn of the event loop. Others wait for the next turns, in their order."""

    def __init__(self, most: int = AT_A_TIME) -> None:
        self._most = most
        self._left = most
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._next_turn: asyncio.Handle | None = None

    async def admitted(self) -> None:
        """Return when the next message may be handled."""
        loop = asyncio.get_running_loop()
        if self._next_turn is None:
            self._next_turn = loop.call_soon(self._begin)
        if self._left and not self._waiting:
            self._left -= 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _begin(self) -> None:
        self._left, self._next_turn = self._most, None
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # otherwise its connection has ended
                turn.set_result(None)
                self._left -= 1
        if self._waiting:
            self._next_turn = asyncio.get_running_loop().call_soon(self._begin)
