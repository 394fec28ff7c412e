"""The options below `storage.hdfs.` (S7)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from minflinkd.runtime.units import Duration, MemorySize


class HdfsOptions(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Everything else is configured as for Hadoop: user, nameservices and security in core-site.xml, hdfs-site.xml."""

    configuration: str | None = None  # the directory of core-site.xml and hdfs-site.xml; default: HADOOP_CONF_DIR
    replication: Annotated[int, msgspec.Meta(ge=1)] | None = None  # of new files; default: the NameNode's
    block_size: MemorySize | None = None  # of new files; default: the NameNode's
    principal: str | None = None  # for Kerberos, with a keytab or a ticket cache
    keytab: str | None = None
    ticket_cache: str | None = None
    leftover_age: Duration = Duration(600)  # age at which a temporary file without a writer may be deleted
