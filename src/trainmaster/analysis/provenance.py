"""Summarizes the code and the environment of many runs: the different values, and how many runs have each value."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from trainmaster.config.paths import leaves
from trainmaster.errors import StoreError
from trainmaster.store import Run, Store
from trainmaster.store.checksummed_json import Record
from trainmaster.store.keys import attempt_folder
from trainmaster.store.program import Program
from trainmaster.text import counted

_CODE, _ENVIRONMENT = "code", "environment.json"
_SHOWN = {
    "python.version": "Python",
    "torch.version": "torch",
    "torch.cuda": "CUDA",
    "torch.threads": "threads",
    "hardware.cpu": "CPU",
    "hardware.gpus": "GPUs",
    "system.platform": "platform",
    "system.host": "host",
}
"""The recorded environment values that may explain a difference between runs, with their titles."""
_MAX_VALUES = 8


class Fact(NamedTuple):
    """A property of the code or environment, such as the Python version, with its values in the runs. The most common value is first."""

    name: str
    values: list[tuple[str, int]]
    """Each value with the number of runs that have it."""
    num_more: int
    """The number of less common values that are left out."""


def code_and_environment(store: Store, keys: Iterable[str]) -> tuple[list[Fact], list[Fact]]:
    """Return two lists: what the runs recorded about their code, and what they recorded about their environment.

    For each run, only the newest attempt is used. Runs that were never started or are damaged are left out.
    """
    code: dict[str, Counter[str]] = defaultdict(Counter)
    environment: dict[str, Counter[str]] = defaultdict(Counter)
    for key in keys:
        with contextlib.suppress(StoreError, FileNotFoundError):  # the report lists damaged runs in another section
            run = store.run(key)
            number = run.head()
            if number is not None:
                for counters, facts in ((code, _code_facts(run, number)), (environment, _environment_facts(run, number))):
                    for name, value in facts.items():
                        counters[name][value] += 1
    return _facts(code), _facts(environment)


def _facts(counters: Mapping[str, Counter[str]]) -> list[Fact]:
    ordered = {name: sorted(counter.items(), key=lambda item: (-item[1], item[0])) for name, counter in counters.items()}
    return [Fact(name, values[:_MAX_VALUES], len(values[_MAX_VALUES:])) for name, values in ordered.items()]


def _code_facts(run: Run, number: int) -> dict[str, str]:
    records = (run.outcome_of(number) or {}, run.resume_of(number) or {})
    program = next(filter(None, (Program.from_record(record.get("program")) for record in records)), None)
    facts = {}
    if program is not None:
        digest = hashlib.sha256(json.dumps(sorted(program.files.items())).encode()).hexdigest()[:12]
        facts = {"program": program.title, "source files": f"{counted(len(program.files), 'file')}, digest {digest}"}
    snapshots = [name for name in run.files.names(f"{attempt_folder('previews', run.key, number)}/{_CODE}") if "." not in name]
    if snapshots:
        commit, _, tree = max(snapshots).rpartition("-")
        facts["commit"] = "none" if commit == "no-commit" else commit
        facts["tree of the files"] = tree
    return facts


def _environment_facts(run: Run, number: int) -> dict[str, str]:
    claim: Record = run.claim_or_empty(number)
    owner = claim.get("owner")
    facts: dict[str, Any] = {"host": owner.get("host") if isinstance(owner, Mapping) else None, "threads": claim.get("num_threads")}
    with contextlib.suppress(FileNotFoundError, ValueError, RecursionError, StoreError):
        tree = json.loads(run.files.read(f"{attempt_folder('previews', run.key, number)}/{_ENVIRONMENT}"))
        recorded = dict(leaves(tree, into_lists=False)) if isinstance(tree, dict) else {}
        facts = {title: _fact_text(recorded.get(name)) for name, title in _SHOWN.items()} | {
            name: value for name, value in facts.items() if value is not None
        }
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def _fact_text(value: Any) -> str | None:
    if isinstance(value, list):
        return ", ".join(str(each.get("name")) if isinstance(each, Mapping) else str(each) for each in value)
    return None if value is None else str(value)
