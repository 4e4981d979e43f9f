"""Recipes: what it takes to make a manager once more, in another process."""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any, NamedTuple

from trainmaster.errors import SettingError


class ManagerRecipe(NamedTuple):
    """A class, the arguments that an object of it was made with, and the extensions it has by now."""

    kind: type
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    extensions: list[tuple[str, object]]

    def make(self) -> Any:
        made = self.kind(*self.args, **self.kwargs)
        made.extensions = self.extensions
        return made

    def packed(self) -> bytes:
        """The recipe for a process of ours on this machine; `SettingError` if it cannot get there."""
        main = sys.modules["__main__"]
        if self.kind.__module__ == "__main__" and not os.path.isfile(getattr(main, "__file__", None) or ""):
            raise SettingError(
                f"workers cannot import {self.kind.__name__}, which was made in a notebook or at a prompt",
                hint="put the class into a file, and import it from there",
            )
        try:
            return pickle.dumps(tuple(self))
        except Exception as error:  # whatever an argument makes of it
            raise SettingError(
                f"{self.kind.__name__} cannot be made again in a worker",
                why=f"its class, arguments or extensions cannot be sent to another process: {error}",
                hint="define them at the top of a module, without lambdas and open files",
            ) from error
