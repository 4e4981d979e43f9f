"""Training runs that leak every secret they know: they print, log, store and raise them.

`main(folder)` trains runs of all kinds in a folder, in this process and in a worker. The caller checks the output for
secrets.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import nn

from trainmaster import Config, ConfigBase, Extension, FailureCapsule, Manager, Secret, TrainManager, configclass
from trainmaster.cli.app import run as run_cli
from trainmaster.extensions.environment_info import EnvironmentInfo

ENVIRON = {
    "AWS_SECRET_ACCESS_KEY": "wJalr/XUtn+canary0env",
    "HF_TOKEN": "hf_canary1env",
    "DB_PASSWORD": "can'ary2\"env",
    "DATABASE_URL": "postgres://me:canary3env@db.example.org/runs",
}
ENV_CANARIES = ["wJalr/XUtn+canary0env", "hf_canary1env", "can'ary2\"env", "canary3env"]
FREE = {"api_key": "canary4config", "db": {"password": "canary 5/config"}, "mirrors": [{"url": "https://me:canary6config@host/x"}]}
SECRETS = ("api_key", "db.password", "mirrors")
CONFIG_CANARIES = ["canary4config", "canary 5/config", "canary6config"]
TYPED_CANARIES = ["canary7typed", "canary8typed", "canary9typed"]
ARGV_CANARY = "canary-a-argv"
CANARIES = [*ENV_CANARIES, *CONFIG_CANARIES, *TYPED_CANARIES, ARGV_CANARY]


@configclass
class Hub(ConfigBase):
    access_token: Secret[str] = "none"
    name: str = "hub"


@configclass
class Typed(ConfigBase):
    client_secret: Secret[str]
    hubs: list[Hub]
    lr: float = 0.1
    is_broken: bool = True
    db_password: Secret[str] = "none"


def typed() -> Typed:
    return Typed(client_secret="canary7typed", hubs=[Hub(access_token="canary8typed")], db_password="canary9typed")


def values_of(config: Any) -> str:
    return repr(config.to_dict() if isinstance(config, ConfigBase) else dict(config))


class Net(nn.Linear):
    def forward(self, batch: Any) -> Any:
        return super().forward(batch[0])


class Spill(Extension):
    """Leaks all secrets in every possible way."""

    def __init__(self, words: str, is_broken: bool) -> None:
        self.words, self.is_broken = words, is_broken

    def pre_train(self, writer: Any) -> None:
        writer.add_text("words", self.words)
        writer.add_text("quoted", quote(self.words, safe=""))
        print(self.words, repr(self.words), quote(self.words))
        print(dict(os.environ), sys.orig_argv)
        for secret in CANARIES[:5]:  # printed in two parts
            os.write(1, f"a {secret[:5]}".encode())
            os.write(1, f"{secret[5:]} b\n".encode())

    def post_train_step_batch(self, step_num: int) -> None:
        if self.is_broken and step_num == 2:
            raise RuntimeError(f"cannot log in with {self.words} at https://me:{quote(self.words)}@host")

    def state_dict(self) -> dict[str, Any]:
        return {"words": self.words, "list": [self.words]}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def make_loop(words: str, is_broken: bool = False, **settings: Any) -> TrainManager:
    torch.manual_seed(0)
    batches = [[torch.randn(4, 3), torch.randn(4, 1)] for _ in range(3)]
    extensions = [Spill(words, is_broken), FailureCapsule(), EnvironmentInfo()]
    return TrainManager(
        Net(3, 1), lambda batch, out: ((out - batch[1]) ** 2).mean(), 2, batches, {"valid": batches}, extensions=extensions, **settings
    )


class Spilling(Manager):
    """Trains loops that leak secrets."""

    secrets = SECRETS

    def make_loop(self, config: Any) -> TrainManager:
        words = f"{values_of(config)} {' '.join(ENV_CANARIES)}"
        print("SEEN", all(each in words for each in (CONFIG_CANARIES if "api_key" in config else TYPED_CANARIES)))
        return make_loop(words, bool(config["is_broken"]))


class Plain(Manager):
    """A manager that implements its own epochs, with a secret in its state, its metrics and its preview."""

    secrets = SECRETS

    def init_ckpt(self) -> None:
        super().init_ckpt()
        self.ckpt["words"] = {"note": values_of(self.config), "wJalr/XUtn+canary0env": [ENV_CANARIES[0]]}

    def train(self) -> None:
        self.preview["note"] = f"trained with {self.config.api_key} and {os.environ['HF_TOKEN']}"

    def eval(self) -> dict[str, Any]:
        return {"loss_test": 1.0, "note": values_of(self.config)}


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")  # a warning says that the state was stored without secrets
    store = str(folder / "store")
    Spilling(store).process({**FREE, "is_broken": False})
    with contextlib.suppress(RuntimeError):
        Spilling(store).process({**FREE, "is_broken": True})
    with contextlib.suppress(RuntimeError):
        Spilling(store, Typed, secrets=()).process(typed())
    Plain(store).process({**FREE, "kind": "plain"}, num_epochs=1)
    Spilling(store).sweep({**FREE, "mirrors": [[*FREE["mirrors"]]], "is_broken": False, "seed": [1, 2]}, max_errors=9)
    Spilling(store, verbose=False).batch(
        [Config({**FREE, "is_broken": is_broken, "part": "batch"}) for is_broken in (False, True)], workers=1, max_errors=9
    )
    make_loop(" ".join([*ENV_CANARIES, ARGV_CANARY]), train_dir=folder / "train_dir").train()
    with contextlib.suppress(RuntimeError):
        make_loop(" ".join([*ENV_CANARIES, ARGV_CANARY]), is_broken=True, train_dir=folder / "broken").train()
    overrides = ["is_broken=false", "api_key=canary4config", "db.password=canary 5/config", "mirrors=[https://me:canary6config@host/x]"]
    run_cli(["run", f"{__file__}:Spilling", *overrides, "--store", str(folder / "cli")])
