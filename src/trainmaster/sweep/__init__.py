"""Search and scale: which configs to train next, and workers on a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.sweep.ray_executor import RayExecutor

__all__ = ["RayExecutor"]


def __getattr__(name: str) -> Any:
    """Import on first use, because the executor imports the manager."""
    if name == "RayExecutor":
        from trainmaster.sweep.ray_executor import RayExecutor

        return RayExecutor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
