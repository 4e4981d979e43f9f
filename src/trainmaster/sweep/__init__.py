"""Search and scale: which configs to train next, and workers on a Ray cluster."""

from trainmaster.sweep.ray_executor import RayExecutor

__all__ = ["RayExecutor"]
