"""The records of ablations and hypotheses in the store. Each record is created once and never changed.

```text
sweeps/NAME/hypothesis.json        the plan of a hypothesis
sweeps/NAME/pairs/000003.json      the two runs of the fourth pair, and their results
sweeps/NAME/verdict.json           the verdict, once there is one
sweeps/NAME/ablation-001.json      the plan of an ablation; an extension adds ablation-002.json
```
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from typing import Any, Literal

from trainmaster.errors import PlanError, SettingError, did_you_mean
from trainmaster.store import Store
from trainmaster.store.checksummed_json import find_record, record_bytes
from trainmaster.text import short_value

FOLDER = "sweeps"
Kind = Literal["ablation", "hypothesis", "search"]
_FIRST: Mapping[str, str] = {"ablation": "ablation-001.json", "hypothesis": "hypothesis.json", "search": "plan.json"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class PlanRecords:
    """Reads and writes the records of one ablation or hypothesis."""

    def __init__(self, store: Store, kind: Kind, name: str) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SettingError(f"name={name!r}: expected at most 64 letters, digits, '.', '_' and '-'")
        self._store, self._files, self.kind, self.name = store, store.files, kind, name
        self._folder = f"{FOLDER}/{name}"

    def read(self, path: str) -> dict[str, Any] | None:
        return find_record(self._files, f"{self._folder}/{path}")

    def has(self, path: str) -> bool:
        return self._files.has(f"{self._folder}/{path}")

    def create(self, path: str, members: Mapping[str, Any]) -> dict[str, Any]:
        """Create a record and return it. If another process has already created it, return the existing record."""
        self._refuse_other_kinds()
        with contextlib.suppress(FileExistsError):
            self._files.create(f"{self._folder}/{path}", record_bytes(members))
        found = self.read(path)
        assert found is not None
        return found

    def require(self, path: str) -> dict[str, Any]:
        """Read a record. If it does not exist, raise a `PlanError` that lists the existing names."""
        found = self.read(path)
        if found is None:
            known = plan_names(self._store, self.kind)
            raise PlanError(
                f"no {self.kind} is called {self.name!r}",
                where=self._store.root,
                known=", ".join(known) or "none",
                hint=did_you_mean(self.name, known) or None,
            )
        return found

    def _refuse_other_kinds(self) -> None:
        for kind, path in _FIRST.items():
            if kind != self.kind and self.has(path):
                raise PlanError(f"the name {self.name} belongs to a {kind} of this store", hint="choose another name")

    def refuse_changes(self, recorded: Mapping[str, Any], wanted: Mapping[str, Any], hint: str) -> None:
        """If the recorded settings differ from the wanted ones, raise a `PlanError` that lists the differences."""
        lines = [
            f"{key}: {short_value(recorded.get(key))} → {short_value(wanted.get(key))}"
            for key in {**recorded, **wanted}
            if recorded.get(key) != wanted.get(key)
        ]
        if lines:
            if (root := self._store.root) is not None:  # the store is not in memory
                hint += f"; if the recorded plan is a mistake, delete the folder {os.path.join(root, self._folder)}: no run is deleted"
            raise PlanError(f"the {self.kind} {self.name} exists with another plan", wrong="\n".join(lines), hint=hint)


def plan_names(store: Store, kind: Kind) -> list[str]:
    """Return the names of all ablations, hypotheses or searches in a store."""
    files = store.files
    return sorted(name for name in files.names(FOLDER) if _NAME.fullmatch(name) and files.has(f"{FOLDER}/{name}/{_FIRST[kind]}"))
