"""The command `trainmaster code`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from trainmaster.cli.console import print_json, print_line, print_pairs
from trainmaster.cli.open_store import open_run
from trainmaster.cli.options import Json, Key, StoreOption, check_new_folder
from trainmaster.errors import SettingError, StoreFormatError
from trainmaster.text import counted, first_lines, printable_lines

if TYPE_CHECKING:
    from trainmaster.extensions.code.snapshot import Snapshot
    from trainmaster.store import Run, Store

_MAX_SHOWN = 10


class SavedCode(NamedTuple):
    """A snapshot of a run's code, and the attempts that used this code."""

    name: str
    folder: str
    snapshot: Snapshot
    attempts: list[int]


def command(
    key: Key,
    is_diff: Annotated[bool, typer.Option("--diff", help="Print the uncommitted changes as a patch.")] = False,
    to: Annotated[str | None, typer.Option("--checkout", metavar="DIR", help="Restore the exact files into a new or empty folder.")] = None,
    at: Annotated[str | None, typer.Option(metavar="SNAPSHOT", help="The start of a snapshot's name (default: the newest).")] = None,
    store: StoreOption = None,
    is_json: Json = False,
) -> None:
    """Show or restore the code that a run was trained with.

    The extension CodeTracker saves a snapshot of the code with each run: the commit, the uncommitted changes and the new files.

    \b
    Examples:
      trainmaster code 3fa9
      trainmaster code 3fa9 --diff
      trainmaster code 3fa9 --checkout /tmp/then
    """
    if sum((is_diff, to is not None, is_json)) > 1:
        raise SettingError("`--diff`, `--checkout` and `--json` cannot be combined", hint="use only one of them")
    found, run = open_run(store, key)
    saved = _read_snapshots(found, run)
    chosen = saved if at is None else [_find_snapshot(saved, at, run.key)]
    if is_json:
        print_json([_to_dict(each) for each in chosen])
    elif is_diff:
        _print_patch(chosen[-1])
    elif to is not None:
        _check_out(chosen[-1], check_new_folder("--checkout", to, str(found.root)))
    else:
        for each in chosen:
            _print_snapshot(each)


def _read_snapshots(store: Store, run: Run) -> list[SavedCode]:
    """Return the snapshots of a run, oldest first."""
    from trainmaster.extensions.code.snapshot import FAILURE, FOLDER, read_snapshot, snapshots_in
    from trainmaster.store.keys import attempt_folder

    parents = {each: Path(store.root or "", attempt_folder("previews", run.key, each), FOLDER) for each in sorted(run.attempts())}
    found: dict[str, SavedCode] = {}
    for number, parent in parents.items():
        for folder in snapshots_in(str(parent)):
            name = os.path.basename(folder)
            if name not in found:
                found[name] = SavedCode(name, folder, read_snapshot(folder), [])
            found[name].attempts.append(number)
    if not found:
        failures = [parent / FAILURE for parent in parents.values() if (parent / FAILURE).is_file()]
        why = failures[-1].read_text("utf-8", "backslashreplace")[:2000].strip() if failures else None
        repository = "put the program into a git repository: `git init`, then `git add` and `git commit`"
        extension = "train in a git repository with the extension CodeTracker: pass `extensions=[CodeTracker()]` to the loop"
        raise StoreFormatError(f"run {run.key} has no snapshot of its code", why=why, hint=repository if why else extension)
    return sorted(found.values(), key=lambda each: (each.attempts[-1], each.snapshot.taken))


def _find_snapshot(saved: list[SavedCode], at: str, key: str) -> SavedCode:
    matching = [each for each in saved if at and each.name.startswith(at)]
    if len(matching) != 1:
        count = f"{len(matching)} snapshots" if matching else "no snapshot"
        raise SettingError(f"run {key} has {count} whose name starts with {at!r:.60}", known="\n".join(each.name for each in saved))
    return matching[0]


def _print_snapshot(saved: SavedCode) -> None:
    code = saved.snapshot
    print_line(f"snapshot {saved.name}", "bold")
    rows: list[tuple[str, object]] = [
        ("commit", f"{code.commit}  {code.subject}".rstrip() if code.commit else "none: the repository had no commit yet"),
        ("branch", code.branch if code.branch is not None else "none: HEAD was detached"),
        ("state", "dirty" if code.is_dirty else "clean"),
        ("changed", f"{len(code.changed)} changed, {len(code.deleted)} deleted, {code.num_new} new"),
    ]
    left_out = first_lines([str(one) for one in code.left_out], code.num_left_out, _MAX_SHOWN)
    rows += [("" if number else "left out", line) for number, line in enumerate(left_out)]
    rows += [("submodule", f"{path}  {commit[:12] if commit else 'not checked out'}") for path, commit in code.submodules.items()]
    if code.remote:
        rows.append(("remote", code.remote))
    rows += [("folder", code.root), ("taken", code.taken), ("attempts", ", ".join(map(str, saved.attempts))), ("files", saved.folder)]
    print_pairs(rows)


def _to_dict(saved: SavedCode) -> dict[str, Any]:
    from dataclasses import asdict

    code = saved.snapshot
    return {"name": saved.name, "path": saved.folder, "attempts": saved.attempts, "is_dirty": code.is_dirty, **asdict(code)}


def _print_patch(saved: SavedCode) -> None:
    """Print the patch: as escaped text on a terminal, otherwise as exact bytes, so that git can apply it."""
    from trainmaster.extensions.code.snapshot import PATCH, damaged

    path = Path(saved.folder, PATCH)
    try:
        patch = path.read_bytes()
    except FileNotFoundError:
        raise damaged(str(path), "it is missing") from None
    if sys.stdout.isatty():
        print(printable_lines(patch.decode("utf-8", "backslashreplace")), end="")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(patch)
        sys.stdout.buffer.flush()
    if saved.snapshot.num_new:
        print(f"{counted(saved.snapshot.num_new, 'new file')} not in the patch; --checkout DIR restores all files", file=sys.stderr)


def _check_out(saved: SavedCode, to: str) -> None:
    from trainmaster.extensions.code.checkout import checkout_code

    restored = checkout_code(saved.folder, to)
    print_line(f"restored {saved.name} into {restored.folder}{': the files are exact' if restored.is_exact else ', except for'}")
    for line in first_lines(restored.missing, len(restored.missing), _MAX_SHOWN):
        print_line(f"  {line}")
    if not restored.is_exact:
        raise typer.Exit(1)
