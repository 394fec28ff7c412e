"""Groups of commands: a misspelt command is told the nearest one."""

from __future__ import annotations

import click

from minflinkd.cli.near import nearest


class Group(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            if found := nearest(args[0], known):
                ctx.fail(f"There is no command {args[0]!r}. Did you mean {found!r}?")
            ctx.fail(f"There is no command {args[0]!r}. `{ctx.command_path} --help` lists them.")
        return super().resolve_command(ctx, args)
