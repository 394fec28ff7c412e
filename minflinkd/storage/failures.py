"""Turns what a backend raises into one of the few kinds, with backend, path and cause, without credentials (S4).

Every error of a backend passes through here before a caller, a log or an answer can see it.
"""

from __future__ import annotations

import traceback

from minflinkd.runtime.errors import MinflinkError
from minflinkd.storage.interface import StorageError, StorageUnavailable
from minflinkd.storage.masking import Mask
from minflinkd.storage.os_errors import of_os_error


class HiddenCause(Exception):
    """Replaces a cause whose text held a credential; has the same text without it."""


class Failures:
    """The failures of one backend."""

    def __init__(self, scheme: str, mask: Mask) -> None:
        self.scheme = scheme
        self._mask = mask

    def unavailable(self, path: str, why: str, *, settled: bool = False) -> StorageUnavailable:
        return StorageUnavailable(self._mask(f"{self.scheme}: {path}: {why}"), settled=settled)

    def of(self, path: str, error: Exception) -> MinflinkError:
        """Return the error to raise for a failed request for `path`. Do not raise it `from` anything else."""
        if not isinstance(error, MinflinkError):
            kind = self._foreign(path, error)
            kind.__cause__ = error
            error = kind
        if isinstance(error, StorageError) and path not in error.message:
            error.message = f"{self.scheme}: {path}: {error.message}"
        error.message, error.hint = self._mask(error.message), self._mask(error.hint)
        error.args = (error.message,)
        self._clean(error, set())
        return error

    def _foreign(self, path: str, error: Exception) -> StorageError:
        if isinstance(error, OSError):
            return of_os_error(self.scheme, path, error)
        kind = StorageUnavailable if isinstance(error, (TimeoutError, EOFError)) else StorageError
        return kind(f"{self.scheme}: {path}: {type(error).__name__}: {error}")

    def _clean(self, error: BaseException, seen: set[int]) -> None:
        """Replace causes that hold a credential, since causes are printed with the error."""
        seen.add(id(error))
        if hasattr(error, "__notes__"):
            error.__notes__ = [self._mask(note) for note in error.__notes__]
        suppressed = error.__suppress_context__
        error.__cause__ = self._shown(error.__cause__, seen)
        error.__context__ = self._shown(error.__context__, seen)
        error.__suppress_context__ = suppressed  # setting a cause changes this

    def _shown(self, cause: BaseException | None, seen: set[int]) -> BaseException | None:
        if cause is None or id(cause) in seen:
            return None
        alone = traceback.TracebackException(type(cause), cause, None, max_group_width=1000)
        alone.__cause__ = alone.__context__ = None
        text = "".join(alone.format(chain=False)).strip()
        masked = self._mask(text)
        self._clean(cause, seen)
        if masked == text:
            return cause
        hidden = HiddenCause(masked).with_traceback(cause.__traceback__)
        hidden.__cause__, hidden.__context__ = cause.__cause__, cause.__context__
        hidden.__suppress_context__ = cause.__suppress_context__
        return hidden
