"""Compares the files of two snapshots with git.

A snapshot may come from an untrusted source. Git reads both bundles in a temporary repository and checks out no files.
Programs, settings and git attributes in a snapshot do not affect the result.
"""

from __future__ import annotations

import os
import tempfile
from typing import Final

from trainmaster.extensions.code.git import GitError, deadline, git
from trainmaster.extensions.code.snapshot import fetch_bundle

_OPTIONS: Final = (
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--no-renames",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--submodule=short",
)
_SETTINGS: Final = ("core.bigFileThreshold=5m",)
"""With this setting, git treats files above 5 MiB as binary and does not unpack them into memory."""


def diff_bundles(bundles: tuple[bytes, bytes], trees: tuple[str, str], limit: int) -> bytes:
    """Return the first `limit` bytes of a patch that turns the files of the first bundle into those of the second one.

    Raises `GitError` if git fails, or if a bundle does not contain the git tree that its snapshot records.
    """
    until = deadline()
    with tempfile.TemporaryDirectory(prefix="trainmaster-diff-") as folder:
        git(folder, "init", "--quiet", "--bare", "--template=", "--object-format=sha1", until=until)
        for name, bundle, tree in zip("ab", bundles, trees, strict=True):
            path = os.path.join(folder, f"{name}.bundle")
            with open(path, "xb") as file:
                file.write(bundle)
            if fetch_bundle(folder, path, f"refs/heads/{name}", until, _SETTINGS) != tree:
                raise GitError("the files of a snapshot differ from those that it describes")
        patch = os.path.join(folder, "patch")
        git(folder, "diff", *_OPTIONS, f"--output={patch}", "refs/heads/a", "refs/heads/b", until=until, settings=_SETTINGS)
        with open(patch, "rb") as file:
            return file.read(limit)
