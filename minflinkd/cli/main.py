"""The `minflinkd` command: one group, one file per subcommand."""

from __future__ import annotations

import click

from minflinkd import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Run long-lived PySpark pipelines the way Apache Flink runs its jobs."""
