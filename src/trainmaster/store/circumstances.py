"""Circumstances: what the records of two trainings say about why they may have come to other bits.

Every attempt says where and with how many threads it was made. If the extensions `Environment` and `CodeTracker` were on, what they know
lies in the folder of an attempt: `environment.json`, and `code/`, where the names of snapshots are a commit and a hash of the changes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster.errors import StoreError
from trainmaster.store.keys import attempt_folder
from trainmaster.store.record import Record
from trainmaster.store.run import Run

ENVIRONMENT, CODE = "environment.json", "code"
_MAX_FACTS = 8
"""How many differing facts of one file are told."""
_ALWAYS_OTHERS = ("time", "started", "argv", "host", "executable", "memory_gib", "memory_limit_gib")
"""Facts that may differ between any two trainings, or tell nothing about numbers, by the last part of their names."""


def reasons(one: Run, other: Run) -> list[str]:
    """Why the second of two trainings of one config may have come to other bits, as far as records tell."""
    here, there = _claims(one), _claims(other)
    return [
        *_of_threads(here, there),
        *_of_machines(here, there),
        *_of_targets(here),
        *_of_code(_snapshots(one), _snapshots(other)),
        *_of_environments(_environment(one), _environment(other)),
    ]


def num_threads_of(run: Run) -> int | None:
    """With how many threads the first attempt that counts was made, if it says so."""
    return next((claim["num_threads"] for claim in _claims(run) if type(claim.get("num_threads")) is int), None)


def _claims(run: Run) -> list[Record]:
    """What the attempts that count say of themselves, oldest first; one whose word is lost says nothing."""
    found = []
    for link in reversed(run.chain()):
        with contextlib.suppress(StoreError, FileNotFoundError):
            found.append(run.claim_of(link.attempt))
    return found


def _distinct(claims: list[Record], name: str) -> list[Any]:
    return list(dict.fromkeys(claim[name] for claim in claims if isinstance(claim.get(name), int | str)))


def _of_threads(here: list[Record], there: list[Record]) -> Iterator[str]:
    ours, theirs = _distinct(here, "num_threads"), _distinct(there, "num_threads")
    if len(ours) > 1:
        yield f"it was trained in parts with {', then '.join(map(str, ours))} threads; this time with {', '.join(map(str, theirs))}"
    elif ours and theirs and ours != theirs:
        yield f"it was trained with {ours[0]} thread{'' if ours[0] == 1 else 's'}, and this time with {theirs[0]}"


def _of_machines(here: list[Record], there: list[Record]) -> Iterator[str]:
    ours, theirs = ([claim["owner"] for claim in claims if isinstance(claim["owner"].get("host"), str)] for claims in (here, there))
    hosts, now = ({owner["host"] for owner in owners} for owners in (ours, theirs))
    if hosts and now and hosts != now:
        yield f"it was trained on {', '.join(sorted(hosts))}, now on {', '.join(sorted(now))}: another processor may round otherwise"


def _of_targets(here: list[Record]) -> Iterator[str]:
    targets = _distinct(here, "num_epochs")
    if len(targets) > 1:
        yield (
            f"it was to be trained for {', then '.join(map(str, targets))} epochs: a schedule that depends on their number went another way"
        )


def _of_code(ours: list[str], theirs: list[str]) -> Iterator[str]:
    if ours and theirs and ours != theirs:
        yield f"its code was {', then '.join(map(_code, ours))}, and is {', then '.join(map(_code, theirs))}"


def _snapshots(run: Run) -> list[str]:
    """The names of the snapshots of the code that attempts were made with, oldest first."""
    folders = [f"{attempt_folder('previews', run.key, link.attempt)}/{CODE}" for link in reversed(run.chain())]
    return list(dict.fromkeys(name for folder in folders for name in sorted(run.files.names(folder)) if not name.startswith(".")))


def _code(name: str) -> str:
    """
    >>> _code("3f2a91c0d1e2-clean"), _code("3f2a91c0d1e2-8d1e02aa"), _code("no-commit-8d1e02aa")
    ('commit 3f2a91c0d1e2', 'commit 3f2a91c0d1e2 with changes (8d1e02aa)', 'a tree without a commit (8d1e02aa)')
    """
    commit, _, changes = name.rpartition("-")
    if commit == "no-commit":
        return f"a tree without a commit ({changes})"
    return f"commit {commit}" if changes == "clean" else f"commit {commit} with changes ({changes})"


def _of_environments(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    names = [name for name in ours if name in theirs and ours[name] != theirs[name]]
    yield from (f"{name} was {_shown(ours[name])}, and is {_shown(theirs[name])}" for name in names[:_MAX_FACTS])
    if len(names) > _MAX_FACTS:
        yield f"{len(names) - _MAX_FACTS} more facts of {ENVIRONMENT} differ"


def _environment(run: Run) -> dict[str, Any]:
    """What was noted of the machine and its libraries, by dotted names, for the newest attempt that has it."""
    for link in run.chain():
        with contextlib.suppress(FileNotFoundError, ValueError, RecursionError, StoreError):
            tree = json.loads(run.files.read(f"{attempt_folder('previews', run.key, link.attempt)}/{ENVIRONMENT}"))
            return dict(_flat(tree, "")) if isinstance(tree, Mapping) else {}
    return {}


def _flat(tree: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    """Facts by dotted names; of a list, the names of what is in it, and nothing where they have none: lines of text."""
    for name, value in tree.items():
        path = f"{above}.{name}" if above else name
        if isinstance(value, Mapping):
            yield from _flat(value, path)
        elif isinstance(value, list):
            if all(isinstance(each, Mapping) and "name" in each for each in value):
                yield path, ", ".join(str(each["name"]) for each in value)
        elif name not in _ALWAYS_OTHERS:
            yield path, value


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."
