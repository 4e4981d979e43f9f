"""`trainmaster code`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from trainmaster.cli.options import Json, Key, StoreOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmaster.extensions.code.snapshot import Snapshot
    from trainmaster.store import Store

_MAX_SHOWN = 10


class Kept(NamedTuple):
    """A snapshot of a run, and the attempts that have it."""

    name: str
    folder: str
    snapshot: Snapshot
    attempts: list[int]


def command(
    key: Key,
    is_diff: Annotated[bool, typer.Option("--diff", help="Print the uncommitted changes as a patch.")] = False,
    to: Annotated[
        str | None, typer.Option("--checkout", metavar="DIR", help="Restore the exact tree into a new or empty folder.", show_default=False)
    ] = None,
    repo: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="A repository that has the commit; by default the one of the training.", show_default=False),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="SNAPSHOT", help="Which snapshot, by the start of its name; by default the newest.", show_default=False),
    ] = None,
    store: StoreOption = None,
    is_json: Json = False,
) -> None:
    """Show the code that a run was trained with, and restore it.

    Runs with the extension CodeTracker have it: the commit, the uncommitted changes, new source files.

    \b
    Examples:
      trainmaster code 3fa9
      trainmaster code 3fa9 --diff
      trainmaster code 3fa9 --checkout /tmp/then
    """
    from trainmaster.cli.keys import resolve_key
    from trainmaster.cli.new_folder import new_folder
    from trainmaster.cli.opening import needed_store
    from trainmaster.cli.strict_json import print_json
    from trainmaster.errors import SettingError

    if sum((is_diff, to is not None, is_json)) > 1:
        raise SettingError("`--diff`, `--checkout` and `--json` are three different things", hint="give one of them")
    if repo is not None and to is None:
        raise SettingError("`--repo` is where `--checkout DIR` takes the commit from", hint="give `--checkout DIR` too")
    found = needed_store(store)
    full = resolve_key(found, key)
    kept = _kept(found, full)
    if is_json:
        print_json([_plain(each) for each in ([_chosen(kept, at, full)] if at is not None else kept)])
    elif is_diff:
        _print_patch(_chosen(kept, at, full))
    elif to is not None:
        _check_out(_chosen(kept, at, full), new_folder("--checkout", to, found), repo)
    else:
        _print(kept if at is None else [_chosen(kept, at, full)])


def _kept(store: Store, key: str) -> list[Kept]:
    """The snapshots of a run, oldest first."""
    import os

    from trainmaster.errors import StoreFormatError
    from trainmaster.extensions.code.snapshot import FOLDER, read, snapshots_in
    from trainmaster.store.keys import attempt_folder

    found: dict[str, Kept] = {}
    for number in sorted(store.run(key).attempts()):
        for folder in snapshots_in(os.path.join(store.root or "", attempt_folder("previews", key, number), FOLDER)):
            name = os.path.basename(folder)
            if name not in found:
                found[name] = Kept(name, folder, read(folder), [])
            found[name].attempts.append(number)
    if not found:
        raise StoreFormatError(
            f"run {key} has no snapshot of its code",
            hint="train with the extension CodeTracker: `extensions = [CodeTracker()]` in the manager's class",
        )
    return sorted(found.values(), key=lambda each: (each.attempts[-1], each.snapshot.taken))


def _chosen(kept: list[Kept], at: str | None, key: str) -> Kept:
    from trainmaster.errors import SettingError

    if at is None:
        return kept[-1]
    fitting = [each for each in kept if at and each.name.startswith(at)]
    if len(fitting) != 1:
        count = f"{len(fitting)} snapshots" if fitting else "no snapshot"
        raise SettingError(f"run {key} has {count} whose name starts with {at!r:.60}", known="\n".join(each.name for each in kept))
    return fitting[0]


def _print(kept: list[Kept]) -> None:
    from trainmaster.cli.table import pairs
    from trainmaster.cli.terminal import the_terminal
    from trainmaster.cli.words import counted
    from trainmaster.extensions.code.snapshot import CHANGED, IGNORED, OTHER, UNTRACKED
    from trainmaster.store.printable import printable

    terminal = the_terminal()
    for each in kept:
        code = each.snapshot
        print(terminal.paint(printable(f"snapshot {each.name}"), "bold"))
        attempts = ", ".join(map(str, each.attempts))
        rows: list[tuple[str, object]] = [
            ("commit", f"{code.commit}  {code.subject}".rstrip() if code.commit else "none: the repository had no commit yet"),
            ("branch", code.branch if code.branch is not None else "none: the head was detached"),
            ("state", "dirty" if code.is_dirty else "clean"),
            ("changed", f"{code.count(CHANGED)} changed, {len(code.deleted)} deleted, {code.count(UNTRACKED)} new"),
        ]
        others = sum(left.kind in (OTHER, IGNORED) for left in code.left_out) + code.num_unnamed
        lost = _first([f"{left.path} ({left.reason})" for left in code.lost()])
        lost += [f"{counted(others, 'file')} that git ignores or that {'is' if others == 1 else 'are'} no source"] if others else []
        rows += [("" if number else "left out", line) for number, line in enumerate(lost)]
        for one in code.submodules:
            said = "not there" if one.commit is None else f"{one.commit[:12]}{', with changes that are not kept' if one.is_dirty else ''}"
            rows.append(("submodule", f"{one.path}  {said}"))
        if code.remote:
            rows.append(("remote", code.remote))
        rows += [("folder", code.root), ("taken", code.taken), ("attempts", attempts), ("files", each.folder)]
        for line in pairs(rows, terminal):
            print(line)


def _plain(kept: Kept) -> dict[str, Any]:
    from dataclasses import asdict

    lists = {name: [one._asdict() for one in getattr(kept.snapshot, name)] for name in ("submodules", "files", "left_out")}
    return {"name": kept.name, "path": kept.folder, "attempts": kept.attempts, **asdict(kept.snapshot), **lists}


def _print_patch(kept: Kept) -> None:
    """As it is into a pipe, so that git can apply it; for a person without what would move the cursor."""
    import os
    import sys

    from trainmaster.extensions.code.snapshot import PATCH, UNTRACKED, damaged
    from trainmaster.store.printable import printable_lines

    path = os.path.join(kept.folder, PATCH)
    try:
        with open(path, "rb") as file:
            patch = file.read()
    except FileNotFoundError:
        raise damaged(path, "it is missing") from None
    if sys.stdout.isatty():
        print(printable_lines(patch.decode("utf-8", "backslashreplace")), end="")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(patch)
        sys.stdout.buffer.flush()
    num_new = kept.snapshot.count(UNTRACKED)
    if num_new:
        from trainmaster.cli.words import counted

        print(f"{counted(num_new, 'new file')} not in the patch; --checkout DIR restores all", file=sys.stderr)


def _check_out(kept: Kept, to: str, repo: str | None) -> None:
    from trainmaster.extensions.code.checkout import checkout_code
    from trainmaster.store.printable import printable

    restored = checkout_code(kept.folder, to, repo)
    print(printable(f"restored {kept.name} into {restored.folder}{': the tree is exact' if restored.is_exact else ', but for'}"))
    for line in _first(restored.missing):
        print(printable(f"  {line}"))
    if not restored.is_exact:
        raise typer.Exit(1)


def _first(lines: Sequence[str]) -> list[str]:
    """The first of many lines, and how many more there are."""
    return [*lines[:_MAX_SHOWN], *([f"... and {len(lines) - _MAX_SHOWN:,} more"] if len(lines) > _MAX_SHOWN else [])]
