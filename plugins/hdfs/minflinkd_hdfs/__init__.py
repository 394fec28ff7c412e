"""HDFS as a storage backend, with hdfs-native: no JVM, no libhdfs."""

from minflinkd_hdfs.options import HdfsOptions
from minflinkd_hdfs.storage import HdfsStorage

__all__ = ["HdfsOptions", "HdfsStorage"]
