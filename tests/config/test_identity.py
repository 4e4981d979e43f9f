"""Configs have the same key if and only if they mean the same thing (contracts A12 and J5; faults I08, I11 and I12)."""

from __future__ import annotations

import hashlib
import math
import struct
import subprocess
import sys
from collections import OrderedDict, namedtuple
from enum import Enum, IntEnum, StrEnum
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.config import Config, ConfigBase, Derived, Replicate, Stateless, canonical, configclass, field, group_of, key_of
from trainmaster.config.identity import hash_of
from trainmaster.errors import ConfigError

ENDINGS = ("yaml", "json")


class Color(Enum):
    RED = "red"


class Level(IntEnum):
    ONE = 1


class Mode(StrEnum):
    FAST = "fast"


class Outer(Enum):
    INNER = Color.RED


class Activation(Enum):
    """An enum with a member that has the name of a method of typed configs."""

    identity = "identity"
    relu = "relu"


class Number(float):
    def __repr__(self):
        return "a number"


class Whole(int):
    def __repr__(self):
        return "a whole number"

    __str__ = __repr__


class Text(str):
    def __str__(self):
        return "a text"


Point = namedtuple("Point", "x y")
other_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_DEAD_BEEF))[0]
signalling_nan = struct.unpack("<d", struct.pack("<Q", 0x7FF0_0000_0000_0001))[0]


# The same key.

SAME = {
    "the order of keys": ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}),
    "dotted keys": ({"a.b.c": 1, "a.b.d": 2, "a.e": 3}, {"a": {"b": {"c": 1, "d": 2}, "e": 3}}),
    "dotted keys beside a group": ({"a": {"b": 1}, "a.c": 2}, {"a.b": 1, "a": {"c": 2}}),
    "dotted keys in a list": ({"a": [{"b.c": 1}]}, {"a": [{"b": {"c": 1}}]}),
    "dotted keys with a group as value": ({"a.b": {"c.d": 1}}, {"a": {"b.c": {"d": 1}}}),
    "an empty group by a dotted key": ({"a.b": {}}, {"a": {"b": {}}}),
    "tuples": ({"a": (1, (2, ()))}, {"a": [1, [2, []]]}),
    "named tuples": ({"a": Point(1, 2)}, {"a": [1, 2]}),
    "other mappings": ({"a": MappingProxyType({"b": 1})}, OrderedDict(a={"b": 1})),
    "a Config": (Config({"a.b": 1, "c": [{"d": 2}]}), {"a": {"b": 1}, "c": [{"d": 2}]}),
    "a Config in a dict": ({"a": Config(b=1)}, {"a": {"b": 1}}),
    "spellings of a float": ({"a": 1e-3}, {"a": 0.001}),
    "float64": ({"a": np.float64(0.1)}, {"a": 0.1}),
    "float32 of an exact value": ({"a": np.float32(0.5)}, {"a": 0.5}),
    "float32 of another value": ({"a": np.float32(0.1)}, {"a": float(np.float32(0.1))}),
    "float16": ({"a": np.float16(1.5)}, {"a": 1.5}),
    "int64": ({"a": np.int64(-3)}, {"a": -3}),
    "uint64": ({"a": np.uint64(2**64 - 1)}, {"a": 2**64 - 1}),
    "int8": ({"a": np.int8(7)}, {"a": 7}),
    "NumPy's bool": ({"a": np.bool_(True)}, {"a": True}),
    "NumPy's str": ({"a": np.str_("x"), np.str_("b"): 1}, {"a": "x", "b": 1}),
    "NumPy's nan": ({"a": np.float32("nan")}, {"a": math.nan}),
    "an enum": ({"a": Color.RED}, {"a": "red"}),
    "an enum of whole numbers": ({"a": Level.ONE}, {"a": 1}),
    "an enum of texts": ({"a": Mode.FAST, Mode.FAST: 1}, {"a": "fast", "fast": 1}),
    "an enum of enums": ({"a": Outer.INNER}, {"a": "red"}),
    "an enum with a member called identity": ({"a": Activation.relu, "b": [Activation.identity]}, {"a": "relu", "b": ["identity"]}),
    "a path": ({"a": Path("x/y")}, {"a": "x/y"}),
    "a path of another system": ({"a": PureWindowsPath("x\\y")}, {"a": PurePosixPath("x/y")}),
    "subclasses of scalars": ({"a": Number(0.5), "b": Whole(2), "c": Text("t")}, {"a": 0.5, "b": 2, "c": "t"}),
    "a subclass of text as key": ({Text("t"): 1}, {"t": 1}),
    "nan of another payload": ({"a": math.nan}, {"a": other_nan}),
    "a signalling nan": ({"a": math.nan}, {"a": signalling_nan}),
    "nan of another sign": ({"a": math.nan}, {"a": -math.nan}),
    "negative zero": ({"a": -0.0, "b": [-0.0, {"c": -0.0}]}, {"a": 0.0, "b": [0.0, {"c": 0.0}]}),
    "negative zero beside nan": ({"a": -0.0, "b": math.nan}, {"a": 0.0, "b": math.nan}),
    "NumPy's negative zero": ({"a": np.float64(-0.0)}, {"a": 0.0}),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_configs_with_the_same_meaning_have_the_same_key(one, other):
    """Covers contracts A12 and J5, and faults I08 and I12."""
    assert canonical(one) == canonical(other)
    assert key_of(one, 64) == key_of(other, 64)
    assert group_of(one, 64) == group_of(other, 64)


# Different keys.

NFC, NFD = "\u00e9", "e\u0301"
DIFFERENT = {
    "numbers, booleans and texts": [{"a": 1}, {"a": 1.0}, {"a": True}, {"a": "1"}, {"a": "1.0"}, {"a": "True"}, {"a": "true"}],
    "zeros": [{"a": 0}, {"a": 0.0}, {"a": False}, {"a": "0"}, {"a": ""}, {"a": "-0.0"}, {"a": "0.0"}],
    "nothing": [{}, {"a": None}, {"a": {}}, {"a": []}, {"a": ""}, {"a": "null"}, {"a": "None"}, {"a": False}, {"a": [None]}, {"a": [[]]}],
    "the order of a list": [{"a": [1, 2]}, {"a": [2, 1]}, {"a": [1, 2, 2]}, {"a": [[1], 2]}, {"a": [1, [2]]}],
    "a scalar and a list of one": [{"a": 1}, {"a": [1]}, {"a": [[1]]}, {"a": {"0": 1}}],
    "twins of Unicode": [{"a": NFC}, {"a": NFD}, {NFC: "a"}, {NFD: "a"}, {NFC: "a", NFD: "a"}],
    "letters that look alike": [{"a": 1}, {"\u0430": 1}, {"A": 1}, {"\uff41": 1}, {"a ": 1}, {"a\u200b": 1}],
    "0.1 of other precision": [{"a": 0.1}, {"a": np.float32(0.1)}, {"a": np.float16(0.1)}, {"a": "0.1"}],
    "neighbouring floats": [{"a": 0.3}, {"a": 0.1 + 0.2}, {"a": math.nextafter(0.3, 0)}],
    "denormals": [{"a": 5e-324}, {"a": 0.0}, {"a": 1e-323}, {"a": -5e-324}],
    "what is not finite": [{"a": each} for each in (math.inf, -math.inf, math.nan, "nan", "inf", "-inf", ".nan", ".inf", None, "NaN")],
    "big integers": [{"a": each} for each in (2**53, 2**53 + 1, float(2**53), 2**63, 2**63 - 1, 2**64, float(2**63), 10**400, 10**400 + 1)],
    "the place of a value": [{"a": {"b": 1}}, {"a": 1, "b": 1}, {"b": {"a": 1}}, {"ab": 1}, {"a": {"b": {}}}, {"a": [{"b": 1}]}],
    "what could break a text": [{"a": '"'}, {"a": "\\"}, {"a": '","b":"'}, {"a": "", "b": ""}, {"a": "\n"}, {"a": "\\n"}, {"a": "\0"}],
    "epochs": [{"a": 1}, {"a": 1, "epochs": 3}, {"a": 1, "epochs": 4}, {"a": 1, "num_epochs": 3}, {"epochs": 1}, {}],
    "deeper epochs": [{"train": {"epochs": 1}}, {"train": {"epochs": 2}}, {"train": {"num_epochs": 1}}, {"train": {}}, {"train.epochs": 3}],
    "names like epochs": [{"epoch": 1}, {"Epochs": 1}, {"max_epochs": 1}, {"num_epochs_": 1}, {}],
}


@pytest.mark.parametrize("configs", DIFFERENT.values(), ids=DIFFERENT)
def test_configs_with_different_meanings_have_different_keys(configs):
    """Covers contract A12, and faults I08 and I11."""
    assert len({canonical(each) for each in configs}) == len(configs)
    assert len({key_of(each) for each in configs}) == len(configs)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
names = st.sampled_from(["a", "b", "c", NFC, "x y"])
trees = st.dictionaries(
    names,
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8),
    max_size=4,
)


def meaning(value):
    """Return a form of a value that is equal for two values if and only if they have the same meaning."""
    if isinstance(value, dict):
        return "group", frozenset((key, meaning(each)) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return "list", tuple(map(meaning, value))
    if isinstance(value, float):
        return "float", "nan" if math.isnan(value) else (value + 0.0).hex()
    return type(value).__name__, value


@given(trees, trees)
@settings(max_examples=500, deadline=None)
def test_two_configs_have_the_same_canonical_form_if_and_only_if_they_have_the_same_meaning(one, other):
    assert (canonical(one) == canonical(other)) == (meaning(one) == meaning(other))


def shuffled(value, rng):
    if isinstance(value, dict):
        items = [(key, shuffled(each, rng)) for key, each in value.items()]
        rng.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        inner = [shuffled(each, rng) for each in value]
        return tuple(inner) if rng.random() < 0.5 else inner
    return value


@given(trees, st.randoms())
@settings(max_examples=200, deadline=None)
def test_any_order_of_keys_and_any_mix_of_tuples_and_lists_has_the_same_key(config, rng):
    assert canonical(shuffled(config, rng)) == canonical(config)


YAML_STYLES = {
    "block": "arch: ResNet\nlr: 0.001\nsizes:\n- 1\n- 2\noptim:\n  betas: [0.9, 0.5]\n  name: no\n",
    "flow": "{arch: ResNet, lr: 1e-3, sizes: [1, 2], optim: {betas: [0.9, 0.5], name: no}}\n",
    "quoted": "'arch': 'ResNet'\n\"lr\": +0.1e-2\n\"sizes\": [0x1, 0o2]\n\"optim\": {'betas': [.9, 5.e-1], \"name\": 'no'}\n",
    "dotted": "optim.name: no\noptim.betas: [0.90, 0.50]\nlr: 1.0e-3\narch: >-\n  ResNet\nsizes: [1, 2]  # a comment\n",
    "aliased": "arch: &x ResNet\nlr: 0.001\nsizes: [1, 2]\noptim:\n  betas:\n    - 0.9\n    - 0.5\n  name: |-\n    no\n",
}


@pytest.mark.parametrize("style", YAML_STYLES)
def test_every_yaml_style_gives_the_key_of_the_dict(style, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(YAML_STYLES[style], encoding="utf-8")
    expected = {"arch": "ResNet", "lr": 0.001, "sizes": [1, 2], "optim": {"betas": [0.9, 0.5], "name": "no"}}
    assert key_of(Config.load(path)) == key_of(expected)


def test_json_with_escapes_gives_the_key_of_the_dict(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"b": 1E-3, "\\u0061": ["\\u00e9", "\\ud83d\\ude00"], "c.d": {".float": "-inf"}}', encoding="utf-8")
    assert key_of(Config.load(path)) == key_of({"a": [NFC, "😀"], "b": 0.001, "c": {"d": -math.inf}})


# Typed configs.


@configclass
class Optim(ConfigBase):
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)


@configclass
class Adam(Optim):
    eps: float = 1e-8


@configclass
class Sgd(Optim):
    eps: float = 1e-8


@configclass
class Trainer(ConfigBase):
    optim: Optim = Optim()
    maybe: Optim | None = None
    stages: list[Optim] = []
    by_name: dict[str, Optim] = {}
    pair: tuple[Optim, Optim] | None = None
    either: Adam | Sgd | None = None


@configclass
class Run(ConfigBase):
    arch: Literal["mlp", "cnn"] = "mlp"
    optim: Optim = Optim()
    out: Stateless[Path] = Path("out")
    num_classes: Derived[int] = None
    seed: int = 0
    fold: Replicate[int] = 0
    epochs: int = 10


def test_a_typed_config_has_the_key_of_its_identity_and_of_its_stateful_dict():
    """Covers contract A12."""
    config = Run(arch="cnn", optim={"lr": 1e-3}, out="elsewhere", num_classes=10, seed=3)
    assert config.key == key_of(config) == key_of(config.identity()) == key_of(config.to_dict(ignore_stateless=True))
    assert config.key == key_of({"arch": "cnn", "optim.lr": 0.001, "optim.betas": (0.9, 0.999), "seed": 3, "fold": 0, "epochs": 10})


def test_a_run_that_starts_from_nothing_has_the_key_of_a_config_without_the_field():
    assert key_of({"lr": 0.1, "start_from": None}) == key_of({"lr": 0.1})
    assert group_of({"lr": 0.1, "start_from": None}) == group_of({"lr": 0.1})
    assert key_of({"lr": 0.1, "start_from": "ab12cd34@5"}) != key_of({"lr": 0.1})
    assert key_of({"net": {"start_from": None}}) != key_of({"net": {}})


def test_the_short_key_is_the_start_of_the_uid():
    """Contract A12: there is a long hash and a short form. Contract J5: a key has 8 hex digits."""
    config = Run()
    assert len(config.uid) == 64
    assert set(config.uid) <= set("0123456789abcdef")
    assert config.key == config.uid[:8]


def test_the_key_of_a_typed_config_does_not_depend_on_the_order_of_its_arguments():
    assert Run(seed=1, arch="cnn").uid == Run(arch="cnn", seed=1).uid


def test_a_typed_config_in_a_dict_has_the_key_of_its_identity_and_class():
    said = {"class": "Run", **Run().identity()}
    assert key_of({"run": Run(out="a"), "all": [Run(out="b")]}) == key_of({"run": said, "all": [said]})


def test_a_value_is_converted_to_the_type_of_its_field():
    assert Optim(lr=1).uid == Optim(lr=1.0).uid == Optim(lr="1").uid


def test_a_default_has_the_same_key_as_an_equal_given_value():
    assert Run().uid == Run(arch="mlp", optim=Optim(lr=0.1), seed=0).uid


@pytest.mark.parametrize(
    "change", [{"arch": "cnn"}, {"optim": {"lr": 0.2}}, {"optim": {"betas": (0.9, 0.9)}}, {"seed": 1}, {"fold": 1}, {"epochs": 11}]
)
def test_every_stateful_field_changes_the_key(change):
    assert Run(**change).uid != Run().uid


@pytest.mark.parametrize("change", [{"out": "elsewhere"}, {"num_classes": 7}], ids=str)
def test_stateless_and_derived_fields_change_neither_the_key_nor_the_group(change):
    """Contract A12: `Stateless` and `Derived` fields are not part of the identity."""
    assert Run(**change).uid == Run().uid
    assert group_of(Run(**change)) == group_of(Run())


@configclass
class Part(ConfigBase):
    width: int = 1
    note: Stateless[str] = ""
    mean: Derived[float] = None
    epochs: int = 1
    num_epochs: Stateless[int] = 1
    repeat: Replicate[int] = 0
    init_seed: int = 0


@configclass
class Assembly(ConfigBase):
    part: Part = Part()
    maybe: Part | None = None
    parts: list[Part] = [Part()]
    by_name: dict[str, Part] = {"a": Part()}
    pair: tuple[Part, int] = (Part(), 1)
    aside: Stateless[Part] = Part()
    below: Self | None = None


def holders(part):
    return {
        "part": Assembly(part=part),
        "maybe": Assembly(maybe=part),
        "parts": Assembly(parts=[part]),
        "by_name": Assembly(by_name={"a": part}),
        "pair": Assembly(pair=(part, 1)),
        "below": Assembly(below=Assembly(below=Assembly(part=part))),
    }


@pytest.mark.parametrize("place", holders(Part()))
@pytest.mark.parametrize("change", [{"note": "x"}, {"mean": 0.5}, {"num_epochs": 2}], ids=str)
def test_stateless_fields_of_nested_configs_do_not_change_the_key(change, place):
    assert holders(Part(**change))[place].uid == holders(Part())[place].uid


@pytest.mark.parametrize("place", holders(Part()))
@pytest.mark.parametrize("change", [{"width": 2}, {"epochs": 2}, {"repeat": 1}, {"init_seed": 1}], ids=str)
def test_stateful_fields_of_nested_configs_change_the_key(change, place):
    """This includes the number of epochs in a nested config."""
    assert holders(Part(**change))[place].uid != holders(Part())[place].uid


def test_no_field_of_a_stateless_group_changes_the_key():
    assert Assembly(aside=Part(width=5)).uid == Assembly().uid


def test_a_group_with_only_stateless_fields_differs_from_none():
    @configclass
    class Aside(ConfigBase):
        note: Stateless[str] = ""

    @configclass
    class Holder(ConfigBase):
        aside: Aside | None

    assert canonical(Holder(aside=Aside())) == '{"aside":{}}'
    assert Holder(aside=Aside()).uid != Holder(aside=None).uid


# Replicates.


@pytest.mark.parametrize("place", holders(Part()))
@pytest.mark.parametrize("change", [{"repeat": 1}, {"init_seed": 1}], ids=str)
def test_replicates_share_a_group_at_any_depth_of_the_replicate_field(change, place):
    assert group_of(holders(Part(**change))[place]) == group_of(holders(Part())[place])


@pytest.mark.parametrize("place", holders(Part()))
def test_configs_that_differ_in_more_than_replicate_fields_have_different_groups(place):
    assert group_of(holders(Part(width=2))[place]) != group_of(holders(Part())[place])


SEEDS = [
    ({"seed": 1}, {"seed": 2}),
    ({"seed": 1}, {}),
    ({"random_seed": 1}, {"random_seed": None}),
    ({"data": {"path": "x", "seed": 1}}, {"data.path": "x", "data.seed": 2}),
    ({"data": [{"myseed": 1}]}, {"data": [{"myseed": 2}]}),
    ({"seed": {"torch": 1}}, {"seed": {"torch": 2}}),
]


@pytest.mark.parametrize(("one", "other"), SEEDS, ids=str)
def test_every_key_that_ends_in_seed_is_part_of_the_key_and_not_of_the_group(one, other):
    assert key_of(one) != key_of(other)
    assert group_of(one) == group_of(other)


@pytest.mark.parametrize("name", ["seeds", "seed_", "Seed", "seedling", "SEED"])
def test_a_key_that_only_looks_like_a_seed_is_part_of_the_group(name):
    assert group_of({name: 1}) != group_of({name: 2})


def test_the_group_of_a_config_without_replicate_fields_is_its_key():
    assert group_of({"lr": 0.1, "a": {"b": [1]}}, 64) == key_of({"lr": 0.1, "a": {"b": [1]}}, 64)


def test_replicates_of_a_typed_config_inside_a_dict_share_a_group():
    assert group_of({"part": Part(repeat=1)}) == group_of({"part": Part(repeat=2)})


def test_a_config_may_have_a_key_of_any_name_and_still_has_a_group():
    """A `Config` lacks the methods of typed configs, so their names can be its keys."""
    names = [name for name in dir(ConfigBase) if not name.startswith("_") and not hasattr(Config, name)]
    assert "identity" in names
    for name in names:
        config = Config({name: 1})
        assert group_of(config) == group_of({name: 1}) == key_of(config)


# Refused.


def refused(config, function=key_of):
    with pytest.raises(ConfigError) as caught:
        function(config)
    return {problem.key: problem.text for problem in caught.value.problems}


def open_file():
    return open(__file__, encoding="utf-8")


STORABLE_NOWHERE = {
    "a lambda": lambda: lambda: 1,
    "a class": lambda: Config,
    "a function": lambda: open_file,
    "a tensor": lambda: torch.zeros(2),
    "a tensor of one number": lambda: torch.tensor(1.0),
    "a parameter": lambda: torch.nn.Parameter(torch.zeros(1)),
    "a module": lambda: torch.nn.Linear(1, 1),
    "a dtype": lambda: torch.float32,
    "a device": lambda: torch.device("cpu"),
    "an array": lambda: np.zeros(3),
    "an array of one number": lambda: np.array(1.0),
    "a complex number": lambda: 1j,
    "NumPy's complex number": lambda: np.complex64(1),
    "NumPy's time": lambda: np.datetime64("2024-01-01"),
    "NumPy's bytes": lambda: np.bytes_(b"x"),
    "a set": lambda: {1, 2},
    "a frozenset": lambda: frozenset({1}),
    "bytes": lambda: b"x",
    "a bytearray": lambda: bytearray(b"x"),
    "an object": object,
    "a generator": lambda: (each for each in ()),
    "a range": lambda: range(3),
    "an ellipsis": lambda: ...,
    "an enum of such": lambda: Enum("Wrong", {"A": object()}).A,
    "half of a surrogate pair": lambda: "a\ud800",
    "the other half": lambda: "\udfff",
    "4301 digits": lambda: 10**4300,
    "4301 digits and a sign": lambda: -(10**4300),
}


@pytest.mark.parametrize(
    "function", [key_of, group_of, canonical, lambda config: Config(config).to_yaml()], ids=["key", "group", "text", "yaml"]
)
@pytest.mark.parametrize("kind", STORABLE_NOWHERE)
def test_a_value_that_cannot_be_stored_is_refused_with_its_dotted_key(kind, function):
    """Covers fault I12."""
    value = STORABLE_NOWHERE[kind]()
    assert list(refused({"fine": 1, "model": {"parts": [1, {"it": value}]}}, function)) == ["model.parts.1.it"]
    assert list(refused({"model.it": value}, function)) == ["model.it"]


def test_an_open_file_is_refused_with_its_dotted_key():
    """Covers fault I12."""
    with open_file() as file:
        assert list(refused({"log": {"file": file}})) == ["log.file"]


@pytest.mark.parametrize(
    ("value", "advice"),
    [(np.zeros(2), "`.tolist()`"), (torch.zeros(2), "`.tolist()`"), ({1}, "a sorted list"), (len, "its import path")],
    ids=str,
)
def test_the_error_says_what_to_write_instead(value, advice):
    assert advice in refused({"a": value})["a"]


@pytest.mark.parametrize("key", [1, None, 1.5, True, b"a", ("a", "b"), Color.RED], ids=repr)
def test_a_key_that_is_not_text_is_refused(key):
    (problem,) = refused({"model": {key: 1}}).items()
    assert problem[0] == f"model.{key!r}"
    assert "a key must be text" in problem[1]


@pytest.mark.parametrize("key", ["", ".", "..", "a.", ".a", "a..b", ".float"])
def test_a_key_with_an_empty_part_is_refused(key):
    """Fault I11: this includes `.float`, which the canonical form uses for values that JSON cannot represent."""
    assert refused({"model": {key: 1}}) == {f"model.{key!r}": "a key has no empty parts"}


@pytest.mark.parametrize("key", ["\ud800", "a\udfff", "a.\udc80"])
def test_a_key_with_half_of_a_surrogate_pair_is_refused(key):
    (problem,) = refused({key: 1}).values()
    assert "valid Unicode" in problem


@pytest.mark.parametrize("config", [{"a": 1, "a.b": 2}, {"a.b": 1, "a": {"b": 1}}, {"a.b": 1, "a": 2}, {"a.b.c": 1, "a.b": None}], ids=str)
def test_a_value_given_twice_by_a_dotted_key_and_by_nesting_is_refused(config):
    (problem,) = refused(config).values()
    assert "given twice" in problem


def test_all_problems_are_reported_at_once():
    """Covers fault I12."""
    config = {"a": {1}, "b": {"c": [0, b"x", {"d": object()}]}, 3: 1, "": 2, "e": "\ud800", "f": 10**4300, "g.h": len, "fine": 1}
    assert set(refused(config)) == {"a", "b.c.1", "b.c.2.d", "3", "''", "e", "f", "g.h"}


@pytest.mark.parametrize("value", [1, None, "text", [1], (), object(), {1}], ids=lambda value: type(value).__name__)
def test_other_types_than_configs_are_refused(value):
    with pytest.raises(ConfigError):
        key_of(value)


@pytest.mark.parametrize("length", [7, 0, -8, 65, 8.0, "8", None, True], ids=repr)
def test_a_length_other_than_8_to_64_is_refused(length):
    for function in (key_of, group_of):
        with pytest.raises(ConfigError, match="8 to 64"):
            function({}, length)


def test_a_key_of_any_length_is_a_prefix_of_the_longest():
    longest = key_of({"a": 1}, 64)
    assert [key_of({"a": 1}, length) for length in range(8, 65)] == [longest[:length] for length in range(8, 65)]


# Infinite nesting.


def deep(depth):
    tree = {}
    for _ in range(depth):
        tree = {"a": tree}
    return tree


def deep_list(depth):
    tree = []
    for _ in range(depth):
        tree = [tree]
    return {"a": tree}


def looped():
    config = {"a": {}}
    config["a"]["b"] = [config]
    return config


ENDLESS = {"groups": lambda: deep(10_000), "lists": lambda: deep_list(10_000), "itself": looped}


@pytest.mark.parametrize("function", [key_of, group_of, canonical])
@pytest.mark.parametrize("kind", ENDLESS)
def test_infinite_nesting_is_refused_with_the_start_of_its_dotted_key(kind, function):
    (problem,) = refused(ENDLESS[kind](), function).items()
    assert problem[0].startswith("a.")
    assert len(problem[0]) < 100
    assert problem[1] == "is nested more than 100 deep, or contains itself"


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_config_with_infinite_nesting_is_refused(kind):
    with pytest.raises(ConfigError):
        key_of(Config(ENDLESS[kind]()))


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_field_for_any_value_refuses_infinite_nesting(kind):
    @configclass
    class Free(ConfigBase):
        value: Any

    with pytest.raises(ConfigError):
        key_of(Free(value=ENDLESS[kind]()))


@pytest.mark.parametrize("parts", [101, 500, 20_000])
def test_a_dotted_key_with_too_many_parts_is_refused_like_deep_nesting(parts):
    with pytest.raises(ConfigError):
        key_of({".".join(["a"] * parts): 1})


@pytest.mark.parametrize(
    "code",
    [
        "config = {}; config['a'] = config; config['b'] = config",
        "config = {'a': []}; config['a'] += [config['a']] * 3",
        "config = {'a': 1}\nfor _ in range(60): config = {'a': config, 'b': config}",
    ],
    ids=["itself twice", "a list in itself", "doubled 60 times"],
)
def test_a_config_with_infinitely_many_values_is_refused_within_seconds(code):
    """The code runs in a separate process, which can be killed if it hangs."""
    code += "\nfrom trainmaster.config import key_of\nfrom trainmaster.errors import ConfigError\n"
    code += "try:\n    key_of(config)\nexcept ConfigError:\n    print('refused')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout == "refused\n"


# Golden keys: these must never change, so that old configs can still be found.

GOLDEN = [
    ({}, "{}", "44136fa3"),
    ({"arch": "ResNet18", "lr": 1e-3}, '{"arch":"ResNet18","lr":0.001}', "4160a47e"),
    ({"b": True, "i": 1, "f": 1.0, "n": None, "t": "1"}, '{"b":true,"f":1.0,"i":1,"n":null,"t":"1"}', "1793ba3c"),
    ({"a.b": (1, [2.5]), "a": {"c": {}}}, '{"a":{"b":[1,[2.5]],"c":{}}}', "f6775633"),
    ({"x": [math.nan, math.inf, -math.inf, -0.0]}, '{"x":[{".float":"nan"},{".float":"inf"},{".float":"-inf"},0.0]}', "c054998d"),
    ({"f": [1e16, 1e22, 1e-5, 5e-324, 0.1, 123456.0]}, '{"f":[1e+16,1e+22,1e-05,5e-324,0.1,123456.0]}', "ad33492b"),
    ({"i": [2**63, -1, 10**25]}, '{"i":[9223372036854775808,-1,10000000000000000000000000]}', "6fa9a12c"),
    ({NFC: "\u2028\U0001f600\x7f", NFD: '"\\/\n\x00'}, '{"e\u0301":"\\"\\\\/\\n\\u0000","\xe9":"\u2028\U0001f600\x7f"}', "0669db3c"),
    ({"\uffff": 1, "\U00010000": 2, "Z": 3, "a": 4}, '{"Z":3,"a":4,"\uffff":1,"\U00010000":2}', "9e964375"),
    ({"lr": 0.1, "seed": 3, "epochs": 5}, '{"epochs":5,"lr":0.1,"seed":3}', "4ceba135"),
    (
        Run(optim=Adam(lr=0.5), out="x"),
        '{"arch":"mlp","epochs":10,"fold":0,"optim":{"betas":[0.9,0.999],"class":"Adam","eps":1e-08,"lr":0.5},"seed":0}',
        "6ddfc279",
    ),
    (
        Trainer(stages=[Sgd()], maybe=Optim(lr=1)),
        '{"by_name":{},"either":null,"maybe":{"betas":[0.9,0.999],"lr":1.0},'
        '"optim":{"betas":[0.9,0.999],"lr":0.1},"pair":null,"stages":[{"betas":[0.9,0.999],"class":"Sgd","eps":1e-08,"lr":0.1}]}',
        "bdec030e",
    ),
]


@pytest.mark.parametrize(("config", "text", "key"), GOLDEN, ids=[key for _, _, key in GOLDEN])
def test_canonical_forms_and_keys_have_never_changed(config, text, key):
    """Covers contracts A12 and J5."""
    assert canonical(config) == text
    assert key_of(config) == key


def test_the_key_is_the_sha256_of_the_canonical_form():
    assert key_of({"lr": 0.1}, 64) == hash_of('{"lr":0.1}') == hashlib.sha256(b'{"lr":0.1}').hexdigest()
    assert hash_of('"ü"') == hashlib.sha256(b'"\xc3\xbc"').hexdigest()


def test_invalid_unicode_has_a_hash_too():
    assert hash_of("\ud800") == hashlib.sha256(b"\xed\xa0\x80").hexdigest()


def test_the_group_of_a_typed_config_has_never_changed():
    assert group_of(Run(optim=Adam(lr=0.5), seed=4, fold=2), 16) == "b3a09a7380159122"


# History: configs keep their keys and files when their class changes.


@configclass
class First(ConfigBase):
    """The class before it changed."""

    lr: float = 0.1
    width: int = 4
    folder: Stateless[str] = "here"


@configclass
class Second(ConfigBase):
    """The class after it changed: three fields were renamed, one of them twice, and three fields were added."""

    learning_rate: float = field(default=0.1, was="lr")
    size: int = field(default=4, was=("num_units", "width"))
    place: Stateless[str] = field(default="here", was="folder")
    momentum: float = field(default=0.0, added=True)
    optim: Optim | None = field(default=Adam(), added=True)
    tags: list[str] = field(default=["a", "b"], added=True)


def given_by(values, how, kind, folder):
    """Create a config of class `kind` from `values` in Python, YAML or JSON."""
    if how == "python":
        return kind(**values)
    path = folder / f"config.{how}"
    Config(values).write(path)
    return kind.load(path)


ways = pytest.mark.parametrize("how", ["python", "yaml", "json"])


@ways
@pytest.mark.parametrize("values", [{}, {"lr": 0.5}, {"width": 8}, {"lr": 0.5, "width": 8, "folder": "there"}], ids=str)
def test_a_config_keeps_its_key_when_its_class_changes(values, how, tmp_path):
    old, new = (given_by(values, how, kind, tmp_path) for kind in (First, Second))
    assert new.uid == old.uid
    assert group_of(new) == group_of(old)


@ways
@pytest.mark.parametrize("former", ["width", "num_units"])
def test_every_former_name_is_read_as_the_current_name(former, how, tmp_path):
    config = given_by({former: 8, "lr": 0.5, "folder": "there"}, how, Second, tmp_path)
    assert (config.size, config.learning_rate, config.place) == (8, 0.5, "there")
    assert config == Second(size=8, learning_rate=0.5, place="there")


@ways
@pytest.mark.parametrize(
    "values",
    [
        {"lr": 0.1, "learning_rate": 0.1},
        {"learning_rate": 1, "lr": 2},
        {"width": 1, "num_units": 1},
        {"num_units": 1, "size": 1},
        {"place": "a", "folder": "a"},
    ],
    ids=str,
)
def test_two_names_for_one_field_are_refused(values, how, tmp_path):
    with pytest.raises(ConfigError, match="given twice"):
        given_by(values, how, Second, tmp_path)


def test_a_file_is_written_with_the_current_names(tmp_path):
    Second(lr=0.5).write(tmp_path / "config.yaml")
    assert list(Config.load(tmp_path / "config.yaml")) == ["learning_rate", "size", "place", "momentum", "optim", "tags"]


@ways
@pytest.mark.parametrize(
    "values",
    [{"momentum": 0.9}, {"optim": None}, {"optim": {"lr": 0.1}}, {"optim": {"class": "Sgd"}}, {"tags": []}, {"tags": ["b", "a"]}],
    ids=str,
)
def test_an_added_field_changes_the_key_once_it_differs_from_its_default(values, how, tmp_path):
    assert given_by(values, how, Second, tmp_path).uid != First().uid


@ways
@pytest.mark.parametrize(
    "values",
    [{"momentum": 0}, {"momentum": -0.0}, {"optim": {"class": "Adam", "eps": 1e-8}}, {"tags": ["a", "b"]}, {"tags": ("a", "b")}],
    ids=str,
)
def test_an_added_field_keeps_the_key_while_its_value_equals_the_default(values, how, tmp_path):
    assert given_by(values, how, Second, tmp_path).uid == First().uid


@configclass
class Holding(ConfigBase):
    one: First = First()
    many: list[First] = [First()]
    named: dict[str, First] = {"x": First()}


@configclass
class HoldingNew(ConfigBase):
    only: Second = field(default=Second(), was="one")
    many: list[Second] = [Second()]
    named: dict[str, Second] = {"x": Second()}


NESTED_VALUES = [
    {},
    {"one": {"lr": 0.5}},
    {"one.width": 7, "one.folder": "there"},
    {"many": [{"lr": 1.0, "width": 2}, {}], "named": {"x": {"lr": 0.5, "folder": "there"}}},
]


@ways
@pytest.mark.parametrize("values", NESTED_VALUES, ids=str)
def test_nested_configs_keep_the_key_when_their_classes_change(values, how, tmp_path):
    old, new = (given_by(values, how, kind, tmp_path) for kind in (Holding, HoldingNew))
    assert new.uid == old.uid


def test_an_added_nested_field_changes_the_key_once_it_differs_from_its_default():
    assert HoldingNew(only={"momentum": 0.5}).uid != Holding().uid
    assert HoldingNew(many=[{"tags": []}]).uid != Holding().uid


@ways
def test_two_names_for_a_nested_field_are_refused_with_the_dotted_key(how, tmp_path):
    with pytest.raises(ConfigError, match="given twice") as caught:
        given_by({"one": {"lr": 1.0, "learning_rate": 1.0}}, how, HoldingNew, tmp_path)
    assert [problem.key for problem in caught.value.problems] == ["only.learning_rate"]


def test_a_field_that_was_added_and_later_renamed_has_its_first_name_in_the_identity():
    @configclass
    class Third(ConfigBase):
        lr: float = 0.1
        decay: float = field(default=0.0, was="weight_decay", added=True)

    assert canonical(Third()) == '{"lr":0.1}'
    assert canonical(Third(weight_decay=0.5)) == canonical(Third(decay=0.5)) == '{"lr":0.1,"weight_decay":0.5}'


def test_an_added_replicate_field_is_part_of_the_key_and_not_of_the_group():
    @configclass
    class Third(ConfigBase):
        lr: float = 0.1
        fold: Replicate[int] = field(default=0, was="part", added=True)

    assert canonical(Third()) == '{"lr":0.1}'
    assert key_of(Third(fold=1)) != key_of(Third())
    assert group_of(Third(fold=1)) == group_of(Third()) == key_of({"lr": 0.1})


def test_an_added_free_form_group_equals_its_default_with_or_without_dotted_keys():
    @configclass
    class Third(ConfigBase):
        options: dict[str, Any] = field(default={"a.b": 1}, added=True)

    assert canonical(Third()) == canonical(Third(options={"a": {"b": 1}})) == "{}"


def test_a_subclass_keeps_the_history_of_its_base():
    @configclass
    class Child(Second):
        more: int = 1

    assert canonical(Child(lr=0.5)) == '{"lr":0.5,"more":1,"width":4}'


# A field whose type is a base class, and whose values are configs of its subclasses.


def trainers(optim):
    return {
        "optim": Trainer(optim=optim),
        "maybe": Trainer(maybe=optim),
        "stages": Trainer(stages=[Optim(), optim]),
        "by_name": Trainer(by_name={"a.b": optim}),
        "pair": Trainer(pair=(optim, Optim())),
        **({"either": Trainer(either=optim)} if isinstance(optim, Adam | Sgd) else {}),
    }


@pytest.mark.parametrize("place", trainers(Adam()))
def test_two_subclasses_with_equal_values_have_different_keys(place):
    assert Adam().uid == Sgd().uid  # they differ only in their class
    assert trainers(Adam())[place].uid != trainers(Sgd())[place].uid
    assert group_of(trainers(Adam())[place]) != group_of(trainers(Sgd())[place])


@pytest.mark.parametrize("place", trainers(Optim()))
def test_a_subclass_with_the_values_of_its_base_has_a_different_key(place):
    @configclass
    class Same(Optim): ...

    assert trainers(Same())[place].uid != trainers(Optim())[place].uid


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", [Adam, Sgd])
@pytest.mark.parametrize("place", trainers(Adam()))
def test_a_subclass_is_loaded_from_a_file_as_itself(place, kind, ending, tmp_path):
    config = trainers(kind(eps=0.5))[place]
    config.write(tmp_path / f"config.{ending}")
    back = Trainer.load(tmp_path / f"config.{ending}")
    assert repr(back) == repr(config)
    assert back.uid == config.uid


def test_the_class_of_the_field_itself_is_not_written():
    assert "class" not in Trainer(optim=Optim(lr=0.5)).to_yaml()


def test_a_class_that_does_not_fit_the_field_is_refused():
    with pytest.raises(ConfigError, match="did you mean `Adam`"):
        Trainer(optim={"class": "Adan"})
    with pytest.raises(ConfigError, match="no config class that fits"):
        Trainer(optim={"class": "Run"})


def twin(module):
    """Create a class that is the same each time, except that it seems to be defined in `module`."""
    return configclass(type("Twin", (Optim,), {"__module__": module}))


def test_a_class_that_is_defined_again_replaces_the_earlier_one():
    """This happens when a cell of a notebook is run twice."""
    before, after = twin("notebook"), twin("notebook")
    assert type(Trainer(optim={"class": "Twin"}).optim) is after
    assert before is not after


def test_an_ambiguous_class_name_is_refused():
    kinds = [configclass(type("Double", (Optim,), {"__module__": module})) for module in ("one", "other")]
    with pytest.raises(ConfigError):
        Trainer(optim={"class": "Double"})
    assert len(kinds) == 2
