"""Compares two or more runs: their configs, code, environments, seeds and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from trainmaster.arguments import is_number
from trainmaster.dashboard.live_table import View
from trainmaster.dashboard.run_details import MAX_TEXT, code_of, environment_of
from trainmaster.errors import MissingExtraError, SettingError, StoreDamagedError, UnknownRunError
from trainmaster.store import Store
from trainmaster.store.run_table import MISSING, Columns

MAX_RUNS = 200
_MAX_DETAILED = 12
"""The maximum number of runs whose code and environment are compared. The limit avoids reading many files."""
_MAX_BUNDLE = 50_000_000


def compare(store: Store, view: View, keys: Sequence[str]) -> dict[str, Any]:
    """Return how the runs differ.

    The config of the first run is the reference. For every other config, the result contains the difference of each metric from the
    reference, averaged over seeds.
    """
    if not 2 <= len(keys) <= MAX_RUNS:
        raise SettingError(f"{len(keys)} runs cannot be compared", hint=f"choose 2 to {MAX_RUNS} runs")
    unknown = [key for key in keys if key not in view.rows]
    if unknown:
        raise UnknownRunError(f"there is no run {unknown[0]:.64}", hint="it may have been deleted")
    rows = [view.rows[key] for key in keys]
    table = view.table.take(rows)
    detailed = keys[:_MAX_DETAILED]
    codes = [code_of(store, key) for key in detailed]
    return {
        "runs": [_facts(view, row) for row in rows],
        "config": _compare_values(table.config),
        "metrics": _compare_values(table.metrics),
        "code": [{name: each for name, each in code.items() if name != "program"} for code in codes],
        "files": _compare_files([_digests(code) for code in codes]),
        "environment": _compare_values(_environments(store, detailed)),
        "num_detailed": len(detailed),
        "differences": [_differences(view, rows[0], row) for row in _one_per_config(view, rows)[:_MAX_DETAILED]],
    }


def diff_code(store: Store, keys: Sequence[str]) -> dict[str, Any]:
    """Return the differences between the files in the newest code snapshots of two runs, as a patch."""
    from trainmaster.extensions.code.difference import diff_bundles
    from trainmaster.extensions.code.git import GitError

    if len(keys) != 2:
        raise SettingError(f"the code of {len(keys)} runs cannot be compared", hint="choose 2 runs")
    found = [_bundle_of(store, key) for key in keys]
    try:
        patch = diff_bundles((found[0][0], found[1][0]), (found[0][1], found[1][1]), MAX_TEXT + 1)
    except GitError as error:
        raise StoreDamagedError("the code of these runs cannot be compared", why=str(error)) from None
    return {"patch": patch[:MAX_TEXT].decode(errors="backslashreplace"), "is_cut": len(patch) > MAX_TEXT}


def _bundle_of(store: Store, key: str) -> tuple[bytes, str]:
    """Return the files of a run's newest snapshot as a git bundle, and the id of the git tree."""
    snapshot = code_of(store, key)["snapshot"]
    if snapshot is None:
        raise SettingError(f"run {key} has no snapshot of its code", hint="the extension `CodeTracker` saves one")
    with store.files.open(f"{snapshot['folder']}/code.bundle") as file:
        data = file.read(_MAX_BUNDLE + 1)
    if len(data) > _MAX_BUNDLE:
        hint = f"`trainmaster code {key} --checkout DIR` restores it"
        raise SettingError(f"the code of run {key} has more than {_MAX_BUNDLE:,} bytes", hint=hint)
    return data, str(snapshot["tree"])


def _facts(view: View, row: int) -> dict[str, Any]:
    facts, key = view.table.facts, view.table.keys[row]
    names = ("state", "epoch", "num_epochs", "step", "seed", "group", "duration", "started")
    return {"key": key, "tags": view.tags.get(key, ()), **{name: facts[name][row] if name in facts else None for name in names}}


def _compare_values(columns: Columns) -> list[dict[str, Any]]:
    """For each column, return the values, which runs have a value, and whether all runs have the same value."""
    return [
        {
            "name": name,
            "values": values,
            "has": [value is not MISSING for value in values],
            "is_same": len({(type(value), repr(value)) for value in values}) == 1,
        }
        for name, values in columns.items()
    ]


def _environments(store: Store, keys: Sequence[str]) -> Columns:
    found = [environment_of(store, key) for key in keys]
    names = dict.fromkeys(name for each in found for name in each if name not in ("started", "argv"))
    return {name: [each.get(name, MISSING) for each in found] for name in names}


def _digests(code: Mapping[str, Any]) -> dict[str, str]:
    files = (code.get("program") or {}).get("files")
    return {str(path): str(digest) for path, digest in files.items()} if isinstance(files, dict) else {}


def _compare_files(digests: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return the source files that differ between the programs of the runs. The digests ignore comments and formatting."""
    if not all(digests):  # a run without a recorded program cannot be compared
        return []
    return [
        {"path": path, "has": [path in each for each in digests]}
        for path in sorted({path for each in digests for path in each})
        if len({each.get(path) for each in digests}) > 1
    ]


# ---- metrics


def _one_per_config(view: View, rows: Sequence[int]) -> list[int]:
    """Return one row for each config other than the first row's config. If there is no other config, return the second row."""
    groups = view.table.fact("group")
    found = {groups[row]: row for row in reversed(rows[1:]) if groups[row] != groups[rows[0]]}
    return sorted(found.values(), key=rows.index) or [rows[1]]


def _differences(view: View, one: int, other: int) -> dict[str, Any]:
    """Return the mean difference of each metric between the finished replicates of two runs. Replicates with the same seed are paired."""
    table = view.table
    groups, seeds, replicates, states = map(table.fact, ("group", "seed", "replicate", "state"))
    if groups[one] is None or groups[one] == groups[other]:
        return {"key": table.keys[other], "metrics": [], "why_no_interval": "both runs have the same config except for the seed"}

    def finished(group: str) -> dict[str, int]:
        rows = [row for row, each in enumerate(groups) if each == group and states[row] == "finished"]
        return {f"seed {seed}" if (seed := seeds[row]) is not None else f"replicate {replicates[row]}": row for row in reversed(rows)}

    ours, theirs = finished(groups[one]), finished(groups[other])
    try:
        found = [{"name": name, **each} for name, column in table.metrics.items() if (each := _difference(column, ours, theirs))]
    except MissingExtraError as error:
        return {"key": table.keys[other], "metrics": [], "why_no_interval": str(error).splitlines()[0]}
    why = "" if found else "an interval needs at least two finished seeds of each config"
    return {"key": table.keys[other], "metrics": found, "why_no_interval": why}


def _difference(column: Sequence[Any], ours: Mapping[str, int], theirs: Mapping[str, int]) -> dict[str, Any] | None:
    from trainmaster.analysis.statistics import paired_difference, welch_difference

    here = {seed: float(column[row]) for seed, row in ours.items() if is_number(column[row])}
    there = {seed: float(column[row]) for seed, row in theirs.items() if is_number(column[row])}
    shared = [seed for seed in here if seed in there]
    if len(shared) >= 2:
        found = paired_difference([there[seed] for seed in shared], [here[seed] for seed in shared])
    elif len(here) >= 2 and len(there) >= 2:
        found = welch_difference([*there.values()], [*here.values()])
    else:
        return None
    return asdict(found)
