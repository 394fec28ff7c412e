"""Turns what HDFS and its client raise into the few kinds of storage errors (S4).

hdfs-native raises Python's own errors in the most common cases. In all others it raises a RuntimeError with the text of
a Rust value: `RPCError("<Java class>", "<message and stack>")`, `DataTransferError("...")`, `ChecksumError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from minflinkd.storage.interface import (
    InvalidPath,
    ObjectExists,
    ObjectNotFound,
    PermissionDenied,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageUnavailable,
)

_RPC = re.compile(r'(?:Fatal)?RPCError\("(?:[\w.]*[.])?([\w$]+)", "(.*)"\)', re.DOTALL)
_VARIANT = re.compile(r"(\w+)(?:\((.*)\))?", re.DOTALL)
_STACK = re.compile(r"(?:\\n|\n)(?:\\t|\t)at .*", re.DOTALL)  # Java's
_ADDRESS = "write hdfs://host:port/path, or a nameservice that storage.hdfs.configuration describes"
_ROOM = "raise the directory's quota, or delete something there"
_LOGIN = "see storage.hdfs.principal, keytab and ticket-cache"
_BLOCKS = "see whether the DataNodes run and have room"

_JAVA: dict[str, tuple[type[StorageError], str]] = {
    "AccessControlException": (PermissionDenied, "give the user access, or set HADOOP_USER_NAME"),
    "AuthorizationException": (PermissionDenied, ""),
    "InvalidToken": (PermissionDenied, _LOGIN),
    "SaslException": (PermissionDenied, _LOGIN),
    "DSQuotaExceededException": (StorageFull, _ROOM),
    "NSQuotaExceededException": (StorageFull, _ROOM),
    "QuotaByStorageTypeExceededException": (StorageFull, _ROOM),
    "FSLimitException$MaxDirectoryItemsExceededException": (StorageFull, "see dfs.namenode.fs-limits"),
    "FSLimitException$PathComponentTooLongException": (InvalidPath, "shorten the name"),
    "InvalidPathException": (InvalidPath, ""),
    "FileNotFoundException": (ObjectNotFound, ""),
    "ParentNotDirectoryException": (ObjectNotFound, ""),
    "UnresolvedPathException": (ObjectNotFound, "it leads through a symbolic link"),
    "FileAlreadyExistsException": (ObjectExists, ""),
    "AlreadyBeingCreatedException": (StorageUnavailable, ""),
    "LeaseExpiredException": (StorageUnavailable, ""),
    "RecoveryInProgressException": (StorageUnavailable, ""),
    "NotReplicatedYetException": (StorageUnavailable, _BLOCKS),
    "BlockMissingException": (StorageUnavailable, _BLOCKS),
    "RetriableException": (StorageUnavailable, ""),
    "SafeModeException": (StorageUnavailable, "the NameNode is in safe mode until the DataNodes have reported"),
    "StandbyException": (StorageUnavailable, "no NameNode of the nameservice is active"),
    "RpcServerException": (StorageUnavailable, ""),
    "ServiceException": (StorageUnavailable, ""),
    "ChecksumException": (StorageCorrupt, ""),
}
_RUST: dict[str, tuple[type[StorageError], str]] = {
    "ChecksumError": (StorageCorrupt, ""),
    "BlocksNotFound": (StorageUnavailable, _BLOCKS),
    "DataTransferError": (StorageUnavailable, _BLOCKS),
    "InternalError": (StorageUnavailable, ""),
    "InvalidRPCResponse": (StorageUnavailable, ""),
    "OperationFailed": (StorageUnavailable, ""),
    "InvalidPath": (InvalidPath, ""),
    "InvalidArgument": (StorageError, _ADDRESS),
    "UrlParseError": (StorageError, _ADDRESS),
    "SASLError": (PermissionDenied, _LOGIN),
    "GSSAPIError": (PermissionDenied, _LOGIN),
    "NoSASLMechanism": (PermissionDenied, _LOGIN),
}


class DirectoryNotEmpty(StorageError):
    """A directory to be deleted if empty is not empty."""


@contextmanager
def hdfs_errors(path: str) -> Iterator[None]:
    """Turn all errors of the client in the block into a StorageError that names `path` and the cause."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError) as error:
        raise ObjectNotFound(f"hdfs: {path}: {_first_line(str(error))}") from error
    except FileExistsError as error:
        raise ObjectExists(f"hdfs: {path}: {_first_line(str(error))}") from error
    except (OSError, EOFError) as error:  # TimeoutError too
        raise StorageUnavailable(f"hdfs: {path}: {_first_line(str(error)) or type(error).__name__}") from error
    except (RuntimeError, NotImplementedError) as error:
        raise of_text(path, str(error)) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # from Rust; the class cannot be imported
            raise
        raise StorageUnavailable(f"hdfs: {path}: the client failed: {_first_line(str(error))}") from error


def of_text(path: str, text: str) -> StorageError:
    """Return the error for the text of hdfs-native's RuntimeError."""
    if match := _RPC.match(text):
        name, said = match[1], _first_line(match[2])
        if name == "PathIsNotEmptyDirectoryException":
            return DirectoryNotEmpty(f"hdfs: {path}: {said}")
        kind, hint = _JAVA.get(name, (StorageError, ""))
        if name == "AccessControlException" and "(is not a directory)" in said:  # for a path below a file
            kind, hint = ObjectNotFound, ""
        if name == "IOException" and "could only be written to" in said:  # no DataNode accepted the block
            kind, hint = StorageUnavailable, _BLOCKS
        return kind(f"hdfs: {path}: {name}: {said}", hint=hint)
    match = _VARIANT.match(text)
    kind, hint = _RUST.get(match[1] if match else "", (StorageError, ""))
    return kind(f"hdfs: {path}: {_first_line(text)}", hint=hint)


def _first_line(text: str) -> str:
    return _STACK.sub("", text).strip().replace('\\"', '"')[:500]
