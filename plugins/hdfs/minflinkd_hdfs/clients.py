"""One client for each NameNode or nameservice, kept as long as the process lives."""

from __future__ import annotations

import ctypes

from hdfs_native import AsyncClient

from minflinkd_hdfs.errors import hdfs_errors
from minflinkd_hdfs.options import HdfsOptions

_clients: dict[tuple[str, HdfsOptions], AsyncClient] = {}


def client_of(authority: str, options: HdfsOptions) -> AsyncClient:
    """That of an authority: `host:port`, a nameservice, or empty for the configuration's default file system.

    It is never freed, neither at the end of the process: that waits for the client's threads, with the interpreter's
    lock held, while they may be waiting for this lock to give an answer to an event loop. Both would wait for ever.
    """
    key = authority, options
    if key not in _clients:
        # Another NameNode of a nameservice is tried at once. A pause and another round are the registry's to make:
        # hdfs-native's own ends with a panic in its asynchronous client.
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
