"""Type checkers understand the attributes of config classes and the keyword arguments of their constructors."""

import re
import subprocess
import sys

import pytest

pytest.importorskip("mypy")

SAMPLE = """
from typing import Annotated, Any, Literal, Optional

from annotated_types import Gt

from trainmaster.config import Config, ConfigBase, Derived, Replicate, Stateless, configclass, field


@configclass
class Train(ConfigBase):
    lr: Annotated[float, Gt(0)] = 0.1
    batch_size: int
    epochs: Stateless[int] = 10
    mode: Literal["a", "b"] = "a"


@configclass
class WarmTrain(Train):
    warmup: int = 5

    def problems(self) -> Any:
        if self.warmup > self.epochs:
            yield "warmup", "expected at most epochs"


@configclass
class Run(ConfigBase):
    train: Train
    seed: Replicate[int] = 0
    num_classes: Derived[int] = field(default=None)
    shape: Derived[Optional[tuple[int, int]]] = None
    rate: float = field(default=0.5, was="lr")
    added: str = field(default="", added=True)
    tags: Stateless[list[str]] = []

    @property
    def steps(self) -> int:
        return self.train.epochs * 2


run = Run(train=Train(batch_size=4, lr=0.5), seed=1)  # fine
reveal_type(run.train.lr)  # reveals float
reveal_type(run.train.epochs)  # reveals int
reveal_type(run.train.mode)  # reveals Literal['a', 'b']
reveal_type(run.seed)  # reveals int
reveal_type(run.num_classes)  # reveals int
reveal_type(run.shape)  # reveals tuple[int, int] | None
reveal_type(run.rate)  # reveals float
reveal_type(run.added)  # reveals str
reveal_type(run.tags)  # reveals list[str]
reveal_type(run.steps)  # reveals int
reveal_type(run.clone())  # reveals Run
reveal_type(run.freeze())  # reveals Run
reveal_type(Run.load("run.yaml"))  # reveals Run
reveal_type(WarmTrain.load("run.yaml", debug=True).warmup)  # reveals int
reveal_type(run.override("train.lr=1", "+tags=[a]"))  # reveals Run
reveal_type(run.override("train.lr=1").train.batch_size)  # reveals int
reveal_type(run.to_dict())  # reveals dict[str, Any]
reveal_type(run.keys())  # reveals list[str]
reveal_type(run.key)  # reveals str
reveal_type(run["train.lr"])  # reveals Any
reveal_type(run.origin("seed"))  # reveals str
reveal_type(Config({"a": 1}).clone())  # reveals trainmaster.config.config.Config
WarmTrain(batch_size=4, warmup=2, epochs=3)  # fine
Run(train=WarmTrain(batch_size=4))  # fine
Run(train=Train(batch_size=4), num_classes=3, shape=(1, 2), rate=1)  # fine
run.seed = 3  # fine
run.num_classes = 10  # fine
run["train.lr"] = 3  # fine
run.train.lr = 1  # fine
Run(**run.to_dict())  # fine
dict(**run)  # fine
"train.lr" in run  # fine
for name in run:  # fine
    name.upper()  # fine
Train(batch_size=4, learning_rate=1)  # error call-arg
Train()  # error call-arg
Run()  # error call-arg
Train(batch_size="four")  # error arg-type
Train(batch_size=4, mode="c")  # error arg-type
Run(train=3)  # error arg-type
Run(train=Run(train=Train(batch_size=1)))  # error arg-type
Train(4, batch_size=4)  # error call-arg
run.nothing  # error attr-defined
run.nothing = 3  # error attr-defined
run.train.warmup  # error attr-defined
run.seed = "one"  # error assignment
run.override(3)  # error arg-type
run.diff(3)  # error arg-type
Run.load(3)  # error arg-type
"""


pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def messages_by_line(tmp_path_factory):
    """Return mypy's messages about the sample by line number."""
    folder = tmp_path_factory.mktemp("mypy")
    (folder / "sample.py").write_text(SAMPLE)
    # Torch is not needed here, and checking it would take mypy longer than everything else.
    (folder / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=mypy.ini", "--cache-dir=cache", "--no-color-output", "sample.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500)
    assert done.stderr == ""
    said = {}
    for line in done.stdout.splitlines():
        found = re.fullmatch(r"sample\.py:(\d+): (note|error): (.*)", line)
        if found:
            said.setdefault(int(found[1]), []).append((found[2], found[3]))
    return said


LINES = list(enumerate(SAMPLE.split("\n"), start=1))


def lines_with(mark):
    return [
        pytest.param(number, *line.split(f"  # {mark}")[1].split(" ", 1)[1:], id=line.split("  #")[0])
        for number, line in LINES
        if f"  # {mark}" in line
    ]


def in_modern_spelling(revealed):
    """Normalize the output of older versions of mypy, which write `Union[X, None]`, `builtins.` and module names."""
    text = revealed.removeprefix('Revealed type is "').removesuffix('"').replace("builtins.", "").replace("sample.", "")
    text = text.replace("typing.", "").replace("?", "").replace("'] | Literal['", "', '")
    text = re.sub(r"Union\[(.*), None\]$", r"\1 | None", text)
    return re.sub(r"^[Tt]uple", "tuple", text)


@pytest.mark.parametrize(("number", "kind"), lines_with("reveals"))
def test_mypy_infers_the_type(messages_by_line, number, kind):
    [(level, text)] = messages_by_line[number]
    assert level == "note"
    assert in_modern_spelling(text) == kind


@pytest.mark.parametrize(("number", "code"), lines_with("error"))
def test_mypy_reports_an_error(messages_by_line, number, code):
    assert [text.rpartition("[")[2].rstrip("]") for level, text in messages_by_line[number] if level == "error"] == [code]


def test_mypy_reports_no_other_errors(messages_by_line):
    expected = {number for number, line in LINES if "  # reveals" in line or "  # error" in line}
    assert {number: texts for number, texts in messages_by_line.items() if number not in expected} == {}
