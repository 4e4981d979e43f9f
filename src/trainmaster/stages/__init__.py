"""The engine: routines cut into stages, hooks, and fixtures. Standard library only."""

from trainmaster.stages.describe import StageMap
from trainmaster.stages.extensible import Extensible, staged
from trainmaster.stages.extension import Extension, Observer, always, fixture, not_a_hook
from trainmaster.stages.extensions import Extensions
from trainmaster.stages.fixtures import Fixtures
from trainmaster.stages.tree import BODY, ENTRY, Stage, StageTree

__all__ = [
    "BODY",
    "ENTRY",
    "Extensible",
    "Extension",
    "Extensions",
    "Fixtures",
    "Observer",
    "Stage",
    "StageMap",
    "StageTree",
    "always",
    "fixture",
    "not_a_hook",
    "staged",
]
