"""S3, and stores with its protocol, as a storage backend."""

from minflinkd_s3.options import S3Options
from minflinkd_s3.storage import S3Storage

__all__ = ["S3Options", "S3Storage"]
