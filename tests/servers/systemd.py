"""A host of its own with a real systemd, which runs the shipped units: a small root directory in namespaces.

Example: `with booted(tmp_path / "host") as host: host.run("systemctl", "start", "minflinkd")`. The host sees this
machine's /usr, the checkout and its Python, all read-only. It has its own processes, users, journal and loopback.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.servers.install import NotInstalled
from tests.servers.install import systemd as install
from tests.waiting import PATIENCE

CHECKOUT = Path(__file__).parents[2]
UNITS = CHECKOUT / "systemd"
NAME = "minflinkd-host"
BOOT, POWEROFF = 20.0 * PATIENCE, 20.0 * PATIENCE  # seconds; it takes two

_DIRECTORIES = (
    "usr proc sys dev run tmp root data etc/systemd/system etc/sysusers.d etc/tmpfiles.d var/lib var/log var/tmp"
)
_ETC = "passwd group shadow nsswitch.conf ld.so.cache ld.so.conf ld.so.conf.d alternatives ssl localtime os-release"
# What Debian enables in every host, and has no business here.
_MASKED = """console-getty.service systemd-logind.service systemd-update-utmp.service machines.target
systemd-update-utmp-runlevel.service systemd-tmpfiles-clean.timer ssh.service postgresql.service docker.service
docker.socket containerd.service"""


class Host:
    """A booted host. `data` is a directory in which its services and this process may write."""

    def __init__(self, root: Path, init: int) -> None:
        self.data = root / "data"
        self._init = init

    def run(self, *command: str, timeout: float = 60.0) -> str:
        """Run a command in the host as root, and return its output. Raises CalledProcessError with it."""
        done = self.tries(*command, timeout=timeout)
        done.check_returncode()
        return done.stdout.strip()

    def tries(self, *command: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        inside = ("nsenter", "--target", str(self._init), *["--mount", "--uts", "--ipc", "--net", "--pid", "--"])
        return subprocess.run(
            (*inside, *command), capture_output=True, text=True, timeout=timeout * PATIENCE, check=False
        )

    def minflinkd(self, *command: str, timeout: float = 60.0) -> str:
        return self.run(sys.executable, "-m", "minflinkd", *command, timeout=timeout)

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "--unit", unit, "--no-pager", "--output", "cat")


@contextlib.contextmanager
def booted(root: Path, config: str, *, enabled: Sequence[str] = ()) -> Iterator[Host]:
    """Boot a host with minflinkd's units and this configuration file. Power it off at the end.

    User and directories are made at the boot, by systemd, from the shipped files. `enabled`: units that start with it.

    Skips the test where that is not possible, with the reason.
    """
    if os.geteuid() != 0:
        pytest.skip("only root boots a host in namespaces")
    try:
        install()
    except NotInstalled as error:
        pytest.skip(str(error))
    _furnish(root, config, enabled)
    with (root.parent / "boot.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *("systemd-nspawn", "--quiet", "--directory", str(root), "--boot", "--bind-ro=/usr"),
                *(*(f"--bind-ro={each}" for each in _of_python()), "--private-network"),
                *("--register=no", "--keep-unit", "--kill-signal=SIGRTMIN+3", "systemd.unit=multi-user.target"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
            start_new_session=True,
        )
    try:
        yield _once_up(root, process)
    finally:
        process.terminate()
        try:
            process.wait(POWEROFF)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(root, ignore_errors=True)


def _furnish(root: Path, config: str, enabled: Sequence[str]) -> None:
    for name in _DIRECTORIES.split():
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    etc = root / "etc"
    for source in map(Path("/etc").joinpath, (*_ETC.split(), *(p.name for p in Path("/etc").glob("java-*")))):
        if source.is_dir():
            shutil.copytree(source, etc / source.name, symlinks=True, ignore_dangling_symlinks=True)
        elif source.exists():
            shutil.copy(source, etc / source.name)
    (etc / "machine-id").write_text("")
    (etc / "hostname").write_text(f"{NAME}\n")
    (etc / "hosts").write_text(f"127.0.0.1 localhost {NAME}\n")  # a JVM looks its own host up
    units = etc / "systemd" / "system"
    for name in _MASKED.split():
        (units / name).symlink_to("/dev/null")
    for name in ("minflinkd.service", "minflinkd-taskmanager@.service"):
        here = f"ExecStart={sys.executable} -m minflinkd"  # the packager chooses where minflinkd is installed
        (units / name).write_text(re.sub(r"(?m)^ExecStart=\S+", here, (UNITS / name).read_text()))
        # The checkout may be in somebody's home, or below /tmp, which the unit hides.
        seen = f"ProtectHome=no\nBindReadOnlyPaths={' '.join(map(str, _of_python()))}\nReadWritePaths=/data\n"
        code = f"Environment=PYTHONPATH={os.environ.get('PYTHONPATH', '')}\n"
        (units / f"{name}.d").mkdir()
        (units / f"{name}.d" / "test.conf").write_text(f"[Service]\n{seen}{code}")
    if enabled:
        subprocess.run(("systemctl", "--root", str(root), "enable", *enabled), check=True, capture_output=True)
    shutil.copy(UNITS / "minflinkd.sysusers", etc / "sysusers.d" / "minflinkd.conf")
    shutil.copy(UNITS / "minflinkd.tmpfiles", etc / "tmpfiles.d" / "minflinkd.conf")
    (etc / "minflinkd").mkdir()
    (etc / "minflinkd" / "minflinkd.yaml").write_text(config)
    for path, mode in ((root, 0o755), (root / "root", 0o755), (root / "tmp", 0o1777), (root / "data", 0o777)):
        path.chmod(mode)


def _of_python() -> list[Path]:
    """Return the directories that this Python needs outside of /usr, none of them within another."""
    wanted = {CHECKOUT, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    wanted |= {Path(each).resolve() for each in sys.path if each and Path(each).is_dir()}
    outside = {each for each in wanted if not each.is_relative_to("/usr")}
    return sorted(each for each in outside if not any(above in outside for above in each.parents))


def _once_up(root: Path, process: subprocess.Popen[bytes]) -> Host:
    deadline = time.monotonic() + BOOT
    while time.monotonic() < deadline and process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if children and Path(f"/proc/{children[0]}/root/run/systemd/private").is_socket():
            host = Host(root, int(children[0]))
            state = host.tries("systemctl", "is-system-running").stdout
            if state.strip() in ("running", "degraded"):
                return host
        time.sleep(0.1)
    said = (root.parent / "boot.log").read_text(errors="replace")[-500:]
    pytest.skip(f"systemd does not boot in namespaces on this machine: {said}")
