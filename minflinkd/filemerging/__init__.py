"""State files of a checkpoint, merged into few physical files. The format: docs/storage.md."""

from minflinkd.filemerging.reader import read_segments
from minflinkd.filemerging.segments import physical_file_name
from minflinkd.filemerging.writer import DEFAULT_MAX_FILE_SIZE, PhysicalFileWriter, WriterClosed

__all__ = ["DEFAULT_MAX_FILE_SIZE", "PhysicalFileWriter", "WriterClosed", "physical_file_name", "read_segments"]
