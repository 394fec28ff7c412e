"""The connection to S3: created at first use, in the loop that uses it, and closed in that loop."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import s3fs
from aiobotocore.session import AioSession
from botocore.loaders import create_loader

from minflinkd.storage.interface import StorageError
from minflinkd_s3.options import S3Options

_CONNECTIONS = 1000  # at most; storage.s3.parallelism limits the requests
_MODELS = ("endpoints", "partitions", "sdk-default-configuration", "_retry", "s3/service-2", "s3/endpoint-rule-set-1")


class S3Session:
    """An s3fs file system, used for its credentials and its client.

    Requests use the client directly, because the operations of s3fs check before they write, cache listings, retry by
    themselves, and turn a failed precondition into EINVAL.
    """

    def __init__(self, options: S3Options) -> None:
        self._options = options
        self._lock = asyncio.Lock()
        self._client: Any = None  # aiobotocore's, which has no types

    async def client(self) -> Any:
        if self._client is None:
            async with self._lock:
                if self._client is None:
                    self._client = await self._connect()
        return self._client

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _connect(self) -> Any:
        options = self._options
        try:
            session = await asyncio.to_thread(_load, options.profile)
            system = s3fs.S3FileSystem(
                asynchronous=True,
                skip_instance_cache=True,
                use_listings_cache=False,
                session=session,
                anon=options.anonymous,
                endpoint_url=options.endpoint_url,
                key=options.access_key,
                secret=options.secret_key,
                token=options.session_token,
                client_kwargs={"region_name": options.region} if options.region else {},
                config_kwargs=_client_config(options),
            )
            return await system.set_session()
        except ValueError as error:  # botocore's error for an endpoint that is no URL
            raise StorageError(f"s3: {error}", hint="correct storage.s3.endpoint-url") from error


def _client_config(options: S3Options) -> dict[str, object]:
    path_style = options.endpoint_url is not None if options.path_style is None else options.path_style
    return {
        "connect_timeout": options.connect_timeout,
        "read_timeout": None,  # storage.s3.request-timeout applies, however long it is
        "max_pool_connections": _CONNECTIONS,
        "retries": {"total_max_attempts": 1, "mode": "standard"},  # the caller retries, and counts retries
        "s3": {"addressing_style": "path" if path_style else "auto"},
    }


def _load(profile: str | None) -> AioSession:
    session = AioSession(profile=profile)
    session.register_component("data_loader", _models())
    return session


@functools.cache
def _models() -> Any:
    """Return the SDK's description of S3. Read only once, because that blocks for a fifth of a second."""
    loader = create_loader(AioSession().get_config_variable("data_path"))
    for name in _MODELS:
        service, _, model = name.rpartition("/")
        _ = loader.load_service_model(service, model) if service else loader.load_data(model)
    return loader
