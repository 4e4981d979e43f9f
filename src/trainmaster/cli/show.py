"""The command `trainmaster show`."""

from __future__ import annotations

import contextlib
import os
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.cli.console import Column, can_draw_blocks, print_json, print_line, print_pairs, print_table
from trainmaster.cli.formatting import format_age, format_duration, format_exact, format_short, run_to_json
from trainmaster.cli.open_store import open_run
from trainmaster.cli.options import Json, Key, StoreOption
from trainmaster.text import counted

if TYPE_CHECKING:
    from trainmaster.store import Run, Store
    from trainmaster.store.history import History
    from trainmaster.store.summary import PastAttempt, Summary

_MAX_METRICS = 20
_MAX_ATTEMPTS = 10
_MODIFIED = 1
"""The index of the modification time in the result of `files.mark`."""
_NEXT_STEPS = {
    "running": ("logs {} -f", "stop {}"),
    "held?": ("logs {} -f", "stop {}"),
    "finished": ("logs {}", "tag {} LABEL"),
    "damaged": ("verify", "rm {}"),
    "new": ("resume {}", "rm {}"),
}
"""The commands that are useful for a run, by the state of the run. `{}` is replaced with the run's key."""


class Details(NamedTuple):
    """What `show` prints about a run in addition to its summary."""

    attempts: list[PastAttempt]
    history: History
    checkpoints: list[tuple[int, str, int | None]]
    """The attempt, name and size of each checkpoint, newest first. The size of a damaged checkpoint is None."""


def command(key: Key, store: StoreOption = None, is_json: Json = False) -> None:
    """Show everything about one run.

    Prints its state, config, metrics, attempts, checkpoints and files. Also draws the curves of its metrics, unless the figure is up to
    date.

    \b
    Examples:
      trainmaster show 3fa9
      trainmaster show 3fa9 --json
    """
    from trainmaster.store.summary import summarize

    found, run = open_run(store, key)
    summary = summarize(found, run.key)
    details = _read_details(run)
    if is_json:
        print_json(_to_dict(found, summary, details))
        return
    _print_facts(run, summary)
    _print_metrics(summary, details.history)
    _print_attempts(summary, details)
    _print_files(found, summary, details, _draw_curves(run, details.history))
    _print_next_steps(summary, store, _find_capsule(found, run, details))


def _read_details(run: Run) -> Details:
    from trainmaster.errors import StoreDamagedError
    from trainmaster.store.checkpoint import read_manifest
    from trainmaster.store.history import History, history
    from trainmaster.store.summary import attempts_of

    try:
        attempts = attempts_of(run)
        metrics = history(run)
        checkpoints: list[tuple[int, str, int | None]] = []
        for name in run.checkpoints():
            try:
                size = sum(each["size"] for each in read_manifest(run.files, run.key, name)["files"].values())
            except (StoreDamagedError, FileNotFoundError):
                size = None
            checkpoints.append((name.attempt, name.text, size))
        return Details(attempts, metrics, checkpoints)
    except (StoreDamagedError, FileNotFoundError):  # the printed state of the run shows the damage
        return Details([], History({}, False), [])


def _print_facts(run: Run, summary: Summary) -> None:
    from trainmaster.store.difference_causes import targets_of
    from trainmaster.store.summary import STATES, flat, origins_of

    print_line(f"run {run.key}  {summary.state}" + (f"  [{', '.join(summary.tags)}]" if summary.tags else ""), "bold")
    state, *more = f"{summary.state}: {summary.reason or STATES[summary.state]}".splitlines()
    planned = summary.planned
    if planned is None and summary.epoch is not None:
        planned = next(iter(targets_of(run)), None)
    beyond = "; after that, its learning-rate schedule continued as it was built" if summary.is_beyond_plan else ""
    facts: dict[str, object] = {
        "held by": summary.owner,
        "progress": summary.progressed and f"{format_age(summary.progressed)} ago",
        "epoch": f"{summary.epoch} of {summary.num_epochs}" if summary.epoch is not None and summary.num_epochs else summary.epoch,
        "planned": counted(planned, "epoch") + beyond if planned is not None and (planned != summary.num_epochs or beyond) else None,
        "step": summary.step,
        "time": format_duration(summary.duration),
        "changed": summary.changed and f"{format_age(summary.changed)} ago",
        "target": summary.target,
        "from": summary.config.get("start_from"),
    }
    rows = [("state", state), *(("", line) for line in more)]
    print_pairs([*rows, *((name, value) for name, value in facts.items() if value not in (None, ""))])
    if summary.config:
        _print_config(flat(summary.config), origins_of(run))


def _print_config(values: dict[str, Any], origins: dict[str, str] | None) -> None:
    """Print each config value. If the run has recorded the origins of the values, print these too."""
    from trainmaster.config.recorded_origins import origin_at

    print_line("config", "bold")
    if origins is None:
        print_pairs([(name, format_exact(value)) for name, value in values.items()])
        return
    columns = [
        Column("KEY", [*values]),
        Column("VALUE", [format_exact(value) for value in values.values()]),
        Column("FROM", [origin_at(origins, name) for name in values], rank=1, style="dim"),
    ]
    print_table(columns, indent="  ")


def _print_metrics(summary: Summary, history: History) -> None:
    from trainmaster.figures.spark import spark
    from trainmaster.store.metric_names import describe_broken_losses, short_name

    names = [*{**summary.metrics, **history.points}]
    if not names:
        return
    shown = names[:_MAX_METRICS]
    values = [[value for _, value in history.points.get(name, [])] for name in shown]
    numbers = [[value for value in each if value == value] for each in values]
    last = [summary.metrics[name] if name in summary.metrics else each[-1] for name, each in zip(shown, values, strict=True)]
    print_line("metrics", "bold")
    columns = [
        Column("METRIC", shown),
        Column("LAST", [format_short(value) for value in last], is_number=True),
        Column("MIN", [format_short(min(each)) if each else "" for each in numbers], is_number=True, rank=2),
        Column("MAX", [format_short(max(each)) if each else "" for each in numbers], is_number=True, rank=3),
        Column("TREND", [spark(each, can_draw=can_draw_blocks()) for each in values], rank=1, style="cyan"),
    ]
    print_table(columns, indent="  ")
    if history.is_sampled:
        print_line("  the log is long: MIN, MAX and TREND are from a sample of its rows")
    broken = describe_broken_losses(dict(zip(shown, last, strict=True)))
    if broken is not None:
        print_line(f"  {broken}", "yellow")
    if summary.best:
        metric, value, step, name = (summary.best.get(each) for each in ("metric", "value", "step", "checkpoint"))
        print_line(f"  best: {short_name(str(metric))} {format_short(value)} at step {step}, {name}")
    if len(names) > len(shown):
        print_line(f"  ... and {len(names) - len(shown):,} more: --json has all")


def _print_attempts(summary: Summary, details: Details) -> None:
    from rich.filesize import decimal

    attempts = details.attempts
    if attempts:
        print_line("attempts", "bold")
        if len(attempts) > _MAX_ATTEMPTS:
            print_line(f"  ... {len(attempts) - _MAX_ATTEMPTS:,} earlier ones")
        shown = attempts[-_MAX_ATTEMPTS:]
        print_pairs([(str(each.number), _describe_attempt(each, summary, attempts[-1].number)) for each in shown])
    if details.checkpoints:
        print_line("checkpoints", "bold")
        sizes = [(f"attempt {number}, {name}", "damaged" if size is None else decimal(size)) for number, name, size in details.checkpoints]
        print_pairs(sizes)


def _describe_attempt(attempt: PastAttempt, run: Summary, newest: int) -> str:
    start = "from scratch" if attempt.step is None else f"from step {attempt.step} of attempt {attempt.parent}"
    ending = attempt.outcome or (run.state if attempt.number == newest and run.owner else "killed")
    parts = [attempt.claimed[:19].replace("T", " "), attempt.owner, start if attempt.has_started else "never started", ending]
    return ", ".join(filter(None, parts)) + (f": {attempt.reason.splitlines()[0]}" if attempt.reason else "")


def _print_files(store: Store, run: Summary, details: Details, curves: str | None) -> None:
    from trainmaster.store.keys import config_path, run_folder

    print_line("files", "bold")
    folders = [run_folder(archive, run.key) for archive in ("stats", "ckpts", "previews")] if details.attempts else []
    for path in [config_path(run.key), *folders, *([] if curves is None else [curves])]:
        print_line(f"  {store.root}/{path}")
    if run.num_attempts > len(details.attempts) + 1:
        print_line(f"  {counted(run.num_attempts - len(details.attempts), 'attempt')} cannot be read")


def _draw_curves(run: Run, history: History) -> str | None:
    """Draw the curves unless the figure is up to date. Return the path of the figure in the store, or None if there is no figure.

    The curves of runs in a batch are not drawn during training, because drawing would take longer than the rest of a short run.
    """
    from trainmaster.store.attempt import CURVES, plot_path
    from trainmaster.store.attempt_records import EVENTS

    if not history.points:
        return None
    with contextlib.suppress(Exception):  # the store may be read-only, or matplotlib may fail to draw a value
        attempt = run.chain()[0].attempt
        path = plot_path(run.key, attempt, CURVES)
        drawn, logged = run.files.mark(path), run.files.mark(run.path(attempt, EVENTS))
        if drawn is None or (logged is not None and drawn[_MODIFIED] < logged[_MODIFIED]):
            from trainmaster.figures.curves import curves
            from trainmaster.figures.png import png

            sets = tuple(dict.fromkeys(name.partition("/")[0] for name in history.points if name.endswith("/loss")))
            run.files.replace(path, png(curves(history.points, history.over, sets, f"run {run.key}")))
        return path
    return None


def _find_capsule(store: Store, run: Run, details: Details) -> str | None:
    """Return the path of the last capsule saved by the run's newest attempt, or None if there is none or it cannot be replayed."""
    from trainmaster.extensions.capsule import newest_replayable
    from trainmaster.store.keys import attempt_folder

    if store.root is None or not details.attempts:
        return None
    folder = f"{attempt_folder('previews', run.key, details.attempts[-1].number)}/capsules"
    name = newest_replayable(run.files, folder)
    if name is None:
        return None
    path = os.path.join(store.root, folder, name)
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _print_next_steps(run: Summary, store: str | None, capsule: str | None) -> None:
    """Print the commands that are useful for a run in this state."""
    commands = _NEXT_STEPS.get(run.state, ("resume {}", "logs {}"))
    print_line("next", "bold")
    for each in commands:
        print_line(f"  trainmaster {each.format(run.key)}" + (f" --store {shlex.quote(store)}" if store is not None else ""))
    if capsule is not None:
        print_line(f"  trainmaster replay {shlex.quote(capsule)}")


def _to_dict(store: Store, run: Summary, details: Details) -> dict[str, Any]:
    from dataclasses import asdict

    from trainmaster.store.summary import origins_of

    return {
        **run_to_json(run),
        "attempts": [asdict(each) for each in details.attempts],
        "checkpoints": [{"attempt": number, "name": name, "size": size} for number, name, size in details.checkpoints],
        "history": details.history.points,
        "is_sampled": details.history.is_sampled,
        "origins": origins_of(store.run(run.key)),
        "store": store.root,
    }
