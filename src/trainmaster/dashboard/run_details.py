"""Reads the data for the page of a run: state, config, attempts, checkpoints, code, environment, files and log.

The files in a run's folder (`environment.json`, patches, figures) were written by the training program, so they are not trusted. They are
only shown as text or as PNG images.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from trainmaster.config.recorded_origins import origin_at
from trainmaster.dashboard.event_columns import EventColumns
from trainmaster.dashboard.live_table import View
from trainmaster.errors import StoreAccessError, StoreDamagedError, StoreError
from trainmaster.store import Run, Store
from trainmaster.store.attempt_records import LOG
from trainmaster.store.checkpoint import read_manifest
from trainmaster.store.files import Files
from trainmaster.store.keys import attempt_folder
from trainmaster.store.run_table import MISSING
from trainmaster.store.summary import STATES, attempts_of, flat, origins_of, summarize

MAX_TEXT = 400_000
"""The maximum number of bytes of a log or a patch in one response."""
MAX_IMAGE = 20 * 2**20
MAX_PIXELS = 50_000_000
_MAX_FILES = 200
_MAX_SETS = 20
_MAX_DEPTH = 3
_PNG = b"\x89PNG\r\n\x1a\n"
_READ_ERRORS = (StoreDamagedError, StoreAccessError, FileNotFoundError)


def describe_run(store: Store, view: View, columns: EventColumns, key: str) -> dict[str, Any]:
    """Return the state, config, attempts and checkpoints of a run, and the names of its metrics and files."""
    run = store.run(key)
    summary = summarize(store, key)
    problems: list[str] = []
    attempts = _read_part(problems, [], lambda: [asdict(each) for each in attempts_of(run)])
    metrics, texts = _read_part(problems, ([], []), lambda: _logged(columns, run))
    checkpoints = _read_part(problems, [], lambda: [_checkpoint(run, name) for name in run.checkpoints()])
    files: list[str] = _read_part(problems, [], lambda: [*_files(store, run)])
    notes = _read_part(problems, "", lambda: store.notes[key])
    recorded = origins_of(run)

    def origin_of(name: str) -> str | None:
        return None if recorded is None else origin_at(recorded, name)

    return {
        **asdict(summary),
        "attempts": attempts,
        "metric_names": metrics,
        "texts": texts,
        "checkpoints": checkpoints,
        "meaning": STATES.get(summary.state, ""),
        "config": [
            {"name": name, "value": value, "num_same": _num_same(view, name, value), "origin": origin_of(name)}
            for name, value in flat(summary.config).items()
        ],
        "num_runs": len(view.table),
        "files": files,
        "capsules": [path for path in files if path.endswith(".capsule")],
        "replicates": _replicates(view, key),
        "hardest": hardest_of(store, run),
        "notes": notes,
        "problems": [*dict.fromkeys(problems)],
        "store": store.root,
    }


def _read_part(problems: list[str], default: Any, read: Callable[[], Any]) -> Any:
    """Read a part of a run. Add a read error to `problems` instead of raising it, so that it does not hide the other parts."""
    try:
        return read()
    except StoreDamagedError as error:
        problems.append(": ".join(filter(None, [error.fact, error.rows.get("why")])))
    except StoreAccessError as error:
        problems.append(error.fact)
    except FileNotFoundError:
        problems.append("a file was removed while it was being read")
    return default


def _logged(columns: EventColumns, run: Run) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a list of the metrics and a list of the logged events that are not numbers.

    The entry of each metric contains the number of points and the last, lowest and highest value.
    """
    units: dict[str, str] = {}
    found: dict[str, list[float]] = {}
    texts: list[dict[str, Any]] = []
    for attempt, log, last in columns.chain(run):
        for name, series in log.series.items():
            units.setdefault(name, series.over)
            found.setdefault(name, []).extend(value for at, value in zip(series.number, series.value, strict=True) if at < last)
        texts += [{"attempt": attempt, "event": event} for at, event in log.texts if at < last]
    metrics = []
    for name, values in found.items():
        known = [value for value in values if value == value]
        low, high = min(known, default=None), max(known, default=None)
        about = {"name": name, "over": units[name], "num": len(values), "num_nan": len(values) - len(known)}
        if values:
            metrics.append({**about, "last": values[-1], "low": low, "high": high})
    return metrics, texts[-_MAX_FILES:]


def _checkpoint(run: Run, name: Any) -> dict[str, Any]:
    about: dict[str, Any] = {"attempt": name.attempt, "name": name.text, "step": name.step}
    try:
        manifest = read_manifest(run.files, run.key, name)
        return about | {"size": sum(each["size"] for each in manifest["files"].values()), "epoch": manifest["status"].get("epoch")}
    except _READ_ERRORS:
        return about | {"size": None, "epoch": None}


def _num_same(view: View, name: str, value: Any) -> int | None:
    """Return how many runs in the store have the value `value` for the config key `name`, or None if no run has this key."""
    column = view.table.config.get(name)
    return None if column is None else sum(type(each) is type(value) and each == value for each in column)


def _replicates(view: View, key: str) -> list[dict[str, Any]]:
    """Return this run and all runs that differ from it only in their seed."""
    table, row = view.table, view.rows.get(key)
    groups = table.facts.get("group")
    if row is None or groups is None or groups[row] is MISSING:
        return []
    states, seeds = table.fact("state"), table.fact("seed")
    return [{"key": table.keys[at], "state": states[at], "seed": seeds[at]} for at, group in enumerate(groups) if group == groups[row]]


# ---- files in the run's folder


def _files(store: Store, run: Run) -> Iterator[str]:
    """Yield the paths of at most 200 files that the training program wrote. The paths start with `attempt-NNNN`."""
    todo = [(attempt_folder("previews", run.key, number), f"attempt-{number:04}") for number in reversed(run.attempts())]
    num = 0
    while todo and num < _MAX_FILES:
        folder, shown = todo.pop()
        try:
            names = sorted(store.files.names(folder))
        except (StoreDamagedError, StoreAccessError):  # this is a file or a link, not a folder
            num += 1
            yield shown
            continue
        for name in names:
            if "." not in name and shown.count("/") < _MAX_DEPTH:
                todo.append((f"{folder}/{name}", f"{shown}/{name}"))
            elif num < _MAX_FILES:
                num += 1
                yield f"{shown}/{name}"


def read_image(store: Store, key: str, path: str) -> bytes:
    """Return a PNG image from the run's folder. Its size in pixels is limited, because the browser has to decompress it."""
    if path not in _files(store, store.run(key)) or not path.endswith(".png"):
        raise FileNotFoundError(path)
    data = _read(store.files, f"previews/{key[:2]}/{key}/{path}", MAX_IMAGE + 1)
    if len(data) > MAX_IMAGE or not data.startswith(_PNG) or data[12:16] != b"IHDR" or len(data) < 33:
        raise StoreDamagedError("this file is not a PNG image, or is too large")
    width, height = struct.unpack(">II", data[16:24])
    if width * height > MAX_PIXELS:
        raise StoreDamagedError(f"this image has {width:,} x {height:,} pixels; the limit is {MAX_PIXELS:,}")
    return data


def code_of(store: Store, key: str) -> dict[str, Any]:
    """Return the newest code snapshot of a run, the uncommitted changes in it, and the digests of the run's source files."""
    run = store.run(key)
    about: dict[str, Any] = {"snapshot": None, "patch": "", "is_cut": False, "program": None}
    for link in _chain(run):
        resume = run.resume_of(link.attempt) or {}
        if about["program"] is None and isinstance(resume.get("program"), dict):
            about["program"] = resume["program"]
        folder = f"{attempt_folder('previews', run.key, link.attempt)}/code"
        for name in store.files.names(folder):
            facts = _json(store.files, f"{folder}/{name}/code.json")
            if about["snapshot"] is None and isinstance(facts, dict):
                kept = {each: value for each, value in facts.items() if each not in ("checksum", "format")}
                about["snapshot"] = {**kept, "name": name, "folder": f"{folder}/{name}"}
                with contextlib.suppress(*_READ_ERRORS):
                    patch = _read(store.files, f"{folder}/{name}/changes.patch", MAX_TEXT + 1)
                    about["patch"], about["is_cut"] = patch[:MAX_TEXT].decode(errors="backslashreplace"), len(patch) > MAX_TEXT
    return about


def environment_of(store: Store, key: str) -> dict[str, Any]:
    """Return the newest `environment.json` of a run as a flat dict with dotted names."""
    run = store.run(key)
    for link in _chain(run):
        tree = _json(store.files, f"{attempt_folder('previews', run.key, link.attempt)}/environment.json")
        if isinstance(tree, dict):
            return flat(tree)
    return {}


def hardest_of(store: Store, run: Run) -> list[dict[str, Any]]:
    """Return the hardest samples of each data set, from the newest attempt in which the extension `SampleLoss` recorded them."""
    for link in _chain(run):
        folder = f"{attempt_folder('previews', run.key, link.attempt)}/plots"
        with contextlib.suppress(*_READ_ERRORS):
            names = [name for name in sorted(store.files.names(folder)) if name.startswith("sample_loss_") and name.endswith(".json")]
            found = [table for name in names[:_MAX_SETS] if (table := _hard_samples(_json(store.files, f"{folder}/{name}"))) is not None]
            if found:
                return found
    return []


def _hard_samples(tree: Any) -> dict[str, Any] | None:
    """Return a table that `SampleLoss` wrote, or None if the file has any other content."""
    if not isinstance(tree, dict) or not isinstance(tree.get("set"), str) or not isinstance(tree.get("hardest"), list):
        return None
    rows = [{"index": row.get("index"), "loss": row.get("loss")} for row in tree["hardest"][:_MAX_FILES] if isinstance(row, dict)]
    return {"set": tree["set"], "epoch": tree.get("epoch"), "num_samples": tree.get("num_samples"), "hardest": rows}


def log_of(store: Store, key: str, attempt: int | None, start: int | None) -> dict[str, Any]:
    """Return a part of an attempt's output, starting at byte `start`. By default, return the end of the output.

    The default attempt is the newest one with a log.
    """
    run = store.run(key)
    numbers = [number for number in run.attempts() if run.files.has(run.path(number, LOG))]
    number = attempt if attempt is not None else next(iter(numbers), None)
    if number not in numbers:
        return {"attempt": None, "attempts": numbers, "text": "", "start": 0, "end": 0, "size": 0}
    with run.files.open(run.path(number, LOG)) as file:
        size = file.seek(0, 2)
        begin = max(0, size - MAX_TEXT) if start is None else min(max(0, start), size)
        file.seek(begin)
        data = file.read(MAX_TEXT)
    end = begin + len(data)
    if end < size or not data.endswith(b"\n"):  # end at a line break, so that no character is split
        data = data[: data.rfind(b"\n") + 1] or data
    text = data.decode(errors="backslashreplace")
    return {"attempt": number, "attempts": numbers, "text": text, "start": begin, "end": begin + len(data), "size": size}


def _chain(run: Run) -> list[Any]:
    with contextlib.suppress(*_READ_ERRORS):
        return run.chain()
    return []


def _read(files: Files, path: str, limit: int) -> bytes:
    with files.open(path) as file:
        return file.read(limit)


def _json(files: Files, path: str) -> Any:
    with contextlib.suppress(*_READ_ERRORS, ValueError, RecursionError, StoreError):
        return json.loads(_read(files, path, 2 * 2**20))
    return None
