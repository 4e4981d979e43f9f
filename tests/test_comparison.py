"""The statements in docs/comparison.md about hook names and exact resume are true for the installed tools."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import Extension, Supervised, TrainmasterError

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parent.parent


@pytest.fixture
def data() -> TensorDataset:
    inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


@pytest.fixture
def _quiet_peers() -> None:
    warnings.simplefilter("ignore")  # pytest restores the filters; deprecation warnings from other packages do not matter here


def test_trainmaster_refuses_a_misspelled_hook_before_the_first_batch(data: TensorDataset) -> None:
    class Misspelled(Extension):
        def post_train_step_batchs(self) -> None:
            pytest.fail("a hook without a stage was called")

    with pytest.raises(TrainmasterError, match="did you mean `post_train_step_batch`"):
        Supervised(nn.Linear(4, 2), nn.CrossEntropyLoss(), 1, DataLoader(data, 8), extensions=[Misspelled()])


@pytest.mark.usefixtures("_quiet_peers")
def test_lightning_trains_on_and_never_calls_a_misspelled_hook(data: TensorDataset) -> None:
    L = pytest.importorskip("lightning")
    called: list[str] = []

    class Module(L.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(4, 2)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            called.append("training_step")
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    class Misspelled(L.Callback):  # type: ignore[name-defined, misc]
        def on_train_batch_ends(self, *given: Any) -> None:
            called.append("misspelled")

    settings = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    L.Trainer(accelerator="cpu", max_epochs=1, callbacks=[Misspelled()], **settings).fit(Module(), DataLoader(data, 8))
    assert called == ["training_step"] * 4


def test_ignite_refuses_an_unknown_event() -> None:
    engine = pytest.importorskip("ignite.engine")
    with pytest.raises(ValueError, match="not a valid event"):
        engine.Engine(lambda engine, batch: None).add_event_handler("ITERATION_COMPLETE", print)


@pytest.mark.usefixtures("_quiet_peers")
def test_the_hugging_face_trainer_trains_on_and_never_calls_a_misspelled_hook(data: TensorDataset, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    called: list[str] = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(4, 2)

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            called.append("forward")
            return {"loss": nn.functional.cross_entropy(self.model(inputs), labels)}

    class Misspelled(transformers.TrainerCallback):  # type: ignore[name-defined, misc]
        def on_step_ends(self, *given: Any, **named: Any) -> None:
            called.append("misspelled")

    def collate(rows: Any) -> dict[str, torch.Tensor]:
        return {"inputs": torch.stack([x for x, _ in rows]), "labels": torch.stack([y for _, y in rows])}

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=1, per_device_train_batch_size=8, report_to=[], use_cpu=True, disable_tqdm=True,
        logging_strategy="no", save_strategy="no",
    )  # fmt: skip
    transformers.Trainer(Net(), arguments, data_collator=collate, train_dataset=data, callbacks=[Misspelled()]).train()
    assert called == ["forward"] * 4


def test_the_benchmark_of_killed_trainings_finds_the_same_bits_for_trainmaster(tmp_path: Path) -> None:
    compare = runpy.run_path(str(ROOT / "benchmarks" / "resume_peers.py"), run_name="resume_peers")["compare"]
    assert compare("trainmaster", tmp_path) == "same bits; updates 60 and 60"
