"""One client for each NameNode or nameservice, kept until the process ends."""

from __future__ import annotations

import ctypes

from hdfs_native import AsyncClient

from minflinkd_hdfs.errors import hdfs_errors
from minflinkd_hdfs.options import HdfsOptions

_clients: dict[tuple[str, HdfsOptions], AsyncClient] = {}


def client_of(authority: str, options: HdfsOptions) -> AsyncClient:
    """Return the client of `host:port`, of a nameservice, or (empty) of the configured default file system.

    It is never freed, not even when the process ends. Freeing it waits for the client's threads with the GIL held,
    while they may wait for the GIL to pass an answer to an event loop: a deadlock.
    """
    key = authority, options
    if key not in _clients:
        # Another NameNode of a nameservice is tried at once. The registry makes pauses and further rounds, because
        # hdfs-native's own end with a panic in its asynchronous client.
        rounds = {"dfs.client.failover.max.attempts": "0" if not authority or ":" in authority else "2"}
        with hdfs_errors(f"hdfs://{authority}"):
            client = AsyncClient(
                f"hdfs://{authority}" if authority else None,
                rounds,
                options.configuration,
                kerberos_principal=options.principal,
                kerberos_keytab=options.keytab,
                kerberos_cache=options.ticket_cache,
            )
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client.inner))
        _clients[key] = client
    return _clients[key]
