"""Which class archive fits a session, and how it comes to be there."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from minflinkd.taskmanager.child.class_archive import UNUSED, ClassArchive, class_archive
from minflinkd.taskmanager.child.protocol import SessionConfig


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with a Java and a Spark."""
    java = tmp_path / "java"
    (java / "bin").mkdir(parents=True)
    (java / "bin" / "java").touch(mode=0o755)
    (java / "release").write_text('JAVA_RUNTIME_VERSION="17.0.1"')
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "spark-core.jar").write_text("4.1")
    return {"JAVA_HOME": str(java), "SPARK_HOME": str(tmp_path / "spark")}


@pytest.fixture
def config(tmp_path: Path) -> SessionConfig:
    return SessionConfig(
        name="tm", slots=1, working_directory="/w", log_directory="/l", class_archives=str(tmp_path / "archives")
    )


def directory(config: SessionConfig, environ: dict[str, str]) -> Path:
    found = class_archive(config, environ)
    assert found is not None
    return found.directory


def test_another_java_spark_or_class_path_has_another_archive(
    tmp_path: Path, config: SessionConfig, environ: dict[str, str]
) -> None:
    """Java would refuse an archive that was made for others."""
    found = [directory(config, environ)]
    assert directory(replace(config, name="tm-2", working_directory="/other"), environ) == found[0]
    found.append(directory(replace(config, conf={"spark.driver.extraClassPath": "/more.jar"}), environ))
    (tmp_path / "java" / "release").write_text('JAVA_RUNTIME_VERSION="17.0.2"')
    found.append(directory(config, environ))
    (tmp_path / "spark" / "jars" / "spark-core.jar").write_text("4.1.1")
    found.append(directory(config, environ))
    (tmp_path / "spark" / "jars" / "more.jar").touch()
    found.append(directory(config, environ))
    assert len(set(found)) == len(found)


def test_sessions_on_a_cluster_and_sessions_that_are_told_so_use_no_archive(
    config: SessionConfig, environ: dict[str, str]
) -> None:
    """Executors read our classes from a directory that they share."""
    assert class_archive(replace(config, master="spark://127.0.0.1:7077"), environ) is None
    assert class_archive(replace(config, class_archives=""), environ) is None
    assert class_archive(config, environ | {"JAVA_HOME": "/nowhere"}) is None


def test_an_archive_is_not_used_if_others_can_write_to_its_directory(
    config: SessionConfig, environ: dict[str, str]
) -> None:
    """It is code (E40)."""
    place = directory(config, environ).parent
    assert place.stat().st_mode & 0o777 == 0o700
    place.chmod(0o770)
    assert class_archive(config, environ) is None


def test_an_archive_is_used_once_it_is_there_and_whole(tmp_path: Path) -> None:
    """Java writes it under another name."""
    archive = ClassArchive(tmp_path)
    assert archive.options() == ()
    archive.new().write_bytes(b"all of it")
    assert archive.options() == ()
    made = archive.put(archive.new())
    assert archive.options()[0] == f"-XX:SharedArchiveFile={made}"
    assert (archive.find(), made.read_bytes()) == (made, b"all of it")


@pytest.mark.parametrize("content", [b"", b"all of", b"all of  t"], ids=["empty", "short", "changed"])
def test_a_damaged_archive_is_deleted(tmp_path: Path, content: bytes) -> None:
    """Java crashes when it maps half an archive, and no session would start any more."""
    archive = ClassArchive(tmp_path)
    archive.new().write_bytes(b"all of it")
    made = archive.put(archive.new())
    made.write_bytes(content)
    assert archive.options() == ()
    assert archive.find() is None


def test_the_jar_of_our_classes_is_made_once(tmp_path: Path) -> None:
    """An archive fits exactly one jar, down to the time of its last change."""
    classes = tmp_path / "classes"
    (classes / "org").mkdir(parents=True)
    (classes / "org" / "One.class").write_bytes(b"1")
    archive = ClassArchive(tmp_path / "archive")
    archive.keep(classes)
    made = archive.jar.stat()
    (classes / "org" / "Two.class").write_bytes(b"2")
    archive.keep(classes)
    assert (archive.jar.stat().st_ino, archive.jar.stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
    assert zipfile.ZipFile(archive.jar).namelist() == ["org/One.class"]
    assert [path.name for path in archive.directory.iterdir()] == ["classes.jar"]


def test_one_process_makes_an_archive_and_removes_what_an_interrupted_one_has_left(tmp_path: Path) -> None:
    """TaskManagers of one host start together."""
    archive = ClassArchive(tmp_path)
    left = tmp_path / ".session-1.jsa"
    left.touch()
    with archive.locked() as mine, archive.locked() as other:
        assert (mine, other) == (True, False)
        assert not left.exists()
    with archive.locked() as again:
        assert again


def test_archives_that_nobody_has_used_for_long_are_removed(tmp_path: Path) -> None:
    """Each has 200 MB, and every other Java or Spark needs its own."""
    now = 1e9
    archives = {name: ClassArchive(tmp_path / name) for name in ("mine", "used", "old")}
    for name, archive in archives.items():
        archive.directory.mkdir()
        archive.new().touch()
        os.utime(archive.put(archive.new()), (now, now - (UNUSED + 1 if name != "used" else UNUSED - 1)))
    (tmp_path / "something else").mkdir()
    archives["mine"].remove_unused(now)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "something else", "used"]


def test_a_session_starts_without_an_archive_if_its_place_is_of_no_use(tmp_path: Path) -> None:
    """A full disk, or a broken one, makes a start slower and does not prevent it."""
    (tmp_path / "classes").mkdir()
    (tmp_path / "file").touch()
    archive = ClassArchive(tmp_path / "file" / "key")
    archive.keep(tmp_path / "classes")
    assert (archive.jar.exists(), archive.options()) == (False, ())
    unreadable = ClassArchive(tmp_path)
    (tmp_path / "session-1.jsa").mkdir()
    assert unreadable.options() == ()
