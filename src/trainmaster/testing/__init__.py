"""Contract suites for authors: subclass one in your tests, say how to make the thing, and pytest runs what it must keep."""

from trainmaster.testing.extension_contract import ExtensionContract
from trainmaster.testing.files_contract import FilesContract

__all__ = ["ExtensionContract", "FilesContract"]
