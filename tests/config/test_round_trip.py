"""Configs survive a round trip through a file: equal values, keys and bytes (contract A12; faults I08 and I11)."""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import round_trip_program as program
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.config import Config, ConfigBase, Stateless, configclass, group_of, key_of
from trainmaster.errors import ConfigClassError, ConfigError

PROGRAM = program.__file__

ENDINGS = ("yaml", "json")


def load_again(config, ending):
    """Write `config` to a file and load it. Return the result, and whether writing it again gives the same bytes."""
    with tempfile.TemporaryDirectory() as folder:
        one, other = Path(folder) / f"one.{ending}", Path(folder) / f"other.{ending}"
        config.write(one)
        back = type(config).load(one)
        back.write(other)
        return back, one.read_bytes() == other.read_bytes()


# Ten thousand configs in new processes.

COUNT = 10_000 if os.environ.get("TRAINMASTER_FAULTS") == "full" else 2_500  # `make faults` tests all of them
PROCESSES = (
    ("0", "C", "0"),
    ("1", "POSIX", "1"),
    ("2", "tr_TR.UTF-8", "0"),
    ("random", "de_DE.UTF-8", "1"),
    ("4294967295", "C.UTF-8", "0"),
)
"""For each process: its hash seed, its locale, and whether Python uses UTF-8."""
PART = COUNT // len(PROCESSES)


def start(process, *arguments):
    seed, locale, utf8 = process
    env = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale, "PYTHONUTF8": utf8, "PYTHONCOERCECLOCALE": "0"}
    return subprocess.Popen([sys.executable, "-W", "error", PROGRAM, *map(str, arguments)], env=env, stderr=subprocess.PIPE)


def end(processes):
    """Wait for all processes, and fail with the errors of those that failed."""
    said = [process.communicate(timeout=500)[1].decode(errors="replace") for process in processes]
    assert [text for text, process in zip(said, processes, strict=True) if process.returncode] == []


@pytest.mark.integration
def test_thousands_of_random_configs_survive_yaml_and_json_in_processes_with_other_hash_seeds_and_locales():
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # 60,000 files are written and synced
    with tempfile.TemporaryDirectory(dir=in_memory) as folder:
        starts = range(0, COUNT, PART)
        end([start(process, "write", folder, at, at + PART) for at, process in zip(starts, PROCESSES, strict=True)])
        readers = {"yaml": PROCESSES[1:] + PROCESSES[:1], "json": PROCESSES[2:] + PROCESSES[:2]}
        end(
            [
                start(each, "read", folder, at, at + PART, ending)
                for ending in ENDINGS
                for at, each in zip(starts, readers[ending], strict=True)
            ]
        )
        reports = {(ending, at): json.loads((Path(folder) / f"report_{ending}_{at}").read_text()) for ending in ENDINGS for at in starts}
        indexes = [json.loads((Path(folder) / f"index_{at}").read_text()) for at in starts]
        num_files = {ending: len(list(Path(folder).glob(f"[0-9]*.{ending}"))) for ending in ENDINGS}
    assert {where: report["found"] for where, report in reports.items() if report["found"]} == {}
    assert num_files == {"yaml": COUNT, "json": COUNT}
    assert sum(report["count"] for report in reports.values()) == 2 * COUNT
    entries = [entry for index in indexes for entry in index.values()]
    assert sum(entry["class"] is None for entry in entries) > COUNT / 3  # free-form configs
    assert {entry["class"] for entry in entries if isinstance(entry["class"], str)} == {kind.__name__ for kind in program.WRITTEN}
    assert sum(isinstance(entry["class"], list) for entry in entries) > COUNT / 20  # configs of random classes
    assert len({entry["value"] for entry in entries}) > 0.8 * COUNT


def test_the_order_in_a_file_written_from_dotted_keys_is_the_same_for_every_hash_seed():
    code = """if True:
        from trainmaster.config import ConfigBase, configclass
        @configclass
        class Options(ConfigBase):
            options: dict[str, int]
        print(Options(**{f"options.{name}": 1 for name in ("one", "two", "three", "four", "five")}).to_yaml())
    """
    run = [
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
        for seed in ("1", "2", "3")
    ]
    assert len({each.stdout for each in run}) == 1


# Random configs that hypothesis can shrink.

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
keys = texts.map(lambda text: text.replace(".", "")).filter(lambda key: key and not hasattr(Config, key))
wholes = st.integers() | st.sampled_from([10**400, -(10**400), 2**63])
scalars = st.none() | st.booleans() | wholes | st.floats() | texts
plain_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=15,
)
free_configs = st.dictionaries(keys, plain_values, max_size=6).map(Config)
generators = st.randoms(use_true_random=False)
typed_configs = st.builds(program.a_typed, generators, st.sampled_from(program.WRITTEN))


@given(free_configs | typed_configs, st.sampled_from(ENDINGS))
@settings(max_examples=400, deadline=None)
def test_a_config_has_the_same_value_key_and_bytes_after_loading(config, ending):
    back, is_same_file = load_again(config, ending)
    assert back == config
    assert program.shown(back) == program.shown(config)
    assert (key_of(back), group_of(back)) == (key_of(config), group_of(config))
    assert is_same_file


@given(generators)
@settings(max_examples=100, deadline=None)
def test_a_config_of_a_random_class_survives_a_file(rng):
    config = program.a_typed(rng, program.made_up(program.a_class(rng)))
    for ending in ENDINGS:
        back, is_same_file = load_again(config, ending)
        assert program.facts(back) == program.facts(config)
        assert is_same_file


@given(st.floats(), st.sampled_from(ENDINGS))
@settings(max_examples=300, deadline=None)
def test_every_float_keeps_every_bit_except_the_payload_of_a_nan(number, ending):
    """Covers fault I08."""
    back, _ = load_again(Config(number=number), ending)
    assert type(back.number) is float
    assert back.number.hex() == number.hex()


@given(typed_configs)
@settings(max_examples=100, deadline=None)
def test_a_typed_config_is_equal_when_built_again_from_its_dict(config):
    again = type(config)(**config.to_dict())
    assert again == config
    assert again.uid == config.uid


@given(free_configs)
@settings(max_examples=100, deadline=None)
def test_a_free_config_has_the_same_key_when_built_again_from_its_dotted_keys(config):
    assert key_of(Config(config.flatten())) == key_of(config.flatten()) == key_of(config)


@given(free_configs | typed_configs)
@settings(max_examples=100, deadline=None)
def test_a_copy_and_a_pickle_have_the_same_value_and_key(config):
    for again in (config.clone(), pickle.loads(pickle.dumps(config))):
        assert program.facts(again) == program.facts(config)


@given(typed_configs)
@settings(max_examples=50, deadline=None)
def test_freezing_a_config_does_not_change_its_key_and_bytes(config):
    frozen = config.clone().freeze()
    assert (frozen.uid, group_of(frozen), frozen.to_yaml()) == (config.uid, group_of(config), config.to_yaml())


# Difficult text and names (I11).

HARD = [
    *program.TEXTS,
    "a" * 10_000,
    "é" * 10_000,
    "trailing.",
    "trailing ",
    "..",
    "../../etc/passwd",
    "a\0b",
    "con",
    "nul",
    "COM1",
    "-",
    "--x",
]


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_difficult_text_survives_unchanged(ending):
    config = Config(texts=HARD, more={f"n{number}": text for number, text in enumerate(HARD)})
    back, is_same_file = load_again(config, ending)
    assert back.texts == HARD
    assert list(back.more.values()) == HARD
    assert is_same_file


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_difficult_key_survives_unchanged_or_is_refused(ending):
    refused = []
    for text in HARD:
        try:
            config = Config({text: 1, "group": {text: 2}})
        except ConfigError:
            refused.append(text)
            continue
        back, _ = load_again(config, ending)
        assert back.asdict() == config.asdict()
    assert refused == [text for text in HARD if "" in text.split(".")]


@pytest.mark.parametrize("ending", ENDINGS)
def test_two_unicode_forms_of_one_text_are_two_keys_in_a_file(ending):
    config = Config({"\u00e9": 1, "e\u0301": 2})
    back, _ = load_again(config, ending)
    assert list(back.items()) == [("\u00e9", 1), ("e\u0301", 2)]


# Limits: what can be written can be loaded.


def written_or_refused(config, ending):
    """Return whether the file was loaded with the same key, or `config` was refused and no file was written."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"config.{ending}"
        try:
            config.write(path)
        except ConfigError:
            return not path.exists()
        return key_of(Config.load(path)) == key_of(config)


def nested(depth, leaf):
    for _ in range(depth):
        leaf = {"a": leaf}
    return leaf


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("leaf", [1, {}, [], [1], {"b": 1}], ids=str)
@pytest.mark.parametrize("depth", [97, 98, 99, 100, 101, 102])
def test_a_config_at_the_limit_of_nesting_can_be_loaded_or_is_not_written(depth, leaf, ending):
    try:
        config = Config(nested(depth, leaf))
    except ConfigError:
        assert depth >= 100
        return
    assert written_or_refused(config, ending)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_dotted_key_with_500_parts_can_be_loaded_or_is_not_written(ending):
    try:
        config = Config({".".join(["a"] * 500): 1})
    except ConfigError:
        return
    assert written_or_refused(config, ending)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("number", [10**4300 - 1, -(10**4300 - 1), 10**4300, -(10**4300)], ids=["4300", "-4300", "4301", "-4301"])
def test_an_integer_at_the_limit_of_digits_can_be_loaded_or_is_not_written(number, ending):
    assert written_or_refused(Config(number=number), ending)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_config_with_too_many_values_for_a_file_can_be_loaded_or_is_not_written(ending):
    assert written_or_refused(Config(numbers=list(range(49_999))), ending)
    assert written_or_refused(Config(numbers=list(range(50_000))), ending)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_config_with_too_many_bytes_for_a_file_can_be_loaded_or_is_not_written(ending):
    assert written_or_refused(Config(text="a" * 5 * 2**20), ending)


# Types that a file does not tell apart.


class Plainly(Enum):
    NUMBER = 1
    TEXT = "1"
    FLAG = False
    HALF = 0.5
    NOTHING = None


@configclass
class Labelled(ConfigBase):
    label: Plainly


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("member", Plainly)
def test_an_enum_with_similar_values_is_restored_as_the_same_member(member, ending):
    back, _ = load_again(Labelled(label=member), ending)
    assert back.label is member


def test_an_enum_whose_values_are_paths_is_restored_or_refused_by_the_class():
    class Place(Enum):
        HOME = Path("/home")

    try:

        @configclass
        class Placed(ConfigBase):
            place: Place
    except ConfigClassError:
        return
    back, _ = load_again(Placed(place=Place.HOME), "yaml")
    assert back.place is Place.HOME


@configclass
class Inner(ConfigBase):
    width: int = 1
    note: Stateless[str] = ""


@configclass
class GroupOrInner(ConfigBase):
    group: dict[str, Any] | Inner


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_config_in_a_union_with_a_dict_is_restored_as_a_config(ending):
    config = GroupOrInner(group=Inner(note="a"))
    back, _ = load_again(config, ending)
    assert (type(back.group), back.key) == (Inner, config.key)


@configclass
class WholeOrPath(ConfigBase):
    value: int | Path


def test_a_path_of_digits_in_a_union_with_int_stays_a_path():
    assert WholeOrPath(value=Path("5")).value == Path("5")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_tuple_of_a_typed_config_is_restored_as_a_tuple(ending):
    back, _ = load_again(program.Containers(fixed=(1, "a", True), pairs=[(1, 2.0)]), ending)
    assert (back.fixed, back.pairs) == ((1, "a", True), [(1, 2.0)])


@pytest.mark.parametrize("ending", ENDINGS)
def test_negative_zero_keeps_its_sign_in_a_file(ending):
    """Fault I08: -0.0 and 0.0 have the same key, but a file keeps the sign."""
    back, _ = load_again(Config(number=-0.0), ending)
    assert math.copysign(1, back.number) == -1
