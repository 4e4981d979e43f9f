"""The program `trainmaster`: its commands and its exit codes.

Each command has a file in this package and a line in `GROUPS`. The file defines a function `command`, and typer turns its parameters into
options. If the file also has a class `Command`, that class parses the command line. The file is imported only when the command is used,
and its functions import other packages only when they are called. This keeps help and completion fast.

Exit codes: 0 success, 1 something failed or is damaged, 2 wrong input, 130 Ctrl-C, 138 SIGUSR1, 141 closed pipe, 143 SIGTERM.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup
from typer.exceptions import Exit, TyperException

from trainmaster.errors import (
    LeaseLostError,
    RankFailedError,
    RunFailedError,
    SanityCheckError,
    StoreAccessError,
    StoreDamagedError,
    TrainmasterError,
    did_you_mean,
)
from trainmaster.loop.ranks import FOLLOWED, LAUNCHED
from trainmaster.stages.open_stage import stage_of
from trainmaster.text import printable_lines

GROUPS = {
    "Start": {
        "init": "Write a starter project that you can train at once.",
        "doctor": "Check the installation and the store's folder.",
    },
    "Train": {
        "run": "Train one config.",
        "resume": "Resume a run from its last checkpoint.",
        "stop": "Ask a running run to save a checkpoint and stop.",
        "sweep": "Train every combination of config values.",
        "search": "Search for the values that give the best metric.",
        "launch": "Train a sweep on several machines, with Slurm or ssh.",
        "container": "Write the files of a container that trains TARGET.",
    },
    "Look": {
        "ls": "List the runs in a store.",
        "show": "Show everything about one run.",
        "ui": "Open the dashboard, a web page with the runs.",
        "diff": "Compare the configs and metrics of two runs.",
        "logs": "Print the output of a run.",
        "table": "Print the results as text, CSV, LaTeX or JSON.",
        "plot": "Draw a metric against a config value.",
        "curves": "Draw the curves of a metric.",
        "report": "Summarize the runs of a store in one HTML file.",
    },
    "Answer": {
        "ablate": "Measure what each part of a config contributes.",
        "test-hypothesis": "Test whether one config is better than another.",
        "verify-hypothesis": "Recompute the verdict of a hypothesis from the store.",
    },
    "Debug": {
        "check": "Check a training setup for common mistakes.",
        "stages": "Print the stages and the hooks that will run.",
        "replay": "Replay the batch that a training run failed on.",
        "rerun": "Train a run again and compare the results bit by bit.",
        "code": "Show or restore the code that a run was trained with.",
    },
    "Keep": {
        "tag": "Add labels to a run, or remove them.",
        "rm": "Delete runs with all their files.",
        "prune": "Delete old checkpoints and leftovers.",
        "verify": "Read every file in a store and list the damaged ones.",
        "export": "Write runs to a tar file.",
        "import": "Add the runs in a tar file to a store.",
    },
}
"""The commands, grouped by task, each with the first line of its help. The list must fit on one screen."""
COMMANDS = {name: line for commands in GROUPS.values() for name, line in commands.items()}

CLOSED_PIPE = 141
INTERRUPTED = 130
WRONG_INPUT = 2
FAILED = 1
_FAILURES = (StoreAccessError, StoreDamagedError, LeaseLostError, RunFailedError, RankFailedError, SanityCheckError)
"""Errors that are caused by the file system, another process, a failed run or a failed check, and not by wrong input."""
_TRAINING = "run > train > "
"""The prefix of the path of every stage in which a loop trains or evaluates. Hooks check their arguments earlier, in `pre_train`."""
_AFTER_TRAINING = re.compile(r"in `\w+\.post_(train|run)`")
"""The start of the note that is added to an error in a hook that runs after training."""
_HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}

_HELP_START = """Usage: trainmaster COMMAND ...   `trainmaster COMMAND -h` shows examples

"""
_HELP_END = """
  --install-completion  Enable completion in your shell.   --version, -h, --help
  --debug               Show the full traceback of an error.
  The store is --store PATH, else $TRAINMASTER_STORE, else ./runs.
  To select a run, pass its key or the first digits of its key.
"""


def help_text() -> str:
    """Return the output of `trainmaster -h`: the commands in groups, on one screen."""
    lines = [
        f"{'' if number else group:<8}{name:<19}{line}\n"
        for group, commands in GROUPS.items()
        for number, (name, line) in enumerate(commands.items())
    ]
    return "".join([_HELP_START, *lines, _HELP_END])


class Commands(TyperGroup):
    """Imports the file of a command when the command is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            module = importlib.import_module(f"trainmaster.cli.{'import_' if cmd_name == 'import' else cmd_name.replace('-', '_')}")
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command(cmd_name, cls=getattr(module, "Command", None), context_settings=_HELP_OPTIONS)(module.command)
            self.commands[cmd_name] = typer.main.get_command(app)
        return self.commands[cmd_name]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_text())

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not args[0].startswith("-") and args[0] not in COMMANDS and not ctx.resilient_parsing:
            hint = did_you_mean(args[0], COMMANDS) or "`trainmaster --help` lists all commands"
            raise TrainmasterError(f"there is no command `{args[0][:80]}`", hint=hint)
        return super().resolve_command(ctx, args)


def run(args: Sequence[str] | None) -> int:
    """Run a command and return the exit code. Errors are printed without a traceback, unless `--debug` is passed."""
    words = [*(sys.argv[1:] if args is None else args)]
    num_words = words.index("--") if "--" in words else len(words)
    is_debug = "--debug" in words[:num_words]
    words = [*(word for word in words[:num_words] if word != "--debug"), *words[num_words:]]
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):  # the caller has replaced the stream
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        with _warnings_as_lines():
            code = _run_command(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _discard_stdout()
        return CLOSED_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except TyperException as error:
        return _print_error(_describe_usage_error(error), WRONG_INPUT)
    except Exception as error:
        if is_debug:
            raise
        return _report(error)


def _report(error: Exception) -> int:
    """Print an error and return the exit code."""
    if isinstance(error, RankFailedError) and LAUNCHED in os.environ:
        return FOLLOWED  # the process that started the ranks reports which one failed
    notes: list[str] = getattr(error, "__notes__", [])
    is_training = stage_of(error).startswith(_TRAINING) or any(map(_AFTER_TRAINING.match, notes))
    if isinstance(error, TrainmasterError):
        # The notes contain the position in training and the command that replays a failure.
        text = "\n".join([str(error), *notes])
        return _print_error(text, FAILED if is_training or isinstance(error, _FAILURES) else WRONG_INPUT)
    if isinstance(error, OSError):
        _discard_stdout()
        if not is_training:
            return _print_error(f"cannot continue: {error.strerror or error}" + (f": {error.filename}" if error.filename else ""), FAILED)
    from trainmaster.cli.formatting import format_user_error

    return _print_error(f"{format_user_error(error)}\n  try     `--debug` shows the full traceback", FAILED)


def _run_command(words: list[str]) -> int:
    if os.environ.get("_TRAINMASTER_COMPLETE") == "complete_bash":
        from trainmaster.cli.completion import split_bash_word

        split_bash_word()
    try:
        code = _make_app().main(words, prog_name="trainmaster", standalone_mode=False)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer and rich turn a closed pipe into an exit
            raise BrokenPipeError from None
        if not end.code and (notes := getattr(end, "__notes__", ())):  # for example, a hook called `sys.exit()` during a run
            return _print_error(f"`sys.exit()` ended the program during the run\n  where   {notes[0].removeprefix('in ')}", FAILED)
        return end.code if isinstance(end.code, int) else _print_error(str(end.code), FAILED) if end.code else 0
    return code if isinstance(code, int) else 0


def _make_app() -> Any:
    app = typer.Typer(cls=Commands, rich_markup_mode=None, no_args_is_help=True, context_settings=_HELP_OPTIONS)

    @app.callback()
    def options(
        is_debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error; works after a command too.")] = False,
        is_version: Annotated[
            bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
        ] = False,
    ) -> None: ...

    return typer.main.get_command(app)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        import trainmaster

        print(trainmaster.__version__)
        raise Exit(0)


def _describe_usage_error(error: TyperException) -> str:
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


def _print_error(text: str, code: int) -> int:
    with contextlib.suppress(OSError, ValueError):  # stderr is closed
        print(printable_lines(text), file=sys.stderr)
    return code


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that the interpreter does not flush output to a closed pipe or a full disk at exit."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print each warning once, as a plain line on stderr."""
    seen: set[str] = set()

    def show(message: Any, *_: Any) -> None:
        if str(message) not in seen:
            seen.add(str(message))
            _print_error(f"warning: {message}", 0)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield
