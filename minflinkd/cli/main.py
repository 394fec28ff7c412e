"""The `minflinkd` command: one group, with one file per subcommand, which is imported only when called.

The texts of `minflinkd --help` are here, so that help and completion import no libraries that only commands need.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from minflinkd import __version__
from minflinkd.cli.groups import Group

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


COMPLETING: Final = "_MINFLINKD_COMPLETE"  # is set by a shell that completes a line


class Lazy(NamedTuple):
    target: str  # module:attribute below minflinkd.cli
    help: str


GROUPS = {
    "Start": {
        "serve": Lazy("serve:serve", "Run the daemon."),
        "taskmanager": Lazy("taskmanager:taskmanager", "Run one TaskManager, or drain one."),
        "check-config": Lazy("check_config:check_config", "Check a configuration; show what was set, and where."),
        "token": Lazy("token:token", "Make, list and revoke tokens for the HTTP endpoint."),
        "open": Lazy("open_page:open_page", "Print a link that logs a browser in."),
        "handover": Lazy("handover:handover", "End the daemon, but leave its tasks running for the next one."),
        "context": Lazy("context:context", "Name clusters, and choose the one that commands talk to."),
        "completion": Lazy("completion:completion", "Let your shell complete commands and job names."),
        "demo": Lazy("demo:demo", "See a real streaming job from its start to a recovery."),
    },
    "Jobs": {
        "init": Lazy("init:init", "Make a project: job file, module, test, Makefile."),
        "check": Lazy("check:check", "Check a job file without a daemon."),
        "explain": Lazy("explain:explain", "Show what a job file becomes: tasks, slots, state, Spark's plan."),
        "run": Lazy("run:run", "Submit a job file."),
        "list": Lazy("list_jobs:list_jobs", "List the jobs."),
        "info": Lazy("info:info", "Show a job, or the cluster."),
        "watch": Lazy("live:watch", "Watch the cluster or a job, live."),
        "metrics": Lazy("metrics:metrics", "Show how fast a job's tasks are, and what holds them back."),
        "exceptions": Lazy("exceptions:exceptions", "Show a job's failures."),
        "logs": Lazy("logs:logs", "Print the logs of a job, of a TaskManager, or of the daemon."),
        "collected": Lazy("collected:collected", "Print the last rows of a job's collect sink."),
        "cancel": Lazy("cancel:cancel", "Cancel a job."),
        "stop": Lazy("stop:stop", "Stop a job with a savepoint."),
    },
    "New versions of a job": {
        "hot-restart": Lazy("hot_restart:hot_restart", "Replace a running job by a new version, with its state."),
        "backfill": Lazy("backfill:backfill", "Compute a past time of a job again, beside it."),
        "rescale": Lazy("hot_restart:rescale", "Give a running job another parallelism."),
    },
    "State": {
        "savepoint": Lazy("savepoint:savepoint", "Take a savepoint of a job; inspect or delete one."),
        "checkpoint": Lazy("checkpoint:checkpoint", "Take a checkpoint of a job now."),
        "checkpoints": Lazy("checkpoints:checkpoints", "Show a job's checkpoints."),
        "state": Lazy("state:state", "Show what a task keeps in its state."),
    },
    "The cluster": {
        "doctor": Lazy("doctor:doctor", "Say what limits or ails a job, the cluster or this machine."),
        "taskmanagers": Lazy("taskmanagers:taskmanagers", "List the TaskManagers and who holds their slots."),
        "upgrade": Lazy("upgrade:upgrade", "Replace TaskManagers of another version, one by one."),
        "quotas": Lazy("quotas:quotas", "Show what users have, beside what they may have."),
        "blobs": Lazy("blobs:blobs", "List, upload and delete blobs."),
        "orphans": Lazy("orphans:orphans", "Delete files of checkpoints to which nothing refers."),
        "tls": Lazy("tls:tls", "Make certificates, so that connections are encrypted."),
        "plugins": Lazy("plugins:plugins", "List the storage backends that are installed."),
    },
}
COMMANDS = {name: lazy for group in GROUPS.values() for name, lazy in group.items()}


class LazyGroup(Group):
    def main(self, *args: Any, **kwargs: Any) -> Any:
        if COMPLETING in os.environ:
            from minflinkd.cli.shells import register

            register()
        return super().main(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name].target.split(":")
        command = getattr(import_module(f"minflinkd.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name, help=lazy.help) for name, lazy in COMMANDS.items() if name.startswith(incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))  # the texts of all groups begin in the same column
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), lazy.help) for name, lazy in commands.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Run long-lived PySpark pipelines the way Apache Flink runs its jobs.

    \b
    Examples:
      minflinkd serve                       run the daemon; other commands in another terminal
      minflinkd check job.yaml              report every fault of the job, without a daemon
      minflinkd run job.yaml --wait         submit it, and watch it to its end
      minflinkd list                        list the running jobs
      minflinkd info clicks                 show a job: tasks, checkpoints, last failure
      minflinkd hot-restart clicks job.yaml replace the running job by the changed file
      minflinkd stop clicks --drain         write its windows, take a savepoint, end it

    `minflinkd COMMAND --help` shows options, exit codes and examples. The daemon is found by --url or
    $MINFLINKD_URL; the default is http://127.0.0.1:8081. If there are several daemons, list all, separated by commas.
    On the daemon's host, root and the daemon's user need no token; others name a file with one: --token-file, or a
    certificate: --cert-file.
    """
