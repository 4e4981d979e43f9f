"""How many of a sample of small bugs the tests find: 200 mutants of the store, the loop and the stages, one at a time.

    python benchmarks/mutants.py [--tests DIR] [--only FILE] [--out FILE]

Each mutant changes one expression or statement in a copy of the repository, and the tests of its room run against it until one fails.
`--tests` takes the tests from another checkout, `--only` repeats the mutants of an earlier output that survived.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

ROOT = Path(__file__).parent.parent
SEED = 14
ROOMS = {"store/lease.py store/owner.py store/attempt.py": 30, "store": 70, "loop": 50, "stages": 50}
NUM_PLACES = 3
COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.Mult}
PATIENCE = 600
TIMES = itertools.count(1_000_000_000)


def changed(node: ast.AST) -> ast.AST | None:
    """The node with a bug, or None where there is nothing to break."""
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
    """Imports, annotated fields and what only type checkers read."""
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
    """The sample: the same each time for the same code."""
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


def survives(mutant: dict[str, Any], place: Path, options: list[str]) -> bool:
    """Run the tests of a room in a copy of the repository; a mutant that makes them hang is found, too."""
    file = place / mutant["file"]
    before = file.read_text()
    own = place / "tests" / file.parent.name / f"test_{file.stem}.py"
    first = [str(own.relative_to(place))] if own.exists() else []
    write(file, mutant["text"])
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--timeout=30",
        *options,
        *first,
        f"tests/{file.parent.name}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(place / "src"), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        ran = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert ran.returncode in (0, 1, 2), ran.stdout + ran.stderr  # green, red, or a module that cannot be imported any more
        return ran.returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        write(file, before)


def write(file: Path, text: str) -> None:
    """With a time of its own, in whole seconds: byte code is made anew if that differs."""
    file.write_text(text)
    os.utime(file, times=(next(TIMES),) * 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=Path, default=ROOT, help="a checkout whose tests are used")
    parser.add_argument("--only", type=Path, help="an earlier output: only what survived there")
    parser.add_argument("--out", type=Path, help="write what survived")
    parser.add_argument("options", nargs="*", help="for pytest, after --")
    asked = parser.parse_args()
    sample = mutants()
    if asked.only:
        wanted = set(asked.only.read_text().splitlines())
        sample = [mutant for mutant in sample if mutant["title"] in wanted]
    free: Queue[Path] = Queue()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(NUM_PLACES):
            shutil.copytree(ROOT / "src", Path(folder, str(number), "src"))
            for name in ("tests", "pyproject.toml", "README.md", "docs", "examples"):
                source = asked.tests / name
                (shutil.copytree if source.is_dir() else shutil.copy)(source, Path(folder, str(number), name))
            free.put(Path(folder, str(number)))

        def judge(mutant: dict[str, Any]) -> tuple[dict[str, Any], bool]:
            place = free.get()
            try:
                return mutant, survives(mutant, place, asked.options)
            finally:
                free.put(place)

        total, killed, left = Counter(), Counter(), []
        with ThreadPoolExecutor(NUM_PLACES) as pool:
            for mutant, has_survived in pool.map(judge, sample):
                total[mutant["room"]] += 1
                killed[mutant["room"]] += not has_survived
                print("survived" if has_survived else "killed  ", mutant["title"], flush=True)
                left += [mutant["title"]] * has_survived
    for room, num in total.items():
        print(f"{room:8} {killed[room]:4} of {num} killed")
    print(f"{'all':8} {killed.total():4} of {total.total()} killed", json.dumps({"seed": SEED}))
    if asked.out:
        asked.out.write_text("\n".join(left))


if __name__ == "__main__":
    main()
