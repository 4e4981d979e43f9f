"""Reads the templates of starter projects, and writes a project into a folder.

Each template is a folder of real files. All templates share the file `gitignore`. Its name has no dot, so that git does not apply it here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

from trainmaster.errors import SettingError, did_you_mean

TEMPLATES = {
    "supervised": "make_loop(config) with a model, a loss and data loaders",
    "wrapper": "a ModelWrapper, for a model that computes its own loss",
    "manager": "a Manager whose epochs you write",
    "loop": "a TrainTestLoop whose components you write",
}
"""The templates, each with a short description. The default comes first."""
_TITLE = "PROJECT"
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EEXIST)
"""Errors that the user can avoid by choosing a different folder. A full disk, for example, is not among them."""


def read_template(name: str, title: str) -> dict[str, str]:
    """Return the files of a template by name. `title` becomes the heading of its README."""
    if name not in TEMPLATES:
        known = "\n".join(f"{each:<10}  {about}" for each, about in TEMPLATES.items())
        raise SettingError(f"there is no template `{name[:80]}`", known=known, hint=did_you_mean(name, TEMPLATES))
    folder = files("trainmaster.cli") / "templates"
    found = {each.name: _read(each) for each in sorted((folder / name).iterdir(), key=lambda each: each.name) if each.is_file()}
    found["README.md"] = found["README.md"].replace(_TITLE, title, 1)
    return {".gitignore": _read(folder / "gitignore"), **found}


def write_project(folder: str, texts: Mapping[str, str]) -> None:
    """Write either all files or none into a new or empty folder. The folder may already contain hidden files, such as `.git`."""
    _refuse_content(folder, texts)
    written: list[str] = []
    created: list[str] = []
    try:
        _create_folder(os.path.abspath(folder), created)
        for name, text in texts.items():
            path = os.path.join(folder, name)
            with open(path, "x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except BaseException as error:
        _remove(written, created)
        if isinstance(error, OSError) and error.errno in _REFUSED:
            raise _refusal(folder, error) from None
        raise


def _read(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")


def _refuse_content(folder: str, texts: Mapping[str, str]) -> None:
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise _refusal(folder, error) from None
    found = [name for name in names if not name.startswith(".") or name in texts]
    if found:
        shown = [*found[:10], *([f"... and {len(found) - 10:,} more"] if len(found) > 10 else [])]
        hint = "choose a new folder: `trainmaster init my_project`"
        raise SettingError(f"the folder `{folder}` is not empty, so nothing was written", found="\n".join(shown), hint=hint)


def _create_folder(folder: str, created: list[str]) -> None:
    """Create a folder and its missing parents, and append each new folder to `created`."""
    if not os.path.isdir(folder):
        _create_folder(os.path.dirname(folder), created)
        os.mkdir(folder)
        created.append(folder)


def _remove(written: list[str], created: list[str]) -> None:
    for path in written:
        os.unlink(path)
    for path in reversed(created):
        os.rmdir(path)


def _refusal(folder: str, error: OSError) -> SettingError:
    is_file = os.path.lexists(folder) and not os.path.isdir(folder)
    fact = f"`{folder}` is a file" if is_file else f"cannot write to `{folder}`: {error.strerror}"
    return SettingError(f"{fact}; nothing was written", hint="choose another folder: `trainmaster init my_project`")
