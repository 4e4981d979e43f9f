"""Two typed configs can be compared (contract A9)."""

import enum
from typing import Any

import pytest

from trainmaster.config import ConfigBase, Derived, Missing, Stateless, configclass, field


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


@configclass
class Net(ConfigBase):
    width: int = 3
    dropout: Stateless[float] = 0.5


@configclass
class DeepNet(Net):
    depth: int = 2


@configclass
class Run(ConfigBase):
    net: Net = Net()
    lr: float | int | str | None = 0.1
    sizes: list[int] = []
    pair: tuple[int, int] = (1, 2)
    weights: dict[str, float] = {}
    nets: list[Net] = []
    mode: Mode = "fast"
    anything: Any = None
    save_dir: Stateless[str] = "runs"
    num_classes: Derived[int]


NOTHING = (Missing, None)


def test_equal_configs_have_no_difference():
    assert Run().diff(Run()) == []
    assert Run().diff_str(Run()) == []


def test_a_difference_is_a_path_and_type_and_value_of_both_sides():
    assert Run(lr=0.1).diff(Run(lr=0.2)) == [("lr", (float, 0.1), (float, 0.2))]


def test_a_difference_in_a_nested_config_has_a_dotted_path():
    assert Run().diff(Run(net={"width": 4})) == [("net.width", (int, 3), (int, 4))]


@pytest.mark.parametrize(
    ("one", "other", "sides"),
    [
        (1, 1.0, ((int, 1), (float, 1.0))),
        (1, "1", ((int, 1), (str, "1"))),
        (None, "None", ((type(None), None), (str, "None"))),
    ],
)
def test_a_change_of_type_alone_is_a_difference(one, other, sides):
    assert Run(lr=one).diff(Run(lr=other)) == [("lr", *sides)]
    assert Run(lr=one) != Run(lr=other)


@pytest.mark.parametrize(("one", "other"), [(True, 1), (False, 0), (True, "True")])
def test_a_boolean_differs_from_the_number_it_equals_in_python(one, other):
    assert Run(anything=one).diff(Run(anything=other)) == [("anything", (bool, one), (type(other), other))]


def test_a_side_without_the_value_is_missing():
    assert Run(sizes=[1]).diff(Run(sizes=[1, 2])) == [("sizes.1", NOTHING, (int, 2))]
    assert Run(sizes=[1, 2]).diff(Run(sizes=[1])) == [("sizes.1", (int, 2), NOTHING)]
    assert Run(weights={"a": 1}).diff(Run(weights={"b": 1})) == [("weights.a", (float, 1.0), NOTHING), ("weights.b", NOTHING, (float, 1.0))]


def test_a_missing_value_is_not_a_value_of_none():
    assert Run(anything={"a": None}).diff(Run(anything={"b": 1})) == [
        ("anything.a", (type(None), None), NOTHING),
        ("anything.b", NOTHING, (int, 1)),
    ]


def test_an_empty_list_differs_from_a_filled_one():
    assert Run().diff(Run(sizes=[1])) == [("sizes", (list, []), NOTHING), ("sizes.0", NOTHING, (int, 1))]


def test_an_empty_list_differs_from_an_empty_group():
    assert Run(anything=[]).diff(Run(anything={})) == [("anything", (list, []), (dict, {}))]
    assert Run(anything=[]) != Run(anything={})


def test_the_elements_of_lists_and_tuples_are_compared_one_by_one():
    assert Run(pair=(1, 2)).diff(Run(pair=(1, 3))) == [("pair.1", (int, 2), (int, 3))]
    assert Run(nets=[{}, {}]).diff(Run(nets=[{}, {"width": 5}])) == [("nets.1.width", (int, 3), (int, 5))]


def test_choices_are_compared_by_their_plain_value():
    assert Run().diff(Run(mode=Mode.SLOW)) == [("mode", (str, "fast"), (str, "slow"))]


def test_all_differences_are_in_the_order_of_the_fields():
    one = Run(net={"width": 1}, lr=1, sizes=[1], save_dir="a")
    other = Run(net={"width": 2}, lr=2, sizes=[2], save_dir="b")
    assert [path for path, _, _ in one.diff(other)] == ["net.width", "lr", "sizes.0", "save_dir"]


def test_stateless_and_derived_fields_differ_unless_they_are_ignored():
    one = Run(save_dir="a", num_classes=1, net={"dropout": 0.1})
    other = Run(save_dir="b", num_classes=2, net={"dropout": 0.2}, lr=1)
    assert [path for path, _, _ in one.diff(other)] == ["net.dropout", "lr", "save_dir", "num_classes"]
    assert one.diff(other, ignore_stateless=True) == [("lr", (float, 0.1), (int, 1))]
    assert one.diff_str(other, ignore_stateless=True) == ["lr:(float)0.1->(int)1"]


def test_the_lines_have_the_form_path_type_old_to_type_new():
    one = Run(lr=0.1, sizes=[1], net={"width": 3})
    other = Run(lr="0.1", net={"width": 4})
    assert one.diff_str(other) == [
        "net.width:(int)3->(int)4",
        "lr:(float)0.1->(str)0.1",
        "sizes.0:(int)1->(Missing)None",
        "sizes:(Missing)None->(list)[]",
    ]


def test_a_different_class_in_a_field_is_a_difference():
    assert Run().diff(Run(net=DeepNet())) == [("net.class", NOTHING, (str, "DeepNet")), ("net.depth", NOTHING, (int, 2))]


def test_configs_of_different_classes_can_be_compared():
    assert Net().diff(DeepNet()) == [("depth", NOTHING, (int, 2))]
    assert DeepNet(width=4).diff(Net()) == [("width", (int, 4), (int, 3)), ("depth", (int, 2), NOTHING)]


def test_equality_is_an_empty_difference_and_the_same_class():
    @configclass
    class Same(ConfigBase):
        width: int = 3
        dropout: Stateless[float] = 0.5

    assert Net().diff(Same()) == []
    assert Net() != Same()
    assert Net() == Net()
    assert Net() != Net(dropout=0.1)


def test_a_config_is_not_equal_to_a_dict_with_the_same_values():
    assert Net() != Net().to_dict()
    assert Net() != 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("nan")], {"a": float("nan")}])
def test_nan_does_not_differ_from_itself(value):
    one, other = Run(anything=value), Run(anything=value)
    assert one.diff(other) == []
    assert one == other
    assert one.diff(one.clone()) == []


def test_a_list_given_as_a_tuple_is_not_a_difference():
    assert Run(sizes=(1, 2), pair=[1, 2]).diff(Run(sizes=[1, 2], pair=(1, 2))) == []


def test_a_saved_and_loaded_config_has_no_difference(tmp_path):
    config = Run(lr=1e-5, net=DeepNet(depth=4), nets=[{}, DeepNet()], anything={"a": [1, None]})
    config.write(tmp_path / "run.yaml")
    assert config.diff(Run.load(tmp_path / "run.yaml")) == []


def test_a_frozen_config_does_not_differ_from_one_that_is_not_frozen():
    config = Run(sizes=[1], weights={"a": 1}, nets=[{}])
    assert config.clone().freeze().diff(config) == []
    assert config.clone().freeze() == config


def test_a_different_origin_is_not_a_difference():
    assert Run(lr=0.1) == Run()
    assert Run(lr=0.2) == Run().override("lr=0.2")


def test_a_key_with_dots_in_a_group_is_not_confused_with_nesting():
    assert Run(weights={"a.b": 1}).diff(Run(weights={"a.b": 2})) == [("weights.a.b", (float, 1.0), (float, 2.0))]


def test_renamed_fields_are_compared_by_their_current_names():
    @configclass
    class Renamed(ConfigBase):
        rate: float = field(default=0.1, was="lr")

    assert Renamed(lr=1).diff(Renamed(rate=2)) == [("rate", (float, 1.0), (float, 2.0))]
