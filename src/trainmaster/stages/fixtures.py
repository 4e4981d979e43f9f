"""Fixtures: variables that live only as long as the stage that owns them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainmaster.errors import FixtureNotFoundError, did_you_mean
from trainmaster.stages.hooks import parameters_of
from trainmaster.stages.scope import Scope


class Fixtures(Mapping[str, Any]):
    """The fixtures of an extensible object, as its routines and hooks see them.

    `fixtures["x"] = v` creates `x` in the stage that is declared as its owner or, if no such stage is open, in the innermost
    open stage. `x` is removed when that stage closes. Creating a fixture that already exists is an error. Use `modify` to
    change it. `fixtures(f, **overrides)` calls the function `f` with the fixtures that match its parameters by name.
    """

    __slots__ = ("_scope", "_values")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._values = scope.values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._values or self._scope.provides(name))

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names that currently have a value. Lazy fixtures that no hook has asked for are not included."""
        return iter(tuple(self._values))

    def get(self, name: str, default: Any = None) -> Any:
        """Return the fixture, or `default` if it does not exist. An error while computing a lazy fixture is still raised."""
        return self[name] if name in self else default  # noqa: SIM401 - this is `get`

    def __len__(self) -> int:
        return len(self._values)

    @property
    def stage_path(self) -> str:
        """The names of the open stages, such as `run > train > train_step_epoch`. Empty if no stage is running."""
        return self._scope.path

    def __repr__(self) -> str:
        return f"<Fixtures of {self._scope.path or 'no running stage'}: {self._scope.open_names}>"

    def __setitem__(self, name: str, value: Any) -> None:
        self._scope.owner_of_new(name).adopt(name)
        self._values[name] = value

    def update(self, new: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Create several fixtures. If one of them already exists, none of them is created."""
        created = {**(new or {}), **more}
        for name in created:
            self._scope.owner_of_new(name)
        for name, value in created.items():
            self[name] = value

    def modify(self, name: str, value: Any) -> None:
        """Change the value of a fixture. The fixture still belongs to the same stage."""
        if name not in self._values:
            raise FixtureNotFoundError(
                f"there is no fixture `{name}` to modify",
                where=self._scope.location,
                open=self._scope.open_names,
                hint=did_you_mean(name, self._values) or f'create it: fixtures["{name}"] = ...',
            )
        self._values[name] = value

    def __call__(self, function: Callable[..., Any], /, **overrides: Any) -> Any:
        """Call `function` with the fixtures that match its parameters by name.

        `overrides` replace fixtures, or provide values for other parameters.
        """
        title = getattr(function, "__qualname__", repr(function))
        needs, takes, _ = parameters_of(function, title)
        surplus = overrides.keys() - {*needs, *takes}
        if surplus:
            raise TypeError(f"`{title}` has no parameter {', '.join(f'`{name}`' for name in sorted(surplus))}")
        for name in needs:
            if name not in overrides and name not in self:
                raise self._scope.not_found(name, title)
        wanted = [name for name in (*needs, *takes) if name not in overrides and name in self]
        return function(**{name: self[name] for name in wanted}, **overrides)
