"""Import paths in configs: `torch.optim.SGD`, `lab.nets:Net`."""

from __future__ import annotations

import importlib
from typing import Any

from trainmaster.config.describe import shorten
from trainmaster.errors import ConfigError, Problem, did_you_mean


def imported(path: Any) -> Any:
    """What an import path such as `torch.optim.SGD` or `lab.nets:Net` names; only explicit calls ask for it."""
    if not isinstance(path, str) or not all(part.isidentifier() for part in path.replace(":", ".").split(".")):
        raise ConfigError.of("an import path", [Problem("", "wanted a path such as `package.module.name`", shorten(path))])
    parts = path.replace(":", ".").split(".")
    for count in range(len(parts), 0, -1):
        name = ".".join(parts[:count])
        try:
            value: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
                continue  # this part of the path is no module; the rest may be attributes of a shorter one
            raise
        for number, part in enumerate(parts[count:], start=count):
            if not hasattr(value, part):
                hint = did_you_mean(part, dir(value))
                raise ConfigError.of("an import path", [Problem(path, f"`{'.'.join(parts[:number])}` has no `{part}`")], hint=hint)
            value = getattr(value, part)
        return value
    raise ConfigError.of("an import path", [Problem(path, f"there is no module `{parts[0]}`")])
