"""Writes the build context of a container image, with a Dockerfile, a list of pinned packages, and the code with uncommitted changes."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Final

import trainmaster
from trainmaster.errors import SettingError
from trainmaster.extensions.code.capture import Limits, capture
from trainmaster.extensions.code.checkout import checkout_code
from trainmaster.extensions.code.git import GitError, repository_of
from trainmaster.extensions.code.snapshot import write_snapshot
from trainmaster.extensions.environment_facts import list_packages
from trainmaster.store.store import ABOUT, ARCHIVES
from trainmaster.sweep.container_files import APP, apptainer_script, compose_file, dockerfile, dockerignore
from trainmaster.sweep.requirements import Requirements, find_requirements
from trainmaster.sweep.sweep_command import SweepCommand, job_name

_LIMITS: Final = Limits(max_file_size=5_000_000, max_total_size=100_000_000)
_SOURCE_FILES: Final = ("pyproject.toml", "README.md", "LICENSE", "src")
"""The files that are needed to install trainmaster from a checkout."""


@dataclass(frozen=True)
class Context:
    """A build context that was written to a folder."""

    folder: str
    name: str
    commit: str | None
    is_dirty: bool
    packages: Mapping[str, str]
    left_out: tuple[str, ...]
    """Files in the repository that are left out of the image, each with the reason."""
    warnings: tuple[str, ...]


def write_context(folder: str, file: str, sweep: SweepCommand, num_workers: int, secrets: Sequence[str], outputs: Sequence[str]) -> Context:
    """Write the build context to a new or empty folder. If anything fails, no files are left behind.

    Args:
        file: the source file that defines the loop or manager to train.
        sweep: the command to run in the container. The files that it names must be in the code's repository.
        secrets: values that must not appear in any file of the context.
        outputs: folders that training writes to.
    """
    try:
        root = os.path.realpath(repository_of(os.path.dirname(file)))
    except GitError as error:
        raise SettingError("the code cannot be captured", why=str(error), hint="put it into a git repository: `git init`") from None
    parent = os.path.dirname(folder)
    if not os.path.isdir(parent):
        raise SettingError(f"there is no folder `{parent}`", hint="create it first")
    temporary = tempfile.mkdtemp(prefix=f".{os.path.basename(folder)[:100]}.", suffix=".tmp", dir=parent)
    try:
        context = _write(os.path.join(temporary, "context"), root, sweep, num_workers, secrets, [*outputs, folder, temporary])
        os.rename(context.folder, folder)
    except GitError as error:
        raise SettingError("the code cannot be captured", why=str(error)) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return replace(context, folder=folder)


def _write(folder: str, root: str, sweep: SweepCommand, num_workers: int, secrets: Sequence[str], outputs: Sequence[str]) -> Context:
    os.mkdir(folder)
    name = re.sub(r"[^a-z0-9]+", "-", f"trainmaster-{job_name(sweep.target).lower()}").rstrip("-")
    captured = capture(root, _LIMITS, secrets, outputs)
    code = os.path.join(folder, "code")
    with tempfile.TemporaryDirectory(prefix="trainmaster-code-") as scratch:
        restored = checkout_code(write_snapshot(captured, scratch), code)
    shutil.rmtree(os.path.join(code, ".git"))
    _remove_bytecode(code)
    left_out = [*restored.missing, *_remove_stores(code)]
    inside = _Image(root, code)
    moved = SweepCommand(inside.move_target(sweep.target), inside.move_files(sweep.choices), inside.move_files(sweep.options))
    needed = find_requirements(root)
    extras = ("ray", *needed.extras)
    source = _source_of_trainmaster()
    if source is not None:
        _copy_source(source, os.path.join(folder, "trainmaster"))
    at = inside.move_folder(os.getcwd())
    texts = {
        "Dockerfile": dockerfile(moved, name, platform.python_version(), at, inside.import_path(), extras, source is not None),
        ".dockerignore": dockerignore(),
        ".gitignore": "*\n",
        "requirements.txt": _requirements_text(needed, extras, source is not None),
        "constraints.txt": "".join(
            f"{package}=={version}\n" for package, version in needed.constraints.items() if package != "trainmaster"
        ),
        "compose.yaml": compose_file(moved, name, num_workers),
        "slurm.sh": apptainer_script(moved, name, num_workers, at),
    }
    for file, text in texts.items():
        with open(os.path.join(folder, file), "x", encoding="utf-8") as stream:
            stream.write(text)
    snapshot = captured.snapshot
    return Context(folder, name, snapshot.commit, snapshot.is_dirty, needed.packages, tuple(left_out), tuple(_warnings(needed, source)))


class _Image:
    """Translates paths on this machine to paths in the image."""

    def __init__(self, root: str, code: str) -> None:
        self._root, self._code = root, code

    def _move(self, path: str) -> str | None:
        relative = os.path.relpath(os.path.realpath(path), self._root)
        if relative.startswith(".."):
            return None
        return APP if relative == "." else f"{APP}/{relative}"

    def move_file(self, path: str) -> str:
        moved = self._move(path)
        if moved is None or not os.path.isfile(os.path.join(self._code, os.path.relpath(os.path.realpath(path), self._root))):
            why = "git ignores it, or it looks like a secret" if moved is not None else "it is outside the code's repository"
            raise SettingError(f"`{path}` is not in the image", why=why, hint=f"move it into {self._root}, and see `git status`")
        return moved

    def move_folder(self, path: str) -> str:
        """Return the path of a folder in the image, or the root of the code if the image does not contain the folder."""
        moved = self._move(path)
        is_there = moved is not None and os.path.isdir(self._code + moved.removeprefix(APP))
        return moved if moved is not None and is_there else APP

    def move_target(self, text: str) -> str:
        module, colon, name = text.rpartition(":") if ":" in text else (text, "", "")
        return f"{self.move_file(module)}{colon}{name}" if os.path.isabs(module) else text

    def move_files(self, words: Sequence[str]) -> tuple[str, ...]:
        """Translate the command-line words that are absolute paths of files. Return the other words unchanged."""
        return tuple(self.move_file(word) if os.path.isabs(word) else word for word in words)

    def import_path(self) -> list[str]:
        """Return the folders in the image from which the code's modules are imported, such as `src`."""
        folders = {moved: None for each in sys.path if each and os.path.isdir(each) and (moved := self._move(each)) is not None}
        return [each for each in folders if os.path.isdir(self._code + each.removeprefix(APP))] or [APP]


def _remove_bytecode(code: str) -> None:
    """Remove `__pycache__` folders, because many repositories do not ignore them."""
    for parent, folders, _ in os.walk(code):
        if "__pycache__" in folders:
            shutil.rmtree(os.path.join(parent, "__pycache__"))
            folders.remove("__pycache__")


def _remove_stores(code: str) -> Iterator[str]:
    """Remove trainmaster stores that were committed to the repository, and yield their names."""
    for parent, folders, files in os.walk(code):
        if ABOUT in files and {*ARCHIVES} & {*folders} and _is_about(os.path.join(parent, ABOUT)):
            yield f"{os.path.relpath(parent, code)}/ (it is a store)"
            for each in {*ARCHIVES, "sweeps", "tags", "notes", "index"} & {*folders}:
                shutil.rmtree(os.path.join(parent, each))
                folders.remove(each)
            os.remove(os.path.join(parent, ABOUT))


def _is_about(path: str) -> bool:
    """Return whether a file is the `store.json` of a store, and not a different program's file with the same name."""
    try:
        with open(path, "rb") as file:
            about = json.load(file)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(about, dict) and type(about.get("format")) is int


def _source_of_trainmaster() -> str | None:
    """Return the checkout that trainmaster runs from, or None if it was installed as a package."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(trainmaster.__file__))))
    return root if all(os.path.exists(os.path.join(root, each)) for each in _SOURCE_FILES) else None


def _copy_source(source: str, folder: str) -> None:
    os.mkdir(folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc")
    for each in _SOURCE_FILES:
        path, target = os.path.join(source, each), os.path.join(folder, each)
        if os.path.isdir(path):
            shutil.copytree(path, target, ignore=ignored)
        else:
            shutil.copyfile(path, target)


def _requirements_text(needed: Requirements, extras: Sequence[str], is_source: bool) -> str:
    lines = [f"{package}=={version}" for package, version in needed.packages.items()]
    if not is_source:
        lines.insert(0, f"trainmaster[{','.join(extras)}]=={metadata.version('trainmaster')}")
    return "".join(f"{line}\n" for line in lines)


def _warnings(needed: Requirements, source: str | None) -> Iterator[str]:
    for package, origin in needed.from_elsewhere.items():
        yield f"{package} was installed from {origin}; the image takes the same version from the package index"
    if "ray" not in {each.lower() for each in needed.constraints}:
        yield "Ray is not installed here, so its version is not pinned"
    local = [f"{package}=={version}" for package, version in needed.packages.items() if "+" in version]
    if local:
        yield f"{', '.join(local)} is not on the default index; specify its index with --build-arg PIP_EXTRA_INDEX_URL=..."
    if source is None and "(" in list_packages().get("trainmaster", ""):
        yield "trainmaster was not installed from an index; the image takes the same version from the index"
