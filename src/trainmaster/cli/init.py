"""The command `trainmaster init`.

Each template is a folder of real files. All templates share the file `gitignore`. Its name has no leading dot, so that
git does not apply it here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.console import print_line
from trainmaster.errors import SettingError, did_you_mean
from trainmaster.text import first_lines, printable

TEMPLATES = {
    "supervised": "make_loop(config) with a model, a loss and data loaders",
    "wrapper": "a ModelWrapper, for a model that computes its own loss",
    "manager": "a Manager whose epochs you write",
    "loop": "a TrainTestLoop whose components you write",
}
"""The templates, each with a short description. The default comes first."""
_TITLE = "PROJECT"
_MAX_LISTED = 10
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EEXIST)
"""Errors that the user can avoid by choosing a different folder. A full disk, for example, is not among them."""


def command(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A new or empty folder.")] = ".",
    template: Annotated[
        str,
        typer.Option(
            "--template", "-t", metavar="|".join(TEMPLATES), help="What to start with.", autocompletion=lambda: [*TEMPLATES.items()]
        ),
    ] = next(iter(TEMPLATES)),
) -> None:
    """Write a starter project that you can train at once.

    The project contains tests, a README, and a training program with a typed config and an extension. It trains on synthetic data.
    Templates: "supervised" is a function make_loop(config) with a model, a loss and data loaders; "wrapper" is a ModelWrapper, for a
    model that computes its own loss; "manager" is a Manager whose epochs you write; "loop" is a TrainTestLoop whose components you write.

    \b
    Examples:
      trainmaster init my_project
      trainmaster init my_project --template manager
    """
    if not folder or "\0" in folder:
        raise SettingError(f"{folder!r:.80} cannot be the name of a folder", hint="`trainmaster init my_project`")
    title = printable(os.path.basename(os.path.abspath(folder))) or "My project"
    texts = read_template(template, title)
    write_project(folder, texts)
    for number, name in enumerate(texts):
        print_line(f"{'wrote' if number == 0 else '':<5} {os.path.normpath(os.path.join(folder, name))}")
    enter = shlex.join(["cd", folder if not folder.startswith("-") else os.path.join(".", folder)])
    is_here = os.path.abspath(folder) == os.getcwd()
    commands = ["trainmaster run train.py", "pytest"] if is_here else [enter, "trainmaster run train.py"]
    for number, line in enumerate(commands):
        print_line(f"{'next:' if number == 0 else '':<5} {line}")


def read_template(name: str, title: str) -> dict[str, str]:
    """Return the files of a template by name. `title` becomes the heading of its README."""
    if name not in TEMPLATES:
        known = "\n".join(f"{each:<10}  {about}" for each, about in TEMPLATES.items())
        raise SettingError(f"there is no template `{name[:80]}`", known=known, hint=did_you_mean(name, TEMPLATES))
    folder = files("trainmaster.cli") / "templates"
    sources = {".gitignore": folder / "gitignore"} | {each.name: each for each in (folder / name).iterdir() if each.is_file()}
    texts = {each: source.read_text(encoding="utf-8") for each, source in sorted(sources.items())}
    return texts | {"README.md": texts["README.md"].replace(_TITLE, title, 1)}


def write_project(folder: str, texts: Mapping[str, str]) -> None:
    """Write either all files or none into a new or empty folder. The folder may already contain hidden files, such as `.git`."""
    path = Path(os.path.abspath(folder))
    created: list[Path] = []
    try:
        _refuse_content(folder, texts)
        for each in reversed([path, *path.parents]):
            if not each.is_dir():
                each.mkdir()
                created.append(each)
        for name, text in texts.items():
            with open(path / name, "x", encoding="utf-8") as file:
                created.append(path / name)
                file.write(text)
    except BaseException as error:
        for each in reversed(created):
            each.rmdir() if each.is_dir() else each.unlink()
        if isinstance(error, OSError) and error.errno in _REFUSED:
            fact = f"`{folder}` is a file" if os.path.isfile(path) else f"cannot write to `{folder}`: {error.strerror}"
            raise SettingError(f"{fact}; nothing was written", hint="choose another folder: `trainmaster init my_project`") from None
        raise


def _refuse_content(folder: str, texts: Mapping[str, str]) -> None:
    with contextlib.suppress(FileNotFoundError):
        found = sorted(name for name in os.listdir(os.path.abspath(folder)) if not name.startswith(".") or name in texts)
        if found:
            listed = "\n".join(first_lines(found, len(found), _MAX_LISTED))
            hint = "choose a new folder: `trainmaster init my_project`"
            raise SettingError(f"the folder `{folder}` is not empty, so nothing was written", found=listed, hint=hint)
