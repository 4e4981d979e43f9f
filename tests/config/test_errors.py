"""A bad config raises one error that lists all problems: key, value, what was expected, and the nearest names."""

import enum
import pickle
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Gt

from trainmaster.config import Config, ConfigBase, Derived, Stateless, configclass
from trainmaster.errors import ConfigClassError, ConfigError, FrozenConfigError, Problem, UnknownKeyError


class Device(enum.Enum):
    CPU = "cpu"
    CUDA = "cuda"


@configclass
class Optimizer(ConfigBase):
    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Annotated[float, Gt(0)] = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    arguments: dict[str, float] = {}


@configclass
class Layer(ConfigBase):
    width: int
    dropout: float = 0.0


@configclass
class Window(ConfigBase):
    low: int = 1
    high: int = 2

    def problems(self):
        if self.low > self.high:
            yield "low", "expected at most `high`"


@configclass
class Run(ConfigBase):
    dataset: str
    batch_size: int
    epochs: Stateless[int] = 10
    amp: bool = True
    device: Device = "cuda"
    optimizer: Optimizer = Optimizer()
    layers: list[Layer] = []
    window: Window = Window()
    limit: int | None = None
    seed: int | str = 0
    anything: Any = None
    num_classes: Derived[int]


@configclass
class Experiment(ConfigBase):
    run: Run
    save_dir: str = "runs"


def lines_of(caught):
    """Return the lines of the error's text, without indentation."""
    fact, *lines = str(caught.value).split("\n")
    assert lines[0].startswith("  wrong   ")
    assert all(line[:10].strip() in ("", "wrong") for line in lines)
    return fact, [line[10:] for line in lines]


# ---- in Python


BAD = {
    "run": {
        "batch_size": 1.5,
        "epochs": "ten",
        "epoch": 3,
        "amp": "perhaps",
        "device": "cudda",
        "optimizer": {"name": "adm", "lr": -1, "betas": [0.9], "arguments": {"momentum": "big"}, "weight_decay": 0.1},
        "layers": [{"width": 4}, {"dropout": 0.5}, {"width": True}, 7, {"class": "Layr", "width": 1}],
        "window": {"low": 5},
        "limit": 2.5,
        "seed": [1],
        "num_classes": "many",
        "zzz": 1,
    },
    "save_dir": None,
    "savedir": "x",
}

ALL_PROBLEMS = [
    "run.dataset: is missing; expected text",
    "run.batch_size = 1.5: expected a whole number; the fraction would be lost",
    "run.epochs = 'ten': expected a whole number",
    "run.amp = 'perhaps': expected true or false",
    "run.device = 'cudda': expected 'cpu' or 'cuda'; did you mean `cuda`?",
    "run.optimizer.name = 'adm': expected 'sgd', 'adam' or 'adamw'; did you mean `adam` or `adamw`?",
    "run.optimizer.lr = -1: expected a value greater than 0",
    "run.optimizer.betas = [0.9]: expected (a number, a number)",
    "run.optimizer.arguments.momentum = 'big': expected a number",
    "run.optimizer.weight_decay = 0.1: Optimizer has no such field; it has `name`, `lr`, `betas`, `arguments`",
    "run.layers.1.width: is missing; expected a whole number",
    "run.layers.2.width = True: expected a whole number",
    "run.layers.3 = 7: expected Layer: a group of keys with values",
    "run.layers.4.class = 'Layr': no config class that fits here has this name; did you mean `Layer`?",
    "run.window.low = 5: expected at most `high`",
    "run.limit = 2.5: expected a whole number; the fraction would be lost",
    "run.seed = [1]: expected a whole number or text",
    "run.num_classes = 'many': expected a whole number",
    "run.epoch = 3: Run has no such field; did you mean `epochs`?",
    (
        "run.zzz = 1: Run has no such field; it has `dataset`, `batch_size`, `epochs`, `amp`, `device`, `optimizer`, `layers`, `window`, "
        "`limit`, `seed`, `anything`, `num_classes`"
    ),
    "save_dir = None: expected text",
    "savedir = 'x': Experiment has no such field; did you mean `save_dir`?",
]


def test_all_problems_of_one_bad_config_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        Experiment(**BAD)
    fact, lines = lines_of(caught)
    assert fact == "22 problems in Experiment"
    assert sorted(lines) == sorted(ALL_PROBLEMS)


def test_the_problems_are_available_to_programs():
    with pytest.raises(ConfigError) as caught:
        Experiment(**BAD)
    assert sorted(map(str, caught.value.problems)) == sorted(ALL_PROBLEMS)
    assert {each.key for each in caught.value.problems if each.is_unknown} == {
        "run.optimizer.weight_decay",
        "run.epoch",
        "run.zzz",
        "savedir",
    }
    [problem] = [each for each in caught.value.problems if each.key == "run.batch_size"]
    assert problem == Problem("run.batch_size", "expected a whole number; the fraction would be lost", "1.5")


def test_a_config_with_an_unknown_key_among_its_problems_is_an_unknown_key_error():
    with pytest.raises(UnknownKeyError):
        Experiment(**BAD)


def test_a_config_with_only_other_problems_is_not_an_unknown_key_error():
    with pytest.raises(ConfigError) as caught:
        Experiment(run={"batch_size": 1})
    assert type(caught.value) is ConfigError
    assert not isinstance(caught.value, KeyError)
    assert isinstance(caught.value, ValueError)


def test_an_assigned_group_reports_all_its_problems():
    config = Experiment(run={"dataset": "digits", "batch_size": 1})
    with pytest.raises(ConfigError) as caught:
        config.run = BAD["run"]
    fact, lines = lines_of(caught)
    assert fact == "20 problems in Experiment"
    assert sorted(lines) == sorted(each for each in ALL_PROBLEMS if each.startswith("run."))


def test_an_error_does_not_mention_pydantic():
    with pytest.raises(ConfigError) as caught:
        Experiment(**BAD)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert "pydantic" not in str(caught.value)


# ---- in a file


FILE = """\
run:
  batch_size: 1.5
  epochs: ten
  epoch: 3
  amp: perhaps
  device: cudda
  optimizer:
    name: adm
    lr: -1
    betas: [0.9]
    arguments: {momentum: big}
    weight_decay: 0.1
  layers:
    - width: 4
    - dropout: 0.5
    - width: true
    - 7
    - {class: Layr, width: 1}
  window:
    low: 5
  limit: 2.5
  seed: [1]
  num_classes: many
  zzz: 1
save_dir: null
savedir: x
"""

PLACES = {
    "run.dataset": "1:1",  # the position of the group that lacks the key
    "run.batch_size": "2:3",
    "run.epochs": "3:3",
    "run.epoch": "4:3",
    "run.amp": "5:3",
    "run.device": "6:3",
    "run.optimizer.name": "8:5",
    "run.optimizer.lr": "9:5",
    "run.optimizer.betas": "10:5",
    "run.optimizer.arguments.momentum": "11:17",
    "run.optimizer.weight_decay": "12:5",
    "run.layers.1.width": "15:7",
    "run.layers.2.width": "16:7",
    "run.layers.3": "17:7",
    "run.layers.4.class": "18:8",
    "run.window.low": "20:5",
    "run.limit": "21:3",
    "run.seed": "22:3",
    "run.num_classes": "23:3",
    "run.zzz": "24:3",
    "save_dir": "25:1",
    "savedir": "26:1",
}


def test_all_problems_of_one_bad_file_are_reported_together_with_line_and_column(tmp_path):
    file = tmp_path / "experiment.yaml"
    file.write_text(FILE)
    with pytest.raises(UnknownKeyError) as caught:
        Experiment.load(file)
    fact, lines = lines_of(caught)
    assert fact == f"22 problems in Experiment in `{file}`"
    keys = {line.split(" = ")[0].split(": ")[0] for line in ALL_PROBLEMS}
    assert keys == PLACES.keys()
    expected = [f"{line}  [{file}:{PLACES[line.split(' = ')[0].split(': ')[0]]}]" for line in ALL_PROBLEMS]
    assert sorted(lines) == sorted(expected)


def test_all_problems_of_one_bad_json_file_are_reported_together_with_the_file(tmp_path):
    import json

    file = tmp_path / "experiment.json"
    file.write_text(json.dumps(BAD))
    with pytest.raises(UnknownKeyError) as caught:
        Experiment.load(file)
    fact, lines = lines_of(caught)
    assert fact == f"22 problems in Experiment in `{file}`"
    assert sorted(lines) == sorted(f"{line}  [{file}]" for line in ALL_PROBLEMS)


def test_a_missing_field_of_the_file_itself_names_the_file(tmp_path):
    file = tmp_path / "experiment.yaml"
    file.write_text("save_dir: x\n")
    with pytest.raises(ConfigError) as caught:
        Experiment.load(file)
    fact, lines = lines_of(caught)
    assert fact == f"a problem in Experiment in `{file}`"
    [line] = lines
    assert line.startswith(f"run: is missing; expected Run  [{file}")


def test_a_problem_at_a_dotted_key_of_a_file_has_its_position(tmp_path):
    file = tmp_path / "experiment.yaml"
    file.write_text("save_dir: x\nrun.dataset: digits\nrun.batch_size: many\nrun.optimizer.lr: 0\n")
    with pytest.raises(ConfigError) as caught:
        Experiment.load(file)
    assert sorted(lines_of(caught)[1]) == [
        f"run.batch_size = 'many': expected a whole number  [{file}:3:1]",
        f"run.optimizer.lr = 0: expected a value greater than 0  [{file}:4:1]",
    ]


# ---- as overrides


def good():
    return Experiment(run={"dataset": "digits", "batch_size": 1, "layers": [{"width": 1}]})


def test_all_overrides_with_a_wrong_value_are_reported_together_each_with_its_text():
    with pytest.raises(ConfigError) as caught:
        good().override(
            "run.batch_size=1.5",
            "run.epochs=ten",
            "run.amp=perhaps",
            "run.device=cudda",
            "run.optimizer.name=adm",
            "run.optimizer.lr=-1",
            "run.optimizer.betas=[0.9]",
            "+run.optimizer.arguments.momentum=big",
            "run.layers=[{width: 1}, {width: true}]",
            "run.window.low=5",
            "run.limit=2.5",
            "run.seed=[1]",
            "run.num_classes=many",
            "save_dir=null",
        )
    fact, lines = lines_of(caught)
    assert fact == "14 problems in Experiment"
    assert sorted(lines) == sorted(
        [
            "run.batch_size = 1.5: expected a whole number; the fraction would be lost  [run.batch_size=1.5]",
            "run.epochs = 'ten': expected a whole number  [run.epochs=ten]",
            "run.amp = 'perhaps': expected true or false  [run.amp=perhaps]",
            "run.device = 'cudda': expected 'cpu' or 'cuda'; did you mean `cuda`?  [run.device=cudda]",
            "run.optimizer.name = 'adm': expected 'sgd', 'adam' or 'adamw'; did you mean `adam` or `adamw`?  [run.optimizer.name=adm]",
            "run.optimizer.lr = -1: expected a value greater than 0  [run.optimizer.lr=-1]",
            "run.optimizer.betas = [0.9]: expected (a number, a number)  [run.optimizer.betas=[0.9]]",
            "run.optimizer.arguments.momentum = 'big': expected a number  [+run.optimizer.arguments.momentum=big]",
            "run.layers.1.width = True: expected a whole number  [run.layers=[{width: 1}, {width: true}]]",
            "run.window.low = 5: expected at most `high`  [run.window.low=5]",
            "run.limit = 2.5: expected a whole number; the fraction would be lost  [run.limit=2.5]",
            "run.seed = [1]: expected a whole number or text  [run.seed=[1]]",
            "run.num_classes = 'many': expected a whole number  [run.num_classes=many]",
            "save_dir = None: expected text  [save_dir=null]",
        ]
    )


def test_all_overrides_with_a_wrong_key_are_reported_together_with_the_nearest_names():
    with pytest.raises(UnknownKeyError) as caught:
        good().override(
            "run.epoch=3",
            "savedir=x",
            "run.optimizer.arguments.momentum=0.9",
            "run.layers.1.width=3",
            "run.layers.0.widht=3",
            "run.epochs.x=1",
        )
    fact, lines = lines_of(caught)
    assert fact == "6 problems in Experiment"
    assert {line.split("  [")[1] for line in lines} == {
        "run.epoch=3]",
        "savedir=x]",
        "run.optimizer.arguments.momentum=0.9]",
        "run.layers.1.width=3]",
        "run.layers.0.widht=3]",
        "run.epochs.x=1]",
    }
    text = str(caught.value)
    assert "Run has no such field; did you mean `epochs`?  [run.epoch=3]" in text
    assert "Experiment has no such field; did you mean `save_dir`?  [savedir=x]" in text
    assert "no such key; write +run.optimizer.arguments.momentum=0.9 to add it  [run.optimizer.arguments.momentum=0.9]" in text
    assert "`run.layers` is a list of 1; expected an index below that  [run.layers.1.width=3]" in text
    assert "did you mean `run.layers.0.width`?  [run.layers.0.widht=3]" in text


def test_wrong_keys_and_wrong_values_of_overrides_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        good().override("run.epoch=3", "run.batch_size=many")
    assert {each.where for each in caught.value.problems} == {"run.epoch=3", "run.batch_size=many"}


def test_overrides_that_cannot_be_parsed_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        good().override("run.epochs", "=3", "run..epochs=3", "run.epochs=", "run.epochs=[1", "save_dir=a", "save_dir=b")
    fact, lines = lines_of(caught)
    assert fact == "6 problems in Experiment"
    assert [line.rpartition("  [")[2] for line in lines] == [
        "run.epochs]",
        "=3]",
        "run..epochs=3]",
        "run.epochs=]",
        "run.epochs=[1]",
        "save_dir=b]",
    ]
    assert lines[0] == "expected key=value  [run.epochs]"
    assert lines[2] == "'run..epochs': a key has no empty parts  [run..epochs=3]"
    assert lines[3] == "has no value; write run.epochs=null for none, or run.epochs='' for empty text  [run.epochs=]"
    assert lines[5] == "save_dir: is set by another override too: save_dir=a  [save_dir=b]"


@pytest.mark.parametrize("first", ["run=3", "run=null", "run=[]", "run={}"])
def test_an_override_inside_a_value_that_another_override_replaces_is_a_config_error(first):
    with pytest.raises(ConfigError):
        good().override(first, "run.optimizer.lr=4")


def test_the_error_for_an_override_below_an_optional_group_that_is_not_set_shows_the_override():
    @configclass
    class Either(ConfigBase):
        which: Optimizer | Layer | None = None

    with pytest.raises(ConfigError) as caught:
        Either().override("which.lr=3")
    assert lines_of(caught)[1] == ["which.lr: `which` is None, not a group  [which.lr=3]"]


# ---- one problem, and its text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("x" * 45, repr("x" * 45)),
        ("x" * 500, "'" + "x" * 46 + " ... " + "x" * 7 + "'"),
        (list(range(1000)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,  ... 98, 999]"),
    ],
)
def test_a_long_value_is_shortened_in_the_middle(value, shown):
    with pytest.raises(ConfigError) as caught:
        Layer(width=value)
    assert str(caught.value) == f"a problem in Layer\n  wrong   width = {shown}: expected a whole number"
    assert len(shown) <= 60


def test_a_value_with_several_lines_is_shown_on_one():
    with pytest.raises(ConfigError) as caught:
        Layer(width="a\nb")
    assert lines_of(caught)[1] == [r"width = 'a\nb': expected a whole number"]


class Unshowable:
    def __repr__(self):
        raise RuntimeError("no repr")


class OfManyLines:
    def __repr__(self):
        return "first\nsecond"


@pytest.mark.parametrize("value", [Unshowable(), 10**5000, [10**5000], OfManyLines()], ids=["raises", "long", "long inside", "lines"])
def test_a_value_with_a_broken_repr_is_still_reported(value):
    with pytest.raises(ConfigError) as caught:
        Layer(width=value)
    [problem] = caught.value.problems
    assert problem.key == "width"
    assert problem.text.startswith("expected a whole number")
    assert "\n" not in problem.value


def test_more_than_fifty_problems_are_counted_but_not_all_are_shown():
    with pytest.raises(ConfigError) as caught:
        Run(dataset="d", batch_size=1, layers=[{"width": "x"}] * 120)
    fact, lines = lines_of(caught)
    assert fact == "120 problems in Run"
    assert lines[49] == "layers.49.width = 'x': expected a whole number"
    assert lines[50:] == ["... and 70 more"]
    assert len(caught.value.problems) == 120


def test_problems_are_in_the_order_of_the_fields_and_unknown_keys_in_the_given_order():
    with pytest.raises(ConfigError) as caught:
        Run(zebra=1, epochs="x", batch_size="x", apple=2, mango=3, dataset="d")
    assert [each.key for each in caught.value.problems] == ["batch_size", "epochs", "zebra", "apple", "mango"]


def test_the_text_of_a_problem_contains_its_parts():
    assert str(Problem("a.b", "expected text", "3", "run.yaml:1:2")) == "a.b = 3: expected text  [run.yaml:1:2]"
    assert str(Problem("a.b", "is missing")) == "a.b: is missing"
    assert str(Problem("", "expected keyword arguments only", "3")) == "3: expected keyword arguments only"
    assert str(Problem("", "is empty")) == "is empty"


# ---- pickled errors


def errors():
    def frozen():
        good().freeze().run.epochs = 3

    def undecorated():
        class Bare(ConfigBase):
            x: int = 1

        Bare()

    def misused():
        configclass(type("Wrong", (ConfigBase,), {"__annotations__": {"x": set, "y": bytes}}))

    return [
        pytest.param(lambda: Experiment(**BAD), UnknownKeyError, id="unknown"),
        pytest.param(lambda: Experiment(), ConfigError, id="missing"),
        pytest.param(lambda: good().override("run.epochs=x"), ConfigError, id="override"),
        pytest.param(lambda: Experiment.load("/nowhere/at/all.yaml"), ConfigError, id="file"),
        pytest.param(lambda: Config()["x"], UnknownKeyError, id="free"),
        pytest.param(frozen, FrozenConfigError, id="frozen"),
        pytest.param(undecorated, ConfigClassError, id="undecorated"),
        pytest.param(misused, ConfigClassError, id="misused"),
    ]


@pytest.mark.parametrize(("cause", "kind"), errors())
def test_an_error_keeps_its_problems_when_it_is_pickled(cause, kind):
    with pytest.raises(kind) as caught:
        cause()
    caught.value.add_note("a note")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value)
    assert str(again) == str(caught.value)
    assert again.problems == caught.value.problems
    assert [type(each) for each in again.problems] == [Problem] * len(again.problems)
    assert again.__notes__ == ["a note"]


def test_the_text_of_an_unknown_key_error_is_not_quoted():
    with pytest.raises(KeyError) as caught:
        Layer(widht=3)
    assert str(caught.value).startswith("2 problems in Layer\n")
