"""`trainmaster container` writes a complete build context, whose files pass the linters for their formats.

tests/faults/test_container_image.py builds and runs the image.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from compose_spec import PyCompose

import trainmaster
from trainmaster.cli import main
from trainmaster.store import Store

TRAIN = """
import torch
from trainmaster import Manager
from lab.data import numbers

class Mine(Manager):
    defaults = {"lr": 0.1, "note": ""}

def draw():
    import sklearn.datasets
"""
CANARY = "canary-3f9c81d2a7"
GIT = ["git", "-c", "user.name=me", "-c", "user.email=me@lab"]


@pytest.fixture(autouse=True)
def clean_modules() -> Iterator[None]:
    path = list(sys.path)
    forget_modules()
    yield
    forget_modules()
    sys.path[:] = path


def forget_modules() -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in ("train", "lab", "own", "alone"):
            del sys.modules[name]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = make_project(tmp_path / "my project")
    monkeypatch.chdir(project)
    return project


def make_project(project: Path) -> Path:
    """Create a repository with committed, changed, new and secret files, and with two stores, one of them committed."""
    (project / "lab").mkdir(parents=True)
    (project / "train.py").write_text(TRAIN)
    (project / "lab" / "__init__.py").touch()
    (project / "lab" / "data.py").write_text("numbers = [1, 2]\n")
    (project / "lab" / "late.py").write_text("from . import data\nimport rich.table\n")
    Store(project / "old").configs.add({"note": CANARY})
    (project / ".gitignore").write_text("big/\n")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*GIT, *words], check=True, cwd=project)
    (project / "lab" / "data.py").write_text("numbers = [3, 4]  # not committed\n")
    (project / "lab" / "new.py").write_text("fresh = True\n")
    Store(project / "runs").configs.add({"note": CANARY})
    for name in (".env", "keys/id_rsa", "lab/server.pem", "client_secret.json", "big/data.bin"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(CANARY)
    return project


@pytest.fixture
def write(call: Any, project: Path) -> Callable[..., Path]:
    def write(*words: str, target: str = "train.py", output: str = "image") -> Path:
        done = call("container", target, *words, "-o", output)
        assert done.code == 0, done.err
        return project / output

    return write


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a build context for tests that only read it."""
    project, before, path = make_project(tmp_path_factory.mktemp("lab") / "project"), os.getcwd(), list(sys.path)
    os.chdir(project)
    try:
        assert main(["container", "train.py", "-o", "image"]) == 0
    finally:
        os.chdir(before)
        sys.path[:] = path
        forget_modules()
    return project / "image"


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_context_has_the_current_code_without_secrets_git_and_stores(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_API_TOKEN", "tok-91c2f8e4b7a6d5")
    Path("lab/client.py").write_text('token = "tok-91c2f8e4b7a6d5"\n')
    image = write()
    code = {"train.py", ".gitignore", "lab/__init__.py", "lab/data.py", "lab/late.py", "lab/new.py"}
    assert files_in(image / "code") == code
    assert (image / "code/lab/data.py").read_text() == "numbers = [3, 4]  # not committed\n"
    for path in image.rglob("*"):
        assert path.name != ".git"
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path
            assert b"tok-91c2f8e4b7a6d5" not in path.read_bytes(), path
    assert (Path("old/store.json").exists(), Path("runs/store.json").exists()) == (True, True), "the user's own files were removed"


def test_files_that_are_left_out_are_printed(call: Any, project: Path) -> None:
    done = call("container", "train.py", "-o", "image")
    for line in ("lab/server.pem (its name looks like a secret)", "client_secret.json (its name", "old/ (it is a store)"):
        assert f"left out: {line}" in done.out
    assert "with uncommitted changes" in done.out
    assert f"next: docker build -t trainmaster-train '{project / 'image'}'" in done.out


def test_the_source_of_trainmaster_is_included_if_it_runs_from_a_checkout(image: Path) -> None:
    ours = Path(trainmaster.__file__).parent
    shipped = image / "trainmaster" / "src" / "trainmaster"
    wanted = {each for each in files_in(ours) if "__pycache__" not in each}
    assert files_in(shipped) == wanted
    assert all((shipped / each).read_bytes() == (ours / each).read_bytes() for each in wanted)
    assert 'pip install --no-cache-dir -c /build/constraints.txt "/build/trainmaster[ray]"' in (image / "Dockerfile").read_text()


def test_the_requirements_are_the_imported_packages_with_their_installed_versions(image: Path) -> None:
    """Imports inside functions are included, and so are the imports of modules that only a function imports.

    Relative imports are not included.
    """
    versions = {name: metadata.version(name) for name in ("rich", "scikit-learn", "torch")}
    assert (image / "requirements.txt").read_text() == "".join(f"{name}=={version}\n" for name, version in versions.items())
    pins = dict(line.split("==") for line in (image / "constraints.txt").read_text().splitlines())
    assert pins["numpy"] == metadata.version("numpy")
    assert pins["ray"] == metadata.version("ray")
    assert not {"pip", "setuptools", "trainmaster"} & {*pins}


def test_an_extra_that_the_code_uses_is_installed(write: Any) -> None:
    Path("lab/late.py").write_text("from trainmaster import TensorBoard\n")
    assert "trainmaster[ray,tensorboard]" in (write() / "Dockerfile").read_text()


def run_checker(name: str, *paths: Path) -> tuple[int, str]:
    program = shutil.which(name) or str(Path(sys.executable).with_name(name))
    found = subprocess.run([program, *paths], capture_output=True, text=True, check=False)
    return found.returncode, found.stdout


@pytest.mark.parametrize("choices", [[], ["lr=0.1,0.2", 'note=["it\'s $HOME `id` \\\\ #", "b"]']], ids=["none", "hostile"])
def test_every_file_passes_its_linter(choices: list[str], write: Any) -> None:
    image = write(*choices)
    assert run_checker("hadolint", image / "Dockerfile") == (0, "")
    assert run_checker("shellcheck", image / "slurm.sh") == (0, "")
    services = PyCompose.from_yaml((image / "compose.yaml").read_text()).to_dict()["services"]
    assert [*services] == ["head", "worker", "sweep"]
    sweep, worker = services["sweep"], services["worker"]
    words = ["--store", "/store", "--executor", "ray", "--address", "auto", "--workers", "2", "--", "/app/train.py"]
    assert sweep["entrypoint"][4:] == ["sweep", *words]
    assert [each.replace("$$", "$") for each in sweep["command"]] == choices
    assert "$" not in "".join(sweep["command"]).replace("$$", ""), "compose would replace it with a variable"
    assert worker["deploy"]["replicas"] == 2
    for each in services.values():
        assert (each["secrets"], each["volumes"]) == (["ray_auth_token"], ["store:/store"])
        assert each["environment"]["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/ray_auth_token"


BROKEN = {
    "a misspelled key": ("    image: ", "    imagee: "),
    "a word for a number": ("replicas: 2", "replicas: two"),
    "a list for a service": ("  head:\n", "  head: []\n  other:\n"),
    "not YAML": ("services:", "services: ["),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_the_compose_linter_refuses_a_broken_file(change: tuple[str, str], image: Path) -> None:
    text = (image / "compose.yaml").read_text()
    assert change[0] in text
    with pytest.raises(ValueError, match=r".+"):
        PyCompose.from_yaml(text.replace(*change, 1))


def test_the_other_linters_refuse_broken_files(image: Path, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text((image / "Dockerfile").read_text() + "RUN cd /x && sudo rm -rf *\n")
    (tmp_path / "slurm.sh").write_text((image / "slurm.sh").read_text() + "rm -rf $store/*\n")
    assert run_checker("hadolint", tmp_path / "Dockerfile")[0] != 0
    assert run_checker("shellcheck", tmp_path / "slurm.sh")[0] != 0


def test_paths_are_translated_to_paths_in_the_image(write: Any, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "lab" / "base.yaml").write_text("note: base\n")
    (project / "choices.yaml").write_text("lr: [0.1, 0.2]\n")
    image = write("choices.yaml", "--config", "lab/base.yaml", "--epochs", "3")
    docker = (image / "Dockerfile").read_text()
    wanted = '["sweep", "--store", "/store", "--epochs", "3", "--config", "/app/lab/base.yaml", "--", "/app/train.py", "/app/choices.yaml"]'
    assert f"CMD {wanted}\n" in docker
    assert str(project) not in "".join((image / name).read_text() for name in ("Dockerfile", "compose.yaml", "slurm.sh"))


def test_modules_are_importable_in_the_image(write: Any, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "src" / "own").mkdir(parents=True)
    (project / "src" / "own" / "__init__.py").touch()
    (project / "src" / "own" / "train.py").write_text("from trainmaster import Manager\n\nclass Mine(Manager): ...\n")
    monkeypatch.syspath_prepend(str(project / "src"))
    monkeypatch.chdir(project / "lab")
    image = write(target="own.train:Mine", output="../image").parent.parent / "image"
    docker = (image / "Dockerfile").read_text()
    assert "/app/src" in next(line for line in docker.splitlines() if line.startswith("ENV PYTHONPATH")).split('"')[1].split(":")
    assert 'WORK_FOLDER="/app/lab"\n' in docker


def test_a_folder_that_only_looks_like_a_store_is_kept(write: Any, project: Path) -> None:
    (project / "shop" / "configs").mkdir(parents=True)
    (project / "shop" / "store.json").write_text('{"city": "Berlin"}')
    (project / "shop" / "configs" / "a.yaml").write_text("a: 1\n")
    assert {"shop/store.json", "shop/configs/a.yaml"} <= files_in(write() / "code")


def test_a_written_context_is_not_part_of_the_next_one(write: Any) -> None:
    write(output="one")
    assert not (write(output="two") / "code" / "one").exists()


def test_the_apptainer_script_runs_the_sweep_in_the_image(image: Path, tmp_path: Path) -> None:
    script = image / "slurm.sh"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "apptainer").write_text(f'#!/bin/sh\nprintf \'%s\\0\' "$@" "${{PYTHONPATH-unset}}" >{tmp_path}/words\n')
    (tmp_path / "bin" / "apptainer").chmod(0o755)
    (tmp_path / "a store").mkdir()
    (tmp_path / "i.sif").touch()
    env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYTHONPATH": "/host"}
    there = {"IMAGE": f"{tmp_path}/i.sif", "STORE": f"{tmp_path}/a store"}

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", script, "lr=0.1,0.2", "note=$x"], env={**env, **more}, capture_output=True, text=True, check=False)

    assert run(**there).returncode == 0
    words = (tmp_path / "words").read_text().split("\0")[:-1]
    bound = ["exec", "--pwd", "/app", "--bind", f"{tmp_path}/a store:/store", f"{tmp_path}/i.sif"]
    assert words == [*bound, "trainmaster", "sweep", "--store", "/store", "--", "/app/train.py", "lr=0.1,0.2", "note=$x", "unset"]
    missing = run(IMAGE=there["IMAGE"])
    assert (missing.returncode != 0, "STORE: is a folder that all nodes share" in missing.stderr) == (True, True)
    gone = run(**{**there, "STORE": "/nowhere"})
    assert (gone.returncode, "is not visible here" in gone.stderr) == (3, True)


WRONG = [
    (["nothing.py"], "there is no file `nothing.py`"),
    (["train.py", "lrr=1"], "did you mean `lr`?"),
    (["train.py", "-o", "lab"], "this folder is not empty"),
    (["train.py", "-o", "runs/image"], "this folder is inside the store"),
    (["train.py", "-o", "train.py"], "this is a file"),
    (["train.py", "-o", "no/such/image"], "there is no folder"),
    (["train.py", "--workers", "0"], "--workers"),
    (["train.py", "+api_token=hf_0123456789abcdef"], "is a secret, and the script would contain it"),
    (["own.py:made"], "has its own store"),
    (["train.py", "lr=1", "--config", "../outside.yaml"], "it is outside the code's repository"),
    (["train.py", "lr=1", "--config", "big/ignored.yaml"], "git ignores it"),
    (["../alone.py"], "not a git repository"),
]


@pytest.mark.parametrize(("words", "text"), WRONG, ids=[text for _, text in WRONG])
def test_wrong_input_is_an_error_and_leaves_no_files(words: list[str], text: str, call: Any, project: Path) -> None:
    (project / "own.py").write_text("from train import Mine\n\nmade = Mine('own-store')\n")
    (project.parent / "alone.py").write_text("from trainmaster import Manager\n\nclass Mine(Manager): ...\n")
    for name in ("../outside.yaml", "big/ignored.yaml"):
        (project / name).write_text("note: x\n")
    before = files_in(project)
    done = call("container", *words)
    assert (done.code, text in done.err, "Traceback" in done.err) == (2, True, False), done.err
    made = {each for each in files_in(project) - before if not each.startswith("own-store/") and "__pycache__" not in each}
    assert made == set()
