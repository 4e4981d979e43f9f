"""Reads the state of a repository and its submodules from git."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from trainmaster.config.secret_patterns import masked_value
from trainmaster.extensions.code.git import GitError, git, raw, split, text

_GITLINK: Final = "160000"
"""The mode of a submodule."""
_NO_MODE: Final = "000000"
_STATUS: Final = ("--porcelain=v2", "-z", "--branch", "--no-ahead-behind", "--no-renames", "--untracked-files=all")
_DIFF: Final = ("-p", "-M", "--no-color", "--no-ext-diff", "--no-textconv", "--irreversible-delete", "--submodule=short")
_NO_CHANGES_INSIDE: Final = "--ignore-submodules=dirty"
"""The option to ignore changes inside submodules. These changes are read from the submodules themselves."""


class Repository(NamedTuple):
    """A repository, or one of its submodules."""

    folder: str
    prefix: str
    """The path of a submodule, with a slash at the end."""
    commit: str | None
    branch: str | None
    index_copy: str


@dataclass(frozen=True)
class WorkingTree:
    """The state of the files of a repository and its submodules. All paths are relative to the root of the outermost repository."""

    repositories: list[Repository] = field(default_factory=list)
    """The outermost repository, then the submodules that are checked out."""
    tracked: list[str] = field(default_factory=list)
    """The files in the index."""
    submodules: dict[str, str | None] = field(default_factory=dict)
    """The commit of each submodule, or None for a submodule that is not checked out."""
    changed: dict[str, bool] = field(default_factory=dict)
    """Paths at which the index or the file on disk differs from the commit. The value is True if the commit contains the path."""
    untracked: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    """Submodules that git cannot read, with the reason."""


def read_working_tree(folder: str, scratch: str, until: float, prefix: str = "", outer: WorkingTree | None = None) -> WorkingTree:
    """Read the repository at `folder` and its submodules. `scratch` is a temporary folder."""
    tree = outer or WorkingTree()
    words = ("--path-format=absolute", "--show-toplevel", "--git-path", "index")
    top, index = text(git(folder, "rev-parse", *words, until=until)).split("\n")[:-1]
    if not os.path.samefile(top, folder):  # a submodule that is not checked out is a plain folder of the outer repository
        return tree
    # Git refreshes a copy of the index, because `diff-index` would otherwise print files in which only the timestamp has changed.
    copy = os.path.join(scratch, f"index-{len(tree.repositories)}")
    with contextlib.suppress(FileNotFoundError):  # the index does not exist until a file is added
        shutil.copy2(index, copy)  # keeps the timestamp of the index, by which git decides which files to read again
    variables = {"GIT_INDEX_FILE": copy, "GIT_OPTIONAL_LOCKS": "1"}
    commit = branch = None
    for line in split(git(folder, "status", *_STATUS, _NO_CHANGES_INSIDE, until=until, variables=variables)):
        kind, _, rest = line.partition(" ")
        if line.startswith("# branch.oid ") and not line.endswith(" (initial)"):
            commit = line.removeprefix("# branch.oid ")
        elif line.startswith("# branch.head ") and not line.endswith(" (detached)"):
            branch = line.removeprefix("# branch.head ")
        elif kind in ("1", "u"):  # a change, or a conflict
            *about, path = rest.split(" ", 7 if kind == "1" else 9)
            tree.changed[prefix + path] = about[2 if kind == "1" else 3] != _NO_MODE
        elif kind == "?":
            tree.untracked.append(prefix + rest)
    tree.repositories.append(Repository(folder, prefix, commit, branch, copy))
    if prefix:
        tree.submodules[prefix[:-1]] = commit
    for line in split(git(folder, "ls-files", "-z", "-s", until=until, variables=variables)):
        facts, _, path = line.partition("\t")
        if not facts.startswith(_GITLINK):
            tree.tracked.append(prefix + path)
            continue
        tree.submodules[prefix + path] = None
        try:
            if os.path.isdir(raw(f"{folder}/{path}")):
                read_working_tree(f"{folder}/{path}", scratch, until, f"{prefix}{path}/", tree)
        except GitError as error:
            tree.unreadable[f"{prefix}{path}/"] = f"this submodule cannot be read: {error}"
    return tree


def patch_of(tree: WorkingTree, without: Iterable[str], max_file_size: int, until: float) -> bytes:
    """Return the same patch as `git diff HEAD`, but leave out the paths in `without`.

    The patch comes from `git diff-index`, which ignores the user's settings for diffs.
    """
    parts = []
    excluded = [path for path in without if path in tree.changed]
    if len(excluded) > 1000:  # too many for a command line
        return f"# {len(excluded):,} of {len(tree.changed):,} changed files are left out of the snapshot, so there is no patch\n".encode()
    for each in tree.repositories:
        if each.commit is not None and tree.changed:
            paths = [f":(top,literal,exclude){path.removeprefix(each.prefix)}" for path in excluded if path.startswith(each.prefix)]
            prefixes = (f"--src-prefix=a/{each.prefix}", f"--dst-prefix=b/{each.prefix}")
            settings = (f"core.bigFileThreshold={max_file_size}",)  # larger files are shown as binary
            words = (*_DIFF, _NO_CHANGES_INSIDE, *prefixes, "HEAD", "--", ".", *paths)
            parts.append(
                git(each.folder, "diff-index", *words, until=until, settings=settings, variables={"GIT_INDEX_FILE": each.index_copy})
            )
    return b"".join(parts)


def remote_of(root: str, until: float) -> str | None:
    """Return the URL of `origin` or, if there is none, of the first remote, without credentials. Returns None if there is no remote."""
    try:
        lines = split(git(root, "config", "-z", "--get-regexp", r"^remote\..*\.url$", until=until))
    except GitError:  # there is no remote
        return None
    urls = {name: url for name, _, url in (line.partition("\n") for line in lines)}
    return without_credentials(urls.get("remote.origin.url") or next(iter(urls.values())))


def without_credentials(url: str) -> str:
    """Remove user names, passwords and tokens from a URL. The SSH user name `git` is kept.

    >>> without_credentials("https://me:pass@host.org/a.git?token=x"), without_credentials("git@host.org:a.git")
    ('https://host.org/a.git', 'git@host.org:a.git')
    >>> without_credentials("ssh://git@host.org/a.git"), without_credentials("ssh://me:pass@host.org/a.git")
    ('ssh://git@host.org/a.git', 'ssh://host.org/a.git')
    """
    if "://" in url:  # the user name may be a token, except for `git` with ssh
        url = re.sub(r"(?<=://)(?!git@)[^/]*@|[?#].*", "", url, flags=re.DOTALL)
    return masked_value("", url)
