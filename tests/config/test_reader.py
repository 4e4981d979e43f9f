"""Files are read as YAML 1.2, with the original text of numbers and the position of each key."""

import math
from pathlib import Path
from typing import Any

import pytest

from trainmaster.config import Config, ConfigBase, configclass
from trainmaster.config.config_file import read_file
from trainmaster.config.json_reader import read_json
from trainmaster.config.yaml_reader import read_yaml
from trainmaster.errors import ConfigClassError, ConfigError, ConfigFileError, UnknownKeyError


def value_of(text):
    return read_yaml(f"a: {text}\n", "run.yaml").tree["a"]


def same(one, other):
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.fixture
def file(tmp_path):
    """Return a function that writes a text to a file and returns the path."""

    def write(text, name="run.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8", newline="")
        return str(path)

    return write


@configclass
class Layer(ConfigBase):
    width: int = 1
    label: str = ""


@configclass
class Run(ConfigBase):
    version: str = ""
    commit: str = ""
    tags: list[str] = []
    names: dict[str, str] = {}
    pair: tuple[str, str] = ("", "")
    layer: Layer = Layer()
    layers: list[Layer] = []
    lr: float = 0.1
    anything: Any = None
    either: int | str = 0
    maybe: str | None = None
    folder: Path = Path("out")


# numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("1e3", 1000.0),
        ("2.5e+2", 250.0),
        (".5", 0.5),
        ("-.5", -0.5),
        ("5.", 5.0),
        ("5.e1", 50.0),
        ("+1.5", 1.5),
        ("1.0", 1.0),
        ("-0.0", -0.0),
        ("0e0", 0.0),
        ("0.0e-999", 0.0),
        ("00.5", 0.5),
        ("5e-324", 5e-324),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        (".inf", math.inf),
        (".Inf", math.inf),
        ("+.INF", math.inf),
        ("-.inf", -math.inf),
        (".nan", math.nan),
        (".NaN", math.nan),
        (".NAN", math.nan),
    ],
)
def test_yaml_1_2_floats_are_floats(text, value):
    assert same(value_of(text), value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("-0", 0), ("12", 12), ("+7", 7), ("-3", -3), ("0o10", 8), ("0x1F", 31), ("0xff", 255), ("1" * 4300, int("1" * 4300))],
    ids=lambda each: f"{each}"[:10],
)
def test_yaml_1_2_integers_are_integers(text, value):
    assert same(value_of(text), value)


@pytest.mark.parametrize("text", ["", "~", "null", "Null", "NULL"])
def test_null_can_be_written_in_five_ways(text):
    assert value_of(text) is None


@pytest.mark.parametrize(
    ("text", "value"), [(form, form.lower() == "true") for form in ["true", "True", "TRUE", "false", "False", "FALSE"]]
)
def test_true_and_false_can_be_written_in_three_ways_each(text, value):
    assert value_of(text) is value


@pytest.mark.parametrize(
    "text",
    [
        "no",
        "No",
        "NO",
        "yes",
        "Yes",
        "on",
        "ON",
        "off",
        "Off",
        "y",
        "Y",
        "n",
        "N",
        "tRUE",
        "nULL",
        "none",
        "None",
        "nan",
        "NaN",
        "inf",
        "Infinity",
        ".iNf",
        "+.nan",
        "12:30:45",
        "1:30",
        "190:20:30.15",
        "2020-01-01",
        "2001-12-14t21:59:43.10-05:00",
        "1_000",
        "0b101",
        "-0x1F",
        "+0o7",
        "0x",
        "0o8",
        "0xfg",
        "0O10",
        "0X1F",
        "1e",
        "1e+",
        "e3",
        ".",
        "+.",
        "--",
        "+",
        "1.2.3",
        "1,000",
        "1e3.5",
        "١٢",
        "=",
        "0x1.8p3",
        "1d5",
        "1e\u22123",
        "$x",
        "${HOME}",
        "~x",
        "null_",
        "true_",
    ],
)
def test_scalars_that_are_not_yaml_1_2_numbers_are_text(text):
    assert same(value_of(text), text)


@pytest.mark.parametrize("text", ["1", "1e-3", "true", "null", "~", ".nan", "0o10", "0777", ""])
@pytest.mark.parametrize("quote", ["'", '"'])
def test_quoted_scalars_are_text(text, quote):
    assert same(value_of(f"{quote}{text}{quote}"), text)


@pytest.mark.parametrize("text", ["1", "true", "null", "0777"])
@pytest.mark.parametrize("style", ["|-", ">-"])
def test_a_block_scalar_is_text(text, style):
    assert same(value_of(f"{style}\n  {text}"), text)


def test_a_literal_block_keeps_its_lines_and_a_folded_one_joins_them():
    text = "a: |\n  one\n    two\n\n  three\nb: >\n  one\n  two\n\n  three\nc: |+\n  x\n\n"
    assert read_yaml(text, "run.yaml").tree == {"a": "one\n  two\n\nthree\n", "b": "one two\nthree\n", "c": "x\n\n"}


def test_escapes_work_only_in_double_quotes():
    assert value_of(r'"\t\x41\u00e9\U0001F600\0\\"') == "\tAé😀\0\\"
    assert value_of(r"'\t'") == r"\t"
    assert value_of("'it''s'") == "it's"


@pytest.mark.parametrize("text", ["é", "日本語", "😀", "e\u0301", "\u00a0x", "a\ufeffb", "مرحبا"])
def test_unicode_is_kept_unchanged(text):
    assert value_of(text) == text


def test_plain_text_keeps_hashes_and_colons_without_spaces_around_them():
    assert value_of("a#b:c") == "a#b:c"
    assert value_of("http://x.y/z?a=1 # a comment") == "http://x.y/z?a=1"


def test_flow_and_block_style_are_the_same_tree():
    block = "a:\n  b:\n  - 1\n  -\n    c: x\n  d: {}\n"
    assert read_yaml(block, "x").tree == read_yaml("{a: {b: [1, {c: x}], d: {}}}", "x").tree == {"a": {"b": [1, {"c": "x"}], "d": {}}}


def test_json_is_valid_yaml():
    text = '{"a": [1, 2.5, null, true, "x"], "b": {"c": {}}}'
    assert read_yaml(text, "x").tree == read_json(text, "x").tree


def test_one_document_may_be_marked_with_its_start_and_end():
    assert read_yaml("---\na: 1\n...\n", "x").tree == {"a": 1}


def test_an_empty_group_is_written_as_braces(file):
    assert Config.load(file("{}\n")) == {}
    assert Run.load(file("{}\n")) == Run()


# keys


@pytest.mark.parametrize(
    "key",
    ["1", "-1", "0777", "1e3", "true", "null", "~", "no", "0x1F", ".inf".strip("."), "2020-01-01", "12:30", "é", "a b", "=", "-", "1_0"],
)
def test_a_key_is_text_as_written(key):
    written = f"'{key}'" if key == "-" else key
    assert read_yaml(f"{written}: x\n", "x").tree == {key: "x"}


def test_keys_that_write_the_same_number_differently_are_two_keys():
    assert read_yaml("1: a\n01: b\n0x1: c\n'1.0': d\n", "x").tree == {"1": "a", "01": "b", "0x1": "c", "1.0": "d"}


def test_a_dotted_key_is_nesting_in_a_free_config(file):
    assert Config.load(file("a.b: 1\na:\n  c.d: 2\n")) == {"a": {"b": 1, "c": {"d": 2}}}


def test_keys_keep_their_order(file):
    assert list(Config.load(file("z: 1\na: 2\nm: 3\n"))) == ["z", "a", "m"]


def test_a_quoted_merge_sign_is_a_key_like_any_other():
    assert read_yaml("'<<': 1\n", "x").tree == {"<<": 1}


# aliases


def test_an_alias_is_a_copy_that_shares_nothing():
    tree = read_yaml("a: &x {b: [1, {c: 2}]}\nd: *x\ne: *x\n", "x").tree
    assert tree["a"] == tree["d"] == tree["e"] == {"b": [1, {"c": 2}]}
    tree["d"]["b"][1]["c"] = 3
    tree["e"]["b"].append(4)
    assert tree == {"a": {"b": [1, {"c": 2}]}, "d": {"b": [1, {"c": 3}]}, "e": {"b": [1, {"c": 2}, 4]}}


def test_an_alias_refers_to_the_last_anchor_of_that_name_before_it():
    assert read_yaml("a: &x 1\nb: *x\nc: &x 2\nd: *x\n", "x").tree == {"a": 1, "b": 1, "c": 2, "d": 2}


def test_an_alias_in_an_anchored_value_is_expanded_in_both():
    assert read_yaml("a: &x [1]\nb: &y [*x, *x]\nc: [*y]\n", "x").tree["c"] == [[[1], [1]]]


def test_expanded_aliases_count_towards_the_limit_of_values():
    lines = f"a: &a [{', '.join(['1'] * 999)}]\n"
    assert len(read_yaml(lines + f"b: [{', '.join(['*a'] * 48)}]\n", "x").tree["b"]) == 48
    with pytest.raises(ConfigFileError, match="more than 50,000 values, aliases expanded"):
        read_yaml(lines + f"b: [{', '.join(['*a'] * 50)}]\n", "x")


# the environment


def test_the_environment_is_not_read(file, monkeypatch):
    monkeypatch.setenv("LAB", "secret")
    text = "a: ${LAB}\nb: $LAB\nc: '${LAB:-x}'\nd: ~/x\ne: '{{ LAB }}'\nf: ${oc.env:LAB}\n"
    values = {"a": "${LAB}", "b": "$LAB", "c": "${LAB:-x}", "d": "~/x", "e": "{{ LAB }}", "f": "${oc.env:LAB}"}
    assert Config.load(file(text)) == values


def test_a_reference_to_another_key_is_text(file):
    assert Config.load(file("a: 1\nb: ${a}\n")).b == "${a}"


# JSON


def test_a_name_that_ends_in_json_is_read_as_json(file):
    assert Config.load(file('{"a.b": 1e2, "n": [{".float": "nan"}, {".float": "-inf"}]}', "x.json")).flatten()["a.b"] == 100.0
    with pytest.raises(ConfigFileError, match="Expecting value"):
        Config.load(file("a: 1\n", "x.json"))


def test_floats_that_json_lacks_are_read_from_objects(file):
    config = Config.load(file('{"a": {".float": "nan"}, "b": {".float": "inf"}, "c": [{".float": "-inf"}]}', "x.json"))
    assert repr(config) == "Config({'a': nan, 'b': inf, 'c': [-inf]})"


def test_json_text_may_contain_every_escape(file):
    assert Config.load(file('{"a": "\\ud83d\\ude00\\u0000\\n"}', "x.json")).a == "😀\0\n"


# positions


PLACES = """\
name: x
train:
  lr: 0.1
  steps: [1,
     22]
layers:
  - width: 1
    deep: {a: 1}
  - width: 2
a.b: 3
"""


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("name", "1:1"),
        ("train", "2:1"),
        ("train.lr", "3:3"),
        ("train.steps", "4:3"),
        ("train.steps.0", "4:11"),
        ("train.steps.1", "5:6"),
        ("layers", "6:1"),
        ("layers.0", "7:5"),
        ("layers.0.width", "7:5"),
        ("layers.0.deep.a", "8:12"),
        ("layers.1.width", "9:5"),
        ("a.b", "10:1"),
        ("train.lr.not.there", "3:3"),
        ("train.nothing", "2:1"),
    ],
)
def test_where_returns_the_position_of_a_key_or_of_the_group_around_it(key, place):
    assert read_yaml(PLACES, "run.yaml").where(key) == f"run.yaml:{place}"


def test_where_returns_the_start_for_a_key_without_a_group_around_it():
    assert read_yaml("# a comment\n" + PLACES, "run.yaml").where("nothing") == "run.yaml:2:1"


def test_where_returns_only_the_file_for_json(file):
    path = file('{"a": 1}', "x.json")
    assert read_file(path).where("a") == path


def test_columns_count_characters_not_bytes():
    assert read_yaml("{é😀: 1, b: 2}", "x").where("b") == "x:1:9"


def test_a_value_keeps_its_position_in_the_file(file):
    path = file("lr: 0.5\nlayer:\n  width: 3\n")
    assert (Run.load(path).origin("layer.width"), Config.load(path).origin("layer.width")) == (f"{path}:3:3", f"{path}:3:3")


# errors of typed configs


def problems_of(path):
    with pytest.raises(ConfigError) as caught:
        Run.load(path)
    return {each.key: each.where.removeprefix(path) for each in caught.value.problems}


def test_every_problem_of_a_typed_config_has_its_position(file):
    path = file("lr: fast\nlayer:\n  widht: 3\n  width: 1.5\nlayers:\n  - {width: 1}\n  - {width: x}\ntags: [a, null]\n")
    assert problems_of(path) == {
        "lr": ":1:1",
        "layer.widht": ":3:3",
        "layer.width": ":4:3",
        "layers.1.width": ":7:6",
        "tags.1": ":8:11",
    }


def test_a_problem_at_a_dotted_key_has_its_position(file):
    assert problems_of(file("lr: 1\nlayer.width: x\n")) == {"layer.width": ":2:1"}


def test_a_problem_in_json_has_the_file_name(file):
    assert problems_of(file('{"lr": "fast"}', "run.json")) == {"lr": ""}


def test_a_problem_in_an_alias_has_the_position_of_the_alias(file):
    assert problems_of(file("layer: &x {width: 2}\nlr: 1\nlayers: [*x]\ntags: *x\n")) == {"tags": ":4:1"}


def test_the_error_for_an_unknown_key_in_a_file_has_its_position_and_the_nearest_name(file):
    path = file("lr: 0.1\ncomit: abc\n")
    with pytest.raises(UnknownKeyError) as caught:
        Run.load(path)
    assert str(caught.value) == (
        f"a problem in Run in `{path}`\n  wrong   comit = 'abc': Run has no such field; did you mean `commit`?  [{path}:2:1]"
    )


def test_a_class_without_configclass_cannot_load_a_file(file):
    class Plain(ConfigBase):
        lr: float = 0.1

    with pytest.raises(ConfigClassError, match="`Plain` is not decorated with @configclass"):
        Plain.load(file("lr: 1\n"))


# a missing file


def test_the_error_for_a_missing_file_suggests_a_similar_name_in_the_folder(tmp_path, file):
    path = file("a: 1\n", "resnet18.yaml")
    with pytest.raises(ConfigFileError) as caught:
        Config.load(tmp_path / "resnet81.yaml")
    assert str(caught.value) == (
        f"`{tmp_path}/resnet81.yaml` cannot be read: No such file or directory\n"
        f"  where   {tmp_path}/resnet81.yaml\n  try     did you mean `{path}`?"
    )


def test_the_error_for_a_missing_relative_file_suggests_a_similar_name(tmp_path, file, monkeypatch):
    file("a: 1\n", "digits.yaml")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigFileError, match=r"did you mean `digits\.yaml`\?"):
        Config.load("digit.yaml")


def test_the_error_for_a_missing_file_suggests_nothing_if_no_name_is_similar(tmp_path, file):
    file("a: 1\n", "zzz.txt")
    with pytest.raises(ConfigFileError) as caught:
        Config.load(tmp_path / "resnet81.yaml")
    assert "hint" not in caught.value.rows


def test_a_missing_folder_is_a_missing_file(tmp_path):
    with pytest.raises(ConfigFileError, match="cannot be read: No such file or directory"):
        Config.load(tmp_path / "no" / "run.yaml")


# a text field keeps the text of a number

WRITTEN = ["1.10", "12345678", "1e3", "0x1F", "+5", "1.", ".5", "1E5", "0o17", "-0", "1234e5", "100000000000000000000000.0", ".inf", ".NaN"]


@pytest.mark.parametrize("text", WRITTEN)
def test_a_text_field_keeps_a_number_as_written(file, text):
    assert Run.load(file(f"version: {text}\n")).version == text


@pytest.mark.parametrize("text", WRITTEN)
def test_lists_dicts_tuples_and_groups_of_text_keep_numbers_as_written(file, text):
    path = file(
        f"tags: [a, {text}]\nnames: {{x: {text}, y.z: {text}}}\npair: [{text}, b]\nlayer: {{label: {text}}}\nlayers: [{{label: {text}}}]\n"
        f"maybe: {text}\n"
    )
    run = Run.load(path)
    assert (run.tags, run.names, run.pair, run.layer.label, run.layers[0].label, run.maybe) == (
        ["a", text],
        {"x": text, "y.z": text},
        (text, "b"),
        text,
        text,
        text,
    )


def test_a_text_field_under_a_dotted_key_keeps_a_number_as_written(file):
    assert Run.load(file("layer.label: 1.10\n")).layer.label == "1.10"


def test_a_text_field_keeps_a_number_from_an_alias_as_written(file):
    run = Run.load(file("version: &v 1.10\ncommit: *v\ntags: &t [1e3]\nlayer: &l {label: 2.50}\nlayers: [*l]\nnames: {a: *v}\n"))
    assert (run.version, run.commit, run.tags, run.layer.label) == ("1.10", "1.10", ["1e3"], "2.50")
    assert (run.layers[0].label, run.names) == ("2.50", {"a": "1.10"})


def test_a_path_field_keeps_a_number_as_written(file):
    assert Run.load(file("folder: 1.10\n")).folder == Path("1.10")


def test_a_field_for_numbers_gets_the_number(file):
    run = Run.load(file("lr: 1e3\nanything: 1.10\neither: 0x1F\n"))
    assert (run.lr, run.anything, run.either) == (1000.0, 1.1, 31)


def test_quoted_text_stays_text_next_to_the_same_number(file):
    assert Run.load(file("tags: ['1.1', 1.10, \"1.10\", '1.1']\n")).tags == ["1.1", "1.10", "1.10", "1.1"]


def test_the_error_for_a_number_beyond_floats_suggests_quotes(file):
    with pytest.raises(ConfigFileError) as caught:
        Run.load(file("commit: 1234e567\n"))
    assert caught.value.rows["hint"] == "quote it if '1234e567' is text"


def test_the_error_for_digits_with_a_leading_zero_suggests_quotes(file):
    with pytest.raises(ConfigFileError) as caught:
        Run.load(file("commit: 01234567\n"))
    assert caught.value.rows["hint"] == "quote it if '01234567' is text"
