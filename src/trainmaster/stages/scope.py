"""What is open now: the stack of stages, the values of their fixtures, and who may answer for a missing one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trainmaster.errors import (
    FixtureCycleError,
    FixtureExistsError,
    FixtureNotFoundError,
    FixtureScopeError,
    did_you_mean,
)
from trainmaster.stages.tree import BODY, ERROR_FIXTURES

if TYPE_CHECKING:
    from trainmaster.stages.hooks import LazyFixture
    from trainmaster.stages.open_stage import OpenStage


class Values(dict[str, Any]):
    """All open fixtures, flat: names are unique over the open stages, so one dict is enough.

    A name that is not there is asked of the scope (lazy fixtures, the error in flight); plain reads stay as fast as a dict's.
    """

    __slots__ = ("_resolve", "provides")

    def __init__(self, resolve: Callable[[str], Any], provides: Callable[[str], bool]) -> None:
        self._resolve = resolve
        self.provides = provides

    def __missing__(self, name: str) -> Any:
        return self._resolve(name)


class Scope:
    """The live side of one extensible object. Stages push and pop themselves here; `Fixtures` is the view that users get."""

    __slots__ = ("_computing", "_read_host", "error_in_flight", "is_watched", "lasting", "lazy", "noted", "owners", "stack", "values")

    def __init__(self, read_host: Callable[[str], Any]) -> None:
        self.values = Values(self.resolve, self.provides)
        self.stack: list[OpenStage] = []
        self.lasting: OpenStage | None = None
        """The stage that was opened for good, below the stack."""
        self.error_in_flight: tuple[BaseException | None] | None = None
        """The error that post hooks see, in a tuple; None where no stage is closing."""
        self.noted: BaseException | None = None
        """The error that already carries a note of its place."""
        self.is_watched = False
        """Somebody wants to know when the outermost stage closes."""
        self.owners: Mapping[str, frozenset[str]] = {}
        self.lazy: Mapping[str, list[LazyFixture]] = {}
        self._read_host = read_host
        self._computing: list[str] = []

    def declare(self, owners: Mapping[str, frozenset[str]], lazy: Mapping[str, list[LazyFixture]]) -> None:
        """Take the owners and the lazy fixtures of the extensions as they are now."""
        self.owners, self.lazy = owners, lazy

    # creating

    def owner_of_new(self, name: str) -> OpenStage:
        """The open stage that will own `name`; an error where `name` cannot be created."""
        innermost = self.stack[-1] if self.stack else self.lasting
        if innermost is None:
            raise FixtureScopeError(
                f"`{name}` cannot be created: no stage is open to own it",
                why="a fixture lives as long as the stage it was created in",
                hint=f'open a stage first: with self.staged("...", {{"{name}": ...}}):',
            )
        if name in self.values or name in ERROR_FIXTURES:
            raise self.exists_error([name])
        stages = self.owners.get(name)
        if stages is not None:
            for stage in self.open_stages():
                if stage.name in stages:
                    return stage
        return innermost

    def open_stages(self) -> Iterator[OpenStage]:
        """The open stages, innermost first."""
        yield from reversed(self.stack)
        if self.lasting is not None:
            yield self.lasting

    def forget(self) -> None:
        """Drop all but what lasts: what an interrupt at a bad moment may have left behind."""
        self.stack.clear()
        kept = set(self.lasting.owned()) if self.lasting is not None else set()
        for name in [name for name in self.values if name not in kept]:
            del self.values[name]
        self.error_in_flight = self.noted = None

    def check_free(self, names: Iterable[str]) -> None:
        """Refuse to go on where one of these names is taken."""
        taken = [name for name in names if name in self.values]
        if taken:
            raise self.exists_error(taken)

    @contextmanager
    def aside(self, *kept: str) -> Iterator[None]:
        """Put the open stages above those named `kept` aside, with their fixtures, for a routine that is called from within them.

        So an extension may evaluate in the middle of a batch: the batches of the evaluation have the same fixtures, and cannot shadow.
        """
        depth = next((number for number, stage in enumerate(self.stack) if stage.name not in kept), len(self.stack))
        stages = self.stack[depth:]
        names = {name for stage in stages for name in stage.owned()}
        values = {name: self.values.pop(name) for name in names if name in self.values}
        error, self.error_in_flight = self.error_in_flight, None
        del self.stack[depth:]
        try:
            yield
        finally:
            self.stack.extend(stages)
            self.values.update(values)
            self.error_in_flight = error

    # what is not among the values

    def provides(self, name: str) -> bool:
        """Can somebody answer for `name` though it has no value yet?"""
        if name in ERROR_FIXTURES:
            return self.error_in_flight is not None
        if name in self.lazy:
            return self._valid_lazy(name) is not None
        try:
            self._read_host(name)
        except AttributeError:
            return False
        return True

    def resolve(self, name: str) -> Any:
        """The value of a fixture that is not among the values, or an error."""
        if name in ERROR_FIXTURES and self.error_in_flight is not None:
            (error,) = self.error_in_flight
            if error is None:
                return None
            return {"exc_type": type(error), "exc_value": error, "traceback": error.__traceback__}[name]
        if name in self.lazy:
            return self._compute(name)
        try:
            return self._read_host(name)
        except AttributeError:
            raise self.not_found(name) from None

    def _valid_lazy(self, name: str) -> tuple[OpenStage, LazyFixture] | None:
        """The innermost open stage that can own the lazy fixture now."""
        for stage in self.open_stages():
            for lazy in self.lazy[name]:
                if stage.name in lazy.spec.stages:
                    after = lazy.spec.after
                    return (stage, lazy) if after is None or after in stage.passed else None
        return None

    def _compute(self, name: str) -> Any:
        if name in self._computing:
            cycle = " -> ".join([*self._computing[self._computing.index(name) :], name])
            raise FixtureCycleError(
                f"lazy fixtures ask for each other: {cycle}", where=self.place, hint="compute one of them without the other"
            )
        found = self._valid_lazy(name)
        if found is None:
            raise FixtureScopeError(
                f"`{name}` is not valid here",
                where=self.place,
                why="; ".join(lifetime(each) for each in self.lazy[name]),
                hint="ask for it in a later hook",
            )
        stage, lazy = found
        self._computing.append(name)
        try:
            value = lazy.call(self.values)
        except Exception as error:
            error.add_note(f"while computing the lazy fixture `{name}` ({lazy.title}, {lazy.where})")
            raise
        finally:
            self._computing.pop()
        stage.adopt(name)
        self.values[name] = value
        return value

    # telling

    @property
    def path(self) -> str:
        """The open stages, outermost first: `run > train > train_step_epoch`."""
        return " > ".join(stage.name for stage in self.stack)

    @property
    def place(self) -> str:
        return f"stage {self.path}" if self.path else "outside any running stage"

    @property
    def open_names(self) -> str:
        return ", ".join(sorted(self.values)) or "nothing"

    def exists_error(self, names: list[str]) -> FixtureExistsError:
        """The error for names that are taken, with the stage that owns each."""
        owners = {name: f"belongs to `{stage.name}`" for stage in self.open_stages() for name in stage.owned()}
        owners.update(dict.fromkeys(ERROR_FIXTURES, "is kept for post hooks"))
        reasons = [f"`{name}` {owners.get(name, 'has a value already')}" for name in names]
        return FixtureExistsError(
            f"fixture {' and '.join(f'`{name}`' for name in names)} exists already",
            where=self.place,
            why="; ".join(reasons),
            hint=f'fixtures.modify("{names[0]}", value) changes it; another name creates a new one',
        )

    def not_found(self, name: str, asker: str | None = None, where: str = "") -> FixtureNotFoundError:
        """The error for a name that nobody provides here."""
        lazy, owners = self.lazy.get(name), self.owners.get(name)
        if lazy:
            hint = "; ".join(lifetime(each) for each in lazy) + ";"
        elif owners:
            hint = f"`{name}` belongs to {' and '.join(f'`{stage}`' for stage in sorted(owners))}, at a later point or elsewhere;"
        else:
            hint = did_you_mean(name, {*self.values, *self.lazy, *self.owners})
        return FixtureNotFoundError(
            f"`{asker}` asks for `{name}`, which no open stage provides" if asker else f"no open stage provides `{name}`",
            where=", ".join(filter(None, (where, self.place))),
            open=self.open_names,
            hint=" ".join(filter(None, (hint, "`describe()` lists every stage and its fixtures"))),
        )


def lifetime(lazy: LazyFixture) -> str:
    """Where a lazy fixture can be asked for, in words."""
    stages = " and ".join(f"`{stage}`" for stage in lazy.spec.stages)
    after = {None: "", BODY: " when its body is through"}.get(lazy.spec.after, f" after `{lazy.spec.after}`")
    return f"`{lazy.name}` is valid in {stages}{after}"
