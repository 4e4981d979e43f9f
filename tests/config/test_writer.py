"""Configs are written as YAML that every parser reads the same way, or as strict JSON, and never as partial files."""

import json
import math
import os
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
import warm
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainmaster.config import Config, ConfigBase, configclass
from trainmaster.config.json_reader import read_json
from trainmaster.config.paths import key_problem
from trainmaster.config.writer import json_text, yaml_text
from trainmaster.config.yaml_reader import read_yaml
from trainmaster.errors import ConfigError, ConfigFileError

TRICKY = [
    *["no", "No", "yes", "on", "off", "y", "Y", "n", "N", "true", "True", "FALSE", "null", "Null", "~", "none", "None", "nan", "inf"],
    *["1e-3", "1E5", "1.", ".5", "12:30:45", "1:30", "190:20:30.15", "0o10", "0777", "1_000", "0b11", "0x1f", "-0x1f", "+1", "-", "--"],
    *[
        "1234e567",
        "12345678",
        "00000000",
        "1e10",
        "e1",
        ".nan",
        ".NaN",
        ".inf",
        "-.inf",
        "+.INF",
        "2020-01-01",
        "2001-12-14 21:59:43.10 -5",
    ],
    *["", " ", "  ", " a", "a ", "a: b", "a:", ":a", ": ", "a #b", "#a", "- a", "-a", "? a", "?", "!x", "!!str x", "&x", "*x", "%x", "@x"],
    *["`x", "=", "<<", "|", "|-", ">", "{", "}", "{a: 1}", "[", "]", "[a]", ",", "a, b", "'", '"', "it's", '"a"', "\\", "\\n", "a\\"],
    *["---", "--- a", "...", "%YAML 1.2", "\t", "a\tb", "\n", "a\n", "\na", "a\nb", "a\n\n b\n", " a\n b", "\r", "a\r\nb", "\x00", "a\0b"],
    *["\x07", "\x1b[31m", "\x7f", "\x85", "a\x85b", "\u2028", "a\u2028b", "\u2029", "\ufeff", "\ufeffa", "a\ufeff", "\u200b", "\ufffe"],
    *[
        "\uffff",
        "\U0001f600",
        "é",
        "e\u0301",
        "\u0130",
        "日本",
        "\U0010ffff",
        "\xa0",
        "\xa0a",
        "a" * 200,
        "a b " * 60,
        "é" * 130,
        "x" * 1025,
    ],
    *["a/b", "/usr/bin", "C:\\x", "~/x", "${HOME}", "a.b", "1.2.3", "null null", "no way", "yes no", "1 2", "a  b", "_", "_1", "a-", "/"],
]
FLOATS = [0.0, -0.0, 1.0, 1e22, 1e-05, 1e16, 123456789.123, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 0.1, 1 / 3]
SPECIAL_FLOATS = [math.inf, -math.inf, math.nan]
INTS = [0, -1, 8, 10, 777, 2**63, -(2**64), 10**22, 10**400, -(10**400), 10**4299, -(10**4298)]

texts = st.sampled_from(TRICKY) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
keys = texts.filter(lambda text: text and "." not in text)
scalars = st.none() | st.booleans() | st.integers() | st.sampled_from(INTS) | st.floats() | st.sampled_from(FLOATS + SPECIAL_FLOATS) | texts
trees = st.dictionaries(
    keys,
    st.recursive(scalars, lambda below: st.lists(below, max_size=4) | st.dictionaries(keys, below, max_size=4), max_leaves=12),
    max_size=5,
)


def same(one, other):
    """Return whether two nested values have equal types and values; -0.0 differs from 0.0, and NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


def strict_json(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@configclass
class Run(ConfigBase):
    name: str = ""
    lr: float = 0.1
    sizes: tuple[int, ...] = ()
    tags: dict[str, str] = {}


# YAML


@settings(max_examples=250, deadline=None)
@given(trees)
@example({})
@example({"a": {}, "b": [], "c": [[], {}], "d": [[1], [2, [3]]]})
def test_a_yaml_1_1_parser_and_ours_read_the_same_values(tree):
    text = yaml_text(tree)
    assert same(yaml.safe_load(text), tree)
    assert same(read_yaml(text, "x").tree, tree)


@pytest.mark.parametrize("text", TRICKY, ids=ascii)
def test_text_is_read_back_as_a_value_an_item_and_a_key_by_both_readers(text):
    tree = {"a": text, "b": [text, [text], {"c": text}]}
    if not key_problem(text):
        tree["d"] = {text: {text: text}}
    written = yaml_text(tree)
    assert same(yaml.safe_load(written), tree)
    assert same(read_yaml(written, "x").tree, tree)


@pytest.mark.parametrize("value", FLOATS + SPECIAL_FLOATS + [-each for each in FLOATS])
def test_a_float_is_read_back_by_both_readers(value):
    written = yaml_text({"a": value, "b": [value]})
    assert same(yaml.safe_load(written), {"a": value, "b": [value]})
    assert same(read_yaml(written, "x").tree, {"a": value, "b": [value]})


@settings(max_examples=500, deadline=None)
@given(st.floats(allow_nan=False))
def test_any_float_keeps_every_bit_and_its_sign(value):
    written = yaml_text({"a": value})
    for read in (yaml.safe_load(written)["a"], read_yaml(written, "x").tree["a"], read_json(json_text({"a": value}), "x").tree["a"]):
        assert (type(read), read.hex()) == (float, value.hex())


@pytest.mark.parametrize("value", [*INTS, 10**4300 - 1, -(10**4300 - 1)], ids=lambda value: f"{value:.3e}" if abs(value) < 1e300 else "big")
def test_an_integer_is_read_back_by_both_readers_and_as_json(value):
    written = yaml_text({"a": value, "b": [value]})
    assert yaml.safe_load(written) == {"a": value, "b": [value]}
    assert read_yaml(written, "x").tree == {"a": value, "b": [value]}
    assert read_json(json_text({"a": value}), "x").tree == {"a": value}


@pytest.mark.parametrize(
    "key", ["ab12cd34", "deadbeef", "1234e567", "12345678", "00000000", "0123e456", "1e234567", "0x123456", "12_45678"]
)
def test_a_run_key_is_always_quoted(key):
    assert yaml_text({"run": key}) == f'run: "{key}"\n'
    assert yaml_text({key: [key]}) == f'"{key}": ["{key}"]\n'


@pytest.mark.parametrize("word", ["y", "Y", "n", "N", "no", "yes", "on", "off", "true", "null", "nan", "inf", "NO", "Off"])
def test_a_word_that_some_parsers_read_as_a_value_is_quoted(word):
    assert yaml_text({word: word, "list": [word]}) == f'"{word}": "{word}"\nlist: ["{word}"]\n'


def test_common_text_is_written_without_quotes():
    assert (
        yaml_text({"name": "ResNet18", "path": "/data/x.y", "words": "two words"}) == "name: ResNet18\npath: /data/x.y\nwords: two words\n"
    )


def test_keys_keep_their_order_and_lists_of_scalars_are_on_one_line():
    assert yaml_text({"b": 1, "a": [1, "x", None], "c": [[1], {"d": 2}]}) == "b: 1\na: [1, x, null]\nc:\n- [1]\n- d: 2\n"


def test_a_long_text_stays_on_one_line():
    assert yaml_text({"a": "word " * 200 + "end"}).count("\n") == 1


def test_an_object_that_occurs_twice_is_written_twice_without_an_alias():
    group = {"x": [1]}
    assert yaml_text({"a": group, "b": group}) == "a:\n  x: [1]\nb:\n  x: [1]\n"


def test_unicode_is_written_as_itself():
    assert yaml_text({"a": "é 日本"}) == 'a: "é 日本"\n'


# JSON


@settings(max_examples=200, deadline=None)
@given(trees)
def test_json_is_strict_and_read_back(tree):
    text = json_text(tree)
    strict_json(text)
    assert same(read_json(text, "x").tree, tree)


def test_floats_that_json_lacks_are_written_as_objects():
    assert strict_json(json_text({"a": math.nan, "b": [math.inf, -math.inf]})) == {
        "a": {".float": "nan"},
        "b": [{".float": "inf"}, {".float": "-inf"}],
    }


# files


@pytest.mark.parametrize("name", ["run.yaml", "run.json", "run", "run.yml"])
def test_a_config_that_was_written_is_loaded_again(tmp_path, name):
    config = Config({"a.b": math.nan, "c": [-0.0, math.inf, {"d": "no"}], "e": 10**400, "f": "1e-3", "g": {}, "h": []})
    config.write(tmp_path / name)
    assert same(Config.load(tmp_path / name).asdict(), config.asdict())
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", ["run.yaml", "run.json"])
def test_a_typed_config_that_was_written_is_loaded_again(tmp_path, name):
    run = Run(name="1.10", lr=math.nan, sizes=(1, 2), tags={"a": "no", "b": "1e3", "12": "0777"})
    run.write(tmp_path / name)
    assert Run.load(tmp_path / name) == run


@settings(max_examples=150, deadline=None)
@given(texts, st.dictionaries(texts.filter(lambda key: not key_problem(key) and "." not in key), texts, max_size=3))
def test_text_fields_of_a_typed_config_are_read_back_unchanged(tmp_path_factory, name, tags):
    path = tmp_path_factory.mktemp("typed") / "run.yaml"
    run = Run(name=name, tags=tags)
    run.write(path)
    assert Run.load(path) == run


@pytest.mark.parametrize("name", ["run.yaml", "run.json"])
def test_the_deepest_config_that_can_be_written_can_be_loaded(tmp_path, name):
    def nested(depth):
        tree = 1
        for _ in range(depth):
            tree = {"a": tree}
        return Config(tree)

    def is_written(depth):
        try:
            nested(depth).write(tmp_path / name)
        except ConfigError:
            return False
        return True

    deepest = max(depth for depth in range(90, 120) if is_written(depth))
    nested(deepest).write(tmp_path / name)
    assert Config.load(tmp_path / name) == nested(deepest)


def test_writing_over_a_file_replaces_it(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("old: " + "x" * 10_000)
    Config(a=1).write(path)
    assert path.read_bytes() == b"a: 1\n"
    assert os.listdir(tmp_path) == ["run.yaml"]


def test_lines_and_the_file_end_in_a_line_feed():
    assert yaml_text({"a": 1, "b": {"c": 2}}) == "a: 1\nb:\n  c: 2\n"
    assert json_text({"a": 1}) == '{\n  "a": 1\n}\n'


def test_a_name_of_the_maximum_length_can_be_written(tmp_path):
    path = tmp_path / ("a" * 250 + ".yaml")
    Config(a=1).write(path)
    assert Config.load(path) == {"a": 1}


def test_a_missing_folder_is_not_created(tmp_path):
    with pytest.raises(ConfigFileError) as caught:
        Config(a=1).write(tmp_path / "no" / "run.yaml")
    path = tmp_path / "no" / "run.yaml"
    assert str(caught.value) == f"`{path}` cannot be written: No such file or directory\n  where   {path}"
    assert os.listdir(tmp_path) == []


def test_a_folder_with_that_name_is_kept_and_no_other_file_is_left(tmp_path):
    (tmp_path / "run.yaml").mkdir()
    with pytest.raises(ConfigFileError, match=r"run\.yaml` cannot be written: Is a directory"):
        Config(a=1).write(tmp_path / "run.yaml")
    assert os.listdir(tmp_path) == ["run.yaml"]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigFileError, match="cannot be written: Not a directory"):
        Config(a=1).write(tmp_path / "file" / "run.yaml")


def test_a_folder_in_which_no_file_can_be_created_is_refused():
    with pytest.raises(ConfigFileError, match="cannot be written: "):
        Config(a=1).write("/proc/run.yaml")


def test_a_name_with_a_nul_is_refused(tmp_path):
    with pytest.raises(ValueError, match="null"):
        Config(a=1).write(f"{tmp_path}/a\0b.yaml")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write to any folder")
def test_a_folder_that_cannot_be_written_keeps_the_old_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("old: 1\n")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ConfigFileError, match="cannot be written: Permission denied"):
            Config(a=1).write(path)
        assert path.read_text() == "old: 1\n"
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("name", ["run.yaml", "run.json"])
def test_a_config_that_cannot_be_stored_leaves_the_old_file(tmp_path, name):
    path = tmp_path / name
    path.write_text("old")
    with pytest.raises(ConfigError, match="cannot be stored in a config"):
        Config(a=1, b=object()).write(path)
    with pytest.raises(ConfigError, match="not valid Unicode"):
        Config(a="\ud800").write(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [name]


def run_program(code, *args):
    return warm.run([sys.executable, "-c", textwrap.dedent(code), *map(str, args)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("limit", [0, 1, 1000, 50_000])
@pytest.mark.parametrize("name", ["run.yaml", "run.json"])
def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path, name, limit):
    path = tmp_path / name
    Config(old=1).write(path)
    before = path.read_bytes()
    result = run_program(
        """
        import resource, sys
        from trainmaster.config import Config
        from trainmaster.errors import ConfigFileError

        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
        try:
            Config({"text": "x" * 100_000}).write(sys.argv[1])
        except ConfigFileError as error:
            print(error.fact)
        """,
        path,
        limit,
    )
    assert result.stdout == f"`{path}` cannot be written: File too large\n", result.stderr
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [name]


def test_an_interrupt_while_writing_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("old: 1\n")
    result = run_program(
        """
        import signal, sys
        from trainmaster.config import Config

        def stop(event, args):
            if event == "os.rename":
                signal.raise_signal(signal.SIGINT)  # Ctrl-C when the file is complete and about to be moved into place

        sys.addaudithook(stop)
        try:
            Config(a=1).write(sys.argv[1])
        except KeyboardInterrupt:
            print("interrupted")
        """,
        path,
    )
    assert result.stdout == "interrupted\n", result.stderr
    assert path.read_text() == "old: 1\n"
    assert os.listdir(tmp_path) == ["run.yaml"]


def test_a_reader_never_sees_half_a_file_while_it_is_overwritten_repeatedly(tmp_path):
    path = tmp_path / "run.yaml"
    configs = [Config({"number": number, "text": str(number) * 20_000}) for number in range(4)]
    configs[0].write(path)

    def write(config):
        for _ in range(15):
            config.write(path)

    def read_whole(_):
        seen = [Config.load(path) for _ in range(15)]
        return all(each in configs for each in seen)

    with ThreadPoolExecutor(8) as pool:
        writers = [pool.submit(write, config) for config in configs]
        readers = [pool.submit(read_whole, number) for number in range(4)]
        assert all(each.result() for each in readers)
        assert [each.result() for each in writers] == [None] * 4
    assert Config.load(path) in configs
    assert os.listdir(tmp_path) == ["run.yaml"]


def test_processes_that_write_at_once_leave_one_complete_file(tmp_path):
    path = tmp_path / "run.json"
    code = """
        import sys
        from trainmaster.config import Config

        config = Config({"number": int(sys.argv[2]), "text": sys.argv[2] * 50_000})
        for _ in range(30):
            config.write(sys.argv[1])
        """
    programs = [warm.Popen([sys.executable, "-c", textwrap.dedent(code), str(path), str(number)]) for number in range(3)]
    assert [each.wait() for each in programs] == [0, 0, 0]
    config = Config.load(path)
    assert config.text == str(config.number) * 50_000
    assert os.listdir(tmp_path) == ["run.json"]
