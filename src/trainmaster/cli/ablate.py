"""The command `trainmaster ablate`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trainmaster.cli.load_manager import load_manager
from trainmaster.cli.open_store import find_store, get_store_path
from trainmaster.cli.options import DryRun, Quiet, SameProgram, StoreOption, StrictCode, TargetArgument, WorkerProcesses
from trainmaster.cli.print_report import Format, check_format, print_report
from trainmaster.errors import ConfigError, Problem, SettingError, did_you_mean

_MEMBERS = ("factors", "base", "seeds", "design", "on", "direction", "alpha", "epochs", "name")


def command(
    target: TargetArgument,
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A YAML or JSON file with `factors` and other settings.")],
    store: StoreOption = None,
    workers: WorkerProcesses = 0,
    format: Format = None,
    figure: Annotated[str | None, typer.Option(metavar="FOLDER", help="Write a forest plot as PNG and HTML into this folder.")] = None,
    is_strict_code: StrictCode = False,
    is_same_program: SameProgram = False,
    is_quiet: Quiet = False,
    is_dry: DryRun = False,
) -> int:
    """Measure what each part of a config contributes.

    The recipe is a file that lists the parts of the config, each with the values that remove or change it. All configs are trained with
    the same seeds. The report shows the contribution of each part, with a simultaneous confidence interval and a p-value adjusted by
    Holm's method. The ablation is recorded in the store. After a crash, the same command continues the ablation. To extend the ablation,
    add factors or seeds to the recipe. The exit code is 1 if some runs have no result.

    \b
    Examples:
      trainmaster ablate train.py parts.yaml --workers 2
      trainmaster ablate train.py parts.yaml --dry-run
      trainmaster ablate train.py parts.yaml --format latex -q
    """
    from trainmaster.config import Config

    check_format(format)
    values = read_recipe(Config.load(recipe).asdict(), recipe)
    path = get_store_path(store)
    is_new = is_dry and find_store(store) is None  # a dry run must not create the store
    manager = load_manager(target, None if is_new else path, is_quiet or format is not None, is_strict_code, is_same_program)
    if is_dry:
        print(values.plan(manager, is_dry=True))
        print(f"store: {path} (nothing was written)")
        return 0
    report = values.run(manager, workers=workers)
    print_report(report.table, report.to_dict(), report.panels(), format, figure, f"ablation_{report.plan.name}")
    return 0 if report.is_complete else 1


def read_recipe(tree: Any, file: str) -> Any:
    """Return the ablation that a recipe describes. If the recipe is invalid, raise an error that lists all its problems."""
    from trainmaster.analysis import Ablation

    wrong = [
        Problem(str(key), f"is not part of a recipe; {did_you_mean(str(key), _MEMBERS)}".rstrip("; "))
        for key in tree
        if key not in _MEMBERS
    ]
    if "factors" not in tree:
        wrong.append(Problem("factors", "is missing: the parts, each with the values that remove it"))
    if wrong:
        raise ConfigError.of(file, wrong, known=", ".join(_MEMBERS))
    if not isinstance(tree["factors"], dict):
        raise SettingError(f"`factors` in {file} must have a name for each part", hint="factors: {dropout: {model.dropout: 0}}")
    return Ablation(**{"base": None, **tree})
