"""Make the pictures of the dashboard in docs/images: train small models on scikit-learn's digits, serve their store, and photograph it.

Run it from the checkout after `make frontend`; it takes a few minutes and needs chromium:

    python docs/make_pictures.py
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import GradNormVis, Manager, SampleLoss, Supervised
from trainmaster.dashboard.serve import serving

IMAGES = Path(__file__).parent / "images"
DEFAULTS = {"model": {"width": 64, "activation": "relu"}, "train": {"lr": 0.003, "dropout": 0.1}, "epochs": 12, "seed": 0}
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU}
WIDTH = 1280


def accuracy(prediction: Any, targets: Any) -> Any:
    return (prediction.argmax(1) == targets).float().mean()


def make_loop(config: Any) -> Supervised:
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    train, valid = torch.utils.data.random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))
    width = config.model.width
    model = nn.Sequential(
        nn.Linear(64, width), ACTIVATIONS[config.model.activation](), nn.Dropout(config.train.dropout), nn.Linear(width, width),
        ACTIVATIONS[config.model.activation](), nn.Linear(width, 10),
    )  # fmt: skip
    return Supervised(
        model,
        nn.CrossEntropyLoss(),
        epochs=config.epochs,
        train_data=DataLoader(train, batch_size=64, shuffle=True),
        eval_data=DataLoader(valid, batch_size=360),
        optimizer=lambda parameters: AdamW(parameters, lr=config.train.lr),
        metrics={"accuracy": accuracy},
        extensions=[GradNormVis(), SampleLoss()],
    )


def train(root: Path) -> None:
    """A sweep over two learning rates, two activations and three seeds, and a search."""
    torch.set_num_threads(1)
    manager = Manager(root, DEFAULTS, make_loop=make_loop, verbose=False)
    for lr, activation, seed in itertools.product((0.003, 0.0003), ACTIVATIONS, range(3)):
        manager.process(manager.get_config().override(f"train.lr={lr}", f"model.activation={activation}", f"seed={seed}"))
    space = {"train.lr": "log(1e-4,1e-1)", "train.dropout": "float(0,0.6)", "model.width": [16, 32, 64, 128]}
    manager.search(space, monitor="valid/accuracy", trials=16, base={"epochs": 4}, name="digits")


def photograph(root: Path) -> None:
    from playwright.sync_api import sync_playwright

    from trainmaster.store import Store

    store = Store(root)
    with serving(store, 0) as (address, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        runs = "?where=epochs%3D12&group=1&sort=-metric:valid/accuracy&smooth=0.3"
        best = max((key for key, _ in store.select({"epochs": 12})), key=lambda key: store.previews[key]["valid/accuracy"])
        for name, path, scheme, height in (
            ("dashboard_runs", runs, "light", 520),
            ("dashboard_runs_dark", runs, "dark", 520),
            ("dashboard_run", f"run/{best}", "light", 640),
            ("dashboard_search", "searches/digits", "light", 620),
        ):
            page = browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme=scheme)
            page.goto(f"{address}{path}")
            page.wait_for_selector(".chart canvas, .parallel path")
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(1500)
            page.screenshot(path=IMAGES / f"{name}.png")
            print(f"{name}.png  {(IMAGES / f'{name}.png').stat().st_size / 1000:.0f} kB")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--store", type=Path, help="use this store, and train only if it does not exist")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = given.store or Path(folder) / "digits"
        if not root.exists():
            train(root)
        photograph(root)


if __name__ == "__main__":
    main()
