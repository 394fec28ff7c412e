"""Install what the tests' servers need beyond Python packages: `python -m tests.servers.install`, or `make servers`.

Each server has one function, listed in SERVERS. It returns at once if everything is there already. A server that cannot
be installed is reported and is no failure: tests that need it are skipped with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from pathlib import Path

HOME = Path(__file__).parents[2] / ".servers"  # ignored by git
_TIMEOUT = 180  # seconds for one command
_AGAIN = 24 * 3600.0  # seconds until a failed installation is tried again by itself

AZURITE_VERSION = "3.35.0"  # the last version that runs on Node 18, which Debian 12 has
AZURITE = HOME / f"azurite-{AZURITE_VERSION}" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"

AXE_VERSION = "4.14.1"
AXE = HOME / f"axe-core-{AXE_VERSION}" / "node_modules" / "axe-core" / "axe.min.js"

HADOOP_VERSION = "3.4.1"
HADOOP = HOME / f"hadoop-{HADOOP_VERSION}"  # the jars of a NameNode and a DataNode
_ARTIFACTS = (
    *(f"org.apache.hadoop:{name}:{HADOOP_VERSION}" for name in ("hadoop-hdfs", "hadoop-hdfs-client", "hadoop-common")),
    "com.fasterxml.jackson.core:jackson-core:2.12.7",  # as old as other Jackson jars there: an older one breaks them
)

POSTGRES_DRIVER = HOME / "postgresql-driver-42.7.7"  # the JDBC driver
MYSQL_DRIVERS = HOME / "mysql-drivers-9.7-3.5"  # the JDBC drivers of MySQL and of MariaDB
KAFKA_CONNECTOR = HOME / "kafka-connector-4.2.0"  # Spark's connector
KAFKA_BROKER = HOME / "kafka-broker-4.3.1"
SCHEMA_REGISTRY_VERSION = "2.6.13.Final"  # the last one for Java 17
SCHEMA_REGISTRY = HOME / f"apicurio-registry-{SCHEMA_REGISTRY_VERSION}"
PROMETHEUS = HOME / "prometheus"  # the directory of `prometheus` and `promtool`
_POSTGRES = Path("/usr/lib/postgresql")

FLINK_VERSION = "2.3.0"
FLINK = HOME / f"flink-{FLINK_VERSION}" / "pyflink" / "lib"  # the jars of Flink's clients


def postgres_home() -> Path | None:
    """Return the directory of the newest server that the operating system has."""
    found = sorted(_POSTGRES.glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    return found[-1].parent if found else None


_last_failure = ContextVar("why the last try failed", default="")


class NotInstalled(Exception):
    """Says what is missing, and why."""


class Failed(NotInstalled):
    """A command failed, perhaps after a long time."""


def azurite() -> None:
    """Install from npm, into a directory that appears whole."""
    if AZURITE.is_file() and shutil.which("node"):
        return
    need("node", "nodejs")
    if AZURITE.is_file():
        return
    npm(AZURITE, f"azurite@{AZURITE_VERSION}")


def npm(wanted: Path, package: str) -> None:
    """Install a package from npm, `name@version`, unless what is wanted of it is there. Raises NotInstalled."""
    if wanted.is_file():
        return
    need("npm", "npm")
    target = HOME / package.replace("@", "-")
    draft = HOME / f"{target.name}-{os.getpid()}.part"
    try:
        run(
            *("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=dev", "--loglevel=error"),
            *("--prefix", str(draft), package),
        )
        if not wanted.is_file():
            shutil.rmtree(target, ignore_errors=True)
        _appear(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def axe() -> None:
    """Install what looks for faults of accessibility in a page."""
    npm(AXE, f"axe-core@{AXE_VERSION}")


def hdfs() -> None:
    jars(HADOOP, _ARTIFACTS)


def postgres() -> None:
    jars(POSTGRES_DRIVER, ("org.postgresql:postgresql:42.7.7",))
    if postgres_home() is None:
        need("psql", "postgresql")


def mariadb() -> None:
    jars(MYSQL_DRIVERS, ("com.mysql:mysql-connector-j:9.7.0", "org.mariadb.jdbc:mariadb-java-client:3.5.11"))
    need("mariadbd", "mariadb-server-core")  # `mariadb-server` would start one
    need("mariadb", "mariadb-client-core")


def sftp() -> None:
    need("sshd", "openssh-server")


def systemd() -> None:
    """Boots the units under test in namespaces of their own."""
    need("systemd-nspawn", "systemd-container")
    need("dbus-daemon", "dbus")


def prometheus() -> None:
    """Unpack Debian's package instead of installing it, which would start a server."""
    if (PROMETHEUS / "promtool").is_file():
        return
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise NotInstalled("promtool is missing, and there is no apt-get to fetch prometheus with")
    draft = HOME / f"prometheus-{os.getpid()}.part"
    try:
        draft.mkdir(parents=True)
        if os.geteuid() == 0:
            run("apt-get", "update", "-qq")
        run("apt-get", "download", "-qq", "prometheus", cwd=draft)
        package = next(draft.glob("prometheus_*.deb"), None)
        if package is None:
            raise Failed("apt-get download has left no package")
        run("dpkg-deb", "-x", str(package), str(draft / "root"))
        _appear(draft / "root" / "usr" / "bin", PROMETHEUS)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def chromium() -> None:
    """Opens the pages under test. The shell without windows is the quicker one; not every system has it."""
    shell = "chromium-headless-shell"
    if any(map(shutil.which, (shell, "chromium", "chromium-browser"))):
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        run("apt-get", "update", "-qq")
    known = shutil.which("apt-cache") and subprocess.run(("apt-cache", "show", shell), capture_output=True, check=False)
    package = shell if known and known.returncode == 0 else "chromium"
    need(package, package)


def shells() -> None:
    """Complete the command lines under test; bash is there."""
    need("zsh", "zsh")
    need("fish", "fish")


def kafka() -> None:
    """The jars are named one by one, because the registries do not have all of them for every release of Spark."""
    artifacts = (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.commons:commons-pool2:2.12.1",
    )
    jars(KAFKA_CONNECTOR, artifacts, alone=True)


def kafka_broker() -> None:
    jars(KAFKA_BROKER, ("org.apache.kafka:kafka_2.13:4.3.1",))


def schema_registry() -> None:
    """Unpack Apicurio's, which speaks the HTTP API of Confluent's, too. Confluent's own is not in Maven Central."""
    if SCHEMA_REGISTRY.is_dir():
        return
    need("mvn", "maven")
    draft = HOME / f"{SCHEMA_REGISTRY.name}-{os.getpid()}.part"
    artifact = f"io.apicurio:apicurio-registry-app:{SCHEMA_REGISTRY_VERSION}:tar.gz:all"
    try:
        (draft / "files").mkdir(parents=True)
        copy = ("mvn", "--batch-mode", "--quiet", "dependency:copy")
        run(*copy, f"-Dartifact={artifact}", f"-DoutputDirectory={draft}", cwd=draft)
        run("tar", "-xzf", str(next(draft.glob("*.tar.gz"))), "-C", str(draft / "files"))
        _appear(draft / "files", SCHEMA_REGISTRY)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def flink() -> None:
    """Flink's own clients, from the Python package that has its jars. It stays out of the tests' environment."""
    if FLINK.is_dir():
        return
    target = FLINK.parents[1]
    draft = target.with_name(f"{target.name}-{os.getpid()}.part")
    package = f"apache-flink-libraries=={FLINK_VERSION}"
    try:
        run(
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(draft),
            package,
            seconds=1800,
        )
        _appear(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def jars(directory: Path, artifacts: Iterable[str], *, alone: bool = False) -> None:
    """Download jars from Maven into a directory that appears whole. Return at once if it exists.

    Each artifact is `group:name:version`. What it needs at run time comes with it, unless `alone`. Raises NotInstalled.
    """
    if directory.is_dir():
        return
    need("mvn", "maven")
    draft = directory.with_name(f"{directory.name}-{os.getpid()}.part")
    try:
        draft.mkdir(parents=True)
        (draft / "pom.xml").write_text(_pom(artifacts, alone=alone))
        run(
            *("mvn", "--batch-mode", "--quiet", "--file", str(draft / "pom.xml"), "dependency:copy-dependencies"),
            *("-DincludeScope=runtime", f"-DoutputDirectory={draft}"),
        )
        _appear(draft, directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _appear(draft: Path, target: Path) -> None:
    try:
        draft.rename(target)
    except OSError:
        if not target.is_dir():
            raise  # otherwise another run has installed the same meanwhile


def _pom(artifacts: Iterable[str], *, alone: bool) -> str:
    found = [artifact.split(":") for artifact in artifacts]
    everything = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    more = f"<exclusions>{everything}</exclusions>" if alone else ""
    dependencies = "\n".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>{more}</dependency>"
        for group, name, version in found
    )
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>minflinkd</groupId><artifactId>servers</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
{dependencies}
</dependencies>
</project>
"""


SERVERS: dict[str, Callable[[], None]] = {
    "azurite": azurite,
    "axe-core": axe,
    "hdfs": hdfs,
    "postgres": postgres,
    "mariadb": mariadb,
    "prometheus": prometheus,
    "kafka": kafka,
    "kafka-broker": kafka_broker,
    "schema-registry": schema_registry,
    "sftp": sftp,
    "systemd": systemd,
    "flink": flink,
    "chromium": chromium,
    "shells": shells,
}


def need(command: str, package: str) -> None:
    """Install a command of the operating system if it is missing and we may. Raises NotInstalled."""
    if shutil.which(command):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise NotInstalled(f"{command} is missing: install {package}")
    run("apt-get", "update", "-qq")
    run("apt-get", "install", "-y", "-qq", "--no-install-recommends", package)
    if not shutil.which(command):
        raise NotInstalled(f"{command} is missing, also after the installation of {package}")


def run(*argv: str, cwd: Path | None = None, seconds: float = _TIMEOUT) -> None:
    """Run a command for at most that long, by default in HOME.

    Raises Failed with the last words of a command that fails, and NotInstalled if one has failed recently.
    """
    if said := _last_failure.get():
        raise NotInstalled(f"{said} (remembered for a day; to try again: python -m tests.servers.install --again)")
    HOME.mkdir(exist_ok=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            argv,
            cwd=cwd or HOME,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{argv[0]}: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-600:]
        raise Failed(f"{' '.join(argv[:2])} ended with {done.returncode}: {said}")


def main(*, again: bool = False) -> None:
    """Install everything.

    Without `again`, skip what failed within the last day: without a network each try is a long wait.
    """
    for name, install in SERVERS.items():
        failed = HOME / f"{name}.failed"
        _last_failure.set("" if again else _fresh(failed))
        try:
            install()
            failed.unlink(missing_ok=True)
        except NotInstalled as error:
            if isinstance(error, Failed):
                failed.write_text(str(error))
            print(f"{name} is not installed, its tests will be skipped: {error}", file=sys.stderr)


def _fresh(failed: Path) -> str:
    """Return why the last try failed, if that is not long ago."""
    try:
        if time.time() - failed.stat().st_mtime < _AGAIN:
            return failed.read_text()
    except FileNotFoundError:
        pass
    return ""


if __name__ == "__main__":
    main(again="--again" in sys.argv[1:])
