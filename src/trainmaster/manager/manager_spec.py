"""`ManagerSpec`: everything that another process needs to build the same manager."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.errors import SettingError
from trainmaster.stages.recorded_call import recorded_call

if TYPE_CHECKING:
    from trainmaster.manager.manager import Manager


class ManagerSpec(NamedTuple):
    """A manager's class, constructor arguments and current extensions."""

    kind: type
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    extensions: list[tuple[str, object]]

    @classmethod
    def of(cls, manager: Manager) -> ManagerSpec:
        call = recorded_call(manager)
        assert call is not None
        return cls(type(manager), call.args, call.kwargs, list(manager.extensions.items()))

    def build(self) -> Any:
        manager = self.kind(*self.args, **self.kwargs)
        manager.extensions = self.extensions
        return manager

    def dumps(self, dumps: Callable[[Any], bytes]) -> bytes:
        """Return the spec as bytes.

        The executor provides the function `dumps`, because plain pickle cannot serialize functions and classes that are defined
        in a notebook.
        """
        try:
            return dumps(tuple(self))
        except Exception as error:  # an argument may raise any error
            raise SettingError(
                f"{self.kind.__name__} cannot be built in a worker",
                why=f"its class, arguments or extensions cannot be sent to another process: {error}",
                hint="define them at the top of a module, without lambdas and open files",
            ) from error

    @property
    def definition(self) -> Any:
        """The object that a worker must import: the class, or the function `make_loop`."""
        return self.kwargs.get("make_loop") or self.kind
