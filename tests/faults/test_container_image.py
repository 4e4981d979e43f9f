"""Builds and runs the image from `trainmaster container` with buildah: a run is killed and resumed in a mounted store.

debootstrap creates the base image, so no registry is needed. Pip uses the settings of this machine to reach the package
index. The tests take minutes, need the network and 3 GB of disk, and run as root with `TRAINMASTER_FAULTS=full`.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_training as tiny
from campaign import IS_FULL

from trainmaster.store import Store

CANARY = "canary-5d0e77a1c4"
TRAIN = """
import time

import torch
from torch import nn

from trainmaster import Supervised

defaults = {"lr": 0.01, "epochs": 12}

def make_loop(config):
    x = torch.linspace(-2, 2, 64).unsqueeze(1)
    batches = [(each, torch.sin(2 * each)) for each in x.split(16)]

    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.1), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, inputs):
            time.sleep(0.05)
            return self.layers(inputs)

    optimizer = lambda parameters: torch.optim.Adam(parameters, lr=config.lr)
    return Supervised(Slow(), nn.MSELoss(), config.epochs, batches, {"valid": batches}, optimizer=optimizer)
"""


def why_not() -> str:
    if not IS_FULL:
        return "it builds an image, which takes minutes: TRAINMASTER_FAULTS=full"
    if os.geteuid() != 0:
        return "debootstrap and buildah's chroot isolation need root"
    missing = [name for name in ("buildah", "debootstrap", "git") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not installed" if missing else ""


pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600), pytest.mark.skipif(bool(why_not()), reason=why_not())]


class Buildah:
    """Runs buildah with its own storage and without a daemon."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.words = ["buildah", "--storage-driver", "vfs", "--root", f"{folder}/storage", "--runroot", f"{folder}/runroot"]

    def __call__(self, *words: object) -> str:
        ran = subprocess.run([*self.words, *map(str, words)], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"buildah {shlex.join(map(str, words))}\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}"
        return ran.stdout.strip()


@pytest.fixture(scope="module")
def buildah() -> Iterator[Buildah]:
    folder = Path(tempfile.mkdtemp(prefix="trainmaster-image-", dir="/var/tmp"))
    try:
        yield Buildah(folder)
    finally:
        subprocess.run([*Buildah(folder).words, "umount", "--all"], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def base(buildah: Buildah) -> str:
    """A Debian image with the Python version that runs these tests, because the packages are pinned for it."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    suite, system = release.get("VERSION_CODENAME", "").strip('"'), buildah.folder / "system"
    packages = "--include=python3,python3-venv,ca-certificates"
    ran = subprocess.run(["debootstrap", "--variant=minbase", packages, suite, system], capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip(f"debootstrap {suite} failed: {ran.stdout[-300:]}")
    python = os.path.basename(os.readlink(system / "usr/bin/python3"))
    if python != f"python{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip(f"the base has {python}, and this is Python {sys.version_info.major}.{sys.version_info.minor}")
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, system, "/")
    buildah("commit", "--quiet", container, "localhost/base")
    buildah("rm", container)
    shutil.rmtree(system)
    return "localhost/base"


def pip_settings(folder: Path) -> list[str]:
    """Return options for `buildah bud` that pass on pip's configuration file and the folders it refers to."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True).stdout
    pairs = [line.split("=", 1) for line in listed.splitlines() if "=" in line]
    settings = {key.rpartition(".")[2]: str(ast.literal_eval(value)) for key, value in pairs}
    (folder / "pip.conf").write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
    paths = {word.removeprefix("file://") for value in settings.values() for word in value.split()}
    roots = {
        path if os.path.isfile(path) else path.removesuffix("/simple") for path in paths if path.startswith("/") and os.path.exists(path)
    }
    mounts = {f"{folder}/pip.conf": "/etc/pip.conf", **{root: root for root in roots}}
    return [word for source, target in mounts.items() for word in ("--volume", f"{source}:{target}:ro")]


@pytest.fixture(scope="module")
def image(buildah: Buildah, base: str) -> str:
    """Build the image from a repository with uncommitted changes, secrets and a store."""
    project = buildah.folder / "project"
    project.mkdir()
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@lab"]
    (project / "train.py").write_text(TRAIN.replace("0.01", "0.5"))
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True, cwd=project)
    (project / "train.py").write_text(TRAIN)
    (project / ".env").write_text(CANARY)
    Store(project / "runs").configs.add({"note": CANARY})
    words = [sys.executable, "-m", "trainmaster", "container", "train.py", "lr=0.01", "-o", "image"]
    subprocess.run(words, check=True, cwd=project)
    for name in ("code/.env", "code/deploy.pem", "runs/store.json", "token", "code/.git/config"):  # added to the folder afterwards
        (project / "image" / name).parent.mkdir(exist_ok=True)
        (project / "image" / name).write_text(CANARY)
    options = ["--isolation", "chroot", "--pull-never", "--build-arg", f"BASE={base}", *pip_settings(buildah.folder)]
    buildah("bud", *options, "--tag", "localhost/train", project / "image")
    return "localhost/train"


@pytest.fixture(scope="module")
def container(buildah: Buildah, image: str) -> str:
    return buildah("from", "--pull-never", image)


class Run:
    """Runs the image like `docker run`, with its entry point and command."""

    def __init__(self, buildah: Buildah, container: str, image: str, store: Path, user: int = 1000) -> None:
        about = json.loads(buildah("inspect", "--type", "image", image))["Docker"]["config"]
        options = ["--isolation", "chroot", "--user", str(user), "--volume", f"{store}:/store"]
        self.log = buildah.folder / f"run-{time.monotonic_ns()}.log"
        words = [*buildah.words, "run", *options, container, "--", *about["Entrypoint"], *about["Cmd"]]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)

    @property
    def out(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self) -> int:
        return self.process.wait(900)

    def workers(self) -> list[int]:
        """Return the Python processes in this container, which descend from the buildah process of this test."""
        parents, names = {}, {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                names[int(path.name)] = (path / "cmdline").read_bytes()
        found, waiting = [], [self.process.pid]
        while waiting:
            pid = waiting.pop()
            waiting += [child for child, parent in parents.items() if parent == pid]
            found += [pid] if names.get(pid, b"").startswith(b"/venv/bin/python") else []
        return found

    def kill(self) -> None:
        for pid in self.workers():
            os.kill(pid, signal.SIGKILL)


def make_store(folder: Path, user: int = 1000) -> Path:
    folder.mkdir()
    os.chown(folder, user, user)
    return folder


def until_epoch(run: Run, epoch: int) -> None:
    """Wait until a run prints that an epoch is done.

    The store is not read, because reading it as root could create folders that root owns.
    """

    def is_so() -> bool:
        assert run.process.poll() is None, run.out
        return f"epoch {epoch} of 12" in run.out

    tiny.until(is_so, f"epoch {epoch}", 300.0)


def test_the_container_trains_into_a_mounted_store_and_resumes_after_a_kill(buildah: Buildah, container: str, image: str) -> None:
    whole, killed = make_store(buildah.folder / "whole"), make_store(buildah.folder / "killed")
    undisturbed = Run(buildah, container, image, whole)
    assert undisturbed.wait() == 0, undisturbed.out
    first = Run(buildah, container, image, killed)
    until_epoch(first, 3)
    first.kill()
    assert first.wait() != 0
    second = Run(buildah, container, image, killed)
    until_epoch(second, 6)
    for pid in second.workers():
        os.kill(pid, signal.SIGTERM)  # the signal that `docker stop` sends
    assert second.wait() == 143, second.out
    assert re.search(r"resumes from epoch [2-9]", second.out), second.out
    third = Run(buildah, container, image, killed)
    assert third.wait() == 0, third.out
    assert tiny.result_of(killed) == tiny.result_of(whole)
    store = Store(killed)
    (key,) = store.configs
    assert len(store.run(key).attempts()) == 3
    assert list(store.verify()) == []
    owners = {path.stat().st_uid for path in killed.rglob("*")}
    assert owners == {1000}


def test_the_image_runs_as_any_user(buildah: Buildah, container: str, image: str) -> None:
    store = make_store(buildah.folder / "other", 4321)
    run = Run(buildah, container, image, store, user=4321)
    assert run.wait() == 0, run.out
    assert "warning" not in run.out.lower(), run.out


def test_the_image_has_the_code_without_secrets_git_and_stores(buildah: Buildah, container: str) -> None:
    root = Path(buildah("mount", container))
    try:
        assert (root / "app" / "train.py").read_text() == TRAIN
        assert sorted(path.name for path in (root / "app").iterdir()) == ["train.py"]
        assert sorted(path.name for path in (root / "build").iterdir()) == ["constraints.txt", "requirements.txt", "trainmaster"]
        for folder in ("app", "build", "home", "store"):
            for path in (root / folder).rglob("*"):
                assert path.name not in (".git", ".env", "token"), path
                assert not path.is_file() or CANARY.encode() not in path.read_bytes(), path
        assert (root / "venv" / "bin" / "ray").exists()
    finally:
        buildah("umount", container)


def test_the_pinned_versions_are_those_installed_here(buildah: Buildah, container: str) -> None:
    """Packages that are installed in both places must have the same versions, so that both compute the same numbers."""
    words = ["run", "--isolation", "chroot", container, "--", "pip", "list", "--format=json", "--disable-pip-version-check"]
    there: dict[str, Any] = {each["name"]: each["version"] for each in json.loads(buildah(*words).splitlines()[-1])}
    ours = subprocess.run([sys.executable, "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=True).stdout
    here = {each["name"]: each["version"] for each in json.loads(ours.splitlines()[-1])}
    assert {"torch", "numpy", "ray", "trainmaster"} <= {*there}
    both = {*there} & {*here} - {"pip", "setuptools"}
    assert {name: there[name] for name in both} == {name: here[name] for name in both}
