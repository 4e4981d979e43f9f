"""All errors that trainmaster raises. The classes in parentheses are additional built-in base classes.

```text
TrainmasterError                     the base class; a message says what happened, where and why, and what to try
├── StageError
│   ├── UnknownStageError            the tree of stages does not declare this stage
│   └── NoRunningStageError          `staged(...)` is called while no routine is running
├── HookError
│   ├── UnknownHookError             a hook refers to a stage that does not exist
│   ├── HookSignatureError           (TypeError) a hook has a parameter that cannot be a fixture
│   ├── AroundHookError              (RuntimeError) an around hook did not yield exactly once
│   └── EscapedStopIterationError    (RuntimeError) a stage or a hook raised StopIteration
├── ExtensionError
│   ├── DuplicateExtensionError      (ValueError) a name is used twice, or an object is attached twice
│   └── UnknownExtensionError        (KeyError) no extension has this name
├── FixtureError                     (KeyError)
│   ├── FixtureNotFoundError         (TypeError too) no open stage provides the name
│   ├── FixtureExistsError           a fixture is created twice
│   ├── FixtureScopeError            (TypeError too) a fixture is used outside its stage, or before it exists
│   └── FixtureCycleError            lazy fixtures depend on each other
├── ConfigError                      (ValueError) a config is invalid; `problems` lists all problems
│   ├── UnknownKeyError              (KeyError, AttributeError too) a config does not have this key or field
│   ├── FrozenConfigError            (AttributeError, TypeError too) a frozen config cannot be changed
│   ├── ConfigClassError             (TypeError too) a config class is invalid
│   └── ConfigFileError              a file cannot be read as a config
├── LoopError
│   ├── SettingError                 (ValueError) an argument is invalid
│   ├── NoTrainerError               (AttributeError) a Lightning module needs a Lightning trainer
│   ├── EmptyDataError               (ValueError) the data has no batches
│   ├── LossError                    (ValueError) a loss cannot be differentiated
│   ├── LeakageError                 (ValueError) examples in a batch influence each other
│   ├── NonFiniteError               (ArithmeticError) a loss or gradient is NaN or infinite
│   ├── LossDivergedError            (ArithmeticError) a loss has become much worse
│   ├── SanityCheckError             training failed the sanity check
│   ├── StateError                   a training state cannot be captured or restored
│   ├── RunFailedError               (RuntimeError) a run failed in a worker
│   └── RankFailedError              (RuntimeError) another rank has failed
├── SearchError                      a search cannot continue as planned
├── PlanError                        an ablation or a hypothesis cannot continue as planned
├── MetricNameError                  (ValueError) a metric name is unknown, ambiguous or too long
├── MissingExtraError                (ImportError) a feature needs an extra that is not installed
└── StoreError
    ├── KeyTextError                 (KeyError, ValueError) a string is not a valid run key
    ├── UnknownRunError              (KeyError) no run has this key, or the run has no checkpoint yet
    ├── CodecError                   (TypeError) a value cannot be stored
    ├── StoreAccessError             (OSError) the file system failed, for example because the disk is full
    ├── StoreDamagedError            a file differs from what was written
    ├── StoreFormatError             the folder is not a store, or has a different format
    ├── RunBusyError                 another process is using the run
    ├── LeaseLostError               another process took over the run
    ├── OtherProgramError            the run was started by a different program
    ├── CodeChangedError             the code has changed since the run was started
    └── ArchiveError                 (ValueError) a tar archive cannot be imported
```
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class TrainmasterError(Exception):
    """The base class of all errors. The message says what happened, followed by labeled rows such as `where` and `why`.

    Each keyword argument becomes a row with its name as the label, except that `hint` is labeled `try`.
    """

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
        return _rebuild, (type(self), self.fact, self.rows), self.__dict__  # `__dict__` includes the error's notes


def _rebuild(kind: type[TrainmasterError], fact: str, rows: dict[str, str]) -> TrainmasterError:
    return kind(fact, **rows)


class MissingExtraError(TrainmasterError, ImportError): ...


class MetricNameError(TrainmasterError, ValueError): ...


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
    """A problem in a config, with the dotted key of the affected value."""

    key: str
    text: str
    """What was expected. If a name is unknown, the text suggests similar names."""
    value: str = ""
    """The shortened `repr` of the value, or an empty string if there is no value."""
    where: str = ""
    """Where the value was set, if known: the file, line and column, or the text of the override."""
    is_unknown: bool = False
    """Whether the problem is an unknown key."""

    def __str__(self) -> str:
        subject = " = ".join(filter(None, [self.key, self.value]))
        problem = f"{subject}: {self.text}" if subject else self.text
        return f"{problem}  [{self.where}]" if self.where else problem


class ConfigError(TrainmasterError, ValueError):
    """A config is invalid. `problems` lists everything that is wrong with it."""

    problems: tuple[Problem, ...] = ()

    @classmethod
    def of(cls, owner: str, problems: Iterable[Problem], **rows: str | None) -> ConfigError:
        """Create an error that lists these problems. If one of them is an unknown key, the error is an `UnknownKeyError`."""
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


class NoTrainerError(LoopError, AttributeError): ...


class EmptyDataError(LoopError, ValueError): ...


class LossError(LoopError, ValueError): ...


class LeakageError(LoopError, ValueError): ...


class NonFiniteError(LoopError, ArithmeticError): ...


class LossDivergedError(LoopError, ArithmeticError): ...


class SanityCheckError(LoopError): ...


class StateError(LoopError): ...


class RunFailedError(LoopError, RuntimeError): ...


class RankFailedError(LoopError, RuntimeError): ...


class SearchError(TrainmasterError): ...


class PlanError(TrainmasterError): ...


class StoreError(TrainmasterError): ...


class KeyTextError(StoreError, KeyError, ValueError): ...


class UnknownRunError(StoreError, KeyError): ...


class CodecError(StoreError, TypeError): ...


class StoreAccessError(StoreError, OSError): ...


class StoreDamagedError(StoreError):
    """A file differs from what was written. `path` is the path of the file, relative to the store."""

    path: str = ""

    @classmethod
    def of(cls, path: str, why: str, hint: str) -> StoreDamagedError:
        error = cls(f"`{path}` is damaged", why=why, hint=hint)
        error.path = path
        return error


class StoreFormatError(StoreError): ...


class RunBusyError(StoreError): ...


class LeaseLostError(StoreError): ...


class OtherProgramError(StoreError): ...


class CodeChangedError(StoreError): ...


class ArchiveError(StoreError, ValueError): ...


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Return the known names that are similar to `name`, most similar first.

    >>> nearest("pre_train_step_bach", ["pre_train_step_batch", "pre_run"])
    ['pre_train_step_batch']
    """
    import difflib  # imported here because it is needed only for error messages

    name = str(name)
    cutoff = 0.75 if len(name) > 4 else 0.65  # in a short name, a single wrong letter lowers the similarity more
    return difflib.get_close_matches(name, sorted(set(known)), n=limit, cutoff=cutoff)


def did_you_mean(name: str, known: Iterable[str], *, or_longer: bool = False) -> str:
    """Return a "did you mean ...?" hint with similar names, or an empty string if no name is similar.

    With `or_longer`, if no name is similar, names that start with `name` are suggested, such as `optimizer` for `opt`.
    """
    known = set(known)
    close = nearest(name, known)
    if or_longer and not close and len(name) > 2:
        close = sorted(each for each in known if each.startswith(name))
    return ask_about(close)


def ask_about(names: Iterable[str]) -> str:
    """Return the question "did you mean ...?" about these names, or an empty string if there are none."""
    shown = " or ".join(f"`{each}`" for each in names)
    return f"did you mean {shown}?" if shown else ""


def shown(value: object) -> str:
    """Format a value for a message: its shortened `repr` on one line, and its type.

    >>> shown("10")
    "'10' (str)"
    """
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
