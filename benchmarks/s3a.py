"""Hadoop's S3 client for plain PySpark, which does not include it: fetched from Maven at first use."""

from __future__ import annotations

import re
from pathlib import Path

import pyspark

from tests.servers.install import HOME, jars
from tests.servers.s3 import S3Server

_SDK = "2.35.4"  # the version of Hadoop 3.5's release; single modules, because the bundle has 600 MB


def _hadoop() -> str:
    """Return the version of PySpark's Hadoop. The client must have the same."""
    (api,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    return re.sub(r"hadoop-client-api-(.*)\.jar", r"\1", api.name)


def install() -> list[Path]:
    """Return the jars to give to Spark. Raises NotInstalled."""
    modules = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
    hadoop = _hadoop()
    directory = HOME / f"hadoop-aws-{hadoop}"
    client, sdk = directory / "client", directory / "sdk"
    jars(sdk, [f"software.amazon.awssdk:{module}:{_SDK}" for module in modules])
    only = (
        f"org.apache.hadoop:hadoop-aws:{hadoop}",
        "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
    )
    jars(client, only, alone=True)
    return sorted([*sdk.glob("*.jar"), *client.glob("*.jar")])


def settings(server: S3Server) -> dict[str, str]:
    """Return Spark's settings that make `s3a://` use this server. Everything else has S3A's and Spark's defaults."""
    given = server.options
    s3a = {
        "endpoint": given["endpoint-url"],
        "endpoint.region": given["region"],
        "access.key": given["access-key"],
        "secret.key": given["secret-key"],
        "path.style.access": "true",
    }
    found = {f"spark.hadoop.fs.s3a.{key}": value for key, value in s3a.items()}
    return {"spark.jars": ",".join(map(str, install())), **found}
