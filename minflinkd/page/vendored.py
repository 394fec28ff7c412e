"""The libraries of the page that others have written: where each file is from, and its hash (E15).

    python -m minflinkd.page.vendored            # compare the files with the hashes; exit code 1: one is different
    python -m minflinkd.page.vendored update     # fetch the newest versions with npm, and write files and hashes
    python -m minflinkd.page.vendored update preact@11.2.0

A file is kept as its package has it, except for what a browser cannot do without a build step: it finds no module by
its bare name (`from "preact"`), and would look for a source map that is not there. Both hashes are kept.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

VENDOR: Final = Path(__file__).parent / "vendor"
MANIFEST: Final = VENDOR / "vendored.json"
_TIMEOUT: Final = 300  # seconds for npm


@dataclass(frozen=True)
class Package:
    """What is taken from a package: its file, our name for it; and the licence."""

    name: str
    files: tuple[tuple[str, str], ...]
    licence: str = "LICENSE"


PACKAGES: Final = (
    Package("preact", (("dist/preact.mjs", "preact.js"), ("hooks/dist/hooks.mjs", "hooks.js"))),
    Package("htm", (("dist/htm.module.js", "htm.js"),)),
    Package("uplot", (("dist/uPlot.esm.js", "uplot.js"), ("dist/uPlot.min.css", "uplot.css"))),
    Package("@dagrejs/dagre", (("dist/dagre.esm.js", "dagre.js"),), "dist/dagre.esm.js.LEGAL.txt"),
    Package("@fontsource-variable/inter", (("files/inter-latin-wght-normal.woff2", "inter.woff2"),)),
)
_BARE: Final = {b'from"preact"': b'from"./preact.js"'}


class File(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A vendored file. `path` is that in its package; `upstream` the hash there, `sha256` the hash of the file here."""

    file: str
    package: str
    version: str
    path: str
    upstream: str
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    licences: dict[str, str]  # the file with the licence of each package
    files: tuple[File, ...]


def manifest() -> Manifest:
    return msgspec.json.decode(MANIFEST.read_bytes(), type=Manifest)


def differences() -> list[str]:
    """Return what is not as the manifest says, one sentence for each."""
    known = manifest()
    named = {MANIFEST.name, *known.licences.values(), *(each.file for each in known.files)}
    found = {path.name for path in VENDOR.iterdir() if path.is_file()}
    wrong = [f"{name} is not in {MANIFEST.name}" for name in sorted(found - named)]
    wrong += [f"{name} is missing" for name in sorted(named - found)]
    return wrong + [
        f"{each.file} is not that of {each.package} {each.version}"
        for each in known.files
        if each.file in found and digest((VENDOR / each.file).read_bytes()) != each.sha256
    ]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def for_browsers(data: bytes, name: str) -> bytes:
    """Return a module that needs no build step. What is no module stays as it is."""
    if not name.endswith(".js"):
        return data
    for bare, relative in _BARE.items():
        data = data.replace(bare, relative)
    lines = data.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(b"//# sourceMappingURL="))


def update(wanted: dict[str, str]) -> Manifest:
    """Fetch all packages, in the version of `wanted` or the newest, and write files and manifest."""
    licences: dict[str, str] = {}
    files: list[File] = []
    for package in PACKAGES:
        with tempfile.TemporaryDirectory() as draft:
            archive = _pack(package.name, wanted.get(package.name, "latest"), Path(draft))
            with tarfile.open(archive) as packed:
                version = msgspec.json.decode(_member(packed, "package.json"))["version"]
                licences[package.name] = f"{package.name.strip('@').replace('/', '-')}.LICENSE.txt"
                (VENDOR / licences[package.name]).write_bytes(_member(packed, package.licence))
                for path, name in package.files:
                    original = _member(packed, path)
                    data = for_browsers(original, name)
                    (VENDOR / name).write_bytes(data)
                    files.append(
                        File(
                            file=name,
                            package=package.name,
                            version=version,
                            path=path,
                            upstream=digest(original),
                            sha256=digest(data),
                        )
                    )
    made = Manifest(licences=licences, files=tuple(files))
    MANIFEST.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n")
    return made


def _pack(name: str, version: str, directory: Path) -> Path:
    argv = ("npm", "pack", f"{name}@{version}", "--silent", "--pack-destination", str(directory))
    subprocess.run(argv, check=True, timeout=_TIMEOUT, cwd=directory, stdout=subprocess.DEVNULL)
    return next(directory.glob("*.tgz"))


def _member(packed: tarfile.TarFile, path: str) -> bytes:
    found = packed.extractfile(f"package/{path}")
    if found is None:
        raise FileNotFoundError(path)
    return found.read()


def main(argv: list[str]) -> int:
    if argv[:1] == ["update"]:
        pairs = [one.rpartition("@") for one in argv[1:]]
        for file in update({name: version for name, _, version in pairs}).files:
            print(f"{file.file}: {file.package} {file.version}")  # noqa: T201
    wrong = differences()
    print("\n".join(wrong) or "all files are as their packages have them")  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
