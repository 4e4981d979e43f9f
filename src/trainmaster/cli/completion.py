"""Shell completion for targets, config keys, run keys, run states, and the names that `--sort` accepts.

These functions parse the user's code, but never import it. They may return names that do not start with the incomplete
word; typer filters these out. If an error occurs, they return no completions, because the command itself will report
the error.
"""

from __future__ import annotations

import ast
import glob
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from trainmaster.store.summary import Summary

_MAX_KEYS = 40
_MAX_RUNS = 50
"""The number of runs to read, newest first, to collect the names of metrics and config keys."""
_Definition = ast.ClassDef | ast.FunctionDef


def complete_key(ctx: typer.Context, incomplete: str) -> list[Any]:
    """Return run keys, each with its state."""
    from trainmaster.cli.open_store import find_store, list_keys
    from trainmaster.store.summary import summarize

    try:
        store = find_store(ctx.params.get("store"))
        return [] if store is None else [(key, summarize(store, key).state) for key in list_keys(store, incomplete)[:_MAX_KEYS]]
    except Exception:  # the command itself will report the error
        return []


def complete_state() -> list[Any]:
    from trainmaster.store.summary import STATES

    return [*STATES.items()]


def complete_sort(ctx: typer.Context) -> list[Any]:
    """Return the names to sort by: metrics, config keys, `epoch`, `time` and `key`."""
    runs = _read_newest_runs(ctx)
    metrics = sorted({name for run in runs for name in run.metrics})
    return [*dict.fromkeys([*metrics, *_config_keys(runs), "epoch", "time", "key"])]


def complete_target(ctx: typer.Context, incomplete: str) -> list[Any]:
    """Return Python files and folders or, after a colon, the targets in a file.

    If only one file matches, its targets are listed too.
    """
    file, colon, _ = incomplete.rpartition(":")
    if colon:
        return [(f"{file}:{name}", about) for name, about in _find_targets(file)]
    rest = "*" if os.path.basename(incomplete) else "[!_]*"
    paths = sorted(glob.glob(glob.escape(incomplete) + rest))
    files = [path for path in paths if path.endswith(".py")]
    folders = [os.path.join(path, "") for path in paths if os.path.isdir(path)]
    targets = _find_targets(files[0]) if len(files) == 1 and not folders else []
    return [*files, *folders, *((f"{files[0]}:{name}", about) for name, about in targets)]


def complete_override(ctx: typer.Context, incomplete: str) -> list[Any]:
    """Return `key=` for each key in the target's defaults and in stored configs."""
    words = [str(each) for name in ("overrides", "choices") for each in ctx.params.get(name) or ()]
    target = str(ctx.params.get("target") or "")
    if words == [":"]:
        return _find_targets(target)
    if words[:1] == [":"]:
        target = f"{target}:{words[1]}"
    if "=" in incomplete or words[-1:] == ["="]:
        return []
    plus = "+" if incomplete.startswith("+") else ""
    return [f"{plus}{key}=" for key in dict.fromkeys([*_default_keys(target), *_config_keys(_read_newest_runs(ctx))])]


def split_bash_word() -> None:
    """Make the completion start a new word after a colon or an equals sign, because bash splits words at these characters."""
    if os.environ.get("COMP_WORDS", "").endswith((":", "=")):
        os.environ["COMP_CWORD"] = str(int(os.environ.get("COMP_CWORD", "0")) + 1)


def _read_newest_runs(ctx: typer.Context) -> list[Summary]:
    from trainmaster.cli.open_store import find_store
    from trainmaster.store.summary import newest_first, summarize

    try:
        store = find_store(ctx.params.get("store"), ctx.params.get("store_dir"))
        return [] if store is None else [summarize(store, key) for key in newest_first(store)[:_MAX_RUNS]]
    except Exception:  # the command itself will report the error
        return []


def _config_keys(runs: list[Summary]) -> list[str]:
    from trainmaster.store.summary import flat

    return [*dict.fromkeys(name for run in runs for name in flat(run.config))]


def _parse_file(path: str) -> list[ast.stmt]:
    """Return the statements of a Python file, or an empty list if there is no such file or it cannot be parsed."""
    try:
        with open(path, "rb") as file:
            return ast.parse(file.read()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _find_targets(path: str) -> list[tuple[str, str]]:
    """Return the names in a file that look like targets, or all names if none does, each with the first line of its docstring."""
    definitions = [each for each in _parse_file(path) if isinstance(each, _Definition) and not each.name.startswith("_")]
    targets = [each for each in definitions if _looks_like_target(each)] or definitions
    return [(each.name, (ast.get_docstring(each) or "").partition("\n")[0]) for each in targets]


def _looks_like_target(node: _Definition) -> bool:
    if isinstance(node, ast.FunctionDef):
        return [each.arg for each in node.args.args][:1] in (["config"], ["store_dir"])
    bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
    return any(name.endswith("Manager") and not name.endswith("TrainManager") for name in bases)


def _default_keys(target: str) -> Iterator[str]:
    """Yield the dotted keys of the variables named `defaults` in a target's class and at the top level of its file."""
    path, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    body = _parse_file(path)
    classes = {each.name: each for each in body if isinstance(each, ast.ClassDef)}
    chosen = [classes[name]] if name in classes else [*classes.values()]
    for line in [*(line for each in chosen for line in each.body), *body]:
        names = line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
        if any(isinstance(each, ast.Name) and each.id == "defaults" for each in names):
            yield from _expand_keys(line.value, classes)  # type: ignore[attr-defined]


def _expand_keys(value: ast.expr | None, classes: dict[str, ast.ClassDef], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a dict literal, a config class, or a call of a config class."""
    name = value.func if isinstance(value, ast.Call) else value
    if isinstance(value, ast.Dict):
        fields = [(str(key.value), each) for key, each in zip(value.keys, value.values, strict=True) if isinstance(key, ast.Constant)]
    elif isinstance(name, ast.Name) and name.id in classes and prefix.count(".") < 8:
        lines = [line for line in classes[name.id].body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)]
        fields = [(str(line.target.id), line.annotation) for line in lines]  # type: ignore[union-attr]
    else:
        if prefix:
            yield prefix.removesuffix(".")
        return
    for key, each in fields:
        yield from _expand_keys(each, classes, f"{prefix}{key}.")
