"""Every error a user can cause, in one tree.

```text
TrainmasterError                     says: the fact, where, what is open or known, what to try
├── StageError
│   ├── UnknownStageError            a stage that the declared tree does not have
│   └── NoRunningStageError          a bare `staged(...)` that belongs to nobody
├── HookError
│   ├── UnknownHookError             a hook named after no stage
│   ├── HookSignatureError           (TypeError) a hook whose parameters cannot be fixtures
│   ├── AroundHookError              (RuntimeError) an around hook that did not yield exactly once
│   └── EscapedStopIterationError    (RuntimeError) StopIteration out of a stage or a hook
├── ExtensionError
│   ├── DuplicateExtensionError      (ValueError) one name, or one object, twice
│   └── UnknownExtensionError        (KeyError) no extension of that name
├── FixtureError                     (KeyError)
│   ├── FixtureNotFoundError         (TypeError too) nobody provides the name
│   ├── FixtureExistsError           created twice
│   ├── FixtureScopeError            (TypeError too) outside its stage, or before the point where it exists
│   └── FixtureCycleError            lazy fixtures that ask for each other
└── LoopError
    ├── SettingError                 (ValueError) an argument that cannot work
    ├── EmptyDataError               (ValueError) data that gave no batch
    ├── LossError                    (ValueError) a loss that cannot be trained on
    └── StateError                   a training state that cannot be captured or restored
```
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = [
    "AroundHookError",
    "DuplicateExtensionError",
    "EmptyDataError",
    "EscapedStopIterationError",
    "ExtensionError",
    "FixtureCycleError",
    "FixtureError",
    "FixtureExistsError",
    "FixtureNotFoundError",
    "FixtureScopeError",
    "HookError",
    "HookSignatureError",
    "LoopError",
    "LossError",
    "NoRunningStageError",
    "SettingError",
    "StageError",
    "StateError",
    "TrainmasterError",
    "UnknownExtensionError",
    "UnknownHookError",
    "UnknownStageError",
]


class TrainmasterError(Exception):
    """An error with a fact and labelled rows: `where`, `open`, `known`, `why`, `hint` (shown as `try`)."""

    def __init__(self, fact: str, **rows: str | None) -> None:
        super().__init__(fact)
        self.fact = fact
        self.rows = {name: text for name, text in rows.items() if text}

    def __str__(self) -> str:
        lines = [self.fact]
        for name, text in self.rows.items():
            label = "try" if name == "hint" else name
            lines += [f"  {label:<7} {line}" if number == 0 else f"{'':10}{line}" for number, line in enumerate(text.split("\n"))]
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.fact, self.rows), self.__dict__  # the notes among them


def _rebuild(kind: type[TrainmasterError], fact: str, rows: dict[str, str]) -> TrainmasterError:
    return kind(fact, **rows)


class StageError(TrainmasterError): ...


class UnknownStageError(StageError): ...


class NoRunningStageError(StageError): ...


class HookError(TrainmasterError): ...


class UnknownHookError(HookError): ...


class HookSignatureError(HookError, TypeError): ...


class AroundHookError(HookError, RuntimeError): ...


class EscapedStopIterationError(HookError, RuntimeError): ...


class ExtensionError(TrainmasterError): ...


class DuplicateExtensionError(ExtensionError, ValueError): ...


class UnknownExtensionError(ExtensionError, KeyError): ...


class FixtureError(TrainmasterError, KeyError): ...


class FixtureNotFoundError(FixtureError, TypeError): ...


class FixtureExistsError(FixtureError): ...


class FixtureScopeError(FixtureError, TypeError): ...


class FixtureCycleError(FixtureError): ...


class LoopError(TrainmasterError): ...


class SettingError(LoopError, ValueError): ...


class EmptyDataError(LoopError, ValueError): ...


class LossError(LoopError, ValueError): ...


class StateError(LoopError): ...


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The known names that `name` may be a slip of, best first.

    >>> nearest("pre_train_step_bach", ["pre_train_step_batch", "pre_run"])
    ['pre_train_step_batch']
    """
    import difflib  # here, because it is needed for errors only

    name = str(name)
    cutoff = 0.75 if len(name) > 4 else 0.65  # one letter weighs more in a short name
    return difflib.get_close_matches(name, sorted(set(known)), n=limit, cutoff=cutoff)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The sentence that offers the nearest names, or nothing."""
    close = nearest(name, known)
    return f"did you mean {' or '.join(f'`{each}`' for each in close)}?" if close else ""
