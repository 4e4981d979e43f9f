"""What git knows of a repository: its commit, and which files may differ from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from trainmaster.config.secret_fields import masked_value
from trainmaster.extensions.code.git import Deadline, GitFailedError, git, raw, text
from trainmaster.extensions.code.snapshot import Submodule

GITLINK: Final = "160000"
"""The mode of a submodule."""
_NOTHING: Final = "000000"
_MAX_WORDS: Final = 60_000
"""How many bytes of paths one call of git gets."""
_CONVERSIONS: Final = ("text", "eol", "crlf", "filter", "ident", "working-tree-encoding")
"""The attributes by which git writes other bytes than the commit has."""
_MAX_DEPTH: Final = 8
_PLAIN_DIFF: Final = (
    *("-p", "-M", "--no-color", "--no-ext-diff", "--no-textconv", "--irreversible-delete", "--ignore-submodules=none", "--submodule=short"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)


class Change(NamedTuple):
    """A path at which the index or the disk is not as in the commit."""

    path: str
    mode: str
    """That of the commit; zeros where the commit does not have it."""

    @property
    def is_in_commit(self) -> bool:
        return self.mode != _NOTHING


class State(NamedTuple):
    """What `git status` says."""

    commit: str | None
    branch: str | None
    changed: tuple[Change, ...]
    untracked: tuple[str, ...]
    ignored: tuple[str, ...]


class Tracked(NamedTuple):
    """A file of the index."""

    path: str
    mode: str
    blob: str
    is_skipped: bool
    """The user told git not to look at it: `assume-unchanged`, or outside of a sparse checkout."""


def state_of(root: str, deadline: Deadline) -> State:
    # Renames are a guess of git's: a file that is gone and one that is new say all.
    words = ("--porcelain=v2", "-z", "--branch", "--no-ahead-behind", "--no-renames", "--untracked-files=all", "--ignored=matching")
    commit = branch = None
    changed, untracked, ignored = [], [], []
    for line in _split(git(root, "status", *words, "--ignore-submodules=none", deadline=deadline)):
        kind, _, rest = line.partition(" ")
        if line.startswith("# branch.oid ") and not line.endswith(" (initial)"):
            commit = line.removeprefix("# branch.oid ")
        elif line.startswith("# branch.head ") and not line.endswith(" (detached)"):
            branch = line.removeprefix("# branch.head ")
        elif kind == "1":
            fields = rest.split(" ", 7)
            changed.append(Change(fields[7], fields[2]))
        elif kind == "u":
            fields = rest.split(" ", 9)
            changed.append(Change(fields[9], fields[3]))  # of our side
        elif kind == "?":
            untracked.append(rest)
        elif kind == "!":
            ignored.append(rest)
    return State(commit, branch, tuple(changed), tuple(untracked), tuple(ignored))


def tracked_in(root: str, deadline: Deadline) -> list[Tracked]:
    found = []
    for line in _split(git(root, "ls-files", "-z", "-s", "-v", deadline=deadline)):
        about, _, path = line.partition("\t")
        tag, mode, blob, _ = about.split(" ")
        found.append(Tracked(path, mode, blob, tag.islower() or tag == "S"))
    return found


def converted_in(root: str, paths: Iterable[str], deadline: Deadline) -> dict[str, str]:
    """The files that git may write with other bytes than the commit has, each with the name of its filter, if it has one."""
    given = b"".join(raw(path) + b"\0" for path in paths)
    if not given:
        return {}
    is_any_text = git(root, "config", "--default", "false", "--get", "core.autocrlf", deadline=deadline).strip() != b"false"
    words = _split(git(root, "check-attr", "-z", "--stdin", *_CONVERSIONS, deadline=deadline, given=given))
    found: dict[str, str] = {}
    for path, name, value in zip(words[::3], words[1::3], words[2::3], strict=True):
        is_set = value not in ("unspecified", "unset")
        if is_set or (name == "text" and value == "unspecified" and is_any_text):
            found[path] = value if name == "filter" else found.get(path, "")
    return found


def submodules_in(root: str, tracked: Iterable[Tracked], deadline: Deadline, above: str = "", depth: int = 0) -> Iterator[Submodule]:
    """The submodules, each before those in it."""
    for each in tracked:
        if each.mode != GITLINK or depth > _MAX_DEPTH:
            continue
        path, folder = f"{above}{each.path}", f"{root}/{each.path}"
        try:
            if git(folder, "rev-parse", "--show-prefix", deadline=deadline) != b"\n":  # it is a plain folder of the repository around it
                yield Submodule(path, None, False)
                continue
            commit = text(git(folder, "rev-parse", "HEAD", deadline=deadline).strip())
            is_dirty = bool(git(folder, "status", "--porcelain", "-z", "--untracked-files=normal", deadline=deadline))
            yield Submodule(path, commit, is_dirty)
            yield from submodules_in(folder, tracked_in(folder, deadline), deadline, f"{path}/", depth + 1)
        except GitFailedError:
            yield Submodule(path, None, False)


def patch_of(root: str, paths: Sequence[str], without: Sequence[str], max_file_size: int, deadline: Deadline) -> bytes:
    """What `git diff HEAD` says of some paths. Plumbing is used: it knows none of the user's settings, and leaves the index alone."""
    parts = []
    for some in _chunks(paths):
        words = [*(f":(top,literal){path}" for path in some), *(f":(top,literal,exclude){path}" for path in without)]
        settings = [f"core.bigFileThreshold={max_file_size}"]  # what is larger is told as binary
        parts.append(git(root, "diff-index", *_PLAIN_DIFF, "HEAD", "--", *words, deadline=deadline, settings=settings))
    return b"".join(parts)


def _chunks(paths: Sequence[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for path in paths:
        size += len(path) + 16
        if chunk and size > _MAX_WORDS:
            yield chunk
            chunk, size = [], 0
        chunk.append(path)
    if chunk:
        yield chunk


def remote_of(root: str, deadline: Deadline) -> str | None:
    """The address of `origin`, or of the first remote, without a password."""
    try:
        lines = _split(git(root, "config", "-z", "--get-regexp", r"^remote\..*\.url$", deadline=deadline))
    except GitFailedError:  # there is none
        return None
    addresses = {name: address for name, _, address in (line.partition("\n") for line in lines)}
    return without_password(addresses.get("remote.origin.url") or next(iter(addresses.values())))


def without_password(address: str) -> str:
    """
    >>> without_password("https://me:pass@host.org/a.git?token=x"), without_password("git@host.org:a.git")
    ('https://host.org/a.git', 'git@host.org:a.git')
    """
    if "://" not in address:
        return masked_value("", address)
    try:
        parts = urlsplit(address)
    except ValueError:
        return address.partition("://")[0] + "://..."
    user, at, host = parts.netloc.rpartition("@")
    is_plain_user = parts.scheme in ("ssh", "git+ssh") and at and ":" not in user  # in https a user may be a token
    return masked_value("", urlunsplit((parts.scheme, f"{user}@{host}" if is_plain_user else host, parts.path, "", "")))


def subject_of(root: str, commit: str, deadline: Deadline) -> str:
    """The first line of a commit's message."""
    said = git(root, "rev-list", "--max-count=1", "--format=%s", commit, "--", deadline=deadline)
    return said.decode("utf-8", "replace").partition("\n")[2].rstrip("\n")


def _split(data: bytes) -> list[str]:
    return text(data).split("\0")[:-1]
