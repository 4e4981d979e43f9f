"""Reads the hypotheses in a store with their verdicts, and the ablations with the contribution of each ablated part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainmaster.analysis.plan_records import plan_names
from trainmaster.errors import TrainmasterError
from trainmaster.store import Store


def list_verdicts(store: Store) -> dict[str, Any]:
    """Return all hypotheses and ablations in a store. If one of them cannot be read, its entry has an `error`."""
    return {
        "hypotheses": [_or_error(_hypothesis, store, name) for name in plan_names(store, "hypothesis")],
        "ablations": [_or_error(_ablation, store, name) for name in plan_names(store, "ablation")],
    }


def _or_error(describe: Callable[[Store, str], dict[str, Any]], store: Store, name: str) -> dict[str, Any]:
    try:
        return {"name": name, "error": "", **describe(store, name)}
    except TrainmasterError as error:  # the records are damaged, or the extra `analysis` is not installed
        return {"name": name, "error": error.fact}
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):  # the checksum is valid, so another version wrote these records
        return {"name": name, "error": "its records cannot be read by this version"}


def _hypothesis(store: Store, name: str) -> dict[str, Any]:
    from trainmaster.analysis.hypothesis_driver import read_verdict
    from trainmaster.analysis.verdict import differences

    verdict = read_verdict(store, name)
    plan = verdict.plan
    pairs = [
        {"seed": seed, "a": a.value, "b": b.value, "keys": [a.key, b.key], "difference": difference, "counts": at < verdict.n}
        for at, ((seed, a, b), difference) in enumerate(zip(verdict.pairs, differences(plan, verdict.pairs), strict=True))
    ]
    return {
        **{name: getattr(verdict, name) for name in ("state", "why", "mean", "low", "high", "notes")},
        **{name: getattr(plan, name) for name in ("claim", "budget", "statement")},
        "metric": plan.settings["on"],
        "margin": plan.settings["by"],
        "num_pairs": verdict.n,
        "pairs": pairs,
        "looks": [look._asdict() for look in verdict.looks],
    }


def _ablation(store: Store, name: str) -> dict[str, Any]:
    from trainmaster.analysis.contributions import read_ablation

    report = read_ablation(store, name)
    about = {"metric": report.plan.settings["on"], "missing": report.missing, "seeds": report.plan.seeds, "notes": report.notes}
    return {**about, "contributions": report.to_dict()["contributions"]}
