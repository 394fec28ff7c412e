"""Conformance tests that take too long to run with every server each time; `make test-all` runs them too."""

from __future__ import annotations

import pytest

_SERVERS = ("test_azure.py", "test_fsspec.py", "test_gcs.py", "test_hdfs.py", "test_s3.py")
_LONG = (
    "test_a_long_listing_is_whole",  # pages have quick tests of their own
    "test_one_fault_anywhere_changes_no_outcome",
    "test_writers_do_not_mind_deletions_beside_them",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With the local backend, all of them run in `make test`."""
    for item in items:
        if item.path.name in _SERVERS and getattr(item, "originalname", "") in _LONG:
            item.add_marker(pytest.mark.slow)
