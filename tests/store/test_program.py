"""A program is identified by the digests of its source files. Files that cannot be read have no digest."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trainmaster.store import program as programs
from trainmaster.store.program import Program, digest_of, has_digest, project_root

SOURCE = "class A:\n    def train(self):\n        return 1\n"


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that imports a source file as a separate module."""

    def load(name: str, text: str = SOURCE) -> type:
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        module = ModuleType(path.stem)
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, path.stem, module)
        exec(text, module.__dict__)
        kind = module.__dict__["A"]
        kind.__module__ = path.stem
        return kind  # type: ignore[no-any-return]

    yield load
    for path in [each for each in programs._sources if each.startswith(str(tmp_path))]:
        del programs._sources[path]


@pytest.mark.parametrize(
    ("text", "is_same"),
    [
        (SOURCE + "# a comment\n", True),
        ('"""A docstring."""\n' + SOURCE, True),
        (SOURCE.replace("        return", '        """Of a method."""\n        return'), True),
        (SOURCE.replace("(self)", "(\n        self,\n    )"), True),
        (SOURCE.replace("1", "2"), False),
        (SOURCE.replace("1", "1.0"), False),
        (SOURCE.replace("1", "'1'"), False),
        (SOURCE.replace("return 1", "yield 1"), False),
        (SOURCE.replace("train", "tram"), False),
        (SOURCE + "X = 'a text'\n", False),
        (SOURCE + "def f(a, /, b, *, c): ...\n", False),
    ],
)
def test_a_digest_depends_only_on_the_syntax_tree(tmp_path: Path, text: str, is_same: bool) -> None:
    (tmp_path / "a.py").write_text(SOURCE)
    (tmp_path / "b.py").write_text(text)
    digest = digest_of(str(tmp_path / "a.py"))
    assert digest is not None
    assert has_digest(str(tmp_path / "b.py"), digest) is is_same


def test_a_digest_does_not_depend_on_the_version_of_python(tmp_path: Path) -> None:
    text = "import a\nfrom b import (c as d)\nasync def f(x: int = 1, *y, **z) -> str:\n    return f'{x!r:>{y}}' + r'a\\b'\n"
    text += "class C(B, metaclass=M):\n    x: int\n    def g(self): return [i async for i in self if i] or {**{}, 'a': ...}\n"
    text += "match a:\n    case [1, *_] | {'k': v, **rest} if v: pass\ntry: ...\nexcept* ValueError: raise\n"
    (tmp_path / "a.py").write_text(text)
    assert digest_of(str(tmp_path / "a.py")) == "0f51094bb68cf2d7.70ecbc457123aac3"


def test_a_file_that_python_cannot_parse_is_compared_byte_by_byte(tmp_path: Path) -> None:
    for number, text in enumerate(["def (", "x = " + "(" * 5000 + ")" * 5000, "x = 1\0", "-" * 20_000 + "1"]):
        path = tmp_path / f"odd{number}.py"
        path.write_text(text)
        digest = digest_of(str(path))
        assert digest is not None
        assert digest.startswith(".")
        assert has_digest(str(path), digest)
        path.write_text(text + " ")
        assert not has_digest(str(path), digest)


def test_files_that_cannot_be_read_have_no_digest_and_cause_no_warning(tmp_path: Path, load: Any) -> None:
    kind = load("mine")
    before = Program.of(kind)
    for path in (tmp_path / "missing.py", tmp_path, "/proc/self/mem\0", "/dev/null/x.py"):
        assert digest_of(str(path)) is None
        assert not has_digest(str(path), ".0000000000000000")
    assert Program.of(kind, str(tmp_path / "missing.py")).files.get("missing.py") is None
    (tmp_path / "big.py").write_bytes(b"#" * 3_000_000)
    assert digest_of(str(tmp_path / "big.py")) is None
    assert before.files.keys() == {"mine.py"}


def test_the_files_of_a_program_are_the_loaded_modules_of_the_project_without_installed_packages(tmp_path: Path, load: Any) -> None:
    (tmp_path / "pyproject.toml").touch()
    load("lib/site-packages/installed")
    load("lab/model")
    (tmp_path / "lab" / "not_loaded.py").write_text("x = 1\n")
    found = Program.of(load("train"))
    assert found.files.keys() == {"train.py", "lab/model.py"}
    assert (found.file, found.classes, found.root) == ("train.py", ("A",), str(tmp_path))


def test_sys_modules_may_contain_any_object(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Strange:
        __file__ = 3

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    class Odd(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    monkeypatch.setitem(sys.modules, "strange", Strange())  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "odd", Odd("odd"))
    monkeypatch.setitem(sys.modules, "nothing", None)  # type: ignore[arg-type]
    assert Program.of(load("mine")).files.keys() == {"mine.py"}


@pytest.mark.parametrize("text", ["def train(self): return 2", "def train(self): return 1"])
def test_a_class_without_a_file_is_identified_by_its_compiled_methods(text: str) -> None:
    """Classes without a file are defined in a notebook, at a prompt or by `exec`."""
    kinds = []
    for source in ("def train(self): return 1", text):
        space: dict[str, Any] = {"__name__": "a_notebook"}
        exec(f"class A:\n    '''A docstring {len(kinds)}.'''\n    {source}\n    x = property(lambda self: 3)", space)
        kinds.append(space["A"])
    before, now = map(Program.of, kinds)
    assert before.file == "the code of the notebook"
    assert now.changed_since(before) == ([] if text.endswith("1") else ["the code of the notebook"])
    assert not now.differs_from(before)


def test_the_home_folder_and_the_root_of_the_disk_are_not_projects(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, load: Any) -> None:
    assert project_root("/") == "/"
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".git").mkdir()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    assert project_root(str(tmp_path / "deep" / "er")) == str(tmp_path / "deep" / "er")
    kind = load("mine")
    started = time.thread_time()
    found = Program.of(kind, "/at_the_root.py")
    assert time.thread_time() - started < 2
    assert found.root == "/"
    assert not [file for file in found.files if "site-packages" in file or "/json/" in file]


def test_two_thousand_modules_take_a_tenth_of_a_second(tmp_path: Path, load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit applies to the CPU time of the first call; later calls take almost no time."""
    for number in range(2000):
        path = tmp_path / f"part_{number}.py"
        path.write_text(SOURCE * 20)
        module = ModuleType(f"part_{number}")
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, f"part_{number}", module)
    kind = load("mine")
    times = []
    for _ in range(3):
        for each in [each for each in programs._sources if each.startswith(str(tmp_path))]:
            del programs._sources[each]
        started = time.process_time()
        found = Program.of(kind)
        times.append(time.process_time() - started)
    assert len(found.files) == 2001
    assert min(times) < 0.3, times  # 0.1 s on an idle machine
    assert found.files["mine.py"].partition(".")[0], "the manager's own file is always read as a tree"
    assert Program.of(kind).changed_since(found) == []


@pytest.mark.parametrize(
    "record",
    [
        None,
        3,
        [],
        {},
        {"files": 3},
        {"files": {}, "classes": "A"},
        {"file": 1, "root": "", "main": "", "classes": [], "files": {}},
        {"files": {"a": 1}},
    ],
)
def test_an_invalid_record_is_not_a_program(record: Any) -> None:
    assert Program.from_record(record) is None


def test_a_program_is_restored_from_its_record(load: Any) -> None:
    found = Program.of(load("mine"))
    assert Program.from_record(found.to_record()) == found


def test_the_digest_of_a_file_that_was_edited_and_loaded_again_is_the_new_one(
    tmp_path: Path, load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Program.of(load("mine"))
    os.utime(tmp_path / "mine.py")
    monkeypatch.delitem(sys.modules, "mine")
    Program.of(Program, str(tmp_path / "other.py"))  # even if other modules are loaded in between
    now = Program.of(load("mine", SOURCE.replace("1", "2")))
    assert now.changed_since(before) == ["mine.py"]
