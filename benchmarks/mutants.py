"""Counts how many small bugs the tests find: 200 mutants of the store, the loop and the stages, one at a time.

    python benchmarks/mutants.py [--tests DIR] [--only FILE] [--out FILE]

Each mutant changes one expression or statement in a copy of the repository, and the tests of its package run against
it until one fails. `--tests` uses the tests in another checkout, and `--only` repeats the mutants that survived in an
earlier output.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SEED = 14
ROOMS = {"store/lease.py store/process_identity.py store/attempt.py": 30, "store": 70, "loop": 50, "stages": 50}
NUM_PLACES = 3
HEAVY = (
    "torch._dynamo",
    "hypothesis.extra.numpy",
    "matplotlib.figure",
    "pydantic",
    "rich.progress",
    "safetensors.torch",
    "typer.main",
    "pytest",
)
"""Heavy modules that are imported once, before a process is forked for each mutant. None of them is mutated."""
COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.Mult}
PATIENCE = 600
TIMES = itertools.count(1_000_000_000)


def changed(node: ast.AST) -> ast.AST | None:
    """Return a copy of the node with a bug, or None if this kind of node is not mutated."""
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in COMPARED:
            return ast.Compare(left, [COMPARED[type(op)]()], [right])
        case ast.BoolOp(ast.And(), values):
            return ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(ast.Or(), values):
            return ast.BoolOp(ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.BinOp(left, op, right) if type(op) in COMPUTED:
            return ast.BinOp(left, COMPUTED[type(op)](), right)
        case ast.Constant(bool() as value):
            return ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            return ast.Constant(value + 1)
        case ast.If(test, body, orelse):
            return ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Return(ast.expr()):
            return ast.Return(ast.Constant(None))
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Break() | ast.Continue() | ast.Raise():
            return ast.Pass()
    return None


def is_left_alone(node: ast.AST) -> bool:
    """Return whether a node must not be mutated because it is an import, an annotated field or code for type checkers."""
    return isinstance(node, ast.AnnAssign | ast.ImportFrom | ast.Import) or (
        isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )


def places(tree: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list") or is_left_alone(tree):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                if changed(child) is not None:
                    yield child
                yield from places(child)


class Replacing(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return ast.copy_location(self.new, node) if node is self.old else self.generic_visit(node)


def mutants() -> list[dict[str, Any]]:
    """Return the sample of mutants, which is the same each time for the same code."""
    draws, found = random.Random(SEED), []
    for room, num in ROOMS.items():
        files = [
            path for name in room.split() for path in sorted(ROOT.glob(f"src/trainmaster/{name}{'' if name.endswith('.py') else '/*.py'}"))
        ]
        spots = [(path, number) for path in files for number in range(len([*places(ast.parse(path.read_text()))]))]
        for path, number in draws.sample(spots, num):
            tree = ast.parse(path.read_text())
            node = [*places(tree)][number]
            new = changed(node)
            assert new is not None
            title = f"{path.relative_to(ROOT)}:{node.lineno}  {ast.unparse(node).splitlines()[0][:70]}"  # type: ignore[attr-defined]
            text = ast.unparse(ast.fix_missing_locations(Replacing(node, new).visit(tree)))
            found.append({"room": room.split("/")[0], "file": str(path.relative_to(ROOT)), "title": title, "text": text})
    draws.shuffle(found)
    return found


def start(mutant: dict[str, Any], place: Path, options: list[str]) -> int:
    """Fork a process that runs the tests of the mutant's package in a copy of the repository.

    The tests of the changed file run first.
    """
    file = place / mutant["file"]
    mutant["before"] = file.read_text()
    write(file, mutant["text"])
    pid = os.fork()
    if pid:
        return pid
    import pytest

    os.setsid()
    os.chdir(place)
    os.environ["PYTHONPATH"] = sys.path[0] = str(place / "src")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    own = Path("tests", file.parent.name, f"test_{file.stem}.py")
    first = [str(own)] if own.exists() else []
    code = 1
    try:
        code = pytest.main(
            [
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "--timeout=30",
                "-W",
                "ignore::pytest.PytestAssertRewriteWarning",
                *options,
                *first,
                f"tests/{file.parent.name}",
            ]
        )
    finally:
        os._exit(code)


def judged(sample: list[dict[str, Any]], places: list[Path], options: list[str]) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield `(mutant, has_survived)` pairs. A mutant that makes the tests hang counts as found."""
    waiting, running, free = [*sample], {}, [*places]
    while waiting or running:
        while waiting and free:
            mutant, place = waiting.pop(0), free.pop()
            running[start(mutant, place, options)] = mutant, place, time.monotonic() + PATIENCE
        for pid, (mutant, place, deadline) in [*running.items()]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended and time.monotonic() > deadline:
                os.killpg(pid, signal.SIGKILL)
                ended, status = os.waitpid(pid, 0)
            if ended:
                del running[pid]
                write(place / mutant["file"], mutant["before"])
                free.append(place)
                code = os.waitstatus_to_exitcode(status)
                assert code in (0, 1, 2, -signal.SIGKILL), f"pytest ended with {code}"  # 2: a module could not be imported
                yield mutant, code == 0
        time.sleep(0.05)


def write(file: Path, text: str) -> None:
    """Write a file with a new modification time in whole seconds, so that Python compiles it again."""
    file.write_text(text)
    os.utime(file, times=(next(TIMES),) * 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=Path, default=ROOT, help="a checkout whose tests are used")
    parser.add_argument("--only", type=Path, help="an earlier output: repeat only the mutants that survived there")
    parser.add_argument("--out", type=Path, help="write what survived")
    parser.add_argument("options", nargs="*", help="for pytest, after --")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    for name in HEAVY:
        importlib.import_module(name)
    sample = mutants()
    if asked.only:
        wanted = set(asked.only.read_text().splitlines())
        sample = [mutant for mutant in sample if mutant["title"] in wanted]
    total, killed, left = Counter(), Counter(), []
    folder = tempfile.mkdtemp()  # removed explicitly, because a fork that exits normally would run the finalizer of a TemporaryDirectory
    places = [Path(folder, str(number)) for number in range(NUM_PLACES)]
    for place in places:
        shutil.copytree(ROOT / "src", place / "src")
        for name in ("tests", "pyproject.toml", "README.md", "docs", "examples"):
            source = asked.tests / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, place / name)
    unchanged = [{"file": f"src/trainmaster/{room}/__init__.py"} for room in ("store", "loop", "stages")]
    for control in unchanged:
        control["text"] = (ROOT / control["file"]).read_text()
    assert all(has_survived for _, has_survived in judged(unchanged, places, asked.options)), "the tests fail without a bug"
    for mutant, has_survived in judged(sample, places, asked.options):
        total[mutant["room"]] += 1
        killed[mutant["room"]] += not has_survived
        print("survived" if has_survived else "killed  ", mutant["title"], flush=True)
        left += [mutant["title"]] * has_survived
    shutil.rmtree(folder)
    for room, num in total.items():
        print(f"{room:8} {killed[room]:4} of {num} killed")
    print(f"{'all':8} {killed.total():4} of {total.total()} killed", json.dumps({"seed": SEED}))
    if asked.out:
        asked.out.write_text("\n".join(left))


if __name__ == "__main__":
    main()
