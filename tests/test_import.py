"""Imports are cheap, and the public names are complete."""

from __future__ import annotations

import subprocess
import sys

import pytest

import trainmaster
import trainmaster.extensions


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_trainmaster_imports_neither_torch_nor_rich() -> None:
    code = "import sys, trainmaster; print([m for m in ('torch', 'numpy', 'rich', 'sklearn') if m in sys.modules])"
    assert run(code) == "[]\n"


def test_importing_configs_takes_at_most_300_ms_and_no_torch() -> None:
    code = (
        "import time; a = time.process_time(); import trainmaster.config; took = time.process_time() - a; import sys; "
        "print(took * 1000, *(m for m in ('torch', 'numpy', 'rich') if m in sys.modules))"
    )
    took, *heavy = min((run(code).split() for _ in range(5)), key=lambda words: float(words[0]))
    assert float(took) <= 300
    assert heavy == []


def test_the_engine_does_not_import_torch() -> None:
    code = (
        "import sys; from trainmaster import Extensible, Extension, staged, always, fixture; "
        "print('torch' in sys.modules, 'numpy' in sys.modules, Extensible.__name__)"
    )
    assert run(code) == "False False Extensible\n"


def test_import_trainmaster_takes_at_most_50_ms() -> None:
    code = "import time; a = time.process_time(); import trainmaster; print((time.process_time() - a) * 1000)"
    # The code measures CPU time and is run several times, because other tests run at the same time.
    assert any(float(run(code)) <= 50 for _ in range(20))


def test_every_public_name_can_be_imported_and_is_listed() -> None:
    for name in trainmaster.__all__:
        assert getattr(trainmaster, name) is not None
    assert set(trainmaster.__all__) <= set(dir(trainmaster))


OTHER_NAMES = {
    "Ablation",
    "Config",
    "ConfigBase",
    "ConfigError",
    "Derived",
    "Extensible",
    "Extension",
    "Fixtures",
    "Grid",
    "Hypothesis",
    "Logger",
    "LoopComponent",
    "Manager",
    "MemoryWriter",
    "Mirrored",
    "ModelConfig",
    "ModelWrapper",
    "Observer",
    "OptimizerConfig",
    "ParallelConfig",
    "ParallelTrainer",
    "ProtoTrainer",
    "Recipe",
    "Replicate",
    "RunConfig",
    "SchedulerConfig",
    "SearchSpace",
    "Secret",
    "Stage",
    "StageTree",
    "Stateless",
    "Store",
    "Supervised",
    "TrainConfig",
    "TrainManager",
    "TrainTestLoop",
    "TrainingState",
    "TrainmasterError",
    "Writer",
    "always",
    "checkout_code",
    "configclass",
    "find_leak",
    "fixture",
    "group_of",
    "init_from_checkpoint",
    "key_of",
    "not_a_hook",
    "parameters_in",
    "replay",
    "sanity_check",
    "seed_rng",
    "staged",
    "tracked",
    "xavier_uniform",
}
"""The public names that are not extensions. `tests/extensions/test_exports.py` compares the table of extensions with the files in their
folder."""


def test_the_public_names_are_these_and_the_extensions() -> None:
    assert OTHER_NAMES.isdisjoint(trainmaster.extensions.__all__)
    assert set(trainmaster.__all__) == {*OTHER_NAMES, *trainmaster.extensions.__all__}
    assert len(trainmaster.__all__) == len(set(trainmaster.__all__))


def test_a_misspelled_public_name_gets_a_suggestion() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'TrainManger'; did you mean `TrainManager`"):
        trainmaster.TrainManger  # noqa: B018 - accessed for the error that it raises


def test_a_train_test_loop_imports_torch_and_the_engine_and_nothing_else() -> None:
    code = "import sys; from trainmaster import LoopComponent, TrainTestLoop; print(*sys.modules)"
    loaded = run(code).split()
    table = "trainmaster.extensions"  # `import trainmaster` loads its table of names, but none of its files
    rooms = {name.split(".")[1] for name in loaded if name.startswith("trainmaster.") and name != table}
    assert rooms == {"errors", "stages", "loop"}  # L12
    assert {"torch", "pydantic", "yaml", "rich", "matplotlib"} & set(loaded) == {"torch"}
    assert "trainmaster.loop.writer" not in loaded
    assert "trainmaster.loop.train_manager" not in loaded
