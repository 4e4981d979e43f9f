"""Reads the searches in a store from `sweeps/NAME/`: their plans and trials, and which trials are done, running or missing."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from trainmaster.analysis.plan_records import FOLDER, plan_names
from trainmaster.dashboard.live_table import View
from trainmaster.errors import SearchError, StoreDamagedError
from trainmaster.store import Store
from trainmaster.store.checksummed_json import read_record

_MAX_TRIALS = 100_000


def list_searches(store: Store) -> list[dict[str, Any]]:
    """Return all searches, each with the number of trials in each state."""
    found = []
    for name in plan_names(store, "search"):
        try:
            plan = _plan(store, name)
        except (SearchError, StoreDamagedError):
            found.append({"name": name, "is_damaged": True})
            continue
        trials = [*_trials(store, name)]
        states = Counter(trial["state"] for trial in trials)
        plan_facts = {"monitor": plan.get("monitor"), "sampler": plan.get("sampler")}
        found.append({"name": name, **plan_facts, "states": states, "best": _best(plan, trials)})
    return found


def describe_search(store: Store, view: View, name: str) -> dict[str, Any]:
    """Return the plan of a search and all its trials."""
    plan = _plan(store, name)
    trials = [*_trials(store, name)]
    states = view.table.fact("state")
    for trial in trials:
        trial["run_states"] = [states[view.rows[key]] if key in view.rows else "missing" for key in trial["keys"]]
    parameters = [*dict.fromkeys(each for trial in trials for each in trial["values"])]
    return {
        "name": name,
        "plan": {
            each: plan.get(each) for each in ("monitor", "directions", "epochs", "seed", "sampler", "pruner", "num_replicates", "space")
        },
        "parameters": parameters,
        "trials": trials,
        "best": _best(plan, trials),
        "front": _front(plan, trials),
    }


def _plan(store: Store, name: str) -> dict[str, Any]:
    known = plan_names(store, "search")
    if name not in known:
        raise SearchError(f"no search is called {name!r:.80}", known=", ".join(known) or "none")
    plan: dict[str, Any] = read_record(store.files, f"{FOLDER}/{name}/plan.json")
    return plan


def _trials(store: Store, name: str) -> Iterator[dict[str, Any]]:
    for number in range(_MAX_TRIALS):
        try:
            proposal = read_record(store.files, f"{FOLDER}/{name}/proposals/{number:06}.json")
        except FileNotFoundError:
            return
        except StoreDamagedError:
            continue
        outcome: dict[str, Any] = {}
        with contextlib.suppress(FileNotFoundError, StoreDamagedError):
            outcome = read_record(store.files, f"{FOLDER}/{name}/outcomes/{number:06}.json")
        values = proposal.get("values")
        yield {
            "number": number,
            "values": values if isinstance(values, dict) else {},
            "keys": [key for key in proposal.get("keys") or () if isinstance(key, str)],
            "state": str(outcome.get("state") or proposal.get("state") or "running"),
            "objectives": _objectives(outcome.get("values")),
            "reason": str(outcome.get("reason") or proposal.get("reason") or ""),
            "epoch": outcome.get("epoch"),
        }


def _objectives(values: Any) -> list[float] | None:
    try:
        return [float(each) for each in values] if isinstance(values, list) else None
    except (TypeError, ValueError):
        return None


def _complete(trials: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in trials if each["state"] == "complete" and each["objectives"] and all(v == v for v in each["objectives"])]


def _signs(plan: dict[str, Any]) -> list[int]:
    """Return 1 for each objective that is minimized, and -1 for each that is maximized."""
    return [-1 if each == "maximize" else 1 for each in plan.get("directions") or ["minimize"]]


def _best(plan: dict[str, Any], trials: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the best complete trial, or None if there is none or the search has several objectives."""
    signs, done = _signs(plan), _complete(trials)
    return min(done, key=lambda each: signs[0] * each["objectives"][0]) if done and len(signs) == 1 else None


def _front(plan: dict[str, Any], trials: Sequence[dict[str, Any]]) -> list[int]:
    """Return the numbers of the trials on the Pareto front. The list is empty if the search has only one objective."""
    signs, done = _signs(plan), _complete(trials)
    if len(signs) < 2:
        return []
    points = {each["number"]: [sign * value for sign, value in zip(signs, each["objectives"], strict=False)] for each in done}
    return [
        number
        for number, point in points.items()
        if not any(all(a <= b for a, b in zip(other, point, strict=True)) and other != point for other in points.values())
    ]
