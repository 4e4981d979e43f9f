"""Operations that give the same bits each time, or an error."""

from __future__ import annotations

import os
import warnings
from typing import Any, Final, NamedTuple

import torch

from trainmaster.errors import SettingError
from trainmaster.stages import Extension, always

CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"


class Settings(NamedTuple):
    """What decides whether torch's operations are deterministic, in this process."""

    is_deterministic: bool
    is_warn_only: bool
    is_cudnn_benchmark: bool
    is_cudnn_deterministic: bool
    cublas: str | None


class Deterministic(Extension):
    """Has torch use deterministic algorithms while the loop runs; an operation that has none raises torch's error.

    The settings are those of the whole process. They are put back when the loop has ended, also by an error.

    Args:
        warn_only: have torch warn of such an operation, and go on.
    """

    def __init__(self, warn_only: bool = False) -> None:
        if not isinstance(warn_only, bool):
            raise SettingError(f"warn_only={warn_only!r}: wanted True or False", hint="Deterministic(warn_only=True)")
        self.warn_only = warn_only
        self._found: list[Settings] = []
        """One for each loop that runs with it: the inner of two puts back what the outer has set."""

    def pre_run(self) -> None:
        found = current_settings()
        self._found.append(found)
        if found.cublas is None and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            warnings.warn(
                f"CUDA is initialised already, without {CUBLAS}: its matrix products may differ from run to run; "
                f"set {CUBLAS}=:4096:8 in the environment before the program starts",
                stacklevel=2,
            )
        put(Settings(True, self.warn_only, False, True, found.cublas or ":4096:8"))

    @always
    def post_run(self) -> None:
        if self._found:  # not if a hook before its own has failed
            put(self._found.pop())

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_found": []}


def current_settings() -> Settings:
    cudnn = torch.backends.cudnn
    is_warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return Settings(
        torch.are_deterministic_algorithms_enabled(), is_warn_only, cudnn.benchmark, cudnn.deterministic, os.environ.get(CUBLAS)
    )


def put(settings: Settings) -> None:
    torch.use_deterministic_algorithms(settings.is_deterministic, warn_only=settings.is_warn_only)
    torch.backends.cudnn.benchmark = settings.is_cudnn_benchmark
    torch.backends.cudnn.deterministic = settings.is_cudnn_deterministic
    if settings.cublas is None:
        os.environ.pop(CUBLAS, None)
    else:
        os.environ[CUBLAS] = settings.cublas
