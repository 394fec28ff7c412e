"""Tells systemd the state of this process (sd_notify, E25). Without systemd every call does nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping


class SystemdNotifier:
    """Sends states to the socket in `$NOTIFY_SOCKET`. Calls do not block, and a failed call is not an error."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address  # @: an abstract socket
        meant = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        timeout = environ.get("WATCHDOG_USEC", "")
        self._watchdog = int(timeout) / 1e6 if meant and timeout.isdigit() else 0.0

    @property
    def watchdog_interval(self) -> float | None:
        """Seconds between calls of `watchdog`: half of what systemd allows. None if systemd expects no calls."""
        return self._watchdog / 2 or None

    def ready(self, status: str = "") -> None:
        self._send("READY=1", *_status(status))

    def reloading(self) -> None:
        """Report that a reload has begun. The caller must call `ready` afterwards."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str = "", *, within: float | None = None) -> None:
        """Report that the end has begun. `within`: how many seconds it may take, even if the unit allows fewer."""
        extended = () if within is None else (f"EXTEND_TIMEOUT_USEC={int(within * 1e6)}",)
        self._send("STOPPING=1", *_status(status), *extended)

    def watchdog(self) -> None:
        self._send("WATCHDOG=1")

    async def feed_watchdog(self) -> None:
        """Call `watchdog` forever, from the event loop itself, so that systemd restarts a process whose loop hangs."""
        interval = self.watchdog_interval
        if interval is None:
            await asyncio.Event().wait()
            return
        while True:
            self.watchdog()
            await asyncio.sleep(interval)

    def status(self, text: str) -> None:
        """Set the status line of `systemctl status`."""
        self._send(*_status(text))

    def _send(self, *lines: str) -> None:
        if not self._address or not lines:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.sendto("\n".join(lines).encode(), self._address)
        except OSError:  # systemd itself is restarting; the next watchdog call makes up for a missed one
            return


def _status(text: str) -> tuple[str, ...]:
    return (f"STATUS={' '.join(text.split())}",) if text else ()
