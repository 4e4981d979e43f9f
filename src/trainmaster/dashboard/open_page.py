"""Opens the dashboard from Python: `Results("runs").ui()`."""

from __future__ import annotations

import contextlib
import html
import sys
import webbrowser

from trainmaster.dashboard.serve import Address, has_display, is_remote, serving
from trainmaster.store import Store

_FRAME_HEIGHT = 640


class Page:
    """A dashboard that this process serves until `close()` is called or the process ends."""

    def __init__(self, store: Store) -> None:
        self._stack = contextlib.ExitStack()
        self.address: Address
        self._is_framed = in_notebook()
        self.address, self._thread = self._stack.enter_context(serving(store, is_framed=self._is_framed))

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop the server."""
        self._stack.close()

    def __repr__(self) -> str:
        return f"dashboard at {self.address}"

    def _repr_html_(self) -> str:
        address = html.escape(str(self.address))
        link = f'<a href="{address}" target="_blank" rel="noopener">dashboard at {address}</a>'
        # This server is read-only, and only pages on this machine may embed it. Over SSH, a browser needs a tunnel to reach it.
        has_frame = self._is_framed and not is_remote()
        return f'<iframe src="{address}" width="100%" height="{_FRAME_HEIGHT}" style="border:0"></iframe><br>{link}' if has_frame else link


def in_notebook() -> bool:
    """Return whether this code runs in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


_pages: dict[str, Page] = {}
"""Maps the folder of a store to its open page, so that calling `ui()` again shows the same page."""


def open_page(store: Store) -> Page:
    """Serve the dashboard for a store from this process. The page opens below the notebook cell or in a browser."""
    name = store.root or f"memory {id(store)}"
    if name not in _pages or not _pages[name].is_open:
        _pages[name] = Page(store)
    if has_display() and not is_remote() and not in_notebook():
        webbrowser.open(str(_pages[name].address))
    return _pages[name]
