"""A snapshot of a repository, and the tree that is made of it again: byte for byte, and nowhere else."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from trainmaster.errors import SettingError, StoreDamagedError, StoreFormatError, TrainmasterError
from trainmaster.extensions.code.checkout import checkout_code
from trainmaster.extensions.code.snapshot import ARCHIVE, FACTS, PATCH, Contents, KeptFile, Snapshot, archive_of, read, write
from trainmaster.extensions.code.take import Limits, take
from trainmaster.store.record import record_bytes

Files = dict[bytes, tuple[str, bytes]]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The settings of whoever runs the tests change nothing."""
    for name, value in {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)


def git(folder: Path, *words: str | bytes) -> bytes:
    command: list[str | bytes] = ["git", "-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout


def commit(folder: Path, message: str = "one") -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD").decode().strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "lab"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    return folder


def tree_of(folder: Path) -> Files:
    """Every file below a folder: whether it is a link or a program, and its bytes or where it leads. Without those of git."""
    found: Files = {}
    root = os.fsencode(folder)
    for place, folders, names in os.walk(root):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        folders[:] = [name for name in folders if name != b".git" and name not in links]
        for name in [*names, *links]:
            path = os.path.join(place, name)
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                found[os.path.relpath(path, root)] = ("link", os.readlink(path))
            elif name != b".git":
                with open(path, "rb") as file:
                    found[os.path.relpath(path, root)] = ("program" if status.st_mode & 0o100 else "file", file.read())
    return found


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def kept(repo: Path, limits: Limits | None = None, **more: Any) -> Path:
    """A snapshot of a repository, written beside it."""
    return Path(write(take(str(repo), limits or Limits(), **more), str(repo.parent / "code")))


def restored(repo: Path, name: str = "then", **more: Any) -> Files:
    """The tree that is restored of a snapshot of a repository."""
    done = checkout_code(kept(repo, **more), repo.parent / name)
    assert done.is_exact, done.missing
    return tree_of(repo.parent / name)


# ---- the tree is the same


def write_all(repo: Path) -> None:
    """Files of every kind, committed, and then changed in every way."""
    for name in ("same.py", "modified.py", "staged.py", "both.py", "gone.py", "gone_staged.py", "old_name.py", "cached.py", "mode.sh"):
        (repo / name).write_text(f"# {name}\nx = 1\n")
    (repo / "binary.bin").write_bytes(bytes(range(256)))
    (repo / "empty.py").touch()
    (repo / "filled.py").touch()
    (repo / "no_newline.py").write_bytes(b"x = 1")
    (repo / "crlf.txt").write_bytes(b"a\r\nb\r\n")
    (repo / "deep" / "er").mkdir(parents=True)
    (repo / "deep" / "er" / "x.py").write_text("x\n")
    (repo / "program.sh").write_text("#!/bin/sh\n")
    (repo / "program.sh").chmod(0o755)
    (repo / "link").symlink_to("same.py")
    (repo / "dangling").symlink_to("nowhere/at/all")
    (repo / "link_to_file").symlink_to("same.py")
    (repo / "file_to_link").write_text("same.py")
    (repo / "link_to_folder").symlink_to("deep")
    (repo / "file_to_folder").write_text("x")
    (repo / "folder_to_file").mkdir()
    (repo / "folder_to_file" / "x.py").write_text("x")
    (repo / "folder_to_link").mkdir()
    (repo / "folder_to_link" / "x.py").write_text("x")
    (repo / "reverted.py").write_text("1\n")
    (repo / "with space 'and\" quotes.py").write_text("1\n")
    (repo / "with\nnewline\ttab.py").write_text("1\n")
    (repo / "grün.py").write_text("1\n")
    Path(os.fsdecode(os.fsencode(repo) + b"/latin-\xe9.py")).write_text("1\n")
    (repo / ".gitignore").write_text("*.log\nignored/\n")
    commit(repo)
    (repo / "modified.py").write_text("x = 2\n")
    (repo / "staged.py").write_text("x = 2\n")
    (repo / "both.py").write_text("x = 2\n")
    (repo / "reverted.py").write_text("2\n")
    (repo / "staged_new.txt").write_text("new\n")
    git(repo, "add", "staged.py", "both.py", "reverted.py", "staged_new.txt")
    (repo / "both.py").write_text("x = 3\n")
    (repo / "reverted.py").write_text("1\n")
    (repo / "gone.py").unlink()
    git(repo, "rm", "-q", "gone_staged.py")
    git(repo, "mv", "old_name.py", "new_name.py")
    git(repo, "rm", "-q", "--cached", "cached.py")
    (repo / "mode.sh").chmod(0o755)
    (repo / "program.sh").chmod(0o644)
    (repo / "binary.bin").write_bytes(bytes(range(255, -1, -1)))
    (repo / "filled.py").write_text("full")
    (repo / "no_newline.py").write_bytes(b"x = 2")
    (repo / "crlf.txt").write_bytes(b"a\r\nb\r\nc\n")
    (repo / "deep" / "er" / "x.py").write_text("y\n")
    (repo / "deep" / "new.py").write_text("new\n")
    (repo / "empty_new.py").touch()
    (repo / "new_link").symlink_to("/somewhere/else")
    (repo / "link_to_file").unlink()
    (repo / "link_to_file").write_text("x")
    (repo / "file_to_link").unlink()
    (repo / "file_to_link").symlink_to("deep")
    (repo / "link_to_folder").unlink()
    (repo / "link_to_folder").mkdir()
    (repo / "link_to_folder" / "x.py").write_text("inside")
    (repo / "file_to_folder").unlink()
    (repo / "file_to_folder").mkdir()
    (repo / "file_to_folder" / "x.py").write_text("inside")
    shutil.rmtree(repo / "folder_to_file")
    (repo / "folder_to_file").write_text("#!/bin/sh\n")
    shutil.rmtree(repo / "folder_to_link")
    (repo / "folder_to_link").symlink_to("deep/er")
    (repo / "with space 'and\" quotes.py").write_text("2\n")
    (repo / "with\nnewline\ttab.py").write_text("2\n")
    (repo / "grün.py").write_text("2\n")
    for name in (b"/latin-\xe9.py", b"/new-\xff\n.py"):
        Path(os.fsdecode(os.fsencode(repo) + name)).write_text("2\n")


def test_the_restored_tree_is_the_original_byte_for_byte(repo: Path) -> None:
    write_all(repo)
    assert restored(repo) == tree_of(repo)


def test_a_clean_tree_is_restored_without_any_file_kept(repo: Path) -> None:
    (repo / "a.py").write_text("1\n")
    head = commit(repo)
    folder = kept(repo)
    snapshot = read(str(folder))
    assert (snapshot.is_dirty, snapshot.files, folder.name) == (False, (), f"{head[:12]}-clean")
    assert restored(repo) == tree_of(repo)
    assert git(repo.parent / "then", "rev-parse", "HEAD").decode().strip() == head


@pytest.mark.parametrize(
    ("autocrlf", "attributes"),
    [
        ("true", ""),
        ("input", ""),
        ("false", ""),
        ("true", "*.txt text eol=lf\n"),
        ("false", "* text=auto\n"),
        ("false", "*.txt text eol=crlf\n"),
    ],
)
def test_line_endings_are_as_they_were_whatever_git_made_of_them(repo: Path, autocrlf: str, attributes: str) -> None:
    git(repo, "config", "core.autocrlf", autocrlf)
    (repo / ".gitattributes").write_text(attributes)
    (repo / "crlf.txt").write_bytes(b"a\r\nb\r\n")
    (repo / "lf.txt").write_bytes(b"a\nb\n")
    (repo / "changed.txt").write_bytes(b"a\r\n")
    commit(repo)
    (repo / "changed.txt").write_bytes(b"a\r\nb\r\n")
    assert restored(repo) == tree_of(repo)


def test_what_a_filter_writes_and_flags_hide_is_restored(repo: Path) -> None:
    git(repo, "config", "filter.upper.clean", "tr A-Z a-z")
    git(repo, "config", "filter.upper.smudge", "tr a-z A-Z")
    (repo / ".gitattributes").write_text("*.up filter=upper\nid.py ident\n")
    (repo / "x.up").write_text("LOUD\n")
    (repo / "id.py").write_text("# $Id$\n")
    for name in ("assumed.py", "skipped.py", "sparse.py"):
        (repo / name).write_text("1\n")
    commit(repo)
    (repo / "id.py").unlink()
    git(repo, "checkout", "-q", "id.py")
    assert b"$Id: " in (repo / "id.py").read_bytes()
    git(repo, "update-index", "--assume-unchanged", "assumed.py")
    git(repo, "update-index", "--skip-worktree", "skipped.py", "sparse.py")
    (repo / "assumed.py").write_text("2\n")
    (repo / "skipped.py").write_text("2\n")
    (repo / "sparse.py").unlink()
    assert git(repo, "status", "--porcelain") == b""
    assert restored(repo) == tree_of(repo)
    assert read(str(kept(repo))).is_dirty


def test_modes_that_git_does_not_look_at_are_restored(repo: Path) -> None:
    git(repo, "config", "core.fileMode", "false")
    (repo / "a.sh").write_text("1\n")
    commit(repo)
    (repo / "a.sh").chmod(0o755)
    assert restored(repo) == tree_of(repo)


def test_a_conflict_in_a_merge_is_restored(repo: Path) -> None:
    (repo / "a.py").write_text("1\n")
    commit(repo)
    git(repo, "checkout", "-q", "-b", "other")
    (repo / "a.py").write_text("2\n")
    commit(repo)
    git(repo, "checkout", "-q", "main")
    (repo / "a.py").write_text("3\n")
    commit(repo)
    with pytest.raises(subprocess.CalledProcessError):
        git(repo, "merge", "other")
    assert b"<<<<<<<" in (repo / "a.py").read_bytes()
    assert restored(repo) == tree_of(repo)


def test_a_repository_without_a_commit_is_restored(repo: Path) -> None:
    (repo / "a.py").write_text("1\n")
    (repo / "staged.bin").write_bytes(b"\0")
    git(repo, "add", "staged.bin")
    assert restored(repo) == tree_of(repo)


def test_a_commit_that_no_branch_has_any_more_is_restored(repo: Path) -> None:
    (repo / "a.py").write_text("1\n")
    commit(repo)
    folder, wanted = kept(repo), tree_of(repo)
    (repo / "a.py").write_text("2\n")
    git(repo, "commit", "-q", "-a", "--amend", "-m", "other")
    assert checkout_code(folder, repo.parent / "then").is_exact
    assert tree_of(repo.parent / "then") == wanted


def test_a_linked_worktree_is_restored(repo: Path) -> None:
    (repo / "a.py").write_text("1\n")
    commit(repo)
    git(repo, "worktree", "add", "-q", "--detach", "../beside")
    (repo.parent / "beside" / "a.py").write_text("2\n")
    assert restored(repo.parent / "beside") == tree_of(repo.parent / "beside")


NAMES = ["a.py", "b.yaml", "d/a.py", "d/b.py", "d", "e é.py"]
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["write", "delete", "stage", "stage all", "link", "mode", "cached", "rename"]),
        st.sampled_from(NAMES),
        st.sampled_from([b"", b"x\n", b"x\r\ny", b"y\n"]),
    ),
    max_size=12,
)


def act(repo: Path, operation: str, name: str, data: bytes) -> None:
    path = repo / name
    if operation in ("write", "link"):
        for parent in reversed(path.relative_to(repo).parents[:-1]):
            if (repo / parent).is_symlink() or (repo / parent).is_file():
                (repo / parent).unlink()
        path.parent.mkdir(exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        if operation == "write":
            path.write_bytes(b"#!\n" + data if name == "d" else data)  # without an ending it is a script
        else:
            path.symlink_to("b.yaml" if data else "nowhere")
    elif operation == "delete" and (path.is_symlink() or path.is_file()):
        path.unlink()
    elif operation == "mode" and path.is_file() and not path.is_symlink():
        path.chmod(0o755)
    elif operation == "rename" and path.is_file() and not path.is_symlink():
        path.rename(repo / "renamed.py")
    elif operation == "stage" and (path.is_symlink() or path.exists()) and not path.parent.is_symlink():
        git(repo, "add", "--", name)
    elif operation == "stage all":
        git(repo, "add", "-A")
    elif operation == "cached":
        git(repo, "rm", "-q", "-r", "-f", "--cached", "--ignore-unmatch", "--", name)


@example(before=[("write", "d/a.py", b""), ("link", "b.yaml", b"x\n")], after=[("link", "d", b"x\n")])  # a link to a link to itself
@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(before=OPERATIONS, after=OPERATIONS)
def test_after_any_operations_the_restored_tree_is_the_original(
    tmp_path_factory: pytest.TempPathFactory, before: list[Any], after: list[Any]
) -> None:
    repo = tmp_path_factory.mktemp("any") / "lab"
    repo.mkdir()
    git(repo, "init", "-q")
    for each in before:
        act(repo, *each)
    commit(repo)
    for each in after:
        act(repo, *each)
    assert restored(repo) == tree_of(repo)


# ---- submodules


@pytest.fixture
def with_submodule(repo: Path, tmp_path: Path) -> Path:
    part = tmp_path / "part"
    part.mkdir()
    git(part, "init", "-q")
    (part / "p.py").write_text("1\n")
    commit(part)
    git(repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(part), "libs/part")
    commit(repo)
    return repo


def test_a_submodule_is_restored_from_the_repository_at_hand(with_submodule: Path) -> None:
    (with_submodule / "libs" / "part" / "p.py").write_text("2\n")
    commit(with_submodule / "libs" / "part")  # ahead of what the repository around it says
    snapshot = read(str(kept(with_submodule)))
    head = git(with_submodule / "libs" / "part", "rev-parse", "HEAD").decode().strip()
    assert [tuple(each) for each in snapshot.submodules] == [("libs/part", head, False)]
    assert restored(with_submodule) == tree_of(with_submodule)


def test_a_submodule_with_changes_or_without_its_commit_is_told(with_submodule: Path) -> None:
    (with_submodule / "libs" / "part" / "p.py").write_text("2\n")
    folder = kept(with_submodule)
    assert checkout_code(folder, with_submodule.parent / "then").missing == ("libs/part/ (the submodule had changes, which are not kept)",)
    shutil.rmtree(with_submodule / "libs" / "part")
    head = read(str(folder)).submodules[0].commit or ""
    assert checkout_code(folder, with_submodule.parent / "later").missing == (
        f"libs/part/ (the submodule's commit {head[:12]} is not at hand: `git submodule update --init` may fetch it)",
    )


def test_a_submodule_that_is_not_there_is_an_empty_folder(with_submodule: Path) -> None:
    git(with_submodule, "submodule", "--quiet", "deinit", "-f", "libs/part")
    assert restored(with_submodule) == tree_of(with_submodule)
    assert read(str(kept(with_submodule))).submodules[0].commit is None


# ---- what is kept, and what is not


def left_out(snapshot: Snapshot) -> dict[str, str]:
    return {each.path: each.reason for each in snapshot.left_out}


def test_what_is_left_out_is_named_with_its_reason(repo: Path) -> None:
    (repo / ".gitignore").write_text("*.log\n/ignored/\n")
    (repo / "old.bin").write_bytes(b"1")
    (repo / ".env").write_text("1")
    commit(repo)
    (repo / "old.bin").write_bytes(bytes(2000))
    (repo / ".env").write_text("PASS=hunter22")
    (repo / "ignored").mkdir()
    (repo / "ignored" / "x.py").touch()
    (repo / "nested").mkdir()
    git(repo / "nested", "init", "-q")
    (repo / "nested" / "x.py").touch()
    for name in ("run.log", "data.csv", "log.txt", "big.py", "secret.json", "secrets.py", "tokenizer.json", "id_rsa", "train", "weights"):
        (repo / name).write_text("x\n")
    (repo / "big.py").write_text("#" * 1001)
    (repo / "train").write_text("#!/bin/sh\n")
    (repo / "blob.json").write_bytes(b"\0")
    contents = take(str(repo), Limits(1000, 5000))
    assert left_out(contents.snapshot) == {
        ".env": "its name is that of a secret",
        "old.bin": "its 2,000 bytes are above max_file_size=1,000",
        "big.py": "its 1,001 bytes are above max_file_size=1,000",
        "blob.json": "it is no source file",
        "data.csv": "it is no source file",
        "id_rsa": "its name is that of a secret",
        "log.txt": "it is no source file",
        "nested/": "it is a repository of its own",
        "secret.json": "its name is that of a secret",
        "weights": "it is no source file",
        "ignored/": "git ignores it",
        "run.log": "git ignores it",
    }
    assert [each.path for each in contents.snapshot.files] == ["secrets.py", "tokenizer.json", "train"]
    assert b"hunter22" not in contents.patch
    done = checkout_code(write(contents, str(repo.parent / "code")), repo.parent / "then")
    assert [each.partition(" ")[0] for each in done.missing] == [".env", "old.bin", "big.py", "id_rsa", "secret.json"]


def test_a_new_source_file_makes_the_tree_dirty_also_where_it_is_not_kept(repo: Path) -> None:
    (repo / "a.py").write_text("1\n")
    commit(repo)
    (repo / ".env").write_text("A=1")
    assert not take(str(repo), Limits()).snapshot.is_dirty
    (repo / "big.py").write_text("#" * 1001)
    snapshot = take(str(repo), Limits(1000, 5000)).snapshot
    assert snapshot.is_dirty
    assert snapshot.dirty_paths() == ["big.py"]
    assert not snapshot.name.endswith("-clean")


def test_a_page_about_secrets_is_kept_and_so_is_code_with_a_plain_word_that_is_a_password(repo: Path) -> None:
    (repo / "secrets.md").write_text("do not tell\n")
    (repo / "db.py").write_text("kind = 'postgres'\n")
    snapshot = take(str(repo), Limits(), ["postgres"]).snapshot
    assert [each.path for each in snapshot.files] == ["db.py", "secrets.md"]


def test_all_files_together_are_limited_and_changes_come_before_new_files(repo: Path) -> None:
    (repo / "z.py").write_text("1")
    commit(repo)
    (repo / "z.py").write_text("#" * 600)
    (repo / "a.py").write_text("#" * 600)
    snapshot = take(str(repo), Limits(1000, 1000)).snapshot
    assert [each.path for each in snapshot.files] == ["z.py"]
    assert left_out(snapshot) == {"a.py": "all files together are above max_total_size=1,000"}


def test_the_values_of_secrets_are_in_no_file_of_a_snapshot(repo: Path) -> None:
    value = "q7Zt-91kf-secret-X"
    (repo / "a.py").write_text("1\n")
    (repo / "b.py").write_text(f"was = '{value}'\n")
    commit(repo, f"use {value}")
    git(repo, "remote", "add", "origin", f"https://me:{value}@host.org/lab.git?x={value}")
    (repo / "a.py").write_text(f"key = '{value}'\n")
    (repo / "b.py").write_text("was = None\n")
    (repo / "c.json").write_text(f'{{"key": "{value}"}}')
    folder = kept(repo, values=[value])
    assert all(value.encode() not in data for data in files_below(folder).values())
    snapshot = read(str(folder))
    assert snapshot.remote == "https://host.org/lab.git"
    assert left_out(snapshot) == {"a.py": "it has the value of a secret", "c.json": "it has the value of a secret"}
    assert b"-was = '***'" in (folder / PATCH).read_bytes()


def test_what_trainings_wrote_into_the_repository_is_not_code(repo: Path) -> None:
    (repo / "a.py").write_text("1\n")
    commit(repo)
    for path in ("out/notes.json", "runs/store.json", "runs/configs/ab/x.json", "old/code/abc-clean/code.json", "old/preview.json"):
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_text("{}")
    (repo / "shop").mkdir()
    (repo / "shop" / "store.json").write_text("{}")  # of another kind
    snapshot = take(str(repo), Limits(), outputs=[str(repo / "out")]).snapshot
    assert [each.path for each in snapshot.files] == ["shop/store.json"]
    assert left_out(snapshot) == dict.fromkeys(["old/", "out/", "runs/"], "trainings write there")


# ---- the repository is left alone, and settings change nothing

HOSTILE = [
    *["diff.noprefix=true", "color.ui=always", "color.diff=always", "diff.external=false", "core.quotepath=true", "core.pager=false"],
    *["diff.mnemonicPrefix=true", "status.renames=copies", "status.showUntrackedFiles=no", "diff.renames=copies", "diff.context=0"],
    *["status.relativePaths=true", "diff.ignoreSubmodules=all", "pager.status=true", "pager.diff=true", "diff.orderFile=nowhere"],
    *["core.fsmonitor=/bin/false", "core.hooksPath=hooks", "diff.wordRegex=.", "interactive.diffFilter=false", "log.showSignature=true"],
]


def test_the_users_settings_change_nothing(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all(repo)
    (repo / ".gitattributes").write_text("*.py diff=odd\n")
    plain = take(str(repo), Limits())
    file = tmp_path / "settings"
    for each in HOSTILE:
        name, _, value = each.partition("=")
        git(repo, "config", "-f", str(file), name, value)
    git(repo, "config", "-f", str(file), "diff.odd.textconv", "false")
    git(repo, "config", "-f", str(file), "diff.odd.command", "false")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(file))
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_DIFF_OPTS", "-U0")
    other = take(str(repo), Limits())
    assert replace(other.snapshot, taken="") == replace(plain.snapshot, taken="")
    assert (other.patch, other.archive) == (plain.patch, plain.archive)


def test_the_patch_is_a_diff_that_git_can_apply(repo: Path) -> None:
    for name in ("a.py", "b.py"):
        (repo / name).write_text("".join(f"{number}\n" for number in range(9)))
    commit(repo)
    (repo / "a.py").write_text("".join(f"{number}\n" for number in range(9, 0, -1)))
    git(repo, "mv", "b.py", "c.py")
    folder = kept(repo)
    git(repo, "clone", "-q", ".", "../clone")
    git(repo.parent / "clone", "apply", str(folder / PATCH))
    assert tree_of(repo.parent / "clone") == tree_of(repo)
    assert (folder / PATCH).read_text().startswith("diff --git a/a.py b/a.py\n")


@pytest.mark.parametrize("is_locked", [False, True])
def test_the_repository_is_untouched_and_no_hook_runs(repo: Path, is_locked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all(repo)
    for name in ("post-index-change", "post-checkout", "reference-transaction", "monitor"):
        hook = repo / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {repo.parent}/ran\n")
        hook.chmod(0o755)
    git(repo, "config", "core.fsmonitor", ".git/hooks/monitor")
    everywhere = repo.parent / "settings"
    git(repo, "config", "-f", str(everywhere), "core.hooksPath", str(repo / ".git" / "hooks"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(everywhere))
    os.utime(repo / "same.py", (1, 1))  # git would note in its index that only the time differs
    if is_locked:
        (repo / ".git" / "index.lock").touch()  # somebody else is at work
    before = files_below(repo), {path: path.lstat().st_mtime_ns for path in repo.rglob("*")}
    checkout_code(kept(repo), repo.parent / "then")
    assert (files_below(repo), {path: path.lstat().st_mtime_ns for path in repo.rglob("*")}) == before
    assert not (repo.parent / "ran").exists()


def test_the_same_code_is_the_same_bytes(repo: Path) -> None:
    write_all(repo)
    one, other = take(str(repo), Limits()), take(str(repo), Limits())
    assert (one.archive, one.patch, one.snapshot.name) == (other.archive, other.patch, other.snapshot.name)
    (repo / "modified.py").write_text("x = 4\n")
    assert take(str(repo), Limits()).snapshot.name != one.snapshot.name


# ---- what is refused


def simple(repo: Path) -> Path:
    (repo / "a.py").write_text("1\n")
    commit(repo)
    (repo / "a.py").write_text("2\n")
    return kept(repo)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot, made once, with its repository beside it; the commit has a link that leads out."""
    repo = tmp_path_factory.mktemp("example") / "lab"
    repo.mkdir()
    git(repo, "init", "-q")
    (repo / "linked").symlink_to("..")
    return simple(repo)


@pytest.fixture
def snapshot(made_once: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoiled."""
    return Path(shutil.copytree(made_once, tmp_path / "code" / made_once.name))


def assert_nothing_left(folder: Path) -> None:
    assert sorted(each.name for each in folder.iterdir() if each.name not in ("code", "lab", "other", "full")) == []


def test_a_folder_that_is_not_empty_is_refused(repo: Path) -> None:
    folder, full = simple(repo), repo.parent / "full"
    full.mkdir()
    (full / "x").touch()
    with pytest.raises(SettingError, match=f"the folder `{full}` is not empty"):
        checkout_code(folder, full)
    assert [each.name for each in full.iterdir()] == ["x"]
    (full / "x").unlink()
    assert checkout_code(folder, full).is_exact


def test_a_repository_without_the_commit_is_named_with_the_remote(repo: Path, tmp_path: Path) -> None:
    git(repo, "remote", "add", "origin", "https://host.org/lab.git")
    folder = simple(repo)
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    head = read(str(folder)).commit
    with pytest.raises(SettingError) as caught:
        checkout_code(folder, tmp_path / "then", repo=other)
    assert str(caught.value).split("\n") == [
        f"the repository `{other}` does not have the commit {head}",
        "  try     fetch it there, from https://host.org/lab.git, or name another one: `--repo DIR`",
    ]
    with pytest.raises(SettingError, match="there is no folder"):
        checkout_code(folder, tmp_path / "then", repo=tmp_path / "none")
    assert_nothing_left(tmp_path)


def test_without_git_no_other_repository_is_asked_for(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = simple(repo)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingError) as caught:
        checkout_code(folder, tmp_path / "then")
    assert str(caught.value).split("\n")[1:] == [f"  where   {repo}", "  why     git is not installed: there is no program `git`"]


def test_the_current_folder_is_asked_where_the_recorded_one_is_gone(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, wanted = simple(repo), tree_of(repo)
    repo.rename(tmp_path / "other")
    monkeypatch.chdir(tmp_path / "other")
    assert checkout_code(folder, tmp_path / "then").is_exact
    assert tree_of(tmp_path / "then") == wanted
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match="there is no repository to take commit"):
        checkout_code(folder, tmp_path / "later")


def test_what_is_no_snapshot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreFormatError, match="has no snapshot of code"):
        checkout_code(tmp_path, tmp_path / "then")


def test_of_several_snapshots_one_is_to_be_named(repo: Path) -> None:
    simple(repo)
    (repo / "a.py").write_text("3\n")
    newest = kept(repo)
    with pytest.raises(SettingError, match="has 2 snapshots of code"):
        checkout_code(newest.parent, repo.parent / "then")


def forged(folder: Path, files: dict[str, tuple[str, bytes]], **changes: Any) -> None:
    """Write a snapshot anew, with other files and facts, as somebody with bad intentions would."""
    snapshot = read(str(folder))
    entries = tuple(KeptFile(path, mode, len(data), hashlib.sha256(data).hexdigest(), "changed") for path, (mode, data) in files.items())
    snapshot = replace(snapshot, **{"files": entries, **changes})
    lists = {name: [each._asdict() for each in getattr(snapshot, name)] for name in ("submodules", "files", "left_out")}
    (folder / FACTS).write_bytes(record_bytes({"format": 1, **asdict(snapshot), **lists}))
    (folder / ARCHIVE).write_bytes(archive_of(files))


FILE, LINK = "100644", "120000"


@pytest.mark.parametrize(
    "files",
    [
        {"../evil": (FILE, b"x")},
        {"a/../../evil": (FILE, b"x")},
        {"/tmp/trainmaster-evil": (FILE, b"x")},
        {"./a": (FILE, b"x")},
        {"a//b": (FILE, b"x")},
        {"": (FILE, b"x")},
        {".git/hooks/post-checkout": ("100755", b"x")},
        {".GIT/config": (FILE, b"x")},
        {".git": (FILE, b"x")},
        {".g\u200cit/config": (FILE, b"x")},
        {"sub/.git/config": (FILE, b"x")},
        {"out": (LINK, b".."), "out/evil": (FILE, b"x")},
        {"a.py": (FILE, b"x"), "a.py/b": (FILE, b"x")},
        {"linked/evil": (FILE, b"x")},
        {"linked/below/evil": (LINK, b"x")},
    ],
    ids=str,
)
def test_a_snapshot_that_leads_out_of_the_folder_is_refused(snapshot: Path, tmp_path: Path, files: dict[str, tuple[str, bytes]]) -> None:
    forged(snapshot, files)
    before = files_below(tmp_path)
    with pytest.raises(StoreDamagedError, match="is damaged"):
        checkout_code(snapshot, tmp_path / "then")
    assert files_below(tmp_path) == before
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"deleted": ("../lab/a.py",)},
        {"deleted": (".git/HEAD",)},
        {"deleted": ("/etc/passwd",)},
        {"commit": "--upload-pack=x"},
        {"commit": "HEAD"},
        {"commit": 3},
        {"root": 3},
        {"taken": None},
        {"num_unnamed": "x"},
    ],
    ids=str,
)
def test_facts_that_cannot_be_are_refused(snapshot: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    forged(snapshot, {}, **changes)
    before = files_below(tmp_path)
    with pytest.raises(StoreDamagedError, match="is damaged"):
        checkout_code(snapshot, tmp_path / "then")
    assert files_below(tmp_path) == before


def test_deleting_does_not_follow_a_link(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.py").touch()
    (repo / "linked").symlink_to(tmp_path / "other")
    folder = simple(repo)
    forged(folder, {}, deleted=("linked/x.py",))
    checkout_code(folder, tmp_path / "then")
    assert (tmp_path / "other" / "x.py").exists()


def test_a_recorded_folder_that_is_no_path_is_not_given_to_git(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = simple(repo)
    monkeypatch.chdir(repo)
    forged(folder, {}, root=f"ext::sh -c touch% {tmp_path}/evil")
    assert checkout_code(folder, tmp_path / "then").is_exact
    assert not (tmp_path / "evil").exists()


def other_bytes(folder: Path) -> None:
    archive = (folder / ARCHIVE).read_bytes()
    (folder / ARCHIVE).write_bytes(archive.replace(b"2\n", b"3\n"))


def cut_archive(folder: Path) -> None:
    (folder / ARCHIVE).write_bytes((folder / ARCHIVE).read_bytes()[:100])


def no_archive(folder: Path) -> None:
    (folder / ARCHIVE).unlink()


def large_archive(folder: Path) -> None:
    with open(folder / ARCHIVE, "ab") as file:
        file.truncate(2**40)


def odd_member(folder: Path) -> None:
    with tarfile.open(folder / ARCHIVE, "w") as archive:
        member = tarfile.TarInfo("a.py")
        member.type, member.linkname = tarfile.LNKTYPE, "/etc/passwd"
        archive.addfile(member)


def one_more_member(folder: Path) -> None:
    with tarfile.open(folder / ARCHIVE, "a") as archive:
        archive.addfile(tarfile.TarInfo("../evil"), io.BytesIO())


def changed_facts(folder: Path) -> None:
    (folder / FACTS).write_bytes((folder / FACTS).read_bytes().replace(b'"is_dirty": true', b'"is_dirty": false'))


@pytest.mark.parametrize("damage", [other_bytes, cut_archive, no_archive, large_archive, odd_member, one_more_member, changed_facts])
def test_a_damaged_snapshot_is_refused_and_leaves_nothing(snapshot: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    damage(snapshot)
    with pytest.raises(StoreDamagedError, match="is damaged"):
        checkout_code(snapshot, tmp_path / "then")
    assert_nothing_left(tmp_path)


def test_files_that_claim_more_than_the_disk_has_are_refused(snapshot: Path, tmp_path: Path) -> None:
    facts = read(str(snapshot))
    lists = {"submodules": [], "files": [facts.files[0]._replace(size=2**62)._asdict()], "left_out": []}
    (snapshot / FACTS).write_bytes(record_bytes({"format": 1, **asdict(facts), **lists}))
    with pytest.raises(TrainmasterError, match="the snapshot claims 4,611,686,018,427,387,904 bytes"):
        checkout_code(snapshot, tmp_path / "then")
    assert_nothing_left(tmp_path)


def test_a_snapshot_is_written_once_and_linked_where_it_is_known(repo: Path, tmp_path: Path) -> None:
    simple(repo)
    contents: Contents = take(str(repo), Limits())
    first = write(contents, str(tmp_path / "one"))
    again = write(contents, str(tmp_path / "one"))
    second = write(contents, str(tmp_path / "two"), like=first)
    assert first == again
    assert os.path.samefile(Path(first) / ARCHIVE, Path(second) / ARCHIVE)
    assert len(os.listdir(tmp_path / "one")) == 1
