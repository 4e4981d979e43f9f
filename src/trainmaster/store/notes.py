"""Notes on runs. Each note is a text file `notes/<first two digits>/<key>.txt`, which you can also read and edit by hand."""

from __future__ import annotations

from trainmaster.errors import StoreError
from trainmaster.store.configs import ConfigArchive
from trainmaster.store.files import Files
from trainmaster.store.keys import check_key, run_folder

MAX_NOTES = 50_000


class Notes:
    """The notes on runs. `notes[key]` is the text of the note, or an empty string if there is none.

    >>> from trainmaster.store import Store
    >>> store = Store(None)
    >>> key = store.configs.add({"lr": 0.1})
    >>> store.notes.write(key, "diverges after a restart")
    >>> store.notes[key]
    'diverges after a restart'
    """

    def __init__(self, files: Files, configs: ConfigArchive) -> None:
        self._files, self._configs = files, configs

    def __getitem__(self, key: str) -> str:
        try:
            with self._files.open(_path(key)) as file:
                return file.read(MAX_NOTES).decode(errors="backslashreplace")
        except FileNotFoundError:
            return ""

    def write(self, key: str, text: str) -> None:
        """Replace the note on a run. An empty text removes the note."""
        self._configs.require(key)
        data = text.encode(errors="backslashreplace")
        if len(data) > MAX_NOTES:
            raise StoreError(f"a note has at most {MAX_NOTES:,} bytes; this one has {len(data):,}", hint="link to a file instead")
        if data:
            self._files.replace(_path(key), data)
        else:
            self._files.delete(_path(key))

    def clear(self, key: str) -> None:
        """Remove the note on a run."""
        self._files.delete(_path(key))


def _path(key: str) -> str:
    return f"{run_folder('notes', check_key(key))}.txt"
