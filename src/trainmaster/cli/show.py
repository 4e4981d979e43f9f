"""`trainmaster show`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainmaster.cli.options import Json, Key, StoreOption

if TYPE_CHECKING:
    from trainmaster.cli.terminal import Terminal
    from trainmaster.store import Store
    from trainmaster.store.history import History
    from trainmaster.store.summary import PastAttempt, Summary

_MAX_METRICS = 20
_MAX_ATTEMPTS = 10


def command(key: Key, store: StoreOption = None, is_json: Json = False) -> None:
    """Show all about one run.

    Its state and why, its config, the course of its metrics, attempts, checkpoints and folders.

    \b
    Examples:
      trainmaster show 3fa9
      trainmaster show 3fa9 --json
    """
    import shlex

    from trainmaster.cli.keys import resolve_key
    from trainmaster.cli.opening import needed_store
    from trainmaster.cli.strict_json import print_json
    from trainmaster.cli.terminal import the_terminal
    from trainmaster.errors import StoreDamagedError
    from trainmaster.store.history import History, history
    from trainmaster.store.printable import printable
    from trainmaster.store.summary import attempts_of, summarize

    found = needed_store(store)
    full = resolve_key(found, key)
    summary = summarize(found, full)
    run = found.run(full)
    try:
        past = attempts_of(run)
        course = history(run, [*summary.metrics][:_MAX_METRICS])
        checkpoints = _checkpoints(found, full)
    except (StoreDamagedError, FileNotFoundError):  # its state says so
        past, course, checkpoints = [], History({}, False), []
    if is_json:
        print_json(_plain(found, summary, past, course, checkpoints))
        return
    terminal = the_terminal()
    for line in _lines(found, summary, past, course, checkpoints, terminal):
        print(line)
    print(terminal.paint("next", "bold"))
    for line in _next(summary):
        print(f"  {line}" + (f" --store {printable(shlex.quote(store))}" if store is not None else ""))


def _checkpoints(store: Store, key: str) -> list[tuple[int, str, int]]:
    """Attempt, name and size of each checkpoint that counts, newest first."""
    from trainmaster.errors import StoreDamagedError
    from trainmaster.store.checkpoint import read_manifest

    found = []
    for name in store.run(key).checkpoints():
        try:
            manifest = read_manifest(store.files, key, name)
            found.append((name.attempt, name.text, sum(each["size"] for each in manifest["files"].values())))
        except (StoreDamagedError, FileNotFoundError):
            found.append((name.attempt, name.text, -1))
    return found


def _lines(
    store: Store, run: Summary, past: list[PastAttempt], course: History, checkpoints: list[tuple[int, str, int]], terminal: Terminal
) -> Iterator[str]:
    from trainmaster.cli.table import pairs
    from trainmaster.cli.words import age, counted, exact, size
    from trainmaster.store.keys import config_path, run_folder
    from trainmaster.store.printable import printable
    from trainmaster.store.summary import STATES, flat

    head = f"run {run.key}  {run.state}" + (f"  [{', '.join(run.tags)}]" if run.tags else "")
    yield terminal.paint(printable(head), "bold")
    facts: list[tuple[str, object]] = [("state", f"{run.state}: {run.reason or STATES[run.state]}")]
    if run.owner:
        facts.append(("held by", run.owner))
    if run.progressed is not None:
        facts.append(("progress", f"{age(run.progressed)} ago"))
    if run.epoch is not None:
        facts.append(("epoch", f"{run.epoch} of {run.num_epochs}" if run.num_epochs else run.epoch))
    if run.step is not None:
        facts.append(("step", run.step))
    if run.changed is not None:
        facts.append(("changed", f"{age(run.changed)} ago"))
    if run.target:
        facts.append(("target", run.target))
    if run.config.get("start_from"):
        facts.append(("from", run.config["start_from"]))
    yield from pairs(facts, terminal)
    if run.config:
        yield terminal.paint("config", "bold")
        yield from pairs([(name, exact(value)) for name, value in flat(run.config)], terminal)
    if run.metrics or course.points:
        yield terminal.paint("metrics", "bold")
        yield from _metrics(run, course, terminal)
    if past:
        yield terminal.paint("attempts", "bold")
        if len(past) > _MAX_ATTEMPTS:
            yield f"  ... {len(past) - _MAX_ATTEMPTS:,} earlier ones"
        yield from pairs([(str(each.number), _attempt(each, run, past[-1].number)) for each in past[-_MAX_ATTEMPTS:]], terminal)
    if checkpoints:
        yield terminal.paint("checkpoints", "bold")
        rows = [(f"attempt {number}, {name}", size(amount) if amount >= 0 else "damaged") for number, name, amount in checkpoints]
        yield from pairs(rows, terminal)
    yield terminal.paint("files", "bold")
    folders = [config_path(run.key), *(run_folder(archive, run.key) for archive in ("stats", "ckpts", "previews"))]
    yield from (f"  {printable(store.root)}/{folder}" for folder in folders[: 4 if past else 1])
    if run.num_attempts > len(past) + 1:
        yield f"  {counted(run.num_attempts - len(past), 'attempt')} cannot be read"


def _metrics(run: Summary, course: History, terminal: Terminal) -> Iterator[str]:
    from trainmaster.cli.table import Cell, Column, table
    from trainmaster.cli.words import short
    from trainmaster.figures.spark import spark

    names = [*{**run.metrics, **course.points}][:_MAX_METRICS]
    values = {name: [value for _, value in course.points.get(name, [])] for name in names}
    last = {name: run.metrics[name] if name in run.metrics else values[name][-1] for name in names}
    finite = {name: [each for each in values[name] if each == each] for name in names}
    lines, _ = table(
        [
            Column("  METRIC", [Cell(f"  {name}") for name in names]),
            Column("LAST", [Cell(short(last[name])) for name in names], is_number=True),
            Column("LEAST", [Cell(short(min(finite[name])) if finite[name] else "") for name in names], is_number=True),
            Column("MOST", [Cell(short(max(finite[name])) if finite[name] else "") for name in names], is_number=True),
            Column("COURSE", [Cell(spark(values[name], can_draw=terminal.can_draw), "live") for name in names]),
        ],
        terminal,
        num_fixed=2,
    )
    yield from lines
    if course.is_sampled:
        yield "  the log is long, and was read in parts: LEAST and MOST are of those"
    if run.best:
        from trainmaster.store.printable import printable

        metric, value, step, name = (run.best.get(each) for each in ("metric", "value", "step", "checkpoint"))
        yield f"  best: {printable(metric)} {printable(short(value))} at step {printable(step)}, {printable(name)}"
    left = len({**run.metrics, **course.points}) - len(names)
    if left > 0:
        yield f"  ... and {left:,} more: --json has all"


def _attempt(attempt: PastAttempt, run: Summary, newest: int) -> str:
    begun = "started anew" if attempt.step is None else f"from step {attempt.step} of attempt {attempt.parent}"
    ending = attempt.outcome or (run.state if attempt.number == newest and run.owner else "killed")
    parts = [attempt.claimed[:19].replace("T", " "), attempt.by, attempt.owner, begun if attempt.has_started else "never started", ending]
    return ", ".join(filter(None, parts)) + (f": {attempt.reason}" if attempt.reason else "")


def _next(run: Summary) -> list[str]:
    """The commands that are useful now."""
    logs = f"trainmaster logs {run.key}"
    match run.state:
        case "running" | "held?":
            return [f"{logs} -f", f"trainmaster stop {run.key}"]
        case "finished":
            return [f"{logs}", f"trainmaster tag {run.key} LABEL"]
        case "damaged":
            return ["trainmaster verify", f"trainmaster rm {run.key}"]
        case "new":
            return [f"trainmaster resume {run.key}", f"trainmaster rm {run.key}"]
        case _:
            return [f"trainmaster resume {run.key}", logs]


def _plain(store: Store, run: Summary, past: list[PastAttempt], course: History, checkpoints: list[tuple[int, str, int]]) -> dict[str, Any]:
    from dataclasses import asdict

    from trainmaster.cli.strict_json import run_as_json

    return {
        **run_as_json(run),
        "attempts": [asdict(each) for each in past],
        "checkpoints": [{"attempt": number, "name": name, "size": amount if amount >= 0 else None} for number, name, amount in checkpoints],
        "history": course.points,
        "is_sampled": course.is_sampled,
        "store": store.root,
    }
