"""Searches the records of two runs of the same config for likely causes of a difference between them.

Every attempt records its machine and its number of threads. The extensions `EnvironmentInfo` and `CodeTracker` add `environment.json` and
`code/` to the attempt's folder. The name of a code snapshot consists of the ids of a commit and of a git tree.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster.config.paths import leaves
from trainmaster.errors import StoreError
from trainmaster.store.checksummed_json import Record
from trainmaster.store.keys import attempt_folder
from trainmaster.store.run import Run
from trainmaster.text import counted

ENVIRONMENT, CODE = "environment.json", "code"
_MAX_FACTS = 8
"""How many differing values from `environment.json` are listed."""
_IRRELEVANT = ("time", "started", "argv", "host", "executable", "memory_gib", "memory_limit_gib")
"""Values in `environment.json` are ignored if their dotted names end with one of these.

Such values differ between most runs, or do not affect the results.
"""


def likely_causes(one: Run, other: Run) -> list[str]:
    """Return possible reasons why two runs of the same config have different results."""
    here, there = _claims(one), _claims(other)
    return [
        *_thread_causes(_distinct(here, "num_threads"), _distinct(there, "num_threads")),
        *_rank_causes(_ranks(here), _ranks(there)),
        *_machine_causes(_hosts(here), _hosts(there)),
        *_code_causes(_snapshots(one), _snapshots(other)),
        *_environment_causes(_environment(one), _environment(other)),
    ]


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


def _distinct(claims: list[Record], name: str) -> list[Any]:
    return list(dict.fromkeys(claim[name] for claim in claims if isinstance(claim.get(name), int)))


def _hosts(claims: list[Record]) -> list[str]:
    return sorted({claim["owner"]["host"] for claim in claims if isinstance(claim["owner"].get("host"), str)})


def _thread_causes(ours: list[int], theirs: list[int]) -> Iterator[str]:
    if len(ours) > 1:
        yield f"it was trained in parts with {', then '.join(map(str, ours))} threads; this time with {', '.join(map(str, theirs))}"
    elif ours and theirs and ours != theirs:
        yield f"it was trained with {counted(ours[0], 'thread')}, this time with {theirs[0]}"


def _ranks(claims: list[Record]) -> list[int]:
    """Return the distinct numbers of ranks that the run's attempts used, oldest first."""
    return list(dict.fromkeys(claim.get("num_ranks", 1) for claim in claims))


def _rank_causes(ours: list[int], theirs: list[int]) -> Iterator[str]:
    if ours != theirs:
        before = ", then ".join(counted(num, "rank") for num in ours)
        yield f"it was trained with {before}, this time with {', then '.join(map(str, theirs))}: sums over a batch round differently"


def _machine_causes(ours: list[str], theirs: list[str]) -> Iterator[str]:
    if ours and theirs and ours != theirs:
        yield f"it was trained on {', '.join(ours)}, this time on {', '.join(theirs)}: another processor may round differently"


def _code_causes(ours: list[str], theirs: list[str]) -> Iterator[str]:
    """Yield a cause if the code differs. Only git trees are compared, because commits with the same tree contain the same files."""
    if ours and theirs and [each.rpartition("-")[2] for each in ours] != [each.rpartition("-")[2] for each in theirs]:
        yield f"its code was {', then '.join(map(_shown_snapshot, ours))}; now it is {', then '.join(map(_shown_snapshot, theirs))}"


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


def _environment_causes(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    names = [name for name in ours if name in theirs and ours[name] != theirs[name]]
    yield from (f"{name} was {str(ours[name])[:60]}, now it is {str(theirs[name])[:60]}" for name in names[:_MAX_FACTS])
    if len(names) > _MAX_FACTS:
        yield f"{len(names) - _MAX_FACTS} more values in {ENVIRONMENT} differ"


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
