"""Contract tests for authors of extensions and storage back ends: subclass one in your tests and override `make`."""

from trainmaster.testing.extension_contract import ExtensionContract
from trainmaster.testing.files_contract import FilesContract

__all__ = ["ExtensionContract", "FilesContract"]
