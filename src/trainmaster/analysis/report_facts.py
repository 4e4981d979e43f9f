"""The sections of a report about failures, configs, code and environment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trainmaster.analysis.columns import distinct, exact_text
from trainmaster.analysis.provenance import Fact
from trainmaster.analysis.report_page import Html, Section, element, join, notes, prose, section, table
from trainmaster.arguments import is_number
from trainmaster.store.monitored import RankedBy
from trainmaster.store.run_table import MISSING, RunTable
from trainmaster.text import counted

_FAILED = ("failed", "killed", "damaged")
_MAX_VALUES = 12
_MAX_KEYS = 6


def failures_section(runs: RunTable, rank: RankedBy | None) -> Section | None:
    reasons: dict[tuple[str, str], list[str]] = {}
    bad = runs.metrics.get(rank.metric, []) if rank is not None else []
    for row, (key, state, reason) in enumerate(zip(runs.keys, runs.fact("state"), runs.fact("reason"), strict=True)):
        if state in _FAILED:
            reasons.setdefault((state, str(reason or "no reason was recorded")), []).append(key)
        elif rank is not None and bad and isinstance(value := bad[row], float) and not math.isfinite(value):
            reasons.setdefault((state, f"{rank.metric} is {value}"), []).append(key)
    if not reasons:
        return None
    rows = []
    for (state, reason), keys in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        first, *rest = reason.split("\n")
        why = join([first, element("pre", "\n".join(rest))]) if rest else first
        more = f" and {len(keys) - _MAX_KEYS:,} more" if len(keys) > _MAX_KEYS else ""
        codes = join([element("code", ", ".join(sorted(keys)[:_MAX_KEYS])), more])
        rows.append([len(keys), element("span", state, data_state=state), why, codes])
    what = "`trainmaster logs KEY` prints the output of a run, and `trainmaster resume KEY` tries again from its last checkpoint."
    listed = table(["runs", "state", "why", "keys"], rows, [0], long=[2])
    return section("failures", "What failed and why", prose(what, class_="note"), listed)


def config_section(runs: RunTable) -> Section:
    varying, constant = [], []
    for name, column in runs.config.items():
        values = distinct([each for each in column if each is not MISSING])
        num_missing = sum(value is MISSING for value in column)
        gap = f"; {num_missing:,} of {counted(len(column), 'run')} do not have it" if num_missing else ""
        if len(values) == 1 and not num_missing:
            constant.append([name, _config_text(values[0])])
        else:
            varying.append([name, len(values), _describe_values(values) + gap])
    parts: list[Html] = []
    if varying:
        parts += [element("h3", "Varied"), table(["key", "values", ""], varying, [1], long=[2])]
    if constant:
        parts += [element("h3", "The same in all runs"), table(["key", "value"], constant, long=[1])]
    return section("config", "Config", *parts) if parts else section("config", "Config", element("p", "The configs are empty."))


def _config_text(value: Any) -> str:
    return value if isinstance(value, str) else exact_text(value)


def _describe_values(values: Sequence[Any]) -> str:
    """Return all values as text if there are few. Otherwise, return the range if they are numbers, or else the first few values."""
    if len(values) <= _MAX_VALUES:
        return ", ".join(map(_config_text, values))
    if all(map(is_number, values)):
        return f"from {min(values):.6g} to {max(values):.6g}"
    return f"{', '.join(map(_config_text, values[:_MAX_VALUES]))}, ..."


def facts_section(name: str, title: str, facts: Sequence[Fact], otherwise: str) -> Section:
    if not facts:
        return section(name, title, prose(otherwise))
    rows = []
    for fact in facts:
        for number, (value, count) in enumerate(fact.values):
            rows.append([fact.name if number == 0 else "", value, f"{count:,}"])
        if fact.num_more:
            rows.append(["", f"... and {fact.num_more:,} other values", ""])
    differing = [fact.name for fact in facts if len(fact.values) > 1]
    note = f"These differ between runs: {', '.join(differing)}." if differing else "These are the same in all runs that recorded them."
    return section(name, title, notes([note]), table(["", "value", "runs"], rows, [2], long=[1]))
