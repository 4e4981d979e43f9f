"""The command `trainmaster check`."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.completion import complete_target
from trainmaster.cli.console import make_console, print_json, print_line
from trainmaster.cli.options import ConfigFile, Json, Overrides
from trainmaster.cli.target import Target
from trainmaster.errors import SettingError

if TYPE_CHECKING:
    from trainmaster.config.masking import Mask

_PIPE_WIDTH = 110
_CLEAR_LINE = "\r\x1b[K"


def command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="What to check, as for `run`; also a TrainManager, or a function without parameters that returns one.",
            autocompletion=complete_target,
        ),
    ],
    overrides: Overrides = None,
    config: ConfigFile = None,
    checks: Annotated[str | None, typer.Option(metavar="NAME,...", help="Run only these checks.")] = None,
    is_json: Json = False,
) -> None:
    """Check a training setup for common mistakes.

    The exit code is 1 if a check fails. Nothing is written, and your weights do not change.

    \b
    Examples:
      trainmaster check train.py lr=0.01
      trainmaster check train.py:make_loop --checks leakage,parameters
    """
    parsed = Target.parse(target)
    # With --json, stdout contains only JSON. The target and the output of the user's code are printed to stderr.
    with redirect_stdout(sys.stderr) if is_json else nullcontext():
        print_line(f"target {parsed.text}")
        loop, mask = _load_loop(parsed, config, overrides or [])

        from trainmaster.extensions.sanity_check import sanity_check

        names = None if checks is None else [each.strip() for each in checks.split(",")]
        has_status_line = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        try:
            report = sanity_check(loop, names, on_check=_show_check if has_status_line else None)
        finally:
            if has_status_line:
                print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)
    if is_json:
        print_json(mask.tree(report.to_dict(), has_names=False))
    else:
        console = make_console()
        width = console.width if console.is_terminal else _PIPE_WIDTH
        print(mask(report.table(width, has_color=console.color_system is not None)))
    if not report.is_ok:
        raise typer.Exit(1)


def _show_check(name: str) -> None:
    print(f"{_CLEAR_LINE}checking: {name} ...", end="", file=sys.stderr, flush=True)


def _load_loop(target: Target, config: str | None, overrides: list[str]) -> tuple[Any, Mask]:
    """Load the loop, and return it with a `Mask` that hides the secrets in its config."""
    from trainmaster.cli.build_config import build_config
    from trainmaster.config.declared_secrets import secret_texts
    from trainmaster.config.masking import Mask

    loop, built = target.load_loop(lambda manager: build_config(manager, config, overrides))
    if built is None and (config is not None or overrides):
        raise SettingError(
            f"`{target.text}` does not take a config",
            hint="leave out --config and KEY=VALUE, or add a parameter: `def make_loop(config)`",
        )
    return loop, Mask.of(secret_texts(built)) if built is not None else Mask.of()
