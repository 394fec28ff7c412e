"""Where a TaskManager looks for a secret that a job names, and what it hides (E44)."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.runtime.errors import ErrorInfo
from minflinkd.taskmanager.session.job_secrets import LARGEST, JobSecrets, UnknownSecret


def write(directory: Path, name: str, value: bytes, mode: int = 0o600) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_bytes(value)
    (directory / name).chmod(mode)


def test_the_directory_comes_before_the_credentials_of_the_unit_and_these_before_the_environment(
    tmp_path: Path,
) -> None:
    secrets = JobSecrets(
        str(tmp_path / "own"),
        {"CREDENTIALS_DIRECTORY": str(tmp_path / "unit"), "MINFLINKD_SECRET_DB_PASSWORD": "from the environment"},
    )
    assert secrets("db-password") == "from the environment"
    write(tmp_path / "unit", "db-password", b"of the unit\n", 0o400)
    assert secrets("db-password") == "of the unit"
    write(tmp_path / "own", "db-password", b"from the directory\n\n")
    assert secrets("db-password") == "from the directory\n", "one newline at the end is the editor's"


@pytest.mark.parametrize(
    ("value", "mode", "why"),
    [
        (b"x", 0o644, "every user"),
        (b"x" * (LARGEST + 1), 0o600, f"more than {LARGEST} bytes"),
        (b"\xff\xfe", 0o600, "no text"),
        (b"\n", 0o600, "is empty"),
    ],
    ids=["open to all", "too large", "no text", "empty"],
)
def test_a_file_that_is_of_no_use_is_refused(tmp_path: Path, value: bytes, mode: int, why: str) -> None:
    """Not passed over: the next place might have an old value."""
    write(tmp_path, "key", value, mode)
    with pytest.raises(UnknownSecret, match=why) as refused:
        JobSecrets(str(tmp_path), {"MINFLINKD_SECRET_KEY": "old"})("key")
    assert "old" not in str(refused.value)


def test_a_secret_that_nobody_has_is_refused_with_the_places_where_it_may_be() -> None:
    with pytest.raises(UnknownSecret) as refused:
        JobSecrets("/etc/minflinkd/secrets", {})("api.key")
    assert refused.value.hint == "put it into /etc/minflinkd/secrets/api.key, or into $MINFLINKD_SECRET_API_KEY"


def test_what_was_looked_up_is_hidden_in_errors() -> None:
    """In every encoding in which a driver may show it."""
    secrets = JobSecrets("", {"MINFLINKD_SECRET_A": "p@ss word!", "MINFLINKD_SECRET_B": "never asked for"})
    secrets("a")
    error = ErrorInfo(
        code="spark-query",
        message="no access with p@ss word! at jdbc:x?password=p%40ss%20word%21",
        traceback="never asked for: p@ss word!",
    )
    hidden = secrets.hidden_in(error)
    assert hidden.message == "no access with ****** at jdbc:x?password=******"
    assert hidden.traceback == "never asked for: ******"
