"""Progress bars in a notebook. All bars share one output of the cell, which is updated in place."""

from __future__ import annotations

import html
import sys
from typing import Any

from trainmaster.text import printable

_MAX_LINES = 10
"""The maximum number of lines that are shown below the bars."""


def is_in_notebook() -> bool:
    """Return whether this program runs in a notebook kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


class NotebookBars:
    """The bars of `Progress` in a notebook. They have the same methods as the rich bars that `Progress` uses in a terminal.

    They need no thread and no widgets, because each update replaces the output. When the cell runs again, the notebook
    removes this output together with the cell's other outputs.
    """

    def __init__(self) -> None:
        self._tasks: dict[int, dict[str, Any]] = {}
        self._next = 0
        self._lines: list[str] = []
        self._output: Any = None

    def add_task(self, description: str, **fields: Any) -> int:
        self._next += 1
        self._tasks[self._next] = {"description": description, "completed": 0, **fields}
        return self._next

    def start(self) -> None:
        from IPython import display

        show: Any = display.display
        self._output = show(self, display_id=True)

    def update(self, task: int, **fields: Any) -> None:
        self._tasks[task].update(fields)
        self._show()

    def reset(self, task: int, **fields: Any) -> None:
        self._tasks[task].update({"completed": 0, **fields})

    def remove_task(self, task: int) -> None:
        del self._tasks[task]

    def print(self, line: str) -> None:
        """Show a line below the bars. Only the most recent lines are kept."""
        self._lines = [*self._lines, line][-_MAX_LINES:]
        self._show()

    def stop(self) -> None:
        """Remove the bars from the output, and keep the lines."""
        self._tasks = {}
        self._show()

    def _show(self) -> None:
        if self._output is not None:
            self._output.update(self)

    def __repr__(self) -> str:
        """Return the bars and lines as plain text, for notebooks that cannot show HTML."""
        tasks = [[each["description"], each.get("of"), each.get("eta"), each.get("shown")] for each in self._tasks.values()]
        return "\n".join([*("  ".join(printable(part) for part in parts if part) for parts in tasks), *map(printable, self._lines)])

    def _repr_html_(self) -> str:
        rows = "".join(map(_row, self._tasks.values()))
        lines = html.escape("\n".join(map(printable, self._lines)))
        return (f"<table>{rows}</table>" if rows else "") + (f"<pre>{lines}</pre>" if lines else "")


def _row(task: dict[str, Any]) -> str:
    total, completed = task.get("total"), float(task["completed"])
    bar = f'<progress style="width: 12em" max="{float(total):g}" value="{completed:g}"></progress>' if total else ""
    texts = [html.escape(printable(task.get(name, ""))) for name in ("description", "of", "eta", "shown")]
    return "<tr>" + "".join(f'<td style="text-align: left">{cell}</td>' for cell in (texts[0], bar, *texts[1:])) + "</tr>"
