"""`Config`, the free-form config, satisfies contracts J1 to J3."""

import copy
import math
import pickle
import random
import sys
import textwrap
import time
from datetime import date
from types import MappingProxyType

import pytest

from trainmaster.config import Config
from trainmaster.errors import ConfigError, ConfigFileError, UnknownKeyError

METHODS = ["update", "items", "get", "pop", "keys", "values", "copy", "fill", "flatten", "instantiate", "clone", "load", "override"]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that writes an importable module and returns its name; the module is removed after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def make(name, source):
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        made.append(name.split(".")[0])
        return name

    yield make
    for name in [each for each in sys.modules if each.split(".")[0] in made]:
        del sys.modules[name]


# ---- keys and groups (J1)


def test_a_dotted_key_equals_nesting():
    """Covers contract J1."""
    assert Config({"a.b": 1}) == Config({"a": {"b": 1}}) == {"a": {"b": 1}}


def test_item_attribute_and_dotted_key_reach_the_same_value():
    """Covers contract J1."""
    config = Config({"model": {"layers": {"width": 64}}})
    assert config["model.layers.width"] == config.model.layers.width == config["model"]["layers"]["width"] == 64


def test_nested_dicts_become_configs():
    """Covers contract J1."""
    config = Config({"a": {"b": {"c": 1}}})
    assert type(config.a) is type(config["a.b"]) is Config


def test_dicts_in_lists_and_tuples_become_configs():
    """Covers contract J1."""
    config = Config(a=[{"b.c": 1}], d=({"e": 2}, [{"f": 3}]))
    assert (config.a[0].b.c, config.d[0].e, config.d[1][0].f) == (1, 2, 3)


def test_any_mapping_becomes_a_group():
    assert Config(a=MappingProxyType({"b.c": 1})).a.b.c == 1


def test_a_mapping_that_is_not_a_dict_merges_with_a_dotted_key():
    assert Config({"a.b": 1, "a": MappingProxyType({"c": 2})}) == {"a": {"b": 1, "c": 2}}


def test_tuples_stay_tuples():
    """Covers contract J1."""
    config = Config({"a.size": (3, 4), "b": [(1, 2)], "c": ((1,), [2])})
    assert type(config.a.size) is type(config.b[0]) is type(config.c) is type(config.c[0]) is tuple
    assert type(config.c[1]) is list


def test_tuples_stay_tuples_in_asdict_flatten_and_clone():
    """Covers contract J1."""
    config = Config({"a.size": (3, 4)})
    assert config.asdict()["a"]["size"] == config.flatten()["a.size"] == config.clone().a.size == (3, 4)
    assert type(config.asdict()["a"]["size"]) is type(config.flatten()["a.size"]) is type(config.clone().a.size) is tuple


def test_dotted_keys_inside_groups_are_also_nested():
    """Covers contract J1."""
    assert Config({"a": {"b.c": 1, "b": {"d.e": 2}}}).asdict() == {"a": {"b": {"c": 1, "d": {"e": 2}}}}


def test_dotted_and_nested_keys_of_one_group_merge():
    """Covers contract J1."""
    assert Config({"a.b": 1, "a": {"c": 2}, "a.d.e": 3}) == {"a": {"b": 1, "c": 2, "d": {"e": 3}}}


@pytest.mark.parametrize(
    "values",
    [
        {"a.b": 1, "a": {"b": 1}},
        {"a": {"b": 1}, "a.b": 2},
        {"a": {"b": 1, "c": {"d": 2}}, "a.c.d": 2},
        {"a": 1, "a.b": 2},
        {"a.b": 1, "a": 2},
        {"a.b.c": 1, "a.b": 3},
    ],
)
def test_a_key_given_dotted_and_nested_is_refused(values):
    """Contract J1: both forms are the same key, so one of the two values would be lost."""
    with pytest.raises(ConfigError, match="is given twice: by a dotted key and by nesting"):
        Config(values)


def test_keyword_arguments_are_keys():
    assert Config({"a": 1}, b=2, c={"d": 3}) == {"a": 1, "b": 2, "c": {"d": 3}}


def test_pairs_are_accepted_as_by_dict():
    assert Config([("a.b", 1), ("c", 2)]) == {"a": {"b": 1}, "c": 2}


@pytest.mark.parametrize(
    ("key", "kind"), [(1, "int"), (None, "NoneType"), (1.5, "float"), (True, "bool"), (("a", "b"), "tuple"), (b"a", "bytes")]
)
def test_keys_that_are_not_text_are_refused(key, kind):
    """Covers contract J1."""
    with pytest.raises(ConfigError, match=f"a key must be text, not {kind}"):
        Config({key: 1})
    with pytest.raises(ConfigError, match=f"a key must be text, not {kind}"):
        Config()[key] = 1


@pytest.mark.parametrize("key", ["", ".", "a.", ".a", "a..b", "..", "a.b."])
def test_keys_with_empty_parts_are_refused(key):
    """Covers contract J1."""
    with pytest.raises(ConfigError, match="a key has no empty parts"):
        Config({key: 1})
    with pytest.raises(ConfigError, match="a key has no empty parts"):
        Config()[key] = 1
    with pytest.raises(ConfigError, match="a key has no empty parts"):
        Config({"outer": {key: 1}})


@pytest.mark.parametrize("name", METHODS)
def test_names_of_methods_are_refused_as_keys(name):
    """Contract J1: `config.update` is the method, so a key of that name would be hidden."""
    for values in ({name: 1}, {f"a.{name}": 1}, {f"{name}.a": 1}, {"a": {name: 1}}, {"a": [{name: 1}]}):
        with pytest.raises(ConfigError, match=f"`{name}` is a method of Config"):
            Config(values)
    with pytest.raises(ConfigError, match=f"`{name}` is a method of Config"):
        Config()[name] = 1
    with pytest.raises(ConfigError, match=f"`{name}` is a method of Config"):
        setattr(Config(), name, 1)


@pytest.mark.parametrize(
    "key", ["__class__", "__dict__", "__slots__", "_origins", "__reduce__", "__init__", "a.__class__", "_origins.a", "__getattr__"]
)
def test_keys_that_would_break_the_object_are_refused(key):
    config = Config(a={})
    with pytest.raises(ConfigError, match="of Config"):
        Config({key: 1})
    with pytest.raises(ConfigError, match="of Config"):
        config[key] = 1
    with pytest.raises(ConfigError, match="of Config"):
        config.update({key: 1})
    with pytest.raises(ConfigError, match="of Config"):
        config.setdefault(key, 1)
    with pytest.raises(ConfigError, match="of Config"):
        config.fill({key: 1})
    assert config == {"a": {}}
    assert type(config) is Config


def test_hostile_attributes_cannot_be_set():
    config = Config(a=1)
    for name in ("__class__", "_origins", "__dict__"):
        with pytest.raises(ConfigError, match=f"`{name}`"):
            setattr(config, name, dict)
    assert type(config) is Config


def test_harmless_odd_keys_work():
    keys = ["_target_", "_private", "größe", "with space", "a-b", "0", "class", "None", "self", "{}", "%s", "__custom__", "💡"]
    config = Config({key: number for number, key in enumerate(keys)})
    assert [config[key] for key in keys] == [*range(len(keys))]
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_key_with_half_a_surrogate_pair_is_refused():
    with pytest.raises(ConfigError, match="valid Unicode"):
        Config({"a\ud800": 1})


def test_all_wrong_keys_are_reported_at_once():
    with pytest.raises(ConfigError) as caught:
        Config({1: 1, "": 2, "update": 3, "fine": 4})
    assert [each.key for each in caught.value.problems] == ["1", "''", "update"]


# ---- reading


def test_an_unknown_key_is_a_key_error_that_suggests_the_nearest():
    config = Config({"train.learning_rate": 0.1})
    with pytest.raises(KeyError, match=r"did you mean `train.learning_rate`"):
        config["train.learning_rat"]


def test_an_unknown_attribute_is_an_attribute_error_that_suggests_the_nearest():
    with pytest.raises(AttributeError, match="did you mean `width`"):
        _ = Config(width=3).widht


def test_the_error_for_an_unknown_key_is_a_key_error_and_an_attribute_error():
    with pytest.raises(UnknownKeyError, match="the config has no key `x`") as caught:
        Config(a=1)["x"]
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, AttributeError)
    assert "known   a" in str(caught.value)


def test_a_long_common_group_does_not_make_two_names_similar():
    with pytest.raises(UnknownKeyError) as caught:
        Config({"training.optimizer.arguments.lr": 0.1})["training.optimizer.arguments.wd"]
    assert "did you mean" not in str(caught.value)


def test_a_key_below_a_value_is_unknown():
    with pytest.raises(UnknownKeyError, match=r"no key `a.b.c`"):
        Config({"a.b": 1})["a.b.c"]


@pytest.mark.parametrize("key", [1, 1.5, None, ("a",), "a..b", "", "a."])
def test_reading_an_invalid_key_is_a_key_error(key):
    """Code often wraps a lookup in `try` and `except KeyError`, which must work here too."""
    with pytest.raises(KeyError):
        Config({"a": {"b": 1}})[key]


def test_hasattr_is_true_for_keys_and_false_for_others():
    config = Config({"a.b": 1, "none": None})
    assert hasattr(config, "a")
    assert hasattr(config, "none")
    assert hasattr(config.a, "b")
    assert not hasattr(config, "b")
    assert not hasattr(config, "_repr_png_")
    assert not hasattr(config, "__array__")


def test_getattr_takes_a_default():
    assert getattr(Config(a=1), "b", "default") == "default"
    assert getattr(Config(b=None), "b", "default") is None


def test_attributes_can_be_set_and_deleted():
    config = Config()
    config.a = {"b.c": 1}
    assert config.a.b.c == 1
    del config.a.b
    assert config == {"a": {}}


def test_deleting_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no key `x`"):
        del Config().x


# ---- writing


def test_setting_a_dotted_key_creates_the_groups():
    config = Config()
    config["a.b.c"] = 1
    assert config == {"a": {"b": {"c": 1}}}
    assert type(config.a.b) is Config


def test_a_value_is_not_silently_replaced_by_a_group():
    config = Config(a=1)
    with pytest.raises(ConfigError, match="`a` is 1, not a group") as caught:
        config["a.b"] = 2
    assert "del config['a']" in str(caught.value)
    assert config == {"a": 1}


def test_a_failed_assignment_leaves_no_incomplete_groups():
    config = Config({"a.b": 1})
    with pytest.raises(ConfigError):
        config["a.b.c"] = 2
    with pytest.raises(ConfigError):
        config["new.group.update"] = 3
    assert config == {"a": {"b": 1}}


def test_a_whole_group_can_be_replaced():
    config = Config({"a": {"b": 1}})
    config.a = {"c": 2}
    assert config == {"a": {"c": 2}}


# ---- methods of a dict


def test_get_takes_dotted_keys_and_defaults():
    """Covers contract J2."""
    config = Config({"a.b": 1, "none": None})
    assert config.get("a.b") == 1
    assert config.get("a.c") is None
    assert config.get("a.c", 5) == 5
    assert config.get("a.b.c", 5) == 5
    assert config.get("none", 5) is None
    assert config.get(3, "default") == "default"
    assert config.get("a..b", "default") == "default"


def test_setdefault_takes_dotted_keys():
    config = Config({"a.b": 1})
    assert config.setdefault("a.b", 2) == 1
    assert config.setdefault("a.c", 3) == 3
    assert type(config.setdefault("d", {"e": 4})) is Config
    assert config == {"a": {"b": 1, "c": 3}, "d": {"e": 4}}


def test_setdefault_returns_the_group_of_the_config():
    config = Config()
    config.setdefault("a", {})["b"] = 1
    assert config == {"a": {"b": 1}}


def test_pop_takes_dotted_keys():
    config = Config({"a.b": 1, "a.c": 2})
    assert config.pop("a.b") == 1
    assert config == {"a": {"c": 2}}


def test_pop_of_an_unknown_key_is_a_key_error_or_the_default():
    config = Config({"a.b": 1})
    with pytest.raises(KeyError, match=r"no key `a.x`"):
        config.pop("a.x")
    assert config.pop("a.x", None) is None
    assert config.pop("a.b.c", 7) == 7
    assert config == {"a": {"b": 1}}


def test_popitem_removes_the_last_item():
    config = Config({"a": 1, "b.c": 2})
    assert config.popitem() == ("b", {"c": 2})
    assert config == {"a": 1}


def test_popitem_of_an_empty_config_is_a_key_error():
    with pytest.raises(KeyError):
        Config().popitem()


def test_clear_empties():
    config = Config({"a.b": 1})
    config.clear()
    assert config == {}
    assert len(config) == 0


def test_del_takes_dotted_keys():
    config = Config({"a.b": 1, "a.c": 2, "d": 3})
    del config["a.b"], config["d"]
    assert config == {"a": {"c": 2}}


@pytest.mark.parametrize("key", ["x", "a.x", "a.b.c", "x.y"])
def test_del_of_an_unknown_key_is_a_key_error(key):
    config = Config({"a.b": 1})
    with pytest.raises(KeyError, match=f"no key `{key}`"):
        del config[key]
    assert config == {"a": {"b": 1}}


def test_in_takes_dotted_keys():
    config = Config({"a.b": None, "c": [1]})
    assert all(key in config for key in ("a", "a.b", "c"))
    assert not any(key in config for key in ("b", "a.c", "a.b.c", "c.0", "x.y", "", ".", "a.", "a..b", 3, None))


def test_iteration_and_len_cover_the_top_level():
    config = Config({"z.a": 1, "b": 2, "z.c": 3})
    assert list(config) == list(config.keys()) == ["z", "b"]
    assert len(config) == 2
    assert list(config.items()) == [("z", {"a": 1, "c": 3}), ("b", 2)]
    assert list(config.values()) == [{"a": 1, "c": 3}, 2]
    assert {**config} == {"z": {"a": 1, "c": 3}, "b": 2}


def test_an_empty_config_is_false():
    assert not Config()
    assert Config(a=None)


def test_update_overwrites_group_by_group():
    """Covers contract J2."""
    config = Config({"a.b": 1, "a.c": 2, "d": 3})
    config.update({"a.b": 10, "a": {"e": 5}}, d=30)
    assert config == {"a": {"b": 10, "c": 2, "e": 5}, "d": 30}


def test_update_replaces_a_value_by_a_group_and_a_group_by_a_value():
    """Contract J2: `update` overwrites."""
    config = Config({"a": 1, "b": {"c": 2}})
    config.update({"a": {"x": 1}, "b": None})
    assert config == {"a": {"x": 1}, "b": None}


def test_update_with_wrong_keys_changes_nothing():
    config = Config(a=1)
    with pytest.raises(ConfigError, match="is a method"):
        config.update({"a": 2, "b": 3, "pop": 4})
    assert config == {"a": 1}


def test_update_with_pairs():
    config = Config(a=1)
    config.update([("a", 2), ("b.c", 3)])
    assert config == {"a": 2, "b": {"c": 3}}


def test_update_keeps_the_group_object():
    """An existing reference to a group of the config sees the update."""
    config = Config({"a.b": 1})
    group = config.a
    config.update({"a.b": 2})
    assert group.b == 2


def test_update_with_itself_changes_nothing():
    config = Config({"a": {"b": [1]}, "c": 2})
    config.update(config)
    assert config == {"a": {"b": [1]}, "c": 2}


def test_update_with_an_empty_group_keeps_the_existing_keys():
    """Contract J2: keys that the update does not contain do not change, and an empty group contains none."""
    config = Config({"a.b": 1})
    config.update({"a": {}})
    assert config == {"a": {"b": 1}}


def test_or_merges_group_by_group_and_changes_neither():
    left, right = Config({"a.b": 1, "a.c": 2}), {"a": {"c": 3}, "d": 4}
    result = left | right
    assert type(result) is Config
    assert result == {"a": {"b": 1, "c": 3}, "d": 4}
    assert left == {"a": {"b": 1, "c": 2}}
    assert right == {"a": {"c": 3}, "d": 4}


def test_a_dict_on_the_left_also_gives_a_config():
    result = {"a.b": 1, "c": 2} | Config({"a.d": 3, "c": 4})
    assert type(result) is Config
    assert result == {"a": {"b": 1, "d": 3}, "c": 4}


def test_or_with_something_else_is_a_type_error():
    with pytest.raises(TypeError):
        Config(a=1) | 3


def test_ior_changes_the_config_itself():
    config = same = Config({"a.b": 1})
    config |= {"a.c": 2}
    assert config is same
    assert config == {"a": {"b": 1, "c": 2}}


def test_fromkeys_takes_dotted_keys():
    assert Config.fromkeys(["a.b", "a.c", "d"], 0) == {"a": {"b": 0, "c": 0}, "d": 0}
    assert Config.fromkeys(["a"]) == {"a": None}


def test_fromkeys_shares_no_group():
    config = Config.fromkeys(["a", "b"], {"x": [1]})
    config.a.x.append(2)
    assert config.b.x == [1]


def test_copy_is_a_clone():
    config = Config({"a": {"b": [1]}})
    copied = config.copy()
    assert type(copied) is Config
    copied.a.b.append(2)
    assert config == {"a": {"b": [1]}}


# ---- equality


def test_equality_does_not_depend_on_the_order_of_keys():
    assert Config(a=1, b=2) == Config(b=2, a=1)


def test_equality_distinguishes_1_and_1_0_and_true_as_keys_do():
    assert Config(a=1) != Config(a=1.0)
    assert Config(a=1) != Config(a=True)
    assert Config(a=1) != {"a": 1.0}


def test_nan_equals_nan():
    assert Config(a=math.nan, b=[math.nan]) == Config(a=float("nan"), b=[float("nan")])


def test_a_missing_key_differs_from_none_and_from_an_empty_group():
    assert Config(a=None) != Config()
    assert Config(a={}) != Config()
    assert Config(a={}) != Config(a=None)


def test_a_config_is_not_equal_to_other_types():
    assert Config() != []
    assert Config(a=1) != [("a", 1)]
    assert Config() != None  # noqa: E711 - this tests the operator itself


def test_not_equal_is_the_opposite_of_equal():
    one, same, other = Config({"a.b": 1}), Config({"a.b": 1}), Config({"a.b": 2})
    assert not one != same  # noqa: SIM202 - this tests the operator itself
    assert one != other


def test_groups_in_lists_equal_the_dicts_they_came_from():
    values = {"layers": [{"width": 1}, {"width": 2}], "pair": ({"a": 1},)}
    assert Config(values) == values
    assert Config(values).asdict() == Config(values)


def test_a_dict_with_dotted_keys_equals_its_config():
    """Contract J1: a dotted key means nesting."""
    assert Config({"a.b": 1}) == {"a.b": 1}


def test_configs_with_arrays_can_be_compared():
    numpy = pytest.importorskip("numpy")
    assert Config(a=numpy.arange(3)) == Config(a=numpy.arange(3))
    assert Config(a=numpy.arange(3)) != Config(a=numpy.arange(4))


def test_a_config_is_not_hashable():
    with pytest.raises(TypeError, match="unhashable"):
        hash(Config())


# ---- a config owns its groups


def grow(values):
    """Change every group and list below `values`."""
    for value in list(values.values()) if isinstance(values, dict) else values:
        if isinstance(value, dict | list):
            grow(value)
    if isinstance(values, dict):
        values["grown"] = True
    else:
        values.append("grown")


def source():
    return {"a": {"b": {"c": 1}, "list": [{"d": 1}, [2]]}, "empty": {}}


MAKERS = {
    "Config": lambda values: Config(values),
    "keywords": lambda values: Config(**values),
    "Config of a Config": lambda values: Config(Config(values)),
    "item": lambda values: _with_items(values),
    "update": lambda values: _after(lambda config: config.update(values)),
    "or": lambda values: Config() | values,
    "ror": lambda values: values | Config(),
    "ior": lambda values: _after(lambda config: config.__ior__(values)),
    "fill": lambda values: _after(lambda config: config.fill(values)),
    "fill a group": lambda values: _after(lambda config: config.fill({"a": values}), a={"x": 1}),
    "setdefault": lambda values: _after(lambda config: config.setdefault("a", values)),
}


def _after(change, **start):
    config = Config(start)
    change(config)
    return config


def _with_items(values):
    config = Config()
    for key, value in values.items():
        config[key] = value
    return config


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("kind", [dict, Config])
def test_a_config_shares_nothing_with_its_source(make, kind):
    values = kind(source())
    before = copy.deepcopy(values)
    config = make(values)
    made = copy.deepcopy(config)
    grow(values)
    assert config == made
    values = kind(source())
    grow(make(values))
    assert values == before


@pytest.mark.parametrize("take", [Config.clone, Config.copy, copy.copy, copy.deepcopy, Config.asdict, Config, lambda c: c.override()])
def test_a_copy_shares_nothing_with_the_config(take):
    config = Config(source())
    grow(take(config))
    assert config == Config(source())


def test_flatten_shares_nothing_with_the_config():
    config = Config(source())
    for value in config.flatten().values():
        if isinstance(value, dict | list):
            grow(value)
    assert config == Config(source())


# ---- fill (J2)


def test_fill_adds_only_missing_keys_group_by_group():
    """Covers contract J2."""
    config = Config({"a.b": 1, "c": None})
    config.fill({"a": {"b": 10, "d": {"e": 2}}, "c": 3, "f": 4})
    assert config == {"a": {"b": 1, "d": {"e": 2}}, "c": None, "f": 4}


def test_fill_returns_none_as_update_does():
    assert Config().fill({"a": 1}) is None


def test_fill_keeps_a_value_if_the_defaults_have_a_group():
    """Covers contract J2."""
    config = Config({"a": 1, "b": {"c": 2}})
    config.fill({"a": {"x": 1}, "b": 5})
    assert config == {"a": 1, "b": {"c": 2}}


def test_fill_takes_the_path_of_a_yaml_file(tmp_path):
    """Covers contract J2."""
    path = tmp_path / "defaults.yaml"
    path.write_text("lr: 1e-3\nmodel:\n  depth: 2\n  width: 9\nmodel.bias: true\n")
    for each in (path, str(path)):
        config = Config({"model.width": 64})
        config.fill(each)
        assert config == {"model": {"width": 64, "depth": 2, "bias": True}, "lr": 0.001}


def test_fill_records_the_position_of_each_value_in_the_file(tmp_path):
    path = tmp_path / "defaults.yaml"
    path.write_text("lr: 1e-3\nmodel:\n  depth: 2\n")
    config = Config({"model.width": 64})
    config.fill(path)
    assert config.origin("model.depth") == f"{path}:3:3"
    assert config.origin("model.width") == "set in code"


def test_fill_from_a_missing_file_names_it_and_changes_nothing(tmp_path):
    (tmp_path / "defaults.yaml").write_text("a: 1")
    config = Config()
    with pytest.raises(ConfigFileError, match=r"default.yaml` cannot be read") as caught:
        config.fill(tmp_path / "default.yaml")
    assert "defaults.yaml" in str(caught.value)
    assert config == {}


def test_fill_from_a_file_with_a_list_is_refused(tmp_path):
    path = tmp_path / "list.yaml"
    path.write_text("[1, 2]")
    with pytest.raises(ConfigFileError, match="it holds a list, not keys with values"):
        Config().fill(path)


def test_fill_adds_nothing_to_a_group_with_another_target():
    """Covers contract J2."""
    config = Config({"model": {"_target_": "lab.A", "width": 1}})
    config.fill({"model": {"_target_": "lab.B", "depth": 2}, "lr": 0.1})
    assert config == {"model": {"_target_": "lab.A", "width": 1}, "lr": 0.1}


def test_fill_fills_a_group_with_the_same_target():
    """Covers contract J2."""
    config = Config({"model": {"_target_": "lab.A", "width": 1}})
    config.fill({"model": {"_target_": "lab.A", "width": 5, "depth": 2}})
    assert config == {"model": {"_target_": "lab.A", "width": 1, "depth": 2}}


@pytest.mark.parametrize(("mine", "theirs"), [({"_target_": "lab.A"}, {}), ({}, {"_target_": "lab.A"})])
def test_fill_fills_a_group_if_only_one_side_has_a_target(mine, theirs):
    """Contract J2: a group is skipped only if both sides have a target and the targets differ."""
    config = Config(model=mine)
    config.fill({"model": {"depth": 2, **theirs}})
    assert config == {"model": {"_target_": "lab.A", "depth": 2}}


def test_fill_also_compares_the_target_of_the_whole_config():
    """Covers contract J2."""
    config = Config({"_target_": "lab.A"})
    config.fill({"_target_": "lab.B", "depth": 2})
    assert config == {"_target_": "lab.A"}


# ---- flatten, asdict, clone (J2)


def test_flatten_returns_every_value_by_its_dotted_key():
    """Covers contract J2."""
    config = Config({"a": {"b": 1, "c": {"d": None}}, "e": [1, {"f": 2}]})
    assert config.flatten() == {"a.b": 1, "a.c.d": None, "e": [1, {"f": 2}]}
    assert type(config.flatten()) is dict


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"a": {}},
        {"a": {"b": {}}, "c": {"d": {}, "e": 1}},
        {"a": {"b": 1}, "c": [{"d": {}}], "e": (1, ())},
        {"x": None, "y": "", "z": []},
    ],
)
def test_flatten_and_back_is_the_same_config(values):
    """Contract J2: this includes empty groups."""
    config = Config(values)
    assert Config(config.flatten()) == config


def test_asdict_has_plain_dicts_at_every_depth():
    """Covers contract J2."""
    values = {"a": {"b": {"c": 1}}, "list": [{"d": 1}, ({"e": 2},)]}
    plain = Config(values).asdict()
    assert plain == values
    assert not any(isinstance(each, Config) for each in (plain, plain["a"], plain["a"]["b"], plain["list"][0], plain["list"][1][0]))


def test_clone_is_an_equal_and_independent_config():
    """Covers contract J2."""
    config = Config(source())
    clone = config.clone()
    assert clone == config
    assert clone is not config
    assert type(clone.a) is Config


def test_clone_keeps_values_that_are_not_containers():
    """Contract J2: a config may contain any object, and a clone contains the same object."""
    value = object()
    assert Config(a=value).clone().a is value


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_config_survives_pickling(protocol):
    config = Config(source() | {"size": (3, 4), "day": date(2026, 1, 2)})
    back = pickle.loads(pickle.dumps(config, protocol))
    assert back == config
    assert type(back) is type(back.a) is Config
    assert type(back.size) is tuple


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, Config.clone, Config.copy, Config, lambda c: pickle.loads(pickle.dumps(c))])
def test_copies_keep_the_origins_of_values(take, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("a:\n  b: 1\n")
    assert take(Config.load(path)).origin("a.b") == f"{path}:2:3"


def test_a_value_given_on_top_of_a_copy_does_not_keep_the_old_origin(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("a: 1\n")
    assert Config(Config.load(path), a=2).origin("a") == "set in code"


def test_an_assignment_replaces_the_origin(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("a: {b: 1}\n")
    config = Config.load(path)
    config.a.b = 2
    assert config.origin("a.b") == "set in code"


def test_the_repr_can_be_read_back():
    config = Config({"a.b": (1, 2), "c": [{"d": None}]})
    assert eval(repr(config), {"Config": Config}) == config


# ---- from_cli (J3)


def test_from_cli_reads_pairs_with_yaml_values():
    """Covers contract J3."""
    config = Config.from_cli(["lr=1e-3", "sizes=[1, 2]", "name=net", "none=null", "deep.er.flag=true", "group={a.b: 1}"])
    assert config == {
        "lr": 0.001,
        "sizes": [1, 2],
        "name": "net",
        "none": None,
        "deep": {"er": {"flag": True}},
        "group": {"a": {"b": 1}},
    }


def test_from_cli_takes_the_arguments_of_the_process(monkeypatch):
    """Covers contract J3."""
    monkeypatch.setattr(sys, "argv", ["train.py", "lr=0.5", "a.b=2"])
    assert Config.from_cli() == {"lr": 0.5, "a": {"b": 2}}


def test_from_cli_with_no_arguments_is_empty(monkeypatch):
    """Contract J3: an empty list does not mean the arguments of the process."""
    monkeypatch.setattr(sys, "argv", ["train.py", "lr=0.5"])
    assert Config.from_cli([]) == {}


def test_from_cli_remembers_the_argument():
    assert Config.from_cli(["a.b=2"]).origin("a.b") == "override a.b=2"


def test_from_cli_accepts_the_plus_of_an_override():
    assert Config.from_cli(["+a=1"]) == {"a": 1}


def test_from_cli_reports_all_bad_arguments_at_once():
    with pytest.raises(ConfigError) as caught:
        Config.from_cli(["verbose", "a..b=1", "x=", "y=[1", "fine=1", "twice=1", "twice=2"])
    assert len(caught.value.problems) == 5
    for text in (
        "expected key=value  [verbose]",
        "no empty parts",
        "write x=null for none, or x='' for empty text",
        "y: ",
        "is set by another override too: twice=1",
    ):
        assert text in str(caught.value)


def test_from_cli_refuses_a_method_name_and_says_which():
    with pytest.raises(ConfigError, match="`update` is a method of Config"):
        Config.from_cli(["update=1"])


@pytest.mark.parametrize("args", [("a.b=1", "a={c: 2}"), ("a=[{b: 1}]", "a.0.b=2"), ("a=1", "a=1"), ("a=1", "+a=2")])
def test_from_cli_refuses_two_arguments_that_set_one_value(args):
    with pytest.raises(ConfigError) as caught:
        Config.from_cli(args)
    assert f"is set by another override too: {args[0]}  [{args[1]}]" in str(caught.value)


def test_max_wait_waits_and_is_not_part_of_the_config(monkeypatch):
    """Contract J3: the delay is random, and at most this many seconds."""
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    for _ in range(6):
        assert Config.from_cli(["max_wait=0.2", "a=1"]) == {"a": 1}
    assert len({*waits}) == 6
    assert 0 <= min(waits) < max(waits) <= 0.2


def test_max_wait_zero_does_not_wait(monkeypatch):
    """Covers contract J3."""
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    assert Config.from_cli(["max_wait=0"]) == {}
    assert sum(waits) == 0


def test_max_wait_does_not_depend_on_or_change_the_seeded_random_numbers():
    """Contract J3: processes with the same seed wait for different times, and waiting does not change their random numbers."""
    random.seed(7)
    expected = random.random()
    random.seed(7)
    Config.from_cli(["max_wait=0.001"])
    assert random.random() == expected


@pytest.mark.parametrize("value", ["-1", "soon", "null", "true", ".inf", ".nan", "[1]", "{a: 1}", "'3'"])
def test_a_bad_max_wait_is_refused(value):
    """Covers contract J3."""
    with pytest.raises(ConfigError, match=r"max_wait.*: expected a number of seconds"):
        Config.from_cli([f"max_wait={value}"])


# ---- instantiate (J3)


def test_instantiate_calls_the_target_with_the_other_keys():
    """Covers contract J3."""
    assert Config({"_target_": "datetime.date", "year": 2026, "month": 1, "day": 2}).instantiate() == date(2026, 1, 2)


def test_keyword_arguments_of_instantiate_take_precedence():
    """Covers contract J3."""
    config = Config({"_target_": "datetime.date", "year": 2026, "month": 1, "day": 2})
    assert config.instantiate(day=9) == date(2026, 1, 9)
    assert config.day == 2


def test_a_target_after_a_colon():
    """Covers contract J3."""
    assert Config({"_target_": "datetime:date", "year": 2026, "month": 1, "day": 2}).instantiate() == date(2026, 1, 2)


def test_a_target_may_be_a_method_of_a_class():
    """Covers contract J3."""
    assert Config({"_target_": "datetime.date.today"}).instantiate() == date.today()


def test_groups_are_passed_unchanged():
    """Contract J3: a nested group with its own target is not built; the called object decides what to do with it."""
    built = Config({"_target_": "builtins.dict", "inner": {"_target_": "no.such.thing", "x": 1}}).instantiate()
    assert built == {"inner": {"_target_": "no.such.thing", "x": 1}}
    assert type(built["inner"]) is Config


def test_nothing_is_imported_before_instantiate(module, tmp_path):
    """Contract J3: reading a config never runs code."""
    name = module("free_side_effect", "from pathlib import Path\nPath(__file__).with_name('ran').touch()\nclass Net: ...\n")
    path = tmp_path / "c.yaml"
    path.write_text(f"_target_: {name}.Net\n")
    config = Config.load(path)
    config.fill({"_target_": f"{name}.Net", "x": 1})
    config.pop("x")
    config.override("+y=1").write(tmp_path / "d.yaml")
    repr(config), config.describe(), config.clone(), config.flatten(), pickle.loads(pickle.dumps(config))
    assert not (tmp_path / "ran").exists()
    assert name not in sys.modules
    assert type(config.instantiate()).__name__ == "Net"
    assert (tmp_path / "ran").exists()


def test_a_config_without_a_target_cannot_be_instantiated():
    """Covers contract J3."""
    with pytest.raises(UnknownKeyError, match="a Config without `_target_` cannot be instantiated"):
        Config(a=1).instantiate()


@pytest.mark.parametrize("path", [3, None, "", "a..b", "a b", "os.system('x')", "a.b()", ["os"], "1a", ":", "a:", "../x"])
def test_a_target_that_is_not_an_import_path_is_refused(path):
    """Covers contract J3."""
    with pytest.raises(ConfigError, match=r"expected a path such as `package.module.name`"):
        Config({"_target_": path}).instantiate()


def test_the_error_for_an_unknown_name_in_a_module_suggests_the_nearest():
    """Covers contract J3."""
    with pytest.raises(ConfigError, match="`collections` has no `OrderdDict`") as caught:
        Config({"_target_": "collections.OrderdDict"}).instantiate()
    assert "did you mean `OrderedDict`" in str(caught.value)


def test_an_unknown_submodule_is_named():
    """Covers contract J3."""
    with pytest.raises(ConfigError, match="`os` has no `pth`") as caught:
        Config({"_target_": "os.pth.join"}).instantiate()
    assert "did you mean `path`" in str(caught.value)


def test_an_unknown_module_is_named():
    """Covers contract J3."""
    with pytest.raises(ConfigError, match="there is no module `no_such_module_at_all`"):
        Config({"_target_": "no_such_module_at_all.Net"}).instantiate()


def test_a_missing_import_inside_the_users_module_is_shown(module):
    """Contract J3: the module exists, but the module that it imports does not."""
    name = module("free_needs_more", "import no_such_dependency\nclass Net: ...\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        Config({"_target_": f"{name}.Net"}).instantiate()


def test_a_missing_sibling_inside_the_users_package_is_shown(module):
    """Covers contract J3."""
    module("free_package.__init__", "")
    name = module("free_package.nets", "from free_package.layers import Layer\nclass Net: ...\n")
    with pytest.raises(ModuleNotFoundError, match=r"free_package\.layers"):
        Config({"_target_": f"{name}.Net"}).instantiate()


@pytest.mark.parametrize(
    ("body", "error"), [("from math import nothing_such", ImportError), ("1 / 0", ZeroDivisionError), ("def", SyntaxError)]
)
def test_any_error_inside_the_users_module_is_shown(module, body, error):
    """Covers contract J3."""
    name = module(f"free_broken_{error.__name__}", body + "\n")
    with pytest.raises(error):
        Config({"_target_": f"{name}.Net"}).instantiate()


def test_a_module_is_run_once(module):
    """Contract J3: trying shorter paths does not run a module twice."""
    name = module("free_counts", "import sys\nsys.free_count = getattr(sys, 'free_count', 0) + 1\nclass A:\n    class B: ...\n")
    try:
        Config({"_target_": f"{name}.A.B"}).instantiate()
        assert sys.free_count == 1
    finally:
        del sys.free_count


def test_an_error_of_the_target_is_shown_unchanged():
    with pytest.raises(ValueError, match=r"day is out of range|day must be in"):
        Config({"_target_": "datetime.date", "year": 2026, "month": 2, "day": 30}).instantiate()


@pytest.mark.parametrize("path", ["math.pi", "math"])
def test_a_target_that_cannot_be_called_is_named(path):
    with pytest.raises((ConfigError, TypeError), match=path):
        Config({"_target_": path}).instantiate()
