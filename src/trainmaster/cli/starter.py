"""Reads the templates of starter projects, and writes a project into a folder.

Each template is a folder of real files. All templates share the file `gitignore`. Its name has no dot, so that git does not apply it here.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from trainmaster.errors import SettingError, did_you_mean
from trainmaster.text import first_lines

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
    path = Path(folder).absolute()
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
        found = sorted(name for name in os.listdir(folder) if not name.startswith(".") or name in texts)
        if found:
            listed = "\n".join(first_lines(found, len(found), _MAX_LISTED))
            hint = "choose a new folder: `trainmaster init my_project`"
            raise SettingError(f"the folder `{folder}` is not empty, so nothing was written", found=listed, hint=hint)
