"""The files of the page, as they are sent: read once, compressed once, under a path that changes with their contents.

All files are below one path that has a hash of them all. So a browser may keep them for ever, a new version is fetched
at once, and modules find each other by relative names.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from html import escape
from pathlib import Path
from typing import Final

HOME: Final = Path(__file__).parent
FOLDERS: Final = ("app", "style", "vendor", "views")
MEDIA: Final = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".woff2": "font/woff2",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
_LATER: Final = {"vendor/dagre.js"}  # modules that are fetched only when a page needs them
_COMPRESSED: Final = {".woff2"}  # by themselves


@dataclass(frozen=True)
class File:
    """`zipped`: None if the file does not become smaller."""

    media: str
    data: bytes
    zipped: bytes | None

    @property
    def size(self) -> int:
        """The bytes that are sent to a browser."""
        return len(self.data if self.zipped is None else self.zipped)

    @cached_property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.data).hexdigest()[:32]}"'


@dataclass(frozen=True)
class Files:
    """By path, such as `app/main.js`. `digest` is that of all of them."""

    digest: str
    by_path: dict[str, File]
    _shell: str

    def path_of(self, name: str) -> str:
        """Return where a file is served, without the slash at the beginning."""
        return f"page/{self.digest}/{name}"

    def shell(self, version: str, links: str) -> bytes:
        """Return the page itself. `links`: HTML for those without scripts."""
        modules = sorted(name for name in self.by_path if name.endswith(".js") and name not in _LATER)
        preloads = "\n".join(f'<link rel="modulepreload" href="{self.path_of(name)}">' for name in modules)
        styles = "\n".join(f'<link rel="stylesheet" href="{self.path_of(name)}">' for name in self.styles)
        values = {
            "version": escape(version),
            "preloads": preloads,
            "styles": styles,
            "links": links,
            "at": self.path_of(""),
        }
        text = self._shell
        for name, value in values.items():
            text = text.replace(f"{{{{{name}}}}}", value)
        return text.encode()

    @property
    def styles(self) -> list[str]:
        return ["vendor/uplot.css", *sorted(name for name in self.by_path if re.fullmatch(r"style/.+\.css", name))]


@lru_cache(maxsize=1)
def files() -> Files:
    """Read and compress all files: some 50 ms, in a thread if an event loop runs."""
    found = {
        f"{folder}/{path.name}": _read(path)
        for folder in FOLDERS
        for path in sorted((HOME / folder).iterdir())
        if path.suffix in MEDIA
    }
    whole = hashlib.sha256()
    for name, file in sorted(found.items()):
        whole.update(f"{name}\0{file.tag}\0".encode())
    return Files(whole.hexdigest()[:16], found, (HOME / "index.html").read_text(encoding="utf-8"))


def _read(path: Path) -> File:
    data = path.read_bytes()
    zipped = None if path.suffix in _COMPRESSED else gzip.compress(data, 9, mtime=0)
    return File(MEDIA[path.suffix], data, zipped if zipped is not None and len(zipped) < len(data) else None)
