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
├── ConfigError                      (ValueError) a config with problems, all of them at once
│   ├── UnknownKeyError              (KeyError, AttributeError too) a key or field that a config does not have
│   ├── FrozenConfigError            (AttributeError, TypeError too) a frozen config that was written to
│   ├── ConfigClassError             (TypeError too) a config class that cannot work
│   └── ConfigFileError              a file that is no config: where, and why
├── LoopError
│   ├── SettingError                 (ValueError) an argument that cannot work
│   ├── EmptyDataError               (ValueError) data that gave no batch
│   ├── LossError                    (ValueError) a loss that cannot be trained on
│   ├── LeakageError                 (ValueError) examples of a batch that mix
│   ├── NonFiniteError               (ArithmeticError) a loss or gradients that are nan or inf
│   ├── LossDivergedError            (ArithmeticError) a loss that has become far worse than it was
│   ├── SanityCheckError             a training that failed its sanity check
│   ├── StateError                   a training state that cannot be captured or restored
│   └── RunFailedError               (RuntimeError) a run that failed in a worker
├── MissingExtraError                (ImportError) what is wanted needs an extra that is not installed
└── StoreError
    ├── KeyTextError                 (ValueError) a text that cannot be the key of a run
    ├── UnknownRunError              (KeyError) no run has this key, or no checkpoint yet
    ├── CodecError                   (TypeError) values that cannot be stored
    ├── StoreAccessError             (OSError) the file system refused: disk full, read-only, gone
    ├── StoreDamagedError            a file that is not what was written
    ├── StoreFormatError             no store, or one of another format
    ├── RunBusyError                 somebody else holds the run
    ├── LeaseLostError               this attempt was replaced by another one
    └── ArchiveError                 (ValueError) a tar archive that is not imported
```
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = [
    "ArchiveError",
    "AroundHookError",
    "CodecError",
    "ConfigClassError",
    "ConfigError",
    "ConfigFileError",
    "DuplicateExtensionError",
    "EmptyDataError",
    "EscapedStopIterationError",
    "ExtensionError",
    "FixtureCycleError",
    "FixtureError",
    "FixtureExistsError",
    "FixtureNotFoundError",
    "FixtureScopeError",
    "FrozenConfigError",
    "HookError",
    "HookSignatureError",
    "KeyTextError",
    "LeakageError",
    "LeaseLostError",
    "LoopError",
    "LossDivergedError",
    "LossError",
    "MissingExtraError",
    "NoRunningStageError",
    "NonFiniteError",
    "Problem",
    "RunBusyError",
    "RunFailedError",
    "SanityCheckError",
    "SettingError",
    "StageError",
    "StateError",
    "StoreAccessError",
    "StoreDamagedError",
    "StoreError",
    "StoreFormatError",
    "TrainmasterError",
    "UnknownExtensionError",
    "UnknownHookError",
    "UnknownKeyError",
    "UnknownRunError",
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


class MissingExtraError(TrainmasterError, ImportError): ...


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


class Problem(NamedTuple):
    """One thing that is wrong in a config: its dotted key, and what was wanted there."""

    key: str
    text: str
    """What was wanted, and the nearest names where a name is wrong."""
    value: str = ""
    """The value as Python shows it, cut if it is long; empty where there is none."""
    where: str = ""
    """File, line and column, or the override's text, where they are known."""
    is_unknown: bool = False
    """True for a key that the config does not have."""

    def __str__(self) -> str:
        subject = " = ".join(filter(None, [self.key, self.value]))
        said = f"{subject}: {self.text}" if subject else self.text
        return f"{said}  [{self.where}]" if self.where else said


class ConfigError(TrainmasterError, ValueError):
    """A config with problems; `problems` holds every one of them."""

    problems: tuple[Problem, ...] = ()

    @classmethod
    def of(cls, owner: str, problems: Iterable[Problem], **rows: str | None) -> ConfigError:
        """The error that lists `problems`; an `UnknownKeyError` where one of them is an unknown key."""
        problems = tuple(problems)
        kind = UnknownKeyError if cls is ConfigError and any(each.is_unknown for each in problems) else cls
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        shown = [str(each) for each in problems[:50]] + ([f"... and {len(problems) - 50} more"] if len(problems) > 50 else [])
        error = kind(f"{count} in {owner}", wrong="\n".join(shown), **rows)
        error.problems = problems
        return error


class UnknownKeyError(ConfigError, KeyError, AttributeError): ...


class FrozenConfigError(ConfigError, AttributeError, TypeError): ...


class ConfigClassError(ConfigError, TypeError): ...


class ConfigFileError(ConfigError): ...


class LoopError(TrainmasterError): ...


class SettingError(LoopError, ValueError): ...


class EmptyDataError(LoopError, ValueError): ...


class LossError(LoopError, ValueError): ...


class LeakageError(LoopError, ValueError): ...


class NonFiniteError(LoopError, ArithmeticError): ...


class LossDivergedError(LoopError, ArithmeticError): ...


class SanityCheckError(LoopError): ...


class StateError(LoopError): ...


class RunFailedError(LoopError, RuntimeError): ...


class StoreError(TrainmasterError): ...


class KeyTextError(StoreError, ValueError): ...


class UnknownRunError(StoreError, KeyError): ...


class CodecError(StoreError, TypeError): ...


class StoreAccessError(StoreError, OSError): ...


class StoreDamagedError(StoreError):
    """A file that is not what was written; `path` names it, below the store."""

    path: str = ""

    @classmethod
    def of(cls, path: str, why: str, hint: str) -> StoreDamagedError:
        error = cls(f"`{path}` is damaged", why=why, hint=hint)
        error.path = path
        return error


class StoreFormatError(StoreError): ...


class RunBusyError(StoreError): ...


class LeaseLostError(StoreError): ...


class ArchiveError(StoreError, ValueError): ...


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
