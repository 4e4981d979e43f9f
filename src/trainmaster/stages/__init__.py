"""The engine that runs stages, hooks and fixtures. It uses only the standard library."""

from trainmaster.stages.extensible import Extensible, staged
from trainmaster.stages.extension import Extension, Observer, always, fixture, not_a_hook
from trainmaster.stages.extension_map import Extensions
from trainmaster.stages.fixtures import Fixtures
from trainmaster.stages.stage_map import StageMap
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
