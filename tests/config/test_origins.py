"""A config knows where each value came from: the class's default, a file and line, an override, or the program."""

import copy
import pickle
import re
from typing import Any

import pytest

from trainmaster.config import Config, ConfigBase, Derived, Stateless, configclass, field
from trainmaster.errors import UnknownKeyError

IN_CODE = "set in code"


@configclass
class Train(ConfigBase):
    lr: float = 0.1
    epochs: Stateless[int] = 10


@configclass
class WarmTrain(Train):
    warmup: int = 5


@configclass
class Run(ConfigBase):
    train: Train = {"lr": 0.5}
    second: Train | None = None
    trains: list[Train] = []
    named: dict[str, Train] = {}
    sizes: list[int] = [1, 2]
    arguments: dict[str, Any] = {"a": 1}
    rate: float = field(default=1.0, was=("speed", "velocity"))
    save_dir: Stateless[str] = "runs"
    num_classes: Derived[int]


FILE = """\
train:
  lr: 0.3
second: {epochs: 3}
trains:
  - lr: 1
  - {class: WarmTrain, warmup: 2}
named:
  a: {lr: 2}
sizes: [3,
  4]
speed: 2.0
"""

# for each dotted key, its line and column in FILE
PLACES = {
    "train.lr": "2:3",
    "second.epochs": "3:10",
    "trains.0.lr": "5:5",
    "trains.1.warmup": "6:24",
    "named.a.lr": "8:7",
    "rate": "11:1",
}
# for each dotted key, the class that defines its default
DEFAULTS = {
    "train.epochs": "Train",
    "second.lr": "Train",
    "trains.0.epochs": "Train",
    "trains.1.lr": "WarmTrain",
    "named.a.epochs": "Train",
    "arguments.a": "Run",
    "save_dir": "Run",
    "num_classes": "Run",
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(FILE)
    return path


# ---- typed configs


@pytest.mark.parametrize("key", ["second", "trains", "sizes", "sizes.0", "arguments", "arguments.a", "rate", "save_dir", "num_classes"])
def test_the_origin_of_a_value_that_is_not_given_is_the_default_of_its_class(key):
    assert Run().origin(key) == "default of Run"


def test_a_default_of_a_subclass_names_the_subclass():
    assert WarmTrain().origin("warmup") == "default of WarmTrain"


def test_a_value_in_the_default_of_a_group_was_not_set_by_the_program():
    assert Run().origin("train.lr") == "default of Run"
    assert Run().origin("train.epochs") == "default of Train"


def test_a_value_in_a_default_that_is_a_config_was_not_set_by_the_program():
    @configclass
    class Other(ConfigBase):
        train: Train = Train(lr=3)
        trains: list[Train] = [Train(lr=4)]

    assert Other().origin("train.lr") == "default of Other"
    assert Other().origin("trains.0.lr") == "default of Other"


def test_a_value_given_to_the_constructor_was_set_by_the_program():
    config = Run(train={"lr": 3}, second=Train(epochs=4), rate=2, sizes=[3])
    assert {config.origin(key) for key in ("train.lr", "second.epochs", "rate", "sizes.0", "train")} == {IN_CODE}
    assert config.origin("train.epochs") == config.origin("second.lr") == "default of Train"


def test_a_value_that_equals_the_default_but_was_given_was_set_by_the_program():
    assert Train(lr=0.1).origin("lr") == IN_CODE


@pytest.mark.parametrize("key", PLACES)
def test_the_origin_of_a_value_from_a_file_is_its_file_line_and_column(file, key):
    assert Run.load(file).origin(key) == f"{file}:{PLACES[key]}"


@pytest.mark.parametrize("key", DEFAULTS)
def test_the_origin_of_a_value_that_is_not_in_the_file_is_its_default(file, key):
    assert Run.load(file).origin(key) == f"default of {DEFAULTS[key]}"


@pytest.mark.parametrize("key", ["sizes", "sizes.0", "sizes.1"])
def test_the_elements_of_a_list_have_the_position_of_the_list(file, key):
    assert Run.load(file).origin(key).startswith(f"{file}:")
    assert Run.load(file).origin("sizes") == f"{file}:9:1"


def test_the_defaults_of_a_group_that_the_file_leaves_out_do_not_come_from_the_file(tmp_path):
    (tmp_path / "run.yaml").write_text("rate: 2\n")
    config = Run.load(tmp_path / "run.yaml")
    assert config.origin("train.lr") == "default of Run"


def test_a_dotted_key_in_a_file_has_its_position(tmp_path):
    (tmp_path / "run.yaml").write_text("rate: 2\ntrain.lr: 3\n")
    assert Run.load(tmp_path / "run.yaml").origin("train.lr") == f"{tmp_path}/run.yaml:2:1"


@pytest.mark.parametrize("name", ["rate", "speed", "velocity"])
def test_a_renamed_field_has_the_position_of_its_former_name(tmp_path, name):
    (tmp_path / "run.yaml").write_text(f"sizes: [1]\n{name}: 3\n")
    config = Run.load(tmp_path / "run.yaml")
    assert config.origin("rate") == f"{tmp_path}/run.yaml:2:1"


@pytest.mark.parametrize("name", ["rate", "speed", "velocity"])
def test_a_problem_of_a_renamed_field_has_the_position_of_its_former_name(tmp_path, name):
    (tmp_path / "run.yaml").write_text(f"sizes: [1]\n{name}: fast\n")
    with pytest.raises(ValueError, match=rf"rate = 'fast': expected a number  \[{re.escape(str(tmp_path))}/run\.yaml:2:1\]"):
        Run.load(tmp_path / "run.yaml")


def test_a_value_from_json_names_the_file(tmp_path):
    (tmp_path / "run.json").write_text('{"rate": 2, "train": {"lr": 3}}')
    config = Run.load(tmp_path / "run.json")
    assert config.origin("rate") == config.origin("train.lr") == f"{tmp_path}/run.json"
    assert config.origin("save_dir") == "default of Run"


def test_debug_loading_also_records_positions(tmp_path):
    (tmp_path / "run.yaml").write_text("rate: 2\nsizes: x\ntrain: {lr: y, epochs: 3}\n")
    config = Run.load(tmp_path / "run.yaml", debug=True)
    assert config.origin("rate") == f"{tmp_path}/run.yaml:1:1"
    assert config.origin("train.epochs") == f"{tmp_path}/run.yaml:3:16"


def test_an_override_changes_only_the_origin_of_its_own_value(file):
    config = Run.load(file).override("train.lr=7", "save_dir=x", "+arguments.b=2")
    assert config.origin("train.lr") == "override train.lr=7"
    assert config.origin("save_dir") == "override save_dir=x"
    assert config.origin("arguments.b") == "override +arguments.b=2"
    for key in PLACES.keys() - {"train.lr"}:
        assert config.origin(key) == f"{file}:{PLACES[key]}"
    for key in DEFAULTS.keys() - {"save_dir", "arguments.a"}:
        assert config.origin(key) == f"default of {DEFAULTS[key]}"


def test_a_group_overridden_as_a_whole_comes_from_the_override_or_the_class(file):
    config = Run.load(file).override("train={epochs: 4}")
    assert config.train == Train(epochs=4)
    assert config.origin("train") == config.origin("train.epochs") == "override train={epochs: 4}"
    assert config.origin("train.lr") == "default of Train"


def test_a_group_that_was_not_set_comes_from_the_override():
    config = Run().override("second.lr=3")
    assert config.origin("second.lr") == "override second.lr=3"
    assert config.origin("second.epochs") == "default of Train"


def test_a_value_inside_a_list_of_groups_comes_from_its_override(file):
    config = Run.load(file).override("trains.0.lr=9")
    assert config.origin("trains.0.lr") == "override trains.0.lr=9"
    assert config.origin("trains.1.warmup") == f"{file}:6:24"


def test_the_origins_of_two_successive_overrides_are_recorded():
    config = Run().override("train.lr=1").override("rate=2")
    assert (config.origin("train.lr"), config.origin("rate")) == ("override train.lr=1", "override rate=2")


def test_an_override_does_not_change_the_origins_of_the_original_config(file):
    config = Run.load(file)
    config.override("train.lr=7")
    assert config.origin("train.lr") == f"{file}:2:3"


def test_an_assigned_value_was_set_by_the_program(file):
    config = Run.load(file)
    config.rate = 5
    config["train.lr"] = 6
    config.second.epochs = 7
    config.trains[0].lr = 8
    assert {config.origin(key) for key in ("rate", "train.lr", "second.epochs", "trains.0.lr")} == {IN_CODE}
    assert config.origin("train.epochs") == "default of Train"
    assert config.origin("named.a.lr") == f"{file}:8:7"


def test_setting_a_value_in_a_list_does_not_change_the_origins_of_other_elements(file):
    config = Run.load(file)
    config["trains.0.lr"] = 8
    assert config.origin("trains.0.lr") == IN_CODE
    assert config.origin("trains.1.warmup") == f"{file}:6:24"


def test_a_config_inside_another_config_keeps_its_origins(file):
    other = Run(train=Run.load(file).train)
    assert other.origin("train.lr") == f"{file}:2:3"


@pytest.mark.parametrize(
    "duplicate",
    [
        lambda c: c.clone(),
        lambda c: c.freeze(),
        lambda c: c.clone().freeze().clone(),
        copy.copy,
        copy.deepcopy,
        lambda c: pickle.loads(pickle.dumps(c)),
        lambda c: pickle.loads(pickle.dumps(c.freeze())),
    ],
    ids=["clone", "freeze", "clone of frozen", "copy", "deepcopy", "pickle", "pickle of frozen"],
)
def test_a_copy_keeps_all_origins(file, duplicate):
    config = Run.load(file).override("save_dir=x")
    config.train.epochs = 3
    table = config.describe()
    assert duplicate(config).describe() == table


def test_changing_a_clone_does_not_change_the_origins_of_the_original(file):
    config = Run.load(file)
    other = config.clone()
    other.train.lr = 5
    other.rate = 5
    assert config.origin("train.lr") == f"{file}:2:3"
    assert config.origin("rate") == f"{file}:11:1"


def test_the_origin_of_an_unknown_key_is_an_unknown_key_error():
    with pytest.raises(UnknownKeyError, match="did you mean `train`"):
        Run().origin("trainn")
    with pytest.raises(UnknownKeyError, match=r"train\.lrr: Train has no such field; did you mean `lr`"):
        Run().origin("train.lrr")


@pytest.mark.parametrize("key", ["sizes.9", "sizes.x", "arguments.zzz", "rate.x"])
def test_the_origin_of_a_missing_value_is_an_unknown_key_error(key):
    with pytest.raises(UnknownKeyError):
        Run().origin(key)


def test_describe_is_a_table_of_key_value_and_origin(tmp_path):
    @configclass
    class Small(ConfigBase):
        train: Train
        sizes: list[int] = [1]
        name: str = "x"
        empty: list[int] = []

    (tmp_path / "s.yaml").write_text("train: {lr: 3}\nname: a name\n")
    config = Small.load(tmp_path / "s.yaml").override("sizes=[5, 6]")
    config.train.epochs = 4
    assert config.describe().split("\n") == [
        f"train.lr      3.0       {tmp_path}/s.yaml:1:9",
        "train.epochs  4         set in code",
        "sizes.0       5         override sizes=[5, 6]",
        "sizes.1       6         override sizes=[5, 6]",
        f"name          'a name'  {tmp_path}/s.yaml:2:1",
        "empty         []        default of Small",
    ]


def test_describe_shows_every_value_of_a_large_config(file):
    config = Run.load(file)
    rows = [line.split() for line in config.describe().split("\n")]
    assert [row[0] for row in rows] == list(config.flatten())
    assert {row[0]: row[-1] for row in rows if row[0] in PLACES} == {key: f"{file}:{place}" for key, place in PLACES.items()}


@pytest.mark.parametrize("arguments", [{"a.b": [1, 2]}, {"a.b": {"c": 1}}, {"a.class": 1}])
def test_describe_shows_dicts_whose_keys_have_dots(arguments):
    @configclass
    class Free(ConfigBase):
        arguments: dict[str, Any]

    lines = Free(arguments=arguments).describe().split("\n")
    assert all(line.startswith("arguments.a.") and line.endswith("set in code") for line in lines)


def test_describe_shortens_long_values():
    config = Run(save_dir="x" * 1000)
    [line] = [each for each in config.describe().split("\n") if each.startswith("save_dir")]
    assert len(line) < 100
    assert " ... " in line


def test_describe_of_a_config_without_fields_is_empty():
    @configclass
    class Empty(ConfigBase):
        pass

    assert Empty().describe() == ""


def test_the_table_for_notebooks_is_escaped():
    config = Run(save_dir="<script>&", arguments={"<b>": "</td>"})
    html = config._repr_html_()
    assert html.startswith(f"<table><caption>Run {config.key}</caption><tr><th>key</th><th>value</th><th>from</th></tr>")
    assert html.endswith("</table>")
    assert "<tr><td>save_dir</td><td>&#x27;&lt;script&gt;&amp;&#x27;</td><td>set in code</td></tr>" in html
    assert "<td>arguments.&lt;b&gt;</td><td>&#x27;&lt;/td&gt;&#x27;</td>" in html
    assert "<script>" not in html


def test_the_table_for_notebooks_escapes_the_text_of_overrides():
    html = Run().override("save_dir='<i>'")._repr_html_()
    assert "<td>override save_dir=&#x27;&lt;i&gt;&#x27;</td>" in html


def test_origins_are_not_part_of_a_config(file, tmp_path):
    config = Run.load(file)
    same = Run(**config.to_dict())
    assert config == same
    assert config.uid == same.uid
    assert config.to_yaml() == same.to_yaml()


# ---- free-form configs


FREE = """\
a: 1
group:
  b: 2
  deeper: {c: 3}
sizes: [1, 2]
dotted.d: 4
"""

FREE_PLACES = {"a": "1:1", "group": "2:1", "group.b": "3:3", "group.deeper.c": "4:12", "sizes": "5:1", "dotted.d": "6:1"}


@pytest.fixture
def free_file(tmp_path):
    path = tmp_path / "free.yaml"
    path.write_text(FREE)
    return path


@pytest.mark.parametrize("key", FREE_PLACES)
def test_the_origin_of_a_value_of_a_free_form_config_is_its_file_line_and_column(free_file, key):
    assert Config.load(free_file).origin(key) == f"{free_file}:{FREE_PLACES[key]}"


def test_the_origin_of_a_value_of_a_free_form_config_in_code_is_the_program():
    config = Config({"a": 1, "b.c": 2})
    assert config.origin("a") == config.origin("b.c") == config.origin("b") == IN_CODE


def test_an_override_of_a_free_form_config_changes_only_the_origin_of_its_own_value(free_file):
    config = Config.load(free_file).override("group.b=5", "+new.x=6")
    assert config.origin("group.b") == "override group.b=5"
    assert config.origin("new.x") == "override +new.x=6"
    for key in FREE_PLACES.keys() - {"group.b"}:
        assert config.origin(key) == f"{free_file}:{FREE_PLACES[key]}"


def test_an_assigned_value_of_a_free_config_was_set_by_the_program(free_file):
    config = Config.load(free_file)
    config.a = 5
    config["group.deeper.c"] = 6
    config.group.b = 7
    assert {config.origin(key) for key in ("a", "group.deeper.c", "group.b")} == {IN_CODE}
    assert config.origin("sizes") == f"{free_file}:5:1"


@pytest.mark.parametrize(
    "duplicate",
    [lambda c: c.clone(), lambda c: c.copy(), Config, copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c)), lambda c: c | {}],
    ids=["clone", "copy method", "Config", "copy", "deepcopy", "pickle", "or"],
)
def test_a_copy_of_a_free_config_keeps_all_origins(free_file, duplicate):
    config = Config.load(free_file)
    assert duplicate(config).describe() == config.describe()


def test_the_origin_of_a_value_from_fill_is_the_file(free_file):
    config = Config({"a": 9})
    config.fill(free_file)
    assert config.origin("a") == IN_CODE
    assert config.origin("group.b") == f"{free_file}:3:3"


def test_the_origin_of_an_updated_value_is_that_of_the_update(free_file):
    config = Config({"a": 9, "group": {"z": 1}})
    config.update(Config.load(free_file))
    assert config.origin("a") == f"{free_file}:1:1"
    assert config.origin("group.b") == f"{free_file}:3:3"
    assert config.origin("group.z") == IN_CODE


def test_the_origin_of_a_value_from_the_command_line_is_the_argument():
    config = Config.from_cli(["a=1", "b.c=2"])
    assert (config.origin("a"), config.origin("b.c")) == ("override a=1", "override b.c=2")


def test_a_value_that_was_deleted_and_added_again_was_set_by_the_program(free_file):
    config = Config.load(free_file)
    del config["a"]
    config.a = 1
    assert config.origin("a") == IN_CODE


def test_the_origin_of_an_unknown_key_of_a_free_config_is_an_unknown_key_error(free_file):
    with pytest.raises(UnknownKeyError, match=r"did you mean `group\.b`"):
        Config.load(free_file).origin("group.bb")


def test_describe_of_a_free_config_is_a_table(free_file):
    config = Config.load(free_file)
    config.a = "x"
    assert config.describe().split("\n") == [
        "a               'x'     set in code",
        f"group.b         2       {free_file}:3:3",
        f"group.deeper.c  3       {free_file}:4:12",
        f"sizes           [1, 2]  {free_file}:5:1",
        f"dotted.d        4       {free_file}:6:1",
    ]


def test_the_table_of_a_free_config_for_notebooks_is_escaped():
    html = Config({"a": "<script>"})._repr_html_()
    assert "<td>&#x27;&lt;script&gt;&#x27;</td><td>set in code</td>" in html
    assert "<script>" not in html
