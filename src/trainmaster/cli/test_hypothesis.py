"""The command `trainmaster test-hypothesis`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from trainmaster.cli.completion import complete_override
from trainmaster.cli.load_manager import load_manager
from trainmaster.cli.open_store import find_store, get_store_path
from trainmaster.cli.options import ConfigFile, DryRun, Epochs, Quiet, SameProgram, StoreOption, StrictCode, TargetArgument, WorkerProcesses
from trainmaster.cli.print_report import FigureFolder, Format, check_format, print_report
from trainmaster.errors import SettingError

_BETTER_THAN = "--better-than"


class Command(TyperCommand):
    """Raises an error if an argument is probably meant for `--better-than`, but would be parsed as part of the claim."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            refuse_words_after_option(args)
        return super().parse_args(ctx, args)


def refuse_words_after_option(words: Sequence[str]) -> None:
    """Raise an error if a `key=value` argument follows `--better-than key=value` directly, and the claim comes before the option.

    In `lr=0.01 --better-than lr=0.1 width=64`, the user probably wants to pass `width=64` to `--better-than`. But this option takes
    only one value, so `width=64` would be parsed as part of the claim, together with `lr=0.01`.
    """
    words = [*itertools.takewhile(lambda word: word != "--", words)]
    has_claim = False
    value = ""
    """The value of `--better-than`, if it is the previous word."""
    for before, word in itertools.pairwise(["", *words]):
        if before == _BETTER_THAN or word.startswith(f"{_BETTER_THAN}="):
            value = word.removeprefix(f"{_BETTER_THAN}=")
            continue
        is_override = "=" in word and not word.startswith("-")
        if is_override and value and has_claim:
            raise SettingError(
                f"`{word}` would be part of the claim: {_BETTER_THAN} takes one value",
                hint=f"repeat {_BETTER_THAN} for each key: {_BETTER_THAN} {value} {_BETTER_THAN} {word}; write the claim before it",
            )
        has_claim, value = has_claim or is_override, ""


def command(
    target: TargetArgument,
    claim: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="The values that should be better.", autocompletion=complete_override)
    ],
    better_than: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="The values to compare with; repeat it for several (default: the config itself)."),
    ] = None,
    on: Annotated[str, typer.Option("--on", metavar="METRIC", help="The metric that decides, e.g. valid/accuracy.")] = "loss",
    by: Annotated[float, typer.Option(metavar="X", help="The margin: better by more than this.")] = 0.0,
    budget: Annotated[
        str, typer.Option(metavar="N|auto|none", help="Maximum number of pairs; `auto` uses --effect and --sd, or is 20.")
    ] = "auto",
    effect: Annotated[float | None, typer.Option(metavar="X", help="The true improvement that the test should detect.")] = None,
    power: Annotated[float, typer.Option(metavar="P", help="The probability of detecting it.")] = 0.8,
    sd: Annotated[float | None, typer.Option(metavar="X", help="The standard deviation of the differences between paired runs.")] = None,
    alpha: Annotated[float, typer.Option(metavar="P", help="The rate of wrong verdicts.")] = 0.05,
    direction: Annotated[
        str | None, typer.Option(metavar="min|max", help="Whether smaller or larger is better (default: by name).")
    ] = None,
    failed: Annotated[str, typer.Option(metavar="wait|worst", help="What a failed run means for the verdict.")] = "wait",
    max_pairs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Pause when there are N pairs.")] = None,
    store: StoreOption = None,
    config: ConfigFile = None,
    epochs: Epochs = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="A name for the hypothesis (default: from its settings).")] = None,
    workers: WorkerProcesses = 0,
    format: Format = None,
    figure: FigureFolder = None,
    is_strict_code: StrictCode = False,
    is_same_program: SameProgram = False,
    is_quiet: Quiet = False,
    is_dry: DryRun = False,
) -> int:
    """Test whether one config is better than another.

    Pairs of runs with the same seed are trained until the claim is supported or refuted, or the budget is used up. The plan is recorded
    before the first run and cannot be changed afterwards. After a crash, the same command continues the test. The exit code is 1 if there
    is no verdict yet.

    A value that only the claim or only --better-than sets is a difference between the two configs, because the other config has the
    default. Values that both configs share go into --config FILE.

    \b
    Examples:
      trainmaster test-hypothesis train.py model.act=gelu --better-than model.act=relu --on valid/accuracy --by 0.005
      trainmaster test-hypothesis train.py lr=0.01 --on valid/loss --effect 0.02 --sd 0.01 --workers 2
      trainmaster test-hypothesis train.py lr=0.01 --better-than lr=0.1 --config base.yaml --on valid/loss
      trainmaster test-hypothesis train.py lr=0.01 width=64 --better-than lr=0.1 --better-than width=32 --on valid/loss
      trainmaster test-hypothesis train.py lr=0.01 --on valid/loss --dry-run
    """
    from trainmaster.analysis import Hypothesis

    check_format(format)
    settings: dict[str, Any] = {"direction": direction, "failed": failed, "epochs": epochs or None, "name": name}
    design: dict[str, Any] = {"alpha": alpha, "budget": _parse_budget(budget), "effect": effect, "power": power, "sd": sd}
    hypothesis = Hypothesis(claim, better_than=better_than or "", on=on, by=by, base=config, **design, **settings)
    path = get_store_path(store)
    is_new = is_dry and find_store(store) is None  # a dry run must not create the store
    manager = load_manager(target, None if is_new else path, is_quiet or format is not None, is_strict_code, is_same_program)
    if is_dry:
        print(hypothesis.plan(manager, is_dry=True))
        print(f"store: {path} (nothing was written)")
        return 0
    verdict = hypothesis.test(manager, workers=workers, max_pairs=max_pairs)
    print_report(verdict.table, verdict.to_dict(), verdict.panels(), format, figure, f"hypothesis_{verdict.plan.name}")
    return 0 if verdict.state != "pending" else 1


def _parse_budget(text: str) -> int | str | None:
    if text in ("auto", "none"):
        return None if text == "none" else text
    if not text.isdigit():
        raise SettingError(f"--budget {text}: expected a number of pairs, auto or none")
    return int(text)
