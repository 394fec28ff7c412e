"""A job that reports, from every place in which its code runs, the version of its modules that it sees there."""

# ruff: noqa: F401, F403, F405, N802, N811, N812, UP045 - user code has such forms, and they have to work
import dataclasses
import importlib
import importlib.metadata
import importlib.resources
import importlib.util
import inspect
import json
import logging
import os
import pickle
import pkgutil
import sys
import typing

import pandas as pd
import space.mod
import tools
import tools.tag as alias
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from tools import VERSION, circle_a
from tools.star import *
from tools.tag import remember, tag

JSON = "seen string"


@dataclasses.dataclass
class Point:
    version: int
    next: "Point | None" = None

    def late(self):
        from tools.tag import VERSION as late

        return late


def everywhere():
    """Return the version seen at each place; anything else is a fault."""
    import tools.tag as late

    scope = {}
    exec("import tools.tag\nseen = tools.tag.VERSION", scope)
    point = pickle.loads(pickle.dumps(Point(VERSION)))
    return {
        "from import": VERSION,
        "function": tag(),
        "alias": alias.VERSION,
        "attribute": tools.tag.VERSION,
        "star": STAR,
        "namespace package": space.mod.VERSION,
        "circular": circle_a.other(),
        "late": late.VERSION,
        "exec": scope["seen"],
        "import_module": importlib.import_module("tools.tag").VERSION,
        "import_module, relative": importlib.import_module(".tag", tools.__name__).VERSION,
        "__import__": __import__("tools.tag").tag.VERSION,
        "find_spec": VERSION if importlib.util.find_spec("tools.tag").name == alias.__name__ else "another",
        "resources": int(importlib.resources.files("tools").joinpath("data.txt").read_text()),
        "resources, module": int(importlib.resources.files(tools).joinpath("data.txt").read_text()),
        "get_data": int(pkgutil.get_data("tools", "data.txt")),
        "get_data, __name__": int(pkgutil.get_data(tools.__name__, "data.txt")),
        "file": int(open(os.path.join(os.path.dirname(tools.__file__), "data.txt")).read()),
        "metadata": int(importlib.metadata.version("acme-tools")),
        "pickle": point.late() if type(point) is Point else "another",
        "type hints": VERSION if typing.get_type_hints(Point)["next"] == typing.Optional[Point] else "another",
        "source": VERSION if inspect.getsource(Point).startswith("@dataclasses.dataclass") else "another",
        "sys.modules": sys.modules[__name__].VERSION,
        "logger": VERSION if logging.getLogger(__name__).name.endswith(".main") else "another",
        "optional": VERSION if tools.OPTIONAL is None else "another",
    }


def closure():
    """Goes to the worker by value, and so does what it defines."""

    def inner(_):
        from tools.tag import VERSION as late

        def deeper():
            import tools.star as star

            return star.STAR

        return json.dumps({"closure": late, "deeper": deeper(), "deeper, by name": named(), **everywhere()})

    def named():
        return importlib.import_module("tools.tag").VERSION

    return inner


def local_class():
    class Local:
        def __call__(self, _):
            import tools.tag

            return json.dumps(
                {"local class": tools.tag.VERSION, "its module's": VERSION, "point": Point(VERSION).late()}
            )

    return Local()


class Table:
    def eval(self, _):
        import tools.tag as late

        yield (json.dumps({"table function": late.VERSION, **everywhere()}),)


@remember
def decorated(_):
    import tools.tag as late

    return json.dumps({"decorated": late.VERSION, "decorator": decorated.version})


class Reader(SimpleDataSourceStreamReader):
    def initialOffset(self):
        return {"at": 0}

    def read(self, start):
        return self.readBetweenOffsets(start, None), {"at": start["at"] + 1}

    def readBetweenOffsets(self, start, end):
        import tools.tag as late

        return iter([(start["at"], json.dumps({"data source": late.VERSION, **everywhere()}))])


class Versions(DataSource):
    @classmethod
    def name(cls):
        return "versions"

    def schema(self):
        return "value long, seen string"

    def simpleStreamReader(self, schema):
        return Reader()


def read(spark, params):
    spark.dataSource.register(Versions)
    return spark.readStream.format("versions").load()


def source(inputs, params):
    return inputs["versions"]


def columns(inputs, params):
    """Functions of a row, of a column, of a partition; and a table function."""
    assert set(everywhere().values()) == {VERSION}, everywhere()
    frame = inputs["numbers"].select("value")
    spark = frame.sparkSession
    spark.udtf.register("seen_by", F.udtf(Table, returnType=JSON))

    @F.pandas_udf("string")
    def vector(values: pd.Series) -> pd.Series:
        import tools.tag as late

        return values.map(lambda _: json.dumps({"vector": late.VERSION, "lambda in it": __import__("tools").VERSION}))

    def partition(frames):
        import tools.tag as late

        for pdf in frames:
            yield pdf.assign(seen=pdf["seen"] + "\n" + json.dumps({"partition": late.VERSION, **everywhere()}))

    functions = {
        "top": F.udf(lambda _: json.dumps({"lambda": __import__("tools.tag").tag.VERSION}), "string"),
        "closure": F.udf(closure(), "string"),
        "class": F.udf(local_class(), "string"),
        "decorated": F.udf(decorated, "string"),
        "vector": vector,
    }
    seen = frame.select("value", F.concat_ws("\n", *(f("value") for f in functions.values())).alias("seen"))
    seen.mapInPandas(partition, "value long, seen string").createOrReplaceTempView("seen")
    return spark.sql("SELECT value, concat_ws('\n', s.seen, t.seen) AS seen FROM seen s, LATERAL seen_by(s.value) t")


def keep(key, frames, state):
    """The state is a pickled object of the job. A later version reads it as an object of its own."""
    from tools.tag import VERSION as late

    for _ in frames:
        pass
    begun = 0
    if state.exists:
        point = pickle.loads(state.get[0])
        begun = point.version if type(point) is Point and point.late() == late else "another"
    else:
        state.update((pickle.dumps(Point(late)),))
    yield pd.DataFrame({"seen": [json.dumps({"state": late, **everywhere()})], "begun": [str(begun)]})


def stateful(inputs, params):
    keyed = inputs["numbers"].withColumn("key", F.col("value") % 2).groupBy("key")
    return keyed.applyInPandasWithState(
        keep, JSON + ", begun string", "point binary", "update", GroupStateTimeout.NoTimeout
    )


class Keeper(StatefulProcessor):
    def init(self, handle):
        from tools.tag import VERSION as late

        self.late = late
        self.point = handle.getValueState("point", StructType([StructField("point", BinaryType())]))

    def handleInputRows(self, key, rows, timers):
        import tools.tag as late

        for _ in rows:
            pass
        if self.point.exists():
            assert type(pickle.loads(self.point.get()[0])) is Point
        self.point.update((pickle.dumps(Point(late.VERSION)),))
        seen = {"processor": late.VERSION, "its init": self.late, **everywhere()}
        yield pd.DataFrame({"seen": [json.dumps(seen)]})

    def close(self):
        import tools.tag


def transform(inputs, params):
    keyed = inputs["numbers"].withColumn("key", F.col("value") % 2).groupBy("key")
    return keyed.transformWithStateInPandas(Keeper(), StructType([StructField("seen", StringType())]), "Update", "None")


def write(batch, epoch):
    """Write which versions were seen where, a line for each micro-batch."""
    import tools.tag as late

    rows = batch.collect()
    grouped = batch.groupBy().applyInPandas(
        lambda pdf: pd.DataFrame({"seen": [json.dumps({"group": __import__("tools").VERSION, **everywhere()})]}), JSON
    )
    inside = batch.select(F.udf(closure(), "string")("seen").alias("seen")).union(grouped).collect()
    seen = {place: [version] for place, version in {"batch": late.VERSION, **everywhere()}.items()}
    for row in [*rows, *inside]:
        for text in row.seen.split("\n"):
            for place, version in json.loads(text).items():
                seen.setdefault(place, []).append(version)
    begun = sorted({row.begun for row in rows}) if "begun" in batch.columns else []
    with open(OUT, "a") as out:
        out.write(json.dumps([{place: sorted(set(map(str, found))) for place, found in seen.items()}, begun]) + "\n")
