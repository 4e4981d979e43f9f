"""Open the dashboard from Python: `Results("runs").ui()`."""

from __future__ import annotations

import contextlib
import html
import webbrowser

from trainmaster.dashboard.serve import Address, has_display, is_remote, serving
from trainmaster.store import Store


class Page:
    """A dashboard that is served by this process until `close()`, or until the process ends."""

    def __init__(self, store: Store) -> None:
        self._stack = contextlib.ExitStack()
        self.address: Address
        self.address, self._thread = self._stack.enter_context(serving(store))

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop serving."""
        self._stack.close()

    def __repr__(self) -> str:
        return f"dashboard at {self.address}"

    def _repr_html_(self) -> str:
        # A link instead of a frame: the page refuses to be embedded, because a hostile page could make a user click in it.
        address = html.escape(str(self.address))
        return f'<a href="{address}" target="_blank" rel="noopener">dashboard at {address}</a>'


_pages: dict[str, Page] = {}
"""The open page of each store, by its folder, so that calling `ui()` again opens the same page."""


def open_page(store: Store) -> Page:
    """Serve a store from this process and open it in a browser, if there is one."""
    name = store.root or f"memory {id(store)}"
    if name not in _pages or not _pages[name].is_open:
        _pages[name] = Page(store)
    if has_display() and not is_remote():
        webbrowser.open(str(_pages[name].address))
    return _pages[name]
