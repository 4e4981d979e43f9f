"""Environment: what a training runs on, kept beside it, and named when it changes."""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import LoopComponent, TrainManager, TrainTestLoop
from trainmaster.errors import SettingError
from trainmaster.extensions import surroundings
from trainmaster.extensions.environment import Environment
from trainmaster.extensions.surroundings import facts_of, packages, what_matters, without_credentials
from trainmaster.testing import ExtensionContract


class TestContract(ExtensionContract):
    def make(self) -> object:
        return Environment()


def trained(train_dir: Path | None, *extensions: Any, epochs: int = 1) -> TrainManager:
    torch.manual_seed(0)
    batches = [[torch.randn(4, 3), torch.randn(4, 1)] for _ in range(3)]

    class Net(nn.Linear):
        def forward(self, batch: Any) -> Any:
            return super().forward(batch[0])

    manager = TrainManager(
        Net(3, 1), lambda batch, out: ((out - batch[1]) ** 2).mean(), epochs, batches, extensions=list(extensions), train_dir=train_dir
    )
    manager.train()
    return manager


def test_the_file_says_what_the_training_ran_on(tmp_path: Path) -> None:
    environment = Environment()
    trained(tmp_path, environment)
    facts = json.loads((tmp_path / "environment.json").read_text())
    assert facts == environment.facts
    assert list(facts) == ["started", "python", "torch", "hardware", "system", "variables", "argv", "packages"]
    assert facts["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert (facts["torch"]["version"], facts["torch"]["threads"]) == (torch.__version__, torch.get_num_threads())
    assert any("OpenMP" in line for line in facts["torch"]["build"])
    assert facts["hardware"]["usable_cores"] == len(os.sched_getaffinity(0))
    assert facts["packages"]["numpy"] == metadata.version("numpy")
    assert "editable" in facts["packages"]["trainmaster"] or "(" not in facts["packages"]["trainmaster"]
    assert [*facts["packages"]] == sorted(facts["packages"], key=str.lower)


def test_the_file_can_be_another_one(tmp_path: Path) -> None:
    trained(None, Environment(tmp_path / "deep" / "machine.json"))
    assert [each.name for each in (tmp_path / "deep").iterdir()] == ["machine.json"]


def test_without_a_folder_the_facts_are_on_the_object() -> None:
    environment = Environment()
    assert environment.facts == {}
    trained(None, environment)
    assert environment.facts["torch"]["version"] == torch.__version__


def test_a_training_that_goes_on_alike_says_nothing_and_keeps_one_file(tmp_path: Path) -> None:
    trained(tmp_path, Environment())
    trained(tmp_path, Environment(), epochs=2)
    assert [each.name for each in tmp_path.glob("environment*")] == ["environment.json"]


def test_a_training_that_goes_on_elsewhere_says_what_differs_and_keeps_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, Environment())
    before = (tmp_path / "environment.json").read_text()
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    monkeypatch.setattr(torch, "__version__", "9.9")
    with pytest.warns(UserWarning, match="another environment") as caught:
        trained(tmp_path, Environment(), epochs=2)
    assert [str(each.message) for each in caught] == [
        f"this training goes on in another environment: torch was {json.loads(before)['torch']['version']}, and is 9.9; "
        f"threads was {threads}, and is {threads + 1}"
    ]
    assert (tmp_path / "environment.1.json").read_text() == before
    assert json.loads((tmp_path / "environment.json").read_text())["torch"]["version"] == "9.9"
    monkeypatch.undo()
    with pytest.warns(UserWarning, match="torch was 9.9, and is"):
        trained(tmp_path, Environment(), epochs=3)
    assert sorted(each.name for each in tmp_path.glob("environment*")) == ["environment.1.json", "environment.2.json", "environment.json"]


def test_each_checkpoint_says_what_matters() -> None:
    manager = trained(None, Environment())
    state = manager.capture().extensions["environment"]
    assert state["matters"] == what_matters(facts_of())
    assert {"python", "torch", "threads", "cpu"} <= state["matters"].keys()


@pytest.mark.parametrize("content", ["no json", "[1]", "{}"])
def test_somebody_elses_file_is_kept_too(tmp_path: Path, content: str) -> None:
    (tmp_path / "environment.json").write_text(content)
    trained(tmp_path, Environment())
    assert (tmp_path / "environment.1.json").read_text() == content


def test_a_file_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="environment.json is not written: ") as caught:
        trained(None, Environment(tmp_path / "file" / "environment.json"))
    assert len(caught) == 1


def test_what_cannot_be_found_out_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise OSError("no /proc here")

    class Broken:
        @property
        def metadata(self) -> Any:
            raise ValueError("broken")

    monkeypatch.setattr(surroundings, "_read", broken)
    monkeypatch.setattr(torch.__config__, "show", broken)
    monkeypatch.setattr(surroundings.platform, "platform", broken)
    found = list(metadata.distributions())
    monkeypatch.setattr(metadata, "distributions", lambda: [Broken(), *found])
    packages.cache_clear()
    facts = facts_of()
    packages.cache_clear()
    assert "build" not in facts["torch"]
    assert "cpu_quota" not in facts["hardware"]
    assert "platform" not in facts["system"]
    assert "numpy" in facts["packages"]


def test_only_variables_that_change_numbers_are_kept() -> None:
    environ = {
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "0",
        "HOME": "/data/me",
        "HF_TOKEN": "canary-one",
        "TORCH_HUB_TOKEN": "canary2",
    }
    facts = facts_of({**environ, "TORCH_LOGS": "at canary-one"}, [])
    assert facts["variables"] == {
        "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "2",
        "TORCH_HUB_TOKEN": "***",
        "TORCH_LOGS": "at ***",
    }


def test_the_command_line_has_no_secrets() -> None:
    words = ["/usr/bin/python", "train.py", "--api-key=canary1", "--password", "canary2", "lr=0.1", "--note=canary-one"]
    assert facts_of({"HF_TOKEN": "canary-one"}, words)["argv"] == [
        *("python", "train.py", "--api-key=***", "--password", "***", "lr=0.1", "--note=***")
    ]


def test_a_package_from_a_repository_says_its_commit_and_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, about in {
        "one": {"url": "https://me:canary@host/one.git", "vcs_info": {"vcs": "git", "commit_id": "abc123"}},
        "two": {"url": "file:///src/two", "dir_info": {"editable": True}},
        "three": "no json",
    }.items():
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "direct_url.json").write_text(about if isinstance(about, str) else json.dumps(about))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    packages.cache_clear()
    found = packages()
    packages.cache_clear()
    assert found == {"one": "1.0 (git+https://host/one.git@abc123)", "three": "1.0", "two": "1.0 (editable, file:///src/two)"}
    assert without_credentials("ssh://git@host/one?token=canary#x") == "ssh://host/one"


def test_packages_are_listed_once_in_a_process() -> None:
    facts_of()
    assert packages() is packages()


@pytest.mark.parametrize("path", ["", 3, True, b"x", "folder/"])
def test_a_path_that_is_no_file_is_refused(path: Any) -> None:
    with pytest.raises(SettingError, match="wanted a file"):
        Environment(path)


def test_it_works_for_a_train_test_loop() -> None:
    environment = Environment()
    batches = [torch.randn(4, 3)]
    TrainTestLoop(nn.Linear(3, 1), [LoopComponent(), environment], batches, []).train(1)
    assert environment.facts["torch"]["version"] == torch.__version__
