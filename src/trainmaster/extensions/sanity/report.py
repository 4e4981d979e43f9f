"""What a sanity check found: a result for each check, and the table of them."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple

from trainmaster.store.printable import printable_lines

Outcome = Literal["passed", "failed", "not applicable"]

_WIDTH: Final = 110
"""Of the table, where nobody says another width: it goes into logs, too."""
_LEAST: Final = 30
"""How narrow the last column may get."""
_MAX_NAMES: Final = 4


class Finding(NamedTuple):
    """What one check has to say."""

    outcome: Outcome
    found: str
    advice: str = ""


def passed(found: str) -> Finding:
    return Finding("passed", found)


def failed(found: str, advice: str) -> Finding:
    return Finding("failed", found, advice)


def not_applicable(found: str, advice: str = "") -> Finding:
    return Finding("not applicable", found, advice)


@dataclass(frozen=True)
class SanityResult:
    """The result of one check."""

    name: str
    outcome: Outcome
    found: str
    """What was seen, with numbers."""
    advice: str
    """What to do; empty where there is nothing to do."""


@dataclass(frozen=True)
class SanityReport:
    """The results of all checks; printed, or shown in a notebook, it is a table."""

    results: tuple[SanityResult, ...]

    @property
    def is_ok(self) -> bool:
        """Whether nothing failed. What is not applicable does not count."""
        return not self.failures

    @property
    def failures(self) -> tuple[SanityResult, ...]:
        return tuple(each for each in self.results if each.outcome == "failed")

    def __getitem__(self, name: str) -> SanityResult:
        return {each.name: each for each in self.results}[name]

    @property
    def summary(self) -> str:
        """The counts in one line."""
        outcomes: tuple[Outcome, ...] = ("passed", "failed", "not applicable")
        counts = ((sum(each.outcome == outcome for each in self.results), outcome) for outcome in outcomes)
        return "sanity check: " + ", ".join(f"{count} {outcome}" for count, outcome in counts if count)

    def __str__(self) -> str:
        return self.table()

    def table(self, width: int = _WIDTH, paint: Callable[[str, str], str] = lambda text, outcome: text) -> str:
        """The table in at most `width` columns, if that is enough; `paint(text, outcome)` may colour the outcomes."""
        heads = [len("check"), *(len(each.name) for each in self.results)], [len("outcome"), *(len(each.outcome) for each in self.results)]
        first, second = (max(each) + 2 for each in heads)
        rest = max(width - first - second, _LEAST)
        lines = [f"{'check':<{first}}{'outcome':<{second}}found"]
        for each in self.results:
            texts = _wrapped(each, rest)
            outcome = paint(each.outcome, each.outcome) + " " * (second - len(each.outcome))
            lines.append(f"{each.name:<{first}}{outcome}{texts[0]}")
            lines += [" " * (first + second) + text for text in texts[1:]]
        return "\n".join([*lines, self.summary])

    def _repr_html_(self) -> str:
        colours = {"passed": "#1a7f37", "failed": "#c9211e", "not applicable": "#6e7781"}
        rows = "".join(
            f"<tr><td>{html.escape(each.name)}</td><td style='color:{colours[each.outcome]}'>{each.outcome}</td>"
            f"<td style='text-align:left'>{html.escape(each.found)}"
            + (f"<br><b>try</b> {html.escape(each.advice)}" if each.advice else "")
            + "</td></tr>"
            for each in self.results
        )
        return (
            "<table><thead><tr><th>check</th><th>outcome</th><th style='text-align:left'>found</th></tr></thead>"
            f"<tbody>{rows}</tbody></table><p>{html.escape(self.summary)}</p>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"is_ok": self.is_ok, "results": [asdict(each) for each in self.results]}


def _wrapped(result: SanityResult, width: int) -> list[str]:
    lines = list(_fitting(result.found, width))
    if result.advice:
        lines += [f"{'try: ' if number == 0 else '     '}{line}" for number, line in enumerate(_fitting(result.advice, width - 5))]
    return lines


def _fitting(text: str, width: int) -> Iterator[str]:
    for line in printable_lines(text).split("\n"):  # texts of errors are anybody's
        yield from textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]


def listed(names: Sequence[str]) -> str:
    """Names for people: the first few, and how many more.

    >>> listed(["a", "b"]), listed(list("abcdef"))
    ('`a`, `b`', '`a`, `b`, `c`, `d` and 2 more')
    """
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(f"`{name}`" for name in names[:_MAX_NAMES]) + more


def number(value: float) -> str:
    """A loss in three digits.

    >>> number(2.302585), number(0.00012345)
    ('2.3', '0.000123')
    """
    return f"{value:.3g}"


def counted(count: int, noun: str) -> str:
    """
    >>> counted(1, "sample"), counted(1200, "batch")
    ('1 sample', '1,200 batches')
    """
    plural = f"{noun}es" if noun.endswith(("ch", "s")) else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"
