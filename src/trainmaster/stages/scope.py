"""The open stages of one extensible object and the values of their fixtures."""

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
    """The values of all fixtures. One dict is enough, because names are unique across the open stages.

    If a name has no value yet, the scope looks it up: it may be a lazy fixture, or `exc_value` in a post hook.
    """

    __slots__ = ("_resolve", "provides")

    def __init__(self, resolve: Callable[[str], Any], provides: Callable[[str], bool]) -> None:
        self._resolve = resolve
        self.provides = provides

    def __missing__(self, name: str) -> Any:
        return self._resolve(name)


class Scope:
    """The stack of open stages and their fixtures. Users access it through `Fixtures`."""

    __slots__ = ("_computing", "_read_host", "current_error", "explained", "is_watched", "lazy", "owners", "permanent", "stack", "values")

    def __init__(self, read_host: Callable[[str], Any]) -> None:
        self.values = Values(self.resolve, self.provides)
        self.stack: list[OpenStage] = []
        self.permanent: OpenStage | None = None
        """The stage that never closes and contains all others."""
        self.current_error: tuple[BaseException | None] | None = None
        """While post hooks run, a tuple with the stage's error, or with None if the stage did not fail. Otherwise None."""
        self.explained: BaseException | None = None
        """The last error to which a note about its location was added."""
        self.is_watched = False
        """Whether the host's `on_routine_end` must be called when the outermost stage closes."""
        self.owners: Mapping[str, frozenset[str]] = {}
        """The stages that own each fixture that is not lazy. The host sets this and `lazy` when its extensions have changed."""
        self.lazy: Mapping[str, list[LazyFixture]] = {}
        self._read_host = read_host
        self._computing: list[str] = []

    def owner_of_new(self, name: str) -> OpenStage:
        """Return the open stage that will own the new fixture `name`. Raise an error if the fixture cannot be created."""
        innermost = self.stack[-1] if self.stack else self.permanent
        if innermost is None:
            raise FixtureScopeError(
                f"cannot create fixture `{name}`: no stage is open",
                why="a fixture lives as long as the stage that owns it",
                hint=f'open a stage first: with self.staged("...", {{"{name}": ...}}):',
            )
        if name in self.values or name in ERROR_FIXTURES:
            raise self.exists_error([name])
        stages = self.owners.get(name)
        if stages is None:
            return innermost
        return next((stage for stage in self.open_stages() if stage.name in stages), innermost)

    def open_stages(self) -> Iterator[OpenStage]:
        """Yield the open stages, innermost first."""
        yield from reversed(self.stack)
        if self.permanent is not None:
            yield self.permanent

    def reset(self) -> None:
        """Drop all stages and their fixtures, except for the permanent stage."""
        self.stack.clear()
        kept = set(self.permanent.owned()) if self.permanent is not None else set()
        for name in [name for name in self.values if name not in kept]:
            del self.values[name]
        self.current_error = self.explained = None

    def check_unused(self, names: Iterable[str]) -> None:
        """Raise an error if one of these fixtures already exists."""
        used = [name for name in names if name in self.values]
        if used:
            raise self.exists_error(used)

    @contextmanager
    def set_aside(self, *kept: str) -> Iterator[None]:
        """Hide the open stages and their fixtures, except for outer stages whose names are in `kept`.

        This lets a hook start an evaluation in the middle of a training batch. Training and evaluation both create
        a fixture `batch`, and two fixtures with the same name cannot exist at the same time.
        """
        depth = next((number for number, stage in enumerate(self.stack) if stage.name not in kept), len(self.stack))
        stages = self.stack[depth:]
        names = {name for stage in stages for name in stage.owned()}
        values = {name: self.values.pop(name) for name in names if name in self.values}
        error, self.current_error = self.current_error, None
        del self.stack[depth:]
        for stage in stages:
            stage.is_open = True  # so that opening a stage of the same name creates a new object
        try:
            yield
        finally:
            self.stack.extend(stages)
            self.values.update(values)
            self.current_error = error

    def provides(self, name: str) -> bool:
        """Return whether a fixture without a value can currently be found or computed."""
        if name in ERROR_FIXTURES:
            return self.current_error is not None
        if name in self.lazy:
            return self._valid_lazy(name) is not None
        try:
            self._read_host(name)
        except AttributeError:
            return False
        return True

    def resolve(self, name: str) -> Any:
        """Find or compute the value of a fixture that is not in `values`.

        Raise an error if there is no such fixture.
        """
        if name in ERROR_FIXTURES and self.current_error is not None:
            (error,) = self.current_error
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
        """Return the innermost open stage that owns a lazy fixture, and the fixture itself. Return None if the fixture is not valid now."""
        for stage in self.open_stages():
            for lazy in self.lazy[name]:
                if stage.name in lazy.spec.stages:
                    after = lazy.spec.after
                    return (stage, lazy) if after is None or after in stage.closed_stages else None
        return None

    def _compute(self, name: str) -> Any:
        if name in self._computing:
            raise cycle_error([*self._computing[self._computing.index(name) :], name], self.location)
        valid = self._valid_lazy(name)
        if valid is None:
            raise FixtureScopeError(
                f"lazy fixture `{name}` is not valid here",
                where=self.location,
                why="; ".join(lifetime(each) for each in self.lazy[name]),
                hint="ask for it in a later hook",
            )
        stage, lazy = valid
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

    @property
    def path(self) -> str:
        """The names of the open stages, outermost first, such as `run > train > train_step_epoch`."""
        return " > ".join(stage.name for stage in self.stack)

    @property
    def location(self) -> str:
        return f"stage {self.path}" if self.path else "outside any running stage"

    @property
    def open_names(self) -> str:
        return ", ".join(sorted(self.values)) or "nothing"

    def exists_error(self, names: list[str]) -> FixtureExistsError:
        """Return the error for creating fixtures that already exist. Its message names the stage that owns each fixture."""
        owners = {name: f"belongs to `{stage.name}`" for stage in self.open_stages() for name in stage.owned()}
        owners.update(dict.fromkeys(ERROR_FIXTURES, "is reserved for post hooks"))
        return FixtureExistsError(
            f"fixture {' and '.join(f'`{name}`' for name in names)} already exists",
            where=self.location,
            why="; ".join(f"`{name}` {owners.get(name, 'already has a value')}" for name in names),
            hint=f'change it with fixtures.modify("{names[0]}", value), or use another name',
        )

    def not_found(self, name: str, asker: str | None = None, where: str = "") -> FixtureNotFoundError:
        """Return the error for a fixture that no open stage provides. `asker` is the hook or function that asks for it."""
        lazy, owners = self.lazy.get(name), self.owners.get(name)
        if lazy:
            hint = "; ".join(lifetime(each) for each in lazy) + ";"
        elif owners:
            hint = (
                f"`{name}` belongs to {' and '.join(f'`{stage}`' for stage in sorted(owners))} and exists there only after it is created;"
            )
        else:
            hint = did_you_mean(name, {*self.values, *self.lazy, *self.owners}, or_longer=True) or "attach the extension that provides it;"
        return FixtureNotFoundError(
            f"`{asker}` asks for `{name}`, which no open stage provides" if asker else f"no open stage provides `{name}`",
            where=", ".join(filter(None, (where, self.location))),
            open=self.open_names,
            hint=" ".join(filter(None, (hint, "`describe()` lists every stage and its fixtures"))),
        )


def cycle_error(names: Iterable[str], where: str) -> FixtureCycleError:
    return FixtureCycleError(
        f"lazy fixtures depend on each other: {' -> '.join(names)}", where=where, hint="compute one of them without the other"
    )


def lifetime(lazy: LazyFixture) -> str:
    """Describe the stages in which a lazy fixture is valid, for an error message."""
    stages = " and ".join(f"`{stage}`" for stage in lazy.spec.stages)
    after = {None: "", BODY: " after its body"}.get(lazy.spec.after, f" after `{lazy.spec.after}`")
    return f"`{lazy.name}` is valid in {stages}{after}"
