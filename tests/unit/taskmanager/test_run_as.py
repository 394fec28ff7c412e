"""What a session is started with under another user (`taskmanager.run-as`, E44)."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from minflinkd.config import directories as where
from minflinkd.config.combinations import impossible
from minflinkd.config.load import load_config
from minflinkd.runtime import system_user as users
from minflinkd.runtime.ids import ResourceId
from minflinkd.runtime.system_user import NoSuchUser, SystemUser, has_capabilities, system_user
from minflinkd.taskmanager.child import run_as
from minflinkd.taskmanager.child.protocol import SessionConfig
from minflinkd.taskmanager.child.run_as import (
    CannotRunAs,
    check_run_as,
    directory_problem,
    environ_of,
    launching,
    prefix,
)
from minflinkd.taskmanager.session.job_secrets import VARIABLES
from minflinkd.taskmanager.settings import DaemonAddress, settings_of

JOBS = SystemUser("jobs", uid=4711, gid=4712, home="/nonexistent")


def test_the_child_has_the_users_ids_and_no_group_or_capability() -> None:
    """And it can never gain one. Only root may empty the bounding set; without CAP_SETPCAP, setpriv would fail."""
    command = prefix(JOBS, "/usr/bin/setpriv", root=False)
    assert command[0] == "/usr/bin/setpriv"
    assert {"--reuid=4711", "--regid=4712", "--clear-groups", "--no-new-privs"} <= set(command)
    assert {"--inh-caps=-all", "--ambient-caps=-all"} <= set(command)
    assert "--bounding-set=-all" not in command
    assert "--bounding-set=-all" in prefix(JOBS, "/usr/bin/setpriv", root=True)
    assert command[-1] == "--"


@pytest.mark.parametrize(
    ("capabilities", "enough"),
    [(0b11100000, True), (0x1FFFFFFFFFF, True), (0b11000000, False), (0b1100000, False), (0, False)],
)
def test_all_three_capabilities_are_needed(capabilities: int, enough: bool) -> None:
    """CAP_KILL is bit 5, CAP_SETGID bit 6, CAP_SETUID bit 7."""
    assert has_capabilities(capabilities) is enough


def test_the_environment_has_secrets_of_jobs_and_nothing_of_the_daemons() -> None:
    """Options of the daemon may hold keys. Directories of its unit and its user are closed to the session."""
    given = {
        "PATH": "/usr/bin",
        "AWS_REGION": "eu-central-1",
        f"{VARIABLES}DB": "of a job",
        "MINFLINKD_UMASK": "027",
        "MINFLINKD_STORAGE_S3_SECRET_KEY": "of the daemon",
        "MINFLINKD_CONFIG": "/etc/minflinkd/minflinkd.yaml",
        "CREDENTIALS_DIRECTORY": "/run/credentials/minflinkd.service",
        "STATE_DIRECTORY": "/var/lib/minflinkd",
        "NOTIFY_SOCKET": "/run/systemd/notify",
        "XDG_RUNTIME_DIR": "/run/user/0",
        "TMPDIR": "/root/tmp",
        "HOME": "/root",
        "USER": "root",
    }
    made = environ_of(JOBS, given, "/work")
    kept = {"PATH", "AWS_REGION", f"{VARIABLES}DB", "MINFLINKD_UMASK", "HOME", "USER", "LOGNAME", "SHELL"}
    assert set(made) == kept
    assert (made["HOME"], made["USER"], made[f"{VARIABLES}DB"]) == ("/work", "jobs", "of a job")


def test_without_the_option_nothing_is_different(tmp_path: Path) -> None:
    """No helper runs, and the child inherits the environment."""
    assert launching("", tmp_path) == ((), None)
    check_run_as("", "")


def test_a_user_that_does_not_exist_is_refused() -> None:
    """The message says how to make one."""
    for call in (lambda: system_user("no-such-user"), lambda: check_run_as("no-such-user", "/tmp")):
        with pytest.raises(NoSuchUser) as refused:
            call()
        assert "no-such-user" in refused.value.message
        assert "useradd" in refused.value.hint


@pytest.mark.parametrize(("name", "said"), [("root", "root"), ("me", "the user of the daemon itself")])
def test_root_and_the_daemons_own_user_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, said: str) -> None:
    """Sessions of either would have all that the option is to take away."""
    ids = {"root": 0, "me": 4711}
    monkeypatch.setattr(run_as, "system_user", lambda _: SystemUser(name, ids[name], 0, "/"))
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(CannotRunAs, match=said):
        check_run_as(name, "/tmp")


def test_a_process_that_may_not_switch_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every session would fail to start, much later."""
    monkeypatch.setattr(run_as, "system_user", lambda _: JOBS)
    monkeypatch.setattr(run_as, "may_act_as_others", lambda: False)
    with pytest.raises(CannotRunAs, match="CAP_SETUID, CAP_SETGID and CAP_KILL") as refused:
        check_run_as("jobs", "/tmp")
    assert "systemd/run-as.conf" in refused.value.hint


def test_setpriv_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A minimal image may lack it."""
    monkeypatch.setattr(run_as, "system_user", lambda _: JOBS)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotRunAs, match="setpriv") as refused:
        launching("jobs", tmp_path)
    assert "util-linux" in refused.value.hint


def test_the_directory_must_belong_to_the_user_alone(tmp_path: Path) -> None:
    """Somebody else who can write there could plant code; somebody else who can read there reads state of jobs."""
    here = tmp_path.stat()
    me = SystemUser("me", here.st_uid, here.st_gid, "/")
    place = tmp_path / "sessions"
    assert "does not reach" in directory_problem(place, me)
    place.mkdir(mode=0o700)
    assert directory_problem(place, me) == ""
    assert "does not belong to jobs" in directory_problem(place, JOBS)
    for mode in (0o701, 0o750, 0o770):
        place.chmod(mode)
        assert f"mode {mode:o}" in directory_problem(place, me)
    file = tmp_path / "file"
    file.touch()
    assert "no directory" in directory_problem(file, me)
    assert stat.S_ISREG(file.stat().st_mode)


def test_the_option_needs_a_directory_for_sessions() -> None:
    """The state directory is closed to their user."""
    config = load_config(None, {}, {"taskmanager.state.local.root-dir": "/s", "taskmanager.run-as": "jobs"})
    assert list(impossible(config)) == []
    with pytest.raises(Exception, match=r"taskmanager\.state\.local\.root-dir must name"):
        load_config(None, {}, {"taskmanager.run-as": "jobs"})


def test_everything_that_a_session_uses_is_in_its_users_directory(tmp_path: Path) -> None:
    """And the log, which it only prints to, is where its user reaches nothing."""
    config = load_config(None, {}, {"taskmanager.state.local.root-dir": "/s", "taskmanager.run-as": "jobs"})
    home = tmp_path / "taskmanagers" / "tm-1"
    daemon = DaemonAddress(host="localhost", port=1, secret_file=tmp_path / "cluster.secret")
    made = settings_of(config, resource_id=ResourceId("tm-1"), daemon=daemon, directory=home, registration_timeout=1.0)
    assert (made.working_directory, made.state_directory) == ("/s/tm-1/work", "/s/tm-1/state")
    assert made.log_directory == str(home / "log")
    assert made.run_as == "jobs"
    assert where.class_archives(config, tmp_path) == Path("/s/class-archives")


def test_what_a_child_prints_goes_where_the_supervisor_says() -> None:
    """By default, into the directory of its logs."""
    config = SessionConfig(name="a", slots=1, working_directory="/w", log_directory="/l")
    assert config.output == Path("/l/session.log")
    apart = SessionConfig(name="a", slots=1, working_directory="/w", log_directory="", printed="/d/session.log")
    assert apart.output == Path("/d/session.log")


def test_an_error_in_the_users_thread_is_raised_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread itself has nobody who would see it."""
    monkeypatch.setattr(users, "use_files_as", lambda _: None)
    me = system_user(pwd.getpwuid(os.getuid()).pw_name)
    assert users.call_as(me, lambda: 3) == 3
    with pytest.raises(FileNotFoundError):
        users.call_as(me, lambda: os.stat("/no/such/file"))
