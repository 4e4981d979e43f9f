"""Contract tests for your own extensions, storage backends and executors. Subclass one of the classes and override `make`."""

from trainmaster.testing.executor_contract import ExecutorContract
from trainmaster.testing.extension_contract import ExtensionContract
from trainmaster.testing.files_contract import FilesContract

__all__ = ["ExecutorContract", "ExtensionContract", "FilesContract"]
