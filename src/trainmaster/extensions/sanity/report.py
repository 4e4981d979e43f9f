"""The results of a sanity check, and the table that shows them."""

from __future__ import annotations

import html
import io
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from trainmaster.text import printable_lines

Outcome = Literal["passed", "failed", "skipped"]

_STYLES: Final[dict[Outcome, str]] = {"passed": "green", "failed": "red", "skipped": "dim"}


Finding = tuple[Outcome, str, str]
"""What one check found: its outcome, details and advice."""


def passed(details: str) -> Finding:
    return "passed", details, ""


def failed(details: str, advice: str) -> Finding:
    return "failed", details, advice


def skipped(details: str, advice: str = "") -> Finding:
    return "skipped", details, advice


@dataclass(frozen=True)
class SanityResult:
    """The name and the finding of one check, as part of a report."""

    name: str
    outcome: Outcome
    details: str
    """What the check found, with numbers."""
    advice: str = ""
    """The suggested fix, or an empty string if there is nothing to fix."""


@dataclass(frozen=True)
class SanityReport:
    """The results of all checks. `print` and notebooks show them as a table."""

    results: tuple[SanityResult, ...]

    @property
    def is_ok(self) -> bool:
        """Whether no check failed. Skipped checks are not failures."""
        return not self.failures

    @property
    def failures(self) -> tuple[SanityResult, ...]:
        return tuple(each for each in self.results if each.outcome == "failed")

    def __getitem__(self, name: str) -> SanityResult:
        return {each.name: each for each in self.results}[name]

    @property
    def summary(self) -> str:
        """The number of checks with each outcome, in one line."""
        counts = {outcome: sum(each.outcome == outcome for each in self.results) for outcome in _STYLES}
        return "sanity check: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.table())}</pre>"

    def table(self, width: int = 110, has_color: bool = False) -> str:
        """Return the table as text, in at most `width` columns."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
        table.add_column("check", no_wrap=True)
        table.add_column("outcome", no_wrap=True)
        table.add_column("details")
        for each in self.results:
            details = each.details + (f"\ntry: {each.advice}" if each.advice else "")
            # The details may quote an exception, whose text may contain escape sequences.
            table.add_row(each.name, Text.assemble((each.outcome, _STYLES[each.outcome])), Text(printable_lines(details)))
        file = io.StringIO()
        colors: Any = {"color_system": "standard" if has_color else None, "force_terminal": has_color, "no_color": not has_color}
        Console(file=file, width=width, legacy_windows=False, force_jupyter=False, **colors).print(table)
        return "\n".join([*(line.rstrip() for line in file.getvalue().splitlines()), self.summary])

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON."""
        return {"is_ok": self.is_ok, "results": [asdict(each) for each in self.results]}


def join_names(names: list[str]) -> str:
    """Join the first four names, and add the number of remaining names.

    >>> join_names(["a", "b"]), join_names(list("abcdef"))
    ('`a`, `b`', '`a`, `b`, `c`, `d` and 2 more')
    """
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(f"`{name}`" for name in names[:4]) + more
