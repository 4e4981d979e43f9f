"""Makes torch use deterministic algorithms."""

from __future__ import annotations

import os
import warnings
from typing import Any, Final, NamedTuple

import torch

from trainmaster.stages import Extension, always

CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"


class Settings(NamedTuple):
    """The settings of this process that make torch's operations deterministic."""

    is_deterministic: bool
    is_warn_only: bool
    is_cudnn_benchmark: bool
    is_cudnn_deterministic: bool
    cublas: str | None


class Deterministic(Extension):
    """Makes torch use deterministic algorithms while the loop runs. Operations without such an algorithm raise a `RuntimeError`.

    The settings apply to the whole process. They are restored when the loop ends, even after an error.

    Args:
        warn_only: warn about an operation without a deterministic algorithm, and continue.
    """

    on_every_rank = True

    def __init__(self, warn_only: bool = False) -> None:
        self.warn_only = warn_only
        self._before: list[Settings] = []
        """The settings to restore, with one entry for each nested run of a loop."""

    def pre_run(self) -> None:
        before = current_settings()
        self._before.append(before)
        if before.cublas is None and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            warnings.warn(
                f"CUDA was initialized without {CUBLAS}: matrix products may differ from run to run; "
                f"set {CUBLAS}=:4096:8 in the environment before the program starts",
                stacklevel=2,
            )
        apply(Settings(True, self.warn_only, False, True, before.cublas or ":4096:8"))

    @always
    def post_run(self) -> None:
        if self._before:  # empty if another extension failed in `pre_run` before this one
            apply(self._before.pop())

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_before": []}


def current_settings() -> Settings:
    cudnn = torch.backends.cudnn
    is_warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return Settings(
        torch.are_deterministic_algorithms_enabled(), is_warn_only, cudnn.benchmark, cudnn.deterministic, os.environ.get(CUBLAS)
    )


def apply(settings: Settings) -> None:
    torch.use_deterministic_algorithms(settings.is_deterministic, warn_only=settings.is_warn_only)
    torch.backends.cudnn.benchmark = settings.is_cudnn_benchmark
    torch.backends.cudnn.deterministic = settings.is_cudnn_deterministic
    if settings.cublas is None:
        os.environ.pop(CUBLAS, None)
    else:
        os.environ[CUBLAS] = settings.cublas
