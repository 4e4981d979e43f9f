"""The command `trainmaster ui`."""

from __future__ import annotations

import getpass
import socket
import sys
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.console import print_line
from trainmaster.cli.open_store import open_store
from trainmaster.cli.options import StoreArgument, StoreOption

if TYPE_CHECKING:
    from trainmaster.dashboard.serve import Address


def command(
    store_dir: StoreArgument = None,
    store: StoreOption = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="N", help="The port (default: 7400, or the next free one); 0 for any free port.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Also serve other machines, at this address of this machine; 0.0.0.0 for all.")
    ] = None,
    is_silent: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    can_edit: Annotated[bool, typer.Option("--allow-edit", help="Allow the page to label, annotate, stop and delete runs.")] = False,
) -> None:
    """Open the dashboard, a web page with the runs.

    The page is read-only unless you pass --allow-edit. Only this machine (127.0.0.1) can open it unless you pass --host. With --host, the
    printed address contains a token, which every request needs. Ctrl-C stops the server; training is not affected.

    \b
    Examples:
      trainmaster ui
      trainmaster ui runs --port 8123 --no-open
      trainmaster ui --host 0.0.0.0
    """
    from trainmaster.dashboard.serve import check_built, has_display, is_remote, serve

    check_built()
    found = open_store(store, store_dir)

    def report(address: Address, taken: int | None) -> None:
        if taken is not None:
            print_line(f"port {taken} is in use; this is port {address.port}")
        print_line(f"dashboard  {address}")
        if host is not None:
            print_line("whoever has this address can read the runs; the connection is not encrypted")
        elif is_remote():
            print_line(f"from your computer: ssh -L {address.port}:127.0.0.1:{address.port} {getpass.getuser()}@{socket.gethostname()}")
        if not is_silent and not is_remote() and has_display():
            webbrowser.open(str(address))
        print_line("Ctrl-C ends it")
        sys.stdout.flush()

    serve(found, port, can_edit, host, report)
