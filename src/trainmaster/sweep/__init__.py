"""Hyperparameter search, and training on Ray clusters and other machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.sweep.ray_executor import RayExecutor

__all__ = ["RayExecutor"]


def __getattr__(name: str) -> Any:
    """Import `RayExecutor` on first use, because its module imports the manager."""
    if name == "RayExecutor":
        from trainmaster.sweep.ray_executor import RayExecutor

        return RayExecutor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
