"""Files at URLs are fetched from a real web server, from memory and from archives, verified, or refused with a code."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from minflinkd.cli.fetching import (
    FileTooLarge,
    HashDiffers,
    UnknownUrlScheme,
    UrlNotFound,
    UrlRefused,
    UrlUnreachable,
    fetch,
    verify,
)
from minflinkd.jobgraph.places import place_of
from minflinkd.runtime.errors import Consequence, MinflinkError
from tests.web_server import WebServer, web_server

CODE = b"def late(inputs, params):\n    return inputs['flights']\n" * 50_000  # more than two pieces
SHA256 = hashlib.sha256(CODE).hexdigest()
LARGEST = 10 << 20


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


async def fetched(url: str, target: Path, *, largest: int = LARGEST, silence: float = 20.0) -> bytes:
    await fetch(place_of(url), target, largest=largest, silence=silence)
    return target.read_bytes()


async def test_a_file_at_a_web_server_is_fetched_by_one_request(web: WebServer, tmp_path: Path) -> None:
    """There is no HEAD before it: a signed URL of an object store is valid for one method."""
    web.files["/a.py"] = CODE
    assert await fetched(f"{web.url}/a.py?sig=abc", tmp_path / "x") == CODE
    assert web.requests == [("GET", "/a.py?sig=abc")]


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
async def test_a_hash_in_the_fragment_is_compared(web: WebServer, tmp_path: Path, algorithm: str) -> None:
    web.files["/a.py"] = CODE
    right = hashlib.new(algorithm, CODE).hexdigest()
    assert await fetched(f"{web.url}/a.py#{algorithm}={right}", tmp_path / "x") == CODE
    wrong = hashlib.new(algorithm, b"").hexdigest()
    with pytest.raises(HashDiffers, match=f"has the {algorithm} {right}, not {wrong}"):
        await fetched(f"{web.url}/a.py#{algorithm}={wrong}", tmp_path / "x")


async def test_a_redirect_is_followed_and_the_end_is_verified(web: WebServer, tmp_path: Path) -> None:
    web.files["/v7/a.py"] = CODE
    web.redirects["/latest/a.py"] = "/v7/a.py"
    assert await fetched(f"{web.url}/latest/a.py#sha256={SHA256}", tmp_path / "x") == CODE


async def test_the_user_and_password_of_a_url_are_used(web: WebServer, tmp_path: Path) -> None:
    web.files["/a.py"], web.guarded["/a.py"] = CODE, "reader:pa55-word"
    with_password = web.url.replace("://", "://reader:pa55-word@")
    assert await fetched(f"{with_password}/a.py", tmp_path / "x") == CODE


@pytest.mark.parametrize(
    ("path", "kind", "consequence"),
    [
        ("/none.py", UrlNotFound, Consequence.REFUSED),
        ("/guarded.py", UrlRefused, Consequence.REFUSED),
        ("/forbidden.py", UrlRefused, Consequence.REFUSED),
        ("/teapot.py", UrlRefused, Consequence.REFUSED),
        ("/busy.py", UrlUnreachable, Consequence.RETRYABLE),
        ("/cut.py", UrlUnreachable, Consequence.RETRYABLE),
        ("/large.py", FileTooLarge, Consequence.REFUSED),
        ("/other.py#sha256=" + "0" * 64, HashDiffers, Consequence.REFUSED),
    ],
)
async def test_an_error_says_what_to_do_and_has_no_credential(
    web: WebServer, tmp_path: Path, path: str, kind: type[MinflinkError], consequence: Consequence
) -> None:
    """E40: neither the user's password nor a signature in the query is shown."""
    web.files |= {"/cut.py": CODE, "/large.py": b"x" * (LARGEST + 1), "/other.py": CODE}
    web.statuses |= {"/forbidden.py": 403, "/teapot.py": 418, "/busy.py": 503}
    web.guarded["/guarded.py"], web.cut = "somebody:else", {"/cut.py"}
    bare, hash_sign, digest = path.partition("#")
    url = f"{web.url}{bare}?X-Sig=s1gnature&t=tok3n{hash_sign}{digest}".replace("://", "://reader:pa55-word@")
    with pytest.raises(kind) as caught:
        await fetched(url, tmp_path / "x")
    error = caught.value
    assert error.info().consequence is consequence
    assert error.hint
    assert f"127.0.0.1:{web.url.rpartition(':')[2]}{bare}" in error.message
    told = "".join(map(repr, (str(error), error.info(), error.__cause__)))
    for secret in ("pa55", "reader", "s1gnature", "tok3n"):
        assert secret not in told


async def test_a_server_that_falls_silent_is_given_up_and_holds_up_nobody(web: WebServer, tmp_path: Path) -> None:
    """The event loop goes on while the thread of the fetch hangs."""
    web.files["/a.py"], web.silent = CODE, {"/a.py"}
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    counting = asyncio.create_task(count())
    with pytest.raises(UrlUnreachable, match=r"brought nothing for 0\.3 s"):
        await fetched(f"{web.url}/a.py", tmp_path / "x", silence=0.3)
    counting.cancel()
    assert turns > 5


async def test_nobody_listening_is_retryable(web: WebServer, tmp_path: Path) -> None:
    with pytest.raises(UrlUnreachable, match=r"http://127\.0\.0\.1:1/a\.py cannot be read now"):
        await fetched("http://127.0.0.1:1/a.py", tmp_path / "x")


async def test_an_unknown_scheme_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownUrlScheme, match=r"no file system for htps://.*did you mean https://") as caught:
        await fetched("htps://user:pa55-word@host/a.py", tmp_path / "x")
    assert "pa55" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "module", "command"),
    [
        ("sftp://host/a.py", "paramiko", "pip install paramiko"),
        ("smb://host/share/a.py", "smbclient", "pip install smbprotocol"),
        ("s3://bucket/a.py", "s3fs", "pip install 'minflinkd[s3]'"),
        ("gs://bucket/a.py", "gcsfs", "pip install 'minflinkd[gcs]'"),
        ("webdav://host/a.py", "webdav4", r"pip install webdav4[fsspec]"),
        ("zip://a.py::sftp://host/x.zip", "paramiko", "pip install paramiko"),
    ],
)
async def test_a_missing_package_is_named_as_pip_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, module: str, command: str
) -> None:
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]  # as if it was not installed
    monkeypatch.delitem(sys.modules, "fsspec.implementations.sftp", raising=False)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.smb", raising=False)
    known = sys.modules["fsspec.registry"]._registry  # `fsspec.registry` is something else
    for scheme in list(known):  # classes that earlier tests of this process have loaded
        monkeypatch.delitem(known, scheme)
    with pytest.raises(UnknownUrlScheme, match="the package for it is missing") as caught:
        await fetched(url, tmp_path / "x")
    assert command in caught.value.hint


async def test_files_in_memory_and_in_archives_are_fetched_as_well(tmp_path: Path, web: WebServer) -> None:
    """Any scheme of fsspec's goes through the same code; an archive may itself be at a URL."""
    fsspec.filesystem("memory").pipe_file("/jobs/a.py", CODE)
    assert await fetched("memory://jobs/a.py", tmp_path / "x") == CODE
    with zipfile.ZipFile(tmp_path / "release.zip", "w") as archive:
        archive.writestr("lib/a.py", CODE)
    web.files["/release.zip"] = (tmp_path / "release.zip").read_bytes()
    assert await fetched(f"zip://lib/a.py::{web.url}/release.zip#sha256={SHA256}", tmp_path / "x") == CODE
    with pytest.raises(UrlNotFound):
        await fetched(f"zip://lib/none.py::{web.url}/release.zip", tmp_path / "x")
    (tmp_path / "a.py").write_bytes(CODE)
    assert await fetched(f"file://{tmp_path}/a.py", tmp_path / "x") == CODE
    with pytest.raises(UrlNotFound, match="is a directory"):
        await fetched(f"file://{tmp_path}", tmp_path / "x")


async def test_the_hash_of_a_local_file_is_compared_too(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(CODE)
    await verify(place_of(f"a.py#sha256={SHA256}", tmp_path))
    with pytest.raises(HashDiffers):
        await verify(place_of("a.py#sha256=" + "0" * 64, tmp_path))
