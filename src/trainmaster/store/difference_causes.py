"""Searches the records of two runs of the same config for likely causes of a difference between them.

Every attempt records its machine and its number of threads. The extensions `EnvironmentInfo` and `CodeTracker` add `environment.json` and
`code/` to the attempt's folder. The name of a code snapshot consists of the ids of a commit and of a git tree.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from trainmaster.config.paths import leaves
from trainmaster.errors import StoreError
from trainmaster.store.checksummed_json import Record
from trainmaster.store.keys import attempt_folder
from trainmaster.store.run import Run
from trainmaster.text import counted

ENVIRONMENT, CODE = "environment.json", "code"
_MAX_FACTS = 8
"""The maximum number of differing values from `environment.json` that are listed."""
_IRRELEVANT = ("time", "started", "argv", "host", "executable", "memory_gib", "memory_limit_gib")
"""Values in `environment.json` are ignored if their dotted names end with one of these words.

Such values differ between most runs, or do not affect the results.
"""


def likely_causes(one: Run, other: Run) -> list[str]:
    """Return possible reasons why two runs of the same config have different results."""
    causes: list[str] = []
    claims, other_claims = _claims(one), _claims(other)
    ours, theirs = _num_threads(claims), _num_threads(other_claims)
    if len(ours) > 1:
        causes.append(f"it was trained in parts with {_then(ours)} threads; this time with {', '.join(map(str, theirs))}")
    elif ours and theirs and ours != theirs:
        causes.append(f"it was trained with {counted(ours[0], 'thread')}, this time with {theirs[0]}")
    ours, theirs = _num_ranks(claims), _num_ranks(other_claims)
    if ours != theirs:
        before = _then(counted(num, "rank") for num in ours)
        causes.append(f"it was trained with {before}, this time with {_then(theirs)}: sums over a batch round differently")
    here, there = _hosts(claims), _hosts(other_claims)
    if here and there and here != there:
        causes.append(f"it was trained on {', '.join(here)}, this time on {', '.join(there)}: another processor may round differently")
    here, there = _snapshots(one), _snapshots(other)
    if here and there and [each.rpartition("-")[2] for each in here] != [each.rpartition("-")[2] for each in there]:
        # Only git trees are compared, because commits with the same tree contain the same files.
        causes.append(f"its code was {_then(map(_shown_snapshot, here))}; now it is {_then(map(_shown_snapshot, there))}")
    facts, others = _environment(one), _environment(other)
    names = [name for name in facts if name in others and facts[name] != others[name]]
    causes += [f"{name} was {str(facts[name])[:60]}, now it is {str(others[name])[:60]}" for name in names[:_MAX_FACTS]]
    if len(names) > _MAX_FACTS:
        causes.append(f"{len(names) - _MAX_FACTS} more values in {ENVIRONMENT} differ")
    return causes


def _then(values: Iterable[object]) -> str:
    return ", then ".join(map(str, values))


def num_threads_of(run: Run) -> int | None:
    """Return the number of threads from the oldest attempt that recorded it, or None if no attempt did."""
    return next((claim["num_threads"] for claim in _claims(run) if type(claim.get("num_threads")) is int), None)


def targets_of(run: Run) -> list[int | None]:
    """Return the distinct target epochs of the run's attempts, oldest first. None stands for the loop's default."""
    targets = [claim["num_epochs"] for claim in _claims(run) if "num_epochs" in claim]
    return list(dict.fromkeys(each for each in targets if each is None or type(each) is int))


def _claims(run: Run) -> list[Record]:
    """Return the readable claims of the attempts that led to the run's current state, oldest first."""
    claims = []
    for link in reversed(run.chain()):
        with contextlib.suppress(StoreError, FileNotFoundError):
            claims.append(run.claim_of(link.attempt))
    return claims


def _num_threads(claims: list[Record]) -> list[int]:
    return list(dict.fromkeys(claim["num_threads"] for claim in claims if isinstance(claim.get("num_threads"), int)))


def _hosts(claims: list[Record]) -> list[str]:
    return sorted({claim["owner"]["host"] for claim in claims if isinstance(claim["owner"].get("host"), str)})


def _num_ranks(claims: list[Record]) -> list[int]:
    """Return the distinct numbers of ranks that the run's attempts used, oldest first."""
    return list(dict.fromkeys(claim.get("num_ranks", 1) for claim in claims))


def _snapshots(run: Run) -> list[str]:
    """Return the names of the code snapshots from the run's attempts, oldest first."""
    folders = [f"{attempt_folder('previews', run.key, link.attempt)}/{CODE}" for link in reversed(run.chain())]
    return list(dict.fromkeys(name for folder in folders for name in sorted(run.files.names(folder)) if "." not in name))


def _shown_snapshot(name: str) -> str:
    """Return a description of a code snapshot, derived from its name.

    >>> _shown_snapshot("3f2a91c0d1e2-8d1e02aa"), _shown_snapshot("no-commit-8d1e02aa")
    ('commit 3f2a91c0d1e2 (tree 8d1e02aa)', 'a tree without a commit (8d1e02aa)')
    """
    commit, _, tree = name.rpartition("-")
    return f"a tree without a commit ({tree})" if commit == "no-commit" else f"commit {commit} (tree {tree})"


def _environment(run: Run) -> dict[str, Any]:
    """Return the values in the run's newest `environment.json`, by dotted name.

    A list of named items, such as GPUs, is replaced by a string with their names.
    """
    for link in run.chain():
        with contextlib.suppress(FileNotFoundError, ValueError, RecursionError, StoreError):
            tree = json.loads(run.files.read(f"{attempt_folder('previews', run.key, link.attempt)}/{ENVIRONMENT}"))
            facts = {name: _names(value) if isinstance(value, list) else value for name, value in leaves(dict(tree), into_lists=False)}
            return {name: value for name, value in facts.items() if value is not None and name.rpartition(".")[2] not in _IRRELEVANT}
    return {}


def _names(items: list[Any]) -> str | None:
    is_named = all(isinstance(each, Mapping) and "name" in each for each in items)
    return ", ".join(str(each["name"]) for each in items) if is_named else None
