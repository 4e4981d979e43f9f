"""The program `trainmaster`: which commands there are, and how it ends.

A command is a file of this room with a function `command`, whose parameters typer reads, and a line in `COMMANDS`. It is imported when
it is asked for, and imports what it needs inside of its function: so help and completion stay fast.

Exit codes: 0 all is well, 1 something is wrong that was asked about (or cannot be written), 2 wrong input, 130 Ctrl-C, 141 closed pipe.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup
from typer.exceptions import Exit, TyperException

from trainmaster.errors import TrainmasterError, did_you_mean

COMMANDS = {
    "run": ("run", "Train one config."),
    "resume": ("resume", "Go on with a run."),
    "rerun": ("rerun", "Train a run once more, and compare it bit by bit."),
    "sweep": ("sweep", "Train every combination of choices."),
    "stop": ("stop", "Ask a run to save and end."),
    "replay": ("replay", "Raise the error of a failed training again."),
    "code": ("code", "Show the code of a run, and restore it."),
    "check": ("check", "Try a training out, and say what is wrong with it."),
    "stages": ("stages", "Print the stages of a manager, and the hooks that will run."),
    "ls": ("ls", "List the runs of a store."),
    "show": ("show", "Show all about one run."),
    "diff": ("diff", "Show what differs between two runs."),
    "logs": ("logs", "Print what a run has printed."),
    "tag": ("tag", "Give labels to a run, or take them away."),
    "rm": ("rm", "Remove runs with all their records."),
    "prune": ("prune", "Remove what counts for nothing any more."),
    "verify": ("verify", "Read every file of a store, and list all that is damaged."),
    "export": ("export", "Write runs to one tar file."),
    "import": ("import_", "Adopt the runs of a tar file."),
    "doctor": ("doctor", "Tell what this machine has, and whether a store can be written."),
}
"""Each command by its name: the file with its function `command`, and the first line of its help."""

CLOSED_PIPE = 141
INTERRUPTED = 130
WRONG_INPUT = 2

HELP = """Train PyTorch models, and look at what came of it.

\b
The store is --store PATH, else $TRAINMASTER_STORE, else ./runs.
A run is named by its key, or by the first digits of it.

\b
Examples:
  trainmaster ls --where 'lr<0.01 and arch=ResNet18' --sort valid/loss
  trainmaster show 3fa9
  trainmaster COMMAND --help
"""


class Commands(TyperGroup):
    """The commands by name; the file of one is imported when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            module = importlib.import_module(f"trainmaster.cli.{COMMANDS[cmd_name][0]}")
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(cmd_name, **getattr(module, "SETTINGS", {}))(module.command)
            self.commands[cmd_name] = typer.main.get_command(alone)
        return self.commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not args[0].startswith("-") and args[0] not in COMMANDS and not ctx.resilient_parsing:
            hint = did_you_mean(args[0], COMMANDS) or "`trainmaster --help` lists all commands"
            raise TrainmasterError(f"there is no command `{args[0][:80]}`", hint=hint)
        return super().resolve_command(ctx, args)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        import trainmaster

        print(trainmaster.__version__)
        raise Exit(0)


def _program() -> Any:
    app = typer.Typer(cls=Commands, rich_markup_mode=None, help=HELP, no_args_is_help=True)

    @app.callback()
    def options(
        is_debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error. May stand anywhere.")] = False,
        is_version: Annotated[
            bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
        ] = False,
    ) -> None: ...

    return typer.main.get_command(app)


def run(args: Sequence[str] | None) -> int:
    """Run a command; the code to exit with. Nothing but what `--debug` asks for ends with a traceback."""
    given = [*(sys.argv[1:] if args is None else args)]
    words = given[: given.index("--")] if "--" in given else given
    is_debug = "--debug" in words
    rest = [each for number, each in enumerate(given) if each != "--debug" or number >= len(words)]
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):  # somebody else's stream
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        with _warnings_as_lines():
            code = _ended(rest)
        sys.stdout.flush()
    except BrokenPipeError:
        code = _silenced(CLOSED_PIPE)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except TrainmasterError as error:
        if is_debug:
            raise
        # Notes tell the place in a training, and how a failure is replayed.
        code = _told("\n".join([str(error), *getattr(error, "__notes__", [])]), WRONG_INPUT)
    except TyperException as error:
        code = _told(_usage(error), WRONG_INPUT)
    except OSError as error:
        if is_debug:
            raise
        code = _silenced(_told(f"cannot go on: {error.strerror or error}" + (f": {error.filename}" if error.filename else ""), 1))
    except Exception as error:  # of the user's own code
        if is_debug:
            raise
        from trainmaster.cli.failure import failure

        code = _told(failure(error), 1)
    return code


def _ended(args: list[str]) -> int:
    try:
        code = _program().main(args, prog_name="trainmaster", standalone_mode=False)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # which typer takes for a failure
            raise BrokenPipeError from None
        if not end.code and (notes := getattr(end, "__notes__", ())):  # a hook has called `sys.exit()` in the middle of a run
            return _told(f"`sys.exit()` ended the program before its work was done\n  where   {notes[0].removeprefix('in ')}", 1)
        return end.code if isinstance(end.code, int) else _told(str(end.code), 1) if end.code else 0
    return code if isinstance(code, int) else 0


def _usage(error: TyperException) -> str:
    """A mistake in the words of a command, with what to write instead."""
    kind = type(error).__name__
    ctx = getattr(error, "ctx", None)
    if kind == "NoArgsIsHelpError":
        return error.format_message()
    fact = error.format_message().strip()
    hint = f"`{ctx.command_path} --help` has an example" if ctx is not None else "`trainmaster --help` lists all commands"
    if kind == "NoSuchOption" and ctx is not None:
        name = str(getattr(error, "option_name", ""))
        known = [each for param in ctx.command.get_params(ctx) for each in param.opts if each.startswith("--")]
        fact = f"`{ctx.command_path}` has no option `{name[:80]}`"
        hint = did_you_mean(name, known) or f"it has {', '.join(sorted(known))}"
    return str(TrainmasterError(fact, hint=hint))


def _told(text: str, code: int) -> int:
    from trainmaster.store.printable import printable_lines

    with contextlib.suppress(OSError, ValueError):  # nobody listens any more
        print(printable_lines(text), file=sys.stderr)
    return code


def _silenced(code: int) -> int:
    """Let the interpreter end without trying once more to write what nobody takes."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    return code


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Warnings of the library as plain lines on stderr, each once."""
    seen: set[str] = set()

    def show(message: Any, *_: Any) -> None:
        text = str(message)
        if text not in seen:
            seen.add(text)
            _told(f"warning: {text}", 0)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield
