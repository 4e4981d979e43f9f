"""Where a training's numbers go: a small protocol with TensorBoard's method names, and the default that keeps them in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from trainmaster.config.secrets import Mask


@runtime_checkable
class Writer(Protocol):
    """What a loop and its extensions call. TensorBoard's `SummaryWriter` fits as it is."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None: ...

    def add_scalars(self, main_tag: str, tag_scalar_dict: dict[str, Any], global_step: int | None = None) -> None: ...

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None: ...


Mirror = Callable[[str, float | str, int | None], None]
"""Takes what is written: tag, value and step."""


@runtime_checkable
class Mirrored(Protocol):
    """A writer that others can listen to."""

    def mirror(self, to: Mirror) -> Callable[[], None]:
        """Have `to` called with all that was written so far and with all that will be, until what is returned is called."""


class MemoryWriter:
    """Keeps every value as `history[tag]`, a list of (step, value), in the order written."""

    def __init__(self) -> None:
        self.history: dict[str, list[tuple[int | None, Any]]] = {}
        self._mirrors: list[Mirror] = []

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None:
        value = scalar_value.detach() if hasattr(scalar_value, "detach") else scalar_value
        self._write(tag, float(value), global_step)

    def add_scalars(self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: int | None = None) -> None:
        for tag, value in tag_scalar_dict.items():
            self.add_scalar(f"{main_tag}/{tag}", value, global_step)

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None:
        self._write(tag, Mask.of()(str(text_string)), global_step)

    def _write(self, tag: str, value: float | str, step: int | None) -> None:
        self.history.setdefault(tag, []).append((step, value))
        for to in self._mirrors:
            to(tag, value, step)

    def mirror(self, to: Mirror) -> Callable[[], None]:
        for tag, rows in list(self.history.items()):
            for step, value in rows:
                to(tag, value, step)
        self._mirrors.append(to)
        return lambda: self._mirrors.remove(to)

    def last(self, tag: str) -> float | None:
        """The last number that was written with a tag."""
        value = self.history[tag][-1][1] if tag in self.history else None
        return value if isinstance(value, float) else None

    def state_dict(self) -> dict[str, Any]:
        return {"history": {tag: list(rows) for tag, rows in self.history.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.history = {tag: [(step, value) for step, value in rows] for tag, rows in state["history"].items()}
