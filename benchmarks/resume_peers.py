"""Tests, for several tools, whether training that is killed in the middle of an epoch and resumed gives the same weights bit for bit.

    python benchmarks/resume_peers.py [trainmaster lightning ...]

Every tool trains the same model (with dropout), on the same shuffled data, with the same seed, in separate processes:
once without interruption, and once killed after update 37 of 60 (20 per epoch) and started again. Each tool saves every
5 updates and resumes as its documentation recommends. The table compares the final weights bit for bit, and shows how
many updates each of the two training runs counted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

EPOCHS, PER_EPOCH, EVERY, KILL_AT = 3, 20, 5, 37


def make_model():
    import torch
    from torch import nn

    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))


def make_data():
    import torch
    from torch.utils.data import TensorDataset

    inputs = torch.randn(16 * PER_EPOCH, 8, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, (inputs[:, 0] * inputs[:, 1] > 0).long())


def make_loader():
    from torch.utils.data import DataLoader

    return DataLoader(make_data(), batch_size=16, shuffle=True)


def die_at(update: int, folder: Path) -> None:
    """Kill this process with SIGKILL after update `KILL_AT`, but only in the first attempt."""
    if update == KILL_AT and os.environ.get("KILL") and not (mark := folder / "killed").exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def trainmaster(folder: Path):
    import torch
    from torch import nn

    from trainmaster import CheckpointSaver, Extension, Supervised

    class Die(Extension):
        def post_train_step_batch(self, step_num):
            die_at(step_num, folder)

    torch.manual_seed(2)
    loop = Supervised(
        make_model(), nn.CrossEntropyLoss(), EPOCHS, make_loader(), optimizer=lambda p: torch.optim.Adam(p, lr=0.01), device="cpu",
        train_dir=folder / "run", extensions={"checkpoint_saver": CheckpointSaver(every_steps=EVERY), "die": Die()}, progress=False,
    )  # fmt: skip
    loop.train()
    return loop.model, loop.step_num


def _lightning(folder: Path, make_loader: Callable[[], object]):
    import lightning as L
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torch import nn

    L.seed_everything(2, verbose=False)

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = make_model()

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    class Die(L.Callback):
        def on_train_batch_end(self, trainer, *_):
            die_at(trainer.global_step, folder)

    saver = ModelCheckpoint(folder / "run", every_n_train_steps=EVERY, save_top_k=-1, save_last=True)
    last = folder / "run" / "last.ckpt"
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=EPOCHS, logger=False, callbacks=[saver, Die()], enable_progress_bar=False, enable_model_summary=False
    )
    module = Module()
    trainer.fit(module, make_loader(), ckpt_path=last if last.exists() else None)
    return module.model, trainer.global_step


def lightning(folder: Path):
    return _lightning(folder, make_loader)


def lightning_stateful(folder: Path):
    """Train with torchdata's StatefulDataLoader, which saves its position."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return _lightning(folder, lambda: StatefulDataLoader(make_data(), batch_size=16, shuffle=True))


def ignite(folder: Path):
    import torch
    from ignite.engine import Events
    from ignite.engine.deterministic import DeterministicEngine
    from ignite.handlers import Checkpoint, DiskSaver
    from ignite.utils import manual_seed
    from torch import nn

    manual_seed(2)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(engine, batch):
        model.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

    engine = DeterministicEngine(step)
    parts = {"engine": engine, "model": model, "optimizer": optimizer}
    saver = Checkpoint(parts, DiskSaver(folder / "run", create_dir=True, require_empty=False), n_saved=1)
    engine.add_event_handler(Events.ITERATION_COMPLETED(every=EVERY), saver)
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: die_at(engine.state.iteration, folder))
    files = sorted((folder / "run").glob("*.pt"), key=lambda file: file.stat().st_mtime)
    if files:
        Checkpoint.load_objects(parts, torch.load(files[-1], weights_only=False))
    engine.run(make_loader(), max_epochs=EPOCHS)
    return model, engine.state.iteration


def hf_trainer(folder: Path):
    import torch
    from torch import nn
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = make_model()

        def forward(self, inputs, labels):
            logits = self.model(inputs)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    class Die(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            die_at(state.global_step, folder)

    def collate(rows):
        return {"inputs": torch.stack([x for x, _ in rows]), "labels": torch.stack([y for _, y in rows])}

    module = Module()
    arguments = TrainingArguments(
        output_dir=str(folder / "run"), num_train_epochs=EPOCHS, per_device_train_batch_size=16, learning_rate=0.01, seed=2,
        save_strategy="steps", save_steps=EVERY, report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(module, arguments, train_dataset=make_data(), data_collator=collate, callbacks=[Die()])
    run = folder / "run"
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(run)) if run.exists() else None)
    return module.model, trainer.state.global_step


TOOLS = {
    "trainmaster": (trainmaster, "trainmaster"),
    "lightning": (lightning, "lightning"),
    "lightning_stateful": (lightning_stateful, "lightning"),
    "ignite": (ignite, "pytorch-ignite"),
    "hf_trainer": (hf_trainer, "transformers"),
}


def train_in_child(tool: str, folder: Path, is_killed: bool) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KILL": "1" if is_killed else "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--child", tool, str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def compare(tool: str, folder: Path) -> str:
    """Return a line that says whether a tool's killed and resumed training gave the same weights as its uninterrupted training."""
    import torch

    whole, broken = folder / "whole", folder / "broken"
    whole.mkdir(parents=True)
    broken.mkdir(parents=True)
    once = train_in_child(tool, whole, is_killed=False)
    if once.returncode:
        return f"could not train: {once.stderr.strip().splitlines()[-1]}"
    killed = train_in_child(tool, broken, is_killed=True)
    if killed.returncode != -signal.SIGKILL:
        return f"was not killed: exit code {killed.returncode}: {killed.stderr[-300:]}"
    again = train_in_child(tool, broken, is_killed=True)
    if again.returncode:
        return f"could not resume: {again.stderr.strip().splitlines()[-1]}"
    a, b = torch.load(whole / "final.pt"), torch.load(broken / "final.pt")
    same = all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])
    apart = max(float((a["model"][name] - b["model"][name]).abs().max()) for name in a["model"])
    return f"{'same bits' if same else f'weights differ by up to {apart:.2g}'}; updates {a['updates']} and {b['updates']}"


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        import torch

        model, updates = TOOLS[sys.argv[2]][0](Path(sys.argv[3]))
        torch.save({"model": model.state_dict(), "updates": updates}, Path(sys.argv[3]) / "final.pt")
        return
    for tool in sys.argv[1:] or TOOLS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                named = f"{tool} {version(TOOLS[tool][1])}"
            except ImportError:
                print(f"{tool}: not installed")
                continue
            print(f"{named}: {compare(tool, Path(folder))}", flush=True)


if __name__ == "__main__":
    main()
