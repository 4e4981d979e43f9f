"""`trainmaster check`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.options import Json

if TYPE_CHECKING:
    from trainmaster.cli.target import Target
    from trainmaster.config.secrets import Mask
    from trainmaster.manager import Manager


def command(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The manager, as for `run`; or a function that returns a TrainManager.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the config that the loop is made from.", show_default=False),
    ] = None,
    config: Annotated[str | None, typer.Option(metavar="FILE", help="A YAML or JSON file with the config.", show_default=False)] = None,
    checks: Annotated[str | None, typer.Option(metavar="NAME,...", help="The checks to do; by default all.", show_default=False)] = None,
    labels: Annotated[
        str | None,
        typer.Option(metavar="PART", help="Where labels are in a batch: a number or a name; else the second of two.", show_default=False),
    ] = None,
    is_json: Json = False,
) -> None:
    """Try a training out before hours go into it, and say what is wrong with it.

    The exit code is 1 if a check failed. Nothing is trained, and nothing is written anywhere.

    \b
    Examples:
      trainmaster check train.py:MyManager lr=0.01
      trainmaster check train.py:make_loop --checks leakage,parameters
    """
    from trainmaster.cli.strict_json import print_json
    from trainmaster.cli.target import Target
    from trainmaster.cli.terminal import the_terminal
    from trainmaster.store.printable import printable

    found = Target.parse(target)
    terminal = the_terminal()
    # Whatever the user's code prints has no place in JSON, and neither has the target.
    with redirect_stdout(sys.stderr) if is_json else nullcontext():
        print(f"target {printable(found.text)}", flush=True)
        loop, mask = _loop_of(found, config, overrides or [])

        from trainmaster.extensions.sanity_check import sanity_check

        with _progress() as tell:
            report = sanity_check(
                loop,
                None if checks is None else [each.strip() for each in checks.split(",")],
                labels=int(labels) if labels is not None and labels.lstrip("-").isdigit() else labels,
                on_check=tell,
            )
    if is_json:
        print_json(mask.tree(report.to_dict(), has_names=False))
    else:
        styles = {"passed": "good", "failed": "bad", "not applicable": "dim"}
        print(mask(report.table(terminal.width or 110, lambda text, outcome: terminal.paint(text, styles[outcome]))))
    if not report.is_ok:
        raise typer.Exit(1)


@contextmanager
def _progress() -> Iterator[Callable[[str], None] | None]:
    """On a terminal, what names the check that runs, in a line that goes away in the end."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return

    def tell(name: str) -> None:
        sys.stderr.write(f"\r\x1b[Kchecking: {name} ...")
        sys.stderr.flush()

    try:
        yield tell
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _loop_of(target: Target, config: str | None, overrides: list[str]) -> tuple[Any, Mask]:
    """The loop, and the secrets that are not to be printed."""
    from trainmaster.cli.launching import config_from
    from trainmaster.config import ConfigBase
    from trainmaster.config.plain import plain
    from trainmaster.config.secrets import Mask
    from trainmaster.errors import SettingError

    is_heeded, mask = False, Mask.of()

    def config_of(manager: Manager) -> Any:
        nonlocal is_heeded, mask
        is_heeded = True
        found = config_from(manager, config, overrides)
        mask = Mask.of(found.to_dict() if isinstance(found, ConfigBase) else plain(found))
        return found

    loop = target.loop(config_of)
    if not is_heeded and (config is not None or overrides):
        raise SettingError(
            f"`{target.text}` makes a loop, which has no config to change", hint="leave --config and KEY=VALUE out, or name a Manager"
        )
    return loop, mask
