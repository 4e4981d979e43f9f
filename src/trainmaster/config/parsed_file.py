"""The content of a YAML or JSON file, with the position of each value for error messages."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from trainmaster.errors import ConfigFileError

Position = tuple[int, int]
"""Line and column, both counted from 1."""


class ParsedFile(NamedTuple):
    tree: Any
    """The content as plain values. Dotted keys have not been turned into nested dicts yet."""
    name: str
    positions: dict[str, Position]
    """The position of each value by its dotted key. It is empty for JSON, because the standard library's parser reports no positions."""

    def group(self) -> dict[str, Any]:
        """Return the tree. Raise an error if it is not a mapping."""
        if not isinstance(self.tree, dict):
            fail(self.name, f"is not a config: it holds a {type(self.tree).__name__}, not keys with values")
        return self.tree

    def where(self, key: str) -> str:
        """Return the position of a dotted key, or of the nearest group that contains it, in a form such as `run.yaml:3:5`."""
        while key and key not in self.positions:
            key = key.rpartition(".")[0]
        return ":".join(map(str, (self.name, *self.positions.get(key, ()))))


def fail(name: str, why: str, position: Position | None = None, hint: str = "") -> NoReturn:
    """Raise an error for the file called `name`."""
    if position is None:
        raise ConfigFileError(f"`{name}` {why}", where=name, hint=hint) from None
    line, column = position
    raise ConfigFileError(f"`{name}`, line {line}: {why}", where=f"{name}:{line}:{column}", hint=hint) from None


def position_of(index: int, text: str) -> Position:
    """Return the line and column of the character at `index`."""
    return text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index)
