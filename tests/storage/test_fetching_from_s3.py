"""A job file's artifacts in S3, fetched by the command line with the SDK's own credentials."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

import pytest

from minflinkd.cli.fetching import UrlNotFound, fetch
from minflinkd.jobgraph.places import Url, place_of
from minflinkd.storage.conformance import content, write
from minflinkd.storage.options import parse
from minflinkd_s3 import S3Options, S3Storage
from tests.servers.s3 import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, Moto

CONTENT = content(9 << 20)  # three reads of a range


async def test_an_artifact_beside_a_job_file_in_s3_is_fetched_and_verified(
    moto: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon's options `storage.s3.*` have no part in it."""
    directory = f"{BUCKET}/{secrets.token_hex(8)}"
    storage = S3Storage(parse(S3Options, moto.options, "s3"))
    try:
        await write(storage, f"{directory}/lib/rules.zip", CONTENT)
    finally:
        await storage.aclose()
    for name, value in {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": moto.endpoint,
    }.items():
        monkeypatch.setenv(name, value)
    job_file = Url(f"s3://{directory}/job.yaml")
    artifact = place_of(f"lib/rules.zip#sha256={hashlib.sha256(CONTENT).hexdigest()}", job_file)
    await fetch(artifact, tmp_path / "x", largest=1 << 30)
    assert (tmp_path / "x").read_bytes() == CONTENT
    with pytest.raises(UrlNotFound, match=f"there is no file s3://{directory}/none.zip"):
        await fetch(place_of("none.zip", job_file), tmp_path / "x", largest=1 << 30)
