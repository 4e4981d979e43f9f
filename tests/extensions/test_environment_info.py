"""EnvironmentInfo records the environment of a training run, and warns if it changes."""

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
from trainmaster.extensions import environment_facts
from trainmaster.extensions.environment_facts import collect_facts, list_packages, relevant_facts
from trainmaster.extensions.environment_info import EnvironmentInfo
from trainmaster.testing import ExtensionContract


class TestContract(ExtensionContract):
    def make(self) -> object:
        return EnvironmentInfo()


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


def test_the_file_describes_the_environment(tmp_path: Path) -> None:
    environment = EnvironmentInfo()
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


def test_the_path_of_the_file_can_be_chosen(tmp_path: Path) -> None:
    trained(None, EnvironmentInfo(tmp_path / "deep" / "machine.json"))
    assert [each.name for each in (tmp_path / "deep").iterdir()] == ["machine.json"]


def test_without_a_folder_the_facts_are_on_the_object() -> None:
    environment = EnvironmentInfo()
    assert environment.facts == {}
    trained(None, environment)
    assert environment.facts["torch"]["version"] == torch.__version__


def test_resuming_in_the_same_environment_does_not_warn_and_keeps_one_file(tmp_path: Path) -> None:
    trained(tmp_path, EnvironmentInfo())
    trained(tmp_path, EnvironmentInfo(), epochs=2)
    assert [each.name for each in tmp_path.glob("environment*")] == ["environment.json"]


def test_resuming_in_a_different_environment_warns_and_keeps_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, EnvironmentInfo())
    before = (tmp_path / "environment.json").read_text()
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    monkeypatch.setattr(torch, "__version__", "9.9")
    with pytest.warns(UserWarning, match="different environment") as caught:
        trained(tmp_path, EnvironmentInfo(), epochs=2)
    assert [str(each.message) for each in caught] == [
        f"this training run resumes in a different environment: torch was {json.loads(before)['torch']['version']} and is now 9.9; "
        f"threads was {threads} and is now {threads + 1}"
    ]
    assert (tmp_path / "environment.1.json").read_text() == before
    assert json.loads((tmp_path / "environment.json").read_text())["torch"]["version"] == "9.9"
    monkeypatch.undo()
    with pytest.warns(UserWarning, match="torch was 9.9 and is now"):
        trained(tmp_path, EnvironmentInfo(), epochs=3)
    assert sorted(each.name for each in tmp_path.glob("environment*")) == ["environment.1.json", "environment.2.json", "environment.json"]


def test_each_checkpoint_has_the_relevant_facts() -> None:
    manager = trained(None, EnvironmentInfo())
    state = manager.capture().extensions["environment_info"]
    assert state["relevant_facts"] == relevant_facts(collect_facts())
    assert {"python", "torch", "threads", "cpu"} <= state["relevant_facts"].keys()


@pytest.mark.parametrize("content", ["no json", "[1]", "{}"])
def test_a_file_with_other_content_is_kept_too(tmp_path: Path, content: str) -> None:
    (tmp_path / "environment.json").write_text(content)
    trained(tmp_path, EnvironmentInfo())
    assert (tmp_path / "environment.1.json").read_text() == content


def test_a_file_that_cannot_be_written_gives_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot write .*environment.json: ") as caught:
        trained(None, EnvironmentInfo(tmp_path / "file" / "environment.json"))
    assert len(caught) == 1


def test_facts_that_cannot_be_determined_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise OSError("no /proc here")

    class Broken:
        @property
        def metadata(self) -> Any:
            raise ValueError("broken")

    monkeypatch.setattr(os, "sysconf", broken)
    monkeypatch.setattr(torch.__config__, "show", broken)
    monkeypatch.setattr(environment_facts.platform, "platform", broken)
    found = list(metadata.distributions())
    monkeypatch.setattr(metadata, "distributions", lambda: [Broken(), *found])
    list_packages.cache_clear()
    facts = collect_facts()
    list_packages.cache_clear()
    assert "build" not in facts["torch"]
    assert "memory_gib" not in facts["hardware"]
    assert "platform" not in facts["system"]
    assert "numpy" in facts["packages"]


def test_only_variables_that_affect_results_are_recorded() -> None:
    environ = {
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "0",
        "HOME": "/data/me",
        "HF_TOKEN": "canary-one",
        "TORCH_HUB_TOKEN": "canary2",
    }
    facts = collect_facts({**environ, "TORCH_LOGS": "at canary-one"}, [])
    assert facts["variables"] == {
        "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "2",
        "TORCH_HUB_TOKEN": "***",
        "TORCH_LOGS": "at ***",
    }


def test_the_command_line_has_no_secrets() -> None:
    words = ["/usr/bin/python", "train.py", "--api-key=canary1", "--password", "canary2", "lr=0.1", "--note=canary-one"]
    assert collect_facts({"HF_TOKEN": "canary-one"}, words)["argv"] == [
        *("python", "train.py", "--api-key=***", "--password", "***", "lr=0.1", "--note=***")
    ]


def test_a_package_from_a_repository_has_its_commit_and_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    list_packages.cache_clear()
    found = list_packages()
    list_packages.cache_clear()
    assert found == {"one": "1.0 (git+https://host/one.git@abc123)", "three": "1.0", "two": "1.0 (editable, file:///src/two)"}


def test_packages_are_listed_once_in_a_process() -> None:
    collect_facts()
    assert list_packages() is list_packages()


def test_it_works_for_a_train_test_loop() -> None:
    environment = EnvironmentInfo()
    batches = [torch.randn(4, 3)]
    TrainTestLoop(nn.Linear(3, 1), [LoopComponent(), environment], batches, []).train(1)
    assert environment.facts["torch"]["version"] == torch.__version__


def test_in_a_private_folder_other_users_cannot_write_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    ExtensionContract().loop(EnvironmentInfo(tmp_path / "private" / "environment.json")).train()
    assert oct((tmp_path / "private" / "environment.json").stat().st_mode & 0o777) == oct(0o600)
