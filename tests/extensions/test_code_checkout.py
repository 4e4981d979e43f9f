"""Snapshots of a repository restore its files byte for byte, and write nothing elsewhere."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from trainmaster.errors import SettingError, StoreDamagedError, StoreFormatError
from trainmaster.extensions.code.capture import MAX_NAMED, Limits, capture
from trainmaster.extensions.code.checkout import checkout_code
from trainmaster.extensions.code.snapshot import BUNDLE, FACTS, PATCH, Snapshot, read_snapshot, write_snapshot
from trainmaster.store.checksummed_json import record_bytes

Files = dict[bytes, tuple[str, bytes]]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ignore the git settings of the user who runs the tests."""
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
    """Return every file below a folder, except git's own, with its kind (link, program or file) and target or bytes."""
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


def saved(repo: Path, limits: Limits | None = None, **more: Any) -> Path:
    """Write a snapshot next to its repository, and return the folder of the snapshot."""
    return Path(write_snapshot(capture(str(repo), limits or Limits(), **more), str(repo.parent / "code")))


def facts(repo: Path, limits: Limits | None = None, **more: Any) -> Snapshot:
    return capture(str(repo), limits or Limits(), **more).snapshot


def restored(repo: Path, name: str = "then", **more: Any) -> Files:
    """Return the files that a snapshot restores while its repository is gone."""
    folder = saved(repo, **more)
    repo.rename(repo.with_name("gone"))
    try:
        done = checkout_code(folder, repo.parent / name)
    finally:
        repo.with_name("gone").rename(repo)
    assert done.is_exact, done.missing
    found = tree_of(repo.parent / name)
    assert done.num_files == len(found)
    return found


# ---- files are restored exactly


def write_all(repo: Path) -> None:
    """Write files of every kind, commit them, and then change them in every way."""
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


def test_a_clean_tree_has_the_tree_of_its_commit(repo: Path) -> None:
    (repo / "a.py").write_text("1\n")
    head = commit(repo)
    snapshot = facts(repo)
    assert (snapshot.is_dirty, snapshot.commit) == (False, head)
    assert snapshot.tree == git(repo, "rev-parse", "HEAD^{tree}").decode().strip()
    assert snapshot.name == f"{head[:12]}-{snapshot.tree[:8]}"


def test_the_restored_folder_is_a_clean_repository_and_a_snapshot_of_it_has_the_same_tree(repo: Path) -> None:
    write_all(repo)
    (repo / ".gitattributes").write_text("* text=auto eol=crlf\n")
    restored(repo)
    then = repo.parent / "then"
    assert git(then, "status", "--porcelain") == b""
    assert git(then, "log", "--format=%s").decode() == f"Code at commit {facts(repo).commit}\n"
    assert facts(then).tree == facts(repo).tree
    git(then, "fsck", "--strict")


def test_git_alone_can_read_the_bundle(repo: Path) -> None:
    (repo / "a.py").write_text("1\n")
    git(repo.parent, "clone", "-q", "--branch", "snapshot", str(saved(repo) / BUNDLE), "by-hand")
    assert tree_of(repo.parent / "by-hand") == tree_of(repo)


@pytest.mark.parametrize(
    ("autocrlf", "attributes"),
    [
        ("true", ""),
        ("input", ""),
        ("false", ""),
        ("true", "*.txt text eol=lf\n"),
        ("false", "* text=auto\n"),
        ("false", "*.txt text eol=crlf\n"),
        ("false", "* text=auto eol=crlf\n"),
    ],
)
def test_line_endings_are_restored_even_if_git_converts_them(repo: Path, autocrlf: str, attributes: str) -> None:
    git(repo, "config", "core.autocrlf", autocrlf)
    (repo / ".gitattributes").write_text(attributes)
    (repo / "crlf.txt").write_bytes(b"a\r\nb\r\n")
    (repo / "lf.txt").write_bytes(b"a\nb\n")
    (repo / "changed.txt").write_bytes(b"a\r\n")
    commit(repo)
    (repo / "changed.txt").write_bytes(b"a\r\nb\r\n")
    assert restored(repo) == tree_of(repo)


def test_files_with_filters_and_hidden_changes_are_restored_without_filters(repo: Path) -> None:
    git(repo, "config", "filter.upper.clean", "tr A-Z a-z")
    git(repo, "config", "filter.upper.smudge", "tr a-z A-Z")
    pointer = f"sh -c 'touch {repo.parent}/ran; sha1sum'"
    for each in ("clean", "smudge"):
        git(repo, "config", f"filter.lfs.{each}", pointer)
    git(repo, "config", "filter.lfs.required", "true")
    (repo / ".gitattributes").write_text(
        "*.up filter=upper\nid.py ident\n*.bin filter=lfs diff=lfs merge=lfs -text\n*.u16 working-tree-encoding=UTF-16\n"
    )
    (repo / "x.up").write_text("LOUD\n")
    (repo / "id.py").write_text("# $Id$\n")
    (repo / "weights.bin").write_bytes(bytes(range(256)) * 9)
    (repo / "wide.u16").write_bytes("wide".encode("utf-16"))
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
    folder = saved(repo)
    (repo.parent / "ran").unlink()
    assert checkout_code(folder, repo.parent / "then").is_exact
    assert tree_of(repo.parent / "then") == tree_of(repo)
    assert not (repo.parent / "ran").exists()


def test_modes_that_git_ignores_are_restored(repo: Path) -> None:
    git(repo, "config", "core.fileMode", "false")
    (repo / "a.sh").write_text("1\n")
    commit(repo)
    (repo / "a.sh").chmod(0o755)
    assert restored(repo) == tree_of(repo)


def test_the_files_of_a_merge_conflict_are_restored(repo: Path) -> None:
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


def test_a_linked_worktree_is_restored(repo: Path) -> None:
    (repo / "a.py").write_text("1\n")
    commit(repo)
    git(repo, "worktree", "add", "-q", "--detach", "../beside")
    (repo.parent / "beside" / "a.py").write_text("2\n")
    assert restored(repo.parent / "beside") == tree_of(repo.parent / "beside")


def test_the_files_of_an_unfinished_rebase_are_restored(repo: Path) -> None:
    (repo / "a.py").write_text("1\n")
    commit(repo)
    (repo / "a.py").write_text("2\n")
    commit(repo)
    git(repo, "-c", "sequence.editor=sed -i s/^pick/edit/", "rebase", "-q", "-i", "HEAD~1")
    (repo / "a.py").write_text("3\n")
    assert facts(repo).branch is None
    assert restored(repo) == tree_of(repo)


def test_a_sparse_checkout_is_restored_as_it_was(repo: Path) -> None:
    for name in ("in", "out"):
        (repo / name).mkdir()
        (repo / name / "a.py").write_text("1\n")
    commit(repo)
    git(repo, "sparse-checkout", "set", "in")
    assert not (repo / "out").exists()
    assert restored(repo) == tree_of(repo)
    assert not facts(repo).is_dirty


def test_a_partial_clone_without_its_server_is_restored(repo: Path, tmp_path: Path) -> None:
    (repo / "a.py").write_text("1\n")
    (repo / "b.py").write_text("1\n")
    commit(repo)
    (repo / "b.py").write_text("2\n")
    commit(repo)
    git(repo, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--filter=blob:none", f"file://{repo}", "partial")
    repo.rename(tmp_path / "server")
    (tmp_path / "partial" / "a.py").write_text("2\n")
    assert restored(tmp_path / "partial") == tree_of(tmp_path / "partial")


def test_sha256_repositories_are_restored(repo: Path) -> None:
    shutil.rmtree(repo / ".git")
    git(repo, "init", "-q", "--object-format=sha256")
    (repo / "a.py").write_text("1\n")
    commit(repo)
    (repo / "b.py").write_text("2\n")
    assert restored(repo) == tree_of(repo)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write anywhere")
def test_a_checkout_that_is_read_only_is_restored(repo: Path) -> None:
    (repo / "a.py").write_text("1\n")
    commit(repo)
    folders = [repo, *(each for each in repo.rglob("*") if each.is_dir())]
    for each in folders:
        each.chmod(0o555)
    try:
        assert checkout_code(saved(repo), repo.parent / "then").is_exact
    finally:
        for each in folders:
            each.chmod(0o755)


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
            path.write_bytes(b"#!\n" + data if name == "d" else data)  # `#!` makes a file without a suffix a script
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


def test_the_files_of_a_submodule_are_saved_with_their_changes(with_submodule: Path) -> None:
    part = with_submodule / "libs" / "part"
    (part / "p.py").write_text("2\n")
    head = commit(part)  # newer than the submodule commit that the outer repository records
    (part / "p.py").write_text("3\n")
    (part / "new.py").write_text("4\n")
    snapshot = facts(with_submodule)
    assert snapshot.submodules == {"libs/part": head}
    assert (snapshot.changed, snapshot.new) == (("libs/part", "libs/part/p.py"), ("libs/part/new.py",))
    assert restored(with_submodule) == tree_of(with_submodule)
    assert b"--- a/libs/part/p.py\n+++ b/libs/part/p.py\n" in capture(str(with_submodule), Limits()).patch


def test_a_submodule_that_is_not_checked_out_has_no_commit(with_submodule: Path) -> None:
    git(with_submodule, "submodule", "--quiet", "deinit", "-f", "libs/part")
    assert restored(with_submodule) == tree_of(with_submodule)
    assert facts(with_submodule).submodules == {"libs/part": None}


def test_a_submodule_that_git_cannot_read_is_named(with_submodule: Path) -> None:
    (with_submodule / "libs" / "part" / ".git").write_text("gitdir: nowhere\n")
    assert list(left_out(facts(with_submodule))) == ["libs/part/"]


# ---- files that are saved or left out


def left_out(snapshot: Snapshot) -> dict[str, str]:
    return {each.path: each.reason for each in snapshot.left_out}


def test_files_that_are_left_out_are_listed_with_the_reason(repo: Path) -> None:
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
    for name in ("run.log", "data.csv", "big.py", "secret.json", "secrets.py", "id_rsa", "train"):
        (repo / name).write_text("x\n")
    (repo / "big.py").write_text("#" * 1001)
    os.mkfifo(repo / "pipe")
    taken = capture(str(repo), Limits(1000, 5000))
    assert left_out(taken.snapshot) == {
        ".env": "its name looks like a secret",
        "old.bin": "its 2,000 bytes exceed max_file_size=1,000",
        "big.py": "its 1,001 bytes exceed max_file_size=1,000",
        "id_rsa": "its name looks like a secret",
        "secret.json": "its name looks like a secret",
        "nested/": "it is a separate repository",
    }
    assert taken.snapshot.new == ("big.py", "data.csv", "secrets.py", "train")
    assert b"hunter22" not in taken.patch
    done = checkout_code(write_snapshot(taken, str(repo.parent / "code")), repo.parent / "then")
    assert [each.partition(" ")[0] for each in done.missing] == ["nested/", ".env", "old.bin", "id_rsa", "secret.json", "big.py"]
    assert sorted(tree_of(repo.parent / "then")) == [b".gitignore", b"data.csv", b"secrets.py", b"train"]


def test_a_new_file_makes_the_tree_dirty_even_if_it_is_left_out_unless_it_is_a_secret(repo: Path) -> None:
    (repo / "a.py").write_text("1\n")
    commit(repo)
    (repo / ".env").write_text("A=1")
    assert not facts(repo).is_dirty
    (repo / "big.py").write_text("#" * 1001)
    snapshot = facts(repo, Limits(1000, 5000))
    assert (snapshot.is_dirty, snapshot.new) == (True, ("big.py",))


def test_a_page_about_secrets_is_saved_and_so_is_code_with_a_plain_word_that_is_a_password(repo: Path) -> None:
    (repo / "secrets.md").write_text("do not tell\n")
    (repo / "db.py").write_text("kind = 'postgres'\n")
    assert facts(repo, values=["postgres"]).left_out == ()


def test_changed_files_come_before_new_ones_and_those_before_unchanged_ones(repo: Path) -> None:
    (repo / "b.py").write_text("#" * 600)
    (repo / "z.py").write_text("1")
    commit(repo)
    (repo / "z.py").write_text("#" * 600)
    (repo / "a.py").write_text("#" * 601)
    snapshot = facts(repo, Limits(1000, 1000))
    assert [str(each) for each in snapshot.left_out] == [
        "a.py (with its 601 bytes, the files together exceed max_total_size=1,000)",
        "b.py (with its 600 bytes, the files together exceed max_total_size=1,000; the commit has it)",
    ]


def test_a_large_file_is_saved_if_it_is_committed_and_unchanged(repo: Path) -> None:
    (repo / "large.bin").write_bytes(bytes(2000))
    commit(repo)
    assert facts(repo, Limits(1000, 5000)).left_out == ()
    (repo / "large.bin").write_bytes(bytes(2001))
    assert list(left_out(facts(repo, Limits(1000, 5000)))) == ["large.bin"]


def test_only_the_first_of_many_files_are_listed_but_all_are_counted(repo: Path) -> None:
    for number in range(MAX_NAMED + 5):
        (repo / f"{number}.txt").write_text("1")
    snapshot = facts(repo, Limits(1000, 2))
    assert (len(snapshot.new), snapshot.num_new) == (MAX_NAMED, MAX_NAMED + 5)
    assert (len(snapshot.left_out), snapshot.num_left_out) == (MAX_NAMED, MAX_NAMED + 3)
    assert checkout_code(saved(repo, Limits(1000, 2)), repo.parent / "then").missing[-1] == "... and 3 more files"


def test_no_file_of_a_snapshot_contains_the_value_of_a_secret(repo: Path) -> None:
    value = "q7Zt-91kf-secret-X"
    (repo / "a.py").write_text("1\n")
    (repo / "b.py").write_text(f"was = '{value}'\n")
    (repo / "committed.py").write_text(f"is = '{value}'\n")
    commit(repo, f"use {value}")
    git(repo, "remote", "add", "origin", f"https://me:{value}@host.org/lab.git?x={value}")
    (repo / "a.py").write_text(f"key = '{value}'\n")
    (repo / "b.py").write_text("was = None\n")
    (repo / "c.json").write_text(f'{{"key": "{value}"}}')
    folder = saved(repo, values=[value])
    git(repo.parent, "clone", "-q", "--branch", "snapshot", str(folder / BUNDLE), "opened")
    assert all(value.encode() not in data for data in (files_below(folder) | files_below(repo.parent / "opened")).values())
    snapshot = read_snapshot(str(folder))
    assert snapshot.remote == "https://host.org/lab.git"
    assert left_out(snapshot) == dict.fromkeys(["a.py", "c.json", "committed.py"], "it contains the value of a secret")
    assert [each.path for each in snapshot.left_out if each.is_in_commit] == ["committed.py"]
    assert b"-was = '***'" in (folder / PATCH).read_bytes()


def test_the_output_of_training_in_the_repository_is_not_code(repo: Path) -> None:
    (repo / "a.py").write_text("1\n")
    commit(repo)
    for path in ("out/notes.json", "runs/store.json", "runs/configs/ab/ab12cd34.json", "old/code/abc-def/code.json", "old/preview.json"):
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_text("{}")
    (repo / "shop" / "configs").mkdir(parents=True)
    (repo / "shop" / "configs" / "store.json").write_text("{}")
    snapshot = facts(repo, outputs=[str(repo / "out")])
    assert snapshot.new == ("shop/configs/store.json",)


def test_a_train_dir_that_is_the_repository_hides_only_the_output_of_training(repo: Path) -> None:
    for path in ("a.py", "checkpoints/step-1/manifest.json", "plots/loss.png"):
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_text("{}")
    assert facts(repo, outputs=[str(repo)]).new == ("a.py",)


# ---- the repository does not change, and settings have no effect

HOSTILE = [
    *["diff.noprefix=true", "color.ui=always", "color.diff=always", "diff.external=false", "core.quotepath=true", "core.pager=false"],
    *["diff.mnemonicPrefix=true", "status.renames=copies", "status.showUntrackedFiles=no", "diff.renames=copies", "diff.context=0"],
    *["status.relativePaths=true", "diff.ignoreSubmodules=all", "pager.status=true", "pager.diff=true", "diff.orderFile=nowhere"],
    *["core.fsmonitor=/bin/false", "core.hooksPath=hooks", "diff.wordRegex=.", "interactive.diffFilter=false", "log.showSignature=true"],
]


def test_the_users_settings_change_nothing(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all(repo)
    (repo / ".gitattributes").write_text("*.py diff=odd\n")
    plain = capture(str(repo), Limits())
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
    other = capture(str(repo), Limits())
    assert replace(other.snapshot, taken="") == replace(plain.snapshot, taken="")
    assert other.patch == plain.patch


def test_the_patch_is_a_diff_that_git_can_apply(repo: Path) -> None:
    for name in ("a.py", "b.py"):
        (repo / name).write_text("".join(f"{number}\n" for number in range(9)))
    commit(repo)
    (repo / "a.py").write_text("".join(f"{number}\n" for number in range(9, 0, -1)))
    git(repo, "mv", "b.py", "c.py")
    folder = saved(repo)
    git(repo, "clone", "-q", ".", "../clone")
    git(repo.parent / "clone", "apply", str(folder / PATCH))
    assert tree_of(repo.parent / "clone") == tree_of(repo)
    assert (folder / PATCH).read_text().startswith("diff --git a/a.py b/a.py\n")


@pytest.mark.parametrize("is_busy", [False, True])
def test_the_repository_is_untouched_and_no_hook_runs(with_submodule: Path, is_busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = with_submodule
    (repo / "stashed.py").write_text("1\n")
    git(repo, "stash", "-q", "--include-untracked")
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
    os.utime(repo / "same.py", (1, 1))  # git would update the timestamp in its index
    (repo / "libs" / "part" / "p.py").write_text("2\n")
    (repo.parent / "ran").unlink(missing_ok=True)
    if is_busy:
        (repo / ".git" / "index.lock").touch()  # as if another git process were in the middle of a merge
        (repo / ".git" / "MERGE_HEAD").write_text(git(repo, "rev-parse", "HEAD").decode())

    def state() -> Any:
        return files_below(repo), {path: (path.lstat().st_mode, path.lstat().st_mtime_ns) for path in repo.rglob("*")}

    before = state()
    checkout_code(saved(repo), repo.parent / "then")
    assert state() == before
    assert not (repo.parent / "ran").exists()


def test_the_same_code_has_the_same_name(repo: Path) -> None:
    write_all(repo)
    before = facts(repo).name
    assert facts(repo).name == before
    (repo / "modified.py").write_text("x = 4\n")
    assert facts(repo).name != before


# ---- errors


def simple(repo: Path) -> Path:
    (repo / "a.py").write_text("1\n")
    commit(repo)
    (repo / "a.py").write_text("2\n")
    return saved(repo)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create one snapshot for several tests, with its repository next to it."""
    repo = tmp_path_factory.mktemp("example") / "lab"
    repo.mkdir()
    git(repo, "init", "-q")
    return simple(repo)


@pytest.fixture
def snapshot(made_once: Path, tmp_path: Path) -> Path:
    """Return a copy of the snapshot, which tests may damage."""
    return Path(shutil.copytree(made_once, tmp_path / "code" / made_once.name))


def assert_nothing_left(folder: Path) -> None:
    assert sorted(each.name for each in folder.iterdir() if each.name not in ("code", "lab", "other", "full")) == []


def test_a_folder_that_is_not_empty_is_refused(repo: Path) -> None:
    folder, full = simple(repo), repo.parent / "full"
    full.mkdir()
    (full / "x").touch()
    with pytest.raises(SettingError, match=f"`{full}` is not a new or empty folder"):
        checkout_code(folder, full)
    assert [each.name for each in full.iterdir()] == ["x"]
    (full / "x").unlink()
    assert checkout_code(folder, full).is_exact


def test_without_git_nothing_is_restored(snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingError) as caught:
        checkout_code(snapshot, tmp_path / "then")
    assert str(caught.value) == "the code was not restored\n  why     git is not installed: there is no program `git`"
    assert_nothing_left(tmp_path)


def test_a_folder_that_is_not_a_snapshot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreFormatError, match="has no snapshot of code"):
        checkout_code(tmp_path, tmp_path / "then")


def test_several_snapshots_are_an_error_that_asks_for_one(repo: Path) -> None:
    simple(repo)
    (repo / "a.py").write_text("3\n")
    newest = saved(repo)
    with pytest.raises(SettingError, match="has 2 snapshots of code"):
        checkout_code(newest.parent, repo.parent / "then")


def forged(folder: Path, **changes: Any) -> None:
    """Change fields in the record of a snapshot, as an attacker would."""
    snapshot = replace(read_snapshot(str(folder)), **changes)
    (folder / FACTS).write_bytes(record_bytes({"format": 1, **asdict(snapshot)}))


class Forge:
    """A repository in which tests build bundles that git itself would not create."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        git(folder, "init", "-q")

    def write(self, kind: str, data: bytes) -> str:
        command = ["git", "hash-object", "-t", kind, "-w", "--stdin", "--literally"]
        return subprocess.run(command, cwd=self.folder, input=data, check=True, capture_output=True).stdout.decode().strip()

    def tree(self, *entries: tuple[str, str, str]) -> str:
        return self.write(
            "tree", b"".join(b"%b %b\0%b" % (mode.encode(), name.encode(), bytes.fromhex(id_)) for mode, name, id_ in entries)
        )

    def file(self, path: str) -> str:
        """Create a git tree with one file at the given path, and return the id of the tree."""
        name, _, rest = path.partition("/")
        return self.tree(("40000", name, self.file(rest)) if rest else ("100644", name, self.write("blob", b"x")))

    def bundle(self, snapshot: Path, tree: str) -> None:
        git(self.folder, "update-ref", "refs/heads/snapshot", git(self.folder, "commit-tree", "-m", "x", tree).decode().strip())
        git(self.folder, "bundle", "create", "-q", str(snapshot / BUNDLE), "refs/heads/snapshot")
        forged(snapshot, tree=tree)


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    return Forge(tmp_path / "other")


@pytest.mark.parametrize(
    "path",
    ["../evil", "a/../../evil", "./a", ".git/hooks/x", ".GIT/config", ".git", ".g\u200cit/config", "git~1/config", "sub/.git/config"],
)
def test_a_snapshot_that_leads_out_of_the_folder_is_refused(snapshot: Path, forge: Forge, tmp_path: Path, path: str) -> None:
    forge.bundle(snapshot, forge.file(path))
    before = files_below(tmp_path)
    with pytest.raises(SettingError, match="the code was not restored\n  why     git read-tree failed: invalid path"):
        checkout_code(snapshot, tmp_path / "then")
    assert files_below(tmp_path) == before
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize("is_link_first", [True, False])
def test_a_file_below_a_link_is_not_written(snapshot: Path, forge: Forge, tmp_path: Path, is_link_first: bool) -> None:
    entries = [("120000", "a", forge.write("blob", b"..")), ("40000", "a", forge.file("evil"))]
    forge.bundle(snapshot, forge.tree(*entries[:: 1 if is_link_first else -1]))
    before = files_below(tmp_path)
    with contextlib.suppress(SettingError):
        checkout_code(snapshot, tmp_path / "then")
    assert {path for path in files_below(tmp_path) if not path.startswith("then/")} == {*before}


@pytest.mark.parametrize(
    "changes",
    [
        {"tree": "HEAD^{tree}"},
        {"tree": "0" * 40},
        {"tree": None},
        {"num_left_out": "x"},
        {"left_out": (3,)},
    ],
    ids=str,
)
def test_invalid_facts_are_refused(snapshot: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    forged(snapshot, **changes)
    before = files_below(tmp_path)
    with pytest.raises(StoreDamagedError, match="is damaged"):
        checkout_code(snapshot, tmp_path / "then")
    assert files_below(tmp_path) == before


def other_bytes(folder: Path) -> None:
    data = bytearray((folder / BUNDLE).read_bytes())
    data[-30] ^= 1
    (folder / BUNDLE).write_bytes(data)


def cut_bundle(folder: Path) -> None:
    (folder / BUNDLE).write_bytes((folder / BUNDLE).read_bytes()[:100])


def no_bundle(folder: Path) -> None:
    (folder / BUNDLE).unlink()


def link_as_bundle(folder: Path) -> None:
    (folder / BUNDLE).write_text("ref: ../../lab")


def changed_facts(folder: Path) -> None:
    (folder / FACTS).write_bytes((folder / FACTS).read_bytes().replace(b'"num_new": 0', b'"num_new": 1'))


@pytest.mark.parametrize("damage", [other_bytes, cut_bundle, no_bundle, link_as_bundle, changed_facts])
def test_a_damaged_snapshot_is_refused_and_leaves_nothing(snapshot: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    damage(snapshot)
    with pytest.raises(StoreDamagedError, match="is damaged"):
        checkout_code(snapshot, tmp_path / "then")
    assert_nothing_left(tmp_path)


def test_a_snapshot_is_written_once_and_then_hard_linked(repo: Path, tmp_path: Path) -> None:
    simple(repo)
    taken = capture(str(repo), Limits())
    first = write_snapshot(taken, str(tmp_path / "one"))
    again = write_snapshot(taken, str(tmp_path / "one"))
    second = write_snapshot(taken, str(tmp_path / "two"), like=first)
    assert first == again
    assert os.path.samefile(Path(first) / BUNDLE, Path(second) / BUNDLE)
    assert len(os.listdir(tmp_path / "one")) == 1


def test_other_users_cannot_write_to_the_files_of_a_snapshot(repo: Path) -> None:
    umask = os.umask(0o077)
    try:
        folder = simple(repo)
    finally:
        os.umask(umask)
    assert {oct((folder / name).stat().st_mode & 0o777) for name in (BUNDLE, FACTS, PATCH)} == {oct(0o600)}


def test_without_an_origin_the_snapshot_has_the_first_remote(repo: Path) -> None:
    git(repo, "remote", "add", "upstream", "https://me:secret@host.org/lab.git")
    assert read_snapshot(str(simple(repo))).remote == "https://host.org/lab.git"


def test_a_remote_that_is_a_path_is_kept(repo: Path) -> None:
    git(repo, "remote", "add", "origin", "/srv/C#/lab.git")
    assert read_snapshot(str(simple(repo))).remote == "/srv/C#/lab.git"
