"""`minflinkd open`: a link that logs a browser in, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from minflinkd.cli.connection import Connection, connection_options

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that


@click.command("open")
@connection_options
def open_page(connection: Connection) -> None:
    """Print a link for a browser, which logs in by it without a token. It works once, and for a minute.

    The browser gets the rights of whoever runs this command: on the daemon's host, root and the daemon's user may do
    everything. It is logged in for 12 hours, or until its token is revoked or the daemon restarts.

    \b
    Examples:
      minflinkd open
      ssh -L 8081:127.0.0.1:8081 host minflinkd open
    """
    from minflinkd.cli.credentials import SOCKET_URL  # imports yarl
    from minflinkd.cli.output import print_json

    async def show(client: Client) -> None:
        link = await client.login_link()
        # Of a socket that was named by its path it is not known at which port a browser finds the daemon.
        url = link.path if client.url.startswith(SOCKET_URL) else client.url + link.path
        if connection.as_json:
            print_json({"url": url, "seconds": link.seconds})
        else:
            click.echo(url)

    connection.run(show)
