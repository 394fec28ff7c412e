"""Jars and native modules, which a session holds as a whole (B31)."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sysconfig
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
import pytest_asyncio

from minflinkd.runtime.errors import RemoteError
from tests.spark.session_child import Child, call, job, python, rate, task

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def child(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Child]:
    """A child of its own, since a session keeps a library that it has loaded."""
    child = Child(tmp_path_factory.mktemp("child"))
    try:
        await child.start({})
        yield child
    finally:
        await child.aclose()


RULE = """
package com.acme;
public class Rule implements org.apache.spark.sql.api.java.UDF1<Long, Long> {
    public Long call(Long x) { return Helper.VERSION; }
}
class Helper { static long VERSION = %dL; }
"""
MAIN = """
import json
from pyspark.sql import functions as F

def build(inputs, params):
    numbers = inputs["numbers"]
    spark = numbers.sparkSession
    spark.udf.registerJavaFunction("rule", "com.acme.Rule", "long")
    same = F.udf(lambda x: x, "long")
    return numbers.select(F.expr("rule(value)").alias("a"), same(F.expr("rule(value)")).alias("b"))

def write(batch, epoch):
    rows = batch.selectExpr("a", "b", "rule(a) AS c").distinct().collect()
    with open(OUT, "a") as out:
        out.write(json.dumps([list(row) for row in rows]) + "\\n")
"""


def main(directory: Path, text: str) -> dict[str, str]:
    directory.mkdir(exist_ok=True)
    (directory / "main.py").write_text(f"OUT = {str(directory / 'seen')!r}\n{text}")
    return {"main.py": str(directory / "main.py")}


def jar(directory: Path, version: int) -> Path:
    """Compile a jar, and name it like a blob: the file name does not tell what it holds."""
    if shutil.which("javac") is None:
        pytest.skip("there is no javac")
    source = directory / "com" / "acme" / "Rule.java"
    source.parent.mkdir(parents=True)
    source.write_text(RULE % version)
    classes = Path(pyspark.__file__).parent / "jars" / "*"
    subprocess.run(["javac", "-proc:none", "-cp", classes, "-d", directory / "classes", source], check=True)
    with zipfile.ZipFile(directory / "blob", "w") as archive:
        for path in sorted((directory / "classes").rglob("*.class")):
            archive.writestr(zipfile.ZipInfo(str(path.relative_to(directory / "classes"))), path.read_bytes())
    return directory / "blob"


def lines(directory: Path) -> list[Any]:
    return [json.loads(line) for line in (directory / "seen").read_text().splitlines()]


async def test_a_jar_is_found_by_every_job_that_brings_it_and_another_version_is_refused(
    child: Child, tmp_path: Path
) -> None:
    """The jar is found in the driver and on executors. A session's classes are of one version (B31)."""
    query = task(rate(4), python("ruled", "main:build", "numbers"), call("main:write", "ruled"))
    for job_name in ("one", "other"):
        directory = tmp_path / job_name
        artifacts = main(directory, MAIN) | {"rules.jar": str(await asyncio.to_thread(jar, directory, 1))}
        attempt = await child.run(job(), query, artifacts=artifacts)
        await child.batches(attempt, 0)
        await child.stop(attempt)
        assert {json.dumps(rows) for rows in lines(directory)} == {"[[1, 1, 1]]"}
    directory = tmp_path / "later"
    artifacts = main(directory, MAIN) | {"rules.jar": str(await asyncio.to_thread(jar, directory, 2))}
    with pytest.raises(RemoteError, match=r"rules\.jar: the session has another version of com/acme") as refused:
        await child.run(job(), query, artifacts=artifacts)
    assert refused.value.error.code == "library-conflict"
    assert not list(code(child).glob("job_*"))


def code(child: Child) -> Path:
    return child.directory / "work" / "code"


EXTENSION = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyObject *twice(PyObject *self, PyObject *x) { return PyNumber_Add(x, x); }
static PyMethodDef methods[] = {{"twice", twice, METH_O, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "fast", "", -1, methods};
PyMODINIT_FUNC PyInit_fast(void) { return PyModule_Create(&module); }
"""
NATIVE = """
import json
from acme_native import fast, twice
from pyspark.sql import functions as F

def build(inputs, params):
    late = F.udf(lambda x: __import__("acme_native.fast").fast.twice(x), "long")
    named = F.udf(twice, "long")
    return inputs["numbers"].select("value", late("value").alias("a"), named("value").alias("b"))

def write(batch, epoch):
    assert fast.twice(2) == 4
    rows = [[row.a == 2 * row.value, row.b == 2 * row.value] for row in batch.collect()]
    with open(OUT, "a") as out:
        out.write(json.dumps(rows) + "\\n")
"""


def wheel(directory: Path) -> Path:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    include = Path(sysconfig.get_path("include"))
    compiler = shutil.which("cc")
    if compiler is None or not (include / "Python.h").exists():
        pytest.skip("there is no C compiler, or no Python.h")
    (directory / "fast.c").write_text(EXTENSION)
    built = directory / f"fast{suffix}"
    subprocess.run([compiler, "-shared", "-fPIC", f"-I{include}", directory / "fast.c", "-o", built], check=True)
    with zipfile.ZipFile(directory / "acme_native-1.0-native.whl", "w") as archive:
        archive.write(built, f"acme_native/{built.name}")
        archive.writestr("acme_native/__init__.py", "from .fast import twice as quick\ndef twice(x): return quick(x)\n")
        archive.writestr("acme_native-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: acme-native\nVersion: 1\n")
    return directory / "acme_native-1.0-native.whl"


async def test_a_wheel_with_native_code_is_loaded_by_its_own_name(child: Child, tmp_path: Path) -> None:
    """The wheel is loaded in the driver and in workers, also after the job that brought it has ended (B31)."""
    path = await asyncio.to_thread(wheel, tmp_path)
    query = task(rate(4), python("doubled", "main:build", "numbers"), call("main:write", "doubled"))
    for turn in ("first", "second"):
        artifacts = main(tmp_path / turn, NATIVE) | {path.name: str(path)}
        attempt = await child.run(job(), query, artifacts=artifacts)
        await child.batches(attempt, 0)
        await child.stop(attempt)
        assert all(all(row) for rows in lines(tmp_path / turn) for row in rows)
