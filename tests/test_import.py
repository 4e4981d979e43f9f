"""What importing costs, and what is public."""

from __future__ import annotations

import subprocess
import sys

import pytest

import trainmaster


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_trainmaster_brings_no_torch_and_no_rich() -> None:
    code = "import sys, trainmaster; print([m for m in ('torch', 'numpy', 'rich', 'sklearn') if m in sys.modules])"
    assert run(code) == "[]\n"


def test_configs_are_used_without_torch_and_within_300_ms() -> None:
    code = (
        "import time; a = time.process_time(); import trainmaster.config; took = time.process_time() - a; import sys; "
        "print(took * 1000, *(m for m in ('torch', 'numpy', 'rich') if m in sys.modules))"
    )
    took, *heavy = min((run(code).split() for _ in range(5)), key=lambda words: float(words[0]))
    assert float(took) <= 300
    assert heavy == []


def test_the_engine_is_used_without_torch() -> None:
    code = (
        "import sys; from trainmaster import Extensible, Extension, staged, always, fixture; "
        "print('torch' in sys.modules, 'numpy' in sys.modules, Extensible.__name__)"
    )
    assert run(code) == "False False Extensible\n"


def test_import_trainmaster_takes_at_most_50_ms() -> None:
    code = "import time; a = time.process_time(); import trainmaster; print((time.process_time() - a) * 1000)"
    # CPU time, the least of many: other tests run beside this one.
    assert any(float(run(code)) <= 50 for _ in range(20))


def test_every_public_name_can_be_had_and_is_listed() -> None:
    for name in trainmaster.__all__:
        assert getattr(trainmaster, name) is not None
    assert set(trainmaster.__all__) <= set(dir(trainmaster))


def test_the_public_names_are_these() -> None:
    assert sorted(trainmaster.__all__) == [
        "Accumulate", "ActivationStats", "Avg", "CSVLog", "CheckpointLoader", "CheckpointSaver", "Choices", "ClipGradients",
        "CodeTracker", "Compile", "Config", "ConfigBase", "ConfigError", "Derived", "Deterministic", "Divergence", "EMA",
        "EarlyStopping", "Environment", "Extensible", "Extension", "FailureCapsule", "Fixtures", "GradCoeffRMSVis", "GradNormVis",
        "HookTimes", "LeakageCheck", "LearningRate", "LoopComponent", "LossPlot", "Manager", "MemoryWriter", "Metrics",
        "MixedPrecision", "ModelConfig", "ModelSummary", "NonFinite", "Observer", "OptimizerConfig", "ParallelConfig", "Parameters",
        "Plot", "Progress", "Recipe", "Replicate", "RunConfig", "RunReport", "SampleLoss", "SanityCheck", "SchedulerConfig",
        "SearchSpace", "Seed", "Stage", "StageTree", "Stateless", "Store", "TensorBoard", "TrainConfig", "TrainManager",
        "TrainTestLoop", "TrainingState", "TrainmasterError", "UpdateRatio", "Writer", "always", "checkout_code", "configclass",
        "find_leak", "fixture", "group_of", "init_from_checkpoint", "key_of", "not_a_hook", "parameters_in", "replay", "sanity_check",
        "seed_rng", "staged", "tracked", "xavier_uniform",
    ]  # fmt: skip


def test_a_misspelt_public_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'TrainManger'; did you mean `TrainManager`"):
        trainmaster.TrainManger  # noqa: B018 - asked for its error
