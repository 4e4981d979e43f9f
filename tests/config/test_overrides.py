"""Overrides such as `a.b=3` on the command line, for typed configs and for `Config`."""

import time
from pathlib import Path
from typing import Any, Literal

import pytest

from trainmaster.config import Config, ConfigBase, ParallelConfig, Stateless, configclass, key_of
from trainmaster.errors import ConfigError, FrozenConfigError, UnknownKeyError


@configclass
class OverrideNet(ConfigBase):
    width: int = 8
    sizes: list[int] = [1, 2, 3]
    ratio: float | None = None
    version: str = "0"
    pair: tuple[int, float] = (1, 2.0)
    extra: dict[str, Any] = {}


@configclass
class OverrideData(ConfigBase):
    path: Path
    kind: Literal["train", "test"] = "train"
    versions: list[str] = []


@configclass
class OverrideRun(ConfigBase):
    net: OverrideNet = OverrideNet()
    data: OverrideData | None = None
    shuffle: bool = True
    name: Stateless[str] = "run"
    stages: list[OverrideNet] = []
    either: OverrideNet | OverrideData | None = None
    nets: dict[str, OverrideNet] = {}


def free():
    return Config({"net": {"width": 8, "sizes": [1, 2, 3], "ratio": None}, "shuffle": True, "name": "run"})


def parallel():
    return ParallelConfig(
        model_config={},
        train_config={"dataset": "digits", "batch_size": 4, "epochs": 2, "optimizer_config": {"name": "sgd", "arguments": {"lr": 0.1}}},
        search_space={"train_config.batch_size": {"categorical_values": [2, 4]}, "random_seed": {"categorical_values": [1, 2]}},
    )


both = pytest.mark.parametrize("make", [OverrideRun, free])


# ---- valid overrides


@both
def test_a_nested_value_is_changed(make):
    assert make().override("net.width=3").net.width == 3


@both
def test_a_list_is_changed(make):
    assert make().override("net.sizes=[4, 5]").net.sizes == [4, 5]


@both
def test_null_is_none(make):
    config = make().override("net.ratio=0.5")
    assert config.net.ratio == 0.5
    assert config.override("net.ratio=null").net.ratio is None


@both
def test_an_element_of_a_list_is_changed(make):
    assert make().override("net.sizes.1=9").net.sizes == [1, 9, 3]


@both
def test_several_values_are_changed_at_once(make):
    config = make().override("net.width=3", "shuffle=false", "name=other")
    assert (config.net.width, config.shuffle, config.name) == (3, False, "other")


@both
def test_a_config_without_overrides_is_equal(make):
    assert make().override() == make()


@both
def test_the_original_does_not_change(make):
    config = make()
    changed = config.override("net.width=3", "net.sizes.0=7", "shuffle=false")
    changed.net.sizes.append(5)
    assert config == make()


@both
def test_the_override_is_remembered_as_the_origin(make):
    config = make().override("net.width=3")
    assert config.origin("net.width") == "override net.width=3"
    assert config.origin("name") == make().origin("name")


@both
def test_a_whole_group_is_replaced(make):
    config = make().override("net={width: 4, sizes: [9]}")
    assert (config.net.width, config.net.sizes) == (4, [9])


@both
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("name=a=b", "a=b"),
        ("name=a==", "a=="),
        ("name='quoted'", "quoted"),
        ('name="with space "', "with space "),
        ("name=two words", "two words"),
        ("name=  around  ", "around"),
        ("name=''", ""),
        ("name='null'", "null"),
        ("name='3'", "3"),
        ("name=größe 💡", "größe 💡"),
        ('name="a\\nb"', "a\nb"),
        ("name=https://host/path?a=1&b=2#part", "https://host/path?a=1&b=2#part"),
        ("name=no", "no"),
        ("name=2026-01-02", "2026-01-02"),
        ("name=12:30:45", "12:30:45"),
        ("name =x", "x"),
    ],
)
def test_values_are_yaml(make, written, value):
    assert make().override(written).name == value


def test_a_key_may_have_any_letters():
    assert Config({"größe": {"naïve key": 1}}).override("größe.naïve key=2") == {"größe": {"naïve key": 2}}


# ---- new keys


def test_plus_adds_a_key_to_a_config():
    assert free().override("+new=1", "+net.depth=2", "+a.b.c=3").flatten().items() >= {"new": 1, "net.depth": 2, "a.b.c": 3}.items()


def test_plus_adds_a_key_to_a_free_form_group():
    assert OverrideRun().override("+net.extra.momentum=0.9").net.extra == {"momentum": 0.9}


def test_plus_creates_the_groups_of_a_new_key():
    assert OverrideRun().override("+net.extra.a.b=1").net.extra == {"a": {"b": 1}}


@both
def test_the_error_for_a_new_key_without_a_plus_suggests_the_nearest(make):
    with pytest.raises(UnknownKeyError, match=r"net\.widht.*did you mean `(net\.)?width`.*\[net\.widht=3\]"):
        make().override("net.widht=3")


def test_the_error_for_a_new_key_without_a_similar_key_suggests_the_plus():
    with pytest.raises(UnknownKeyError, match=r"zzz: no such key; write \+zzz=3 to add it"):
        free().override("zzz=3")
    with pytest.raises(UnknownKeyError, match=r"net\.extra\.zzz: no such key; write \+net\.extra\.zzz=3 to add it"):
        OverrideRun().override("net.extra.zzz=3")


def test_a_long_common_group_does_not_make_two_names_similar():
    """`momentum` is not a misspelling of `lr` in the same group, so the error suggests adding it with a plus."""
    with pytest.raises(UnknownKeyError, match=r"momentum: no such key; write \+train_config\.optimizer_config\.arguments\.momentum=0\.9"):
        parallel().override("train_config.optimizer_config.arguments.momentum=0.9")


def test_an_unknown_group_is_named():
    with pytest.raises(UnknownKeyError, match=r"nett\.wide.*did you mean `net`"):
        free().override("nett.wide=3")
    with pytest.raises(UnknownKeyError, match=r"nett\.wide.*did you mean `net` or `nets`"):
        OverrideRun().override("nett.wide=3")


def test_plus_cannot_add_a_field_to_a_typed_config():
    with pytest.raises(UnknownKeyError, match=r"OverrideNet has no such field.*\[\+net\.depth=1\]"):
        OverrideRun().override("+net.depth=1")


@both
def test_plus_on_an_existing_key_is_refused(make):
    with pytest.raises(ConfigError, match=r"net\.width: exists already; write net\.width=3 to change it"):
        make().override("+net.width=3")


def test_plus_on_an_existing_free_key_of_a_typed_config_is_refused():
    config = OverrideRun(net={"extra": {"a": 1}})
    with pytest.raises(ConfigError, match=r"net\.extra\.a: exists already; write net\.extra\.a=3 to change it"):
        config.override("+net.extra.a=3")


# ---- lists and tuples


@both
@pytest.mark.parametrize("index", ["3", "-1", "x", "1.5", "99999999999999999999"])
def test_an_index_outside_a_list_is_refused(make, index):
    with pytest.raises(ConfigError, match=r"`net\.sizes` is a list of 3; expected an index below that|`net\.sizes\.1` is 2, not a group"):
        make().override(f"net.sizes.{index}=9")


def test_a_group_in_a_list_is_changed():
    assert OverrideRun(stages=[{}, {}]).override("stages.1.width=5").stages[1].width == 5
    assert Config(stages=[{"width": 1}]).override("stages.0.width=5").stages[0].width == 5


def test_a_group_in_a_tuple_is_changed():
    assert Config(stages=({"width": 1}, 2)).override("stages.0.width=5").stages[0].width == 5


def test_an_element_of_a_typed_tuple_is_changed():
    assert OverrideRun().override("net.pair.0=7").net.pair == (7, 2.0)


def test_a_tuple_stays_a_tuple_when_an_element_is_changed():
    """Contract J1: tuples stay tuples."""
    config = Config(size=(3, 4)).override("size.0=9")
    assert config.size == (9, 4)
    assert type(config.size) is tuple


def test_an_element_of_a_wrong_type_is_refused():
    with pytest.raises(ConfigError, match=r"net\.sizes\.1.*expected a whole number.*\[net\.sizes\.1=x\]"):
        OverrideRun().override("net.sizes.1=x")


# ---- types


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("net.width=wide", "a whole number"),
        ("net.width=1.5", "fraction would be lost"),
        ("net.width=true", "a whole number"),
        ("net.width=null", "a whole number"),
        ("net.width=[1]", "a whole number"),
        ("shuffle=maybe", "true or false"),
        ("net.sizes=3", "a list"),
        ("net=3", "OverrideNet"),
        ("net.extra=[1]", "a group of keys with values"),
        ("name=[a]", "text"),
        ("name=true", "text"),
    ],
)
def test_the_error_for_a_wrong_type_shows_the_override(text, wanted):
    with pytest.raises(ConfigError, match=f"expected .*{wanted}") as caught:
        OverrideRun().override(text)
    assert caught.value.problems[0].where == text


def test_a_number_for_a_float_field_is_a_float():
    value = OverrideRun().override("net.ratio=1").net.ratio
    assert value == 1.0
    assert type(value) is float


@pytest.mark.parametrize("written", ["1.10", "1e3", "007.50", "0x10", "+5", "1_000", "1.", ".5"])
def test_a_text_field_keeps_a_number_as_written(written):
    assert OverrideRun().override(f"net.version={written}").net.version == written


def test_a_text_in_a_list_keeps_a_number_as_written():
    assert OverrideRun(data={"path": "."}).override("data.versions=[1.10, 2.0]").data.versions == ["1.10", "2.0"]
    assert OverrideRun(data={"path": ".", "versions": ["a", "b"]}).override("data.versions.1=1.10").data.versions == ["a", "1.10"]


def test_a_text_in_a_replaced_group_keeps_a_number_as_written():
    assert OverrideRun().override("net={version: 1.10}").net.version == "1.10"


def test_a_text_in_a_config_of_a_list_keeps_a_number_as_written():
    assert OverrideRun().override("stages=[{version: 1.10}]").stages[0].version == "1.10"


def test_a_literal_is_checked():
    with pytest.raises(ConfigError, match=r"data\.kind = 'tets': expected 'train' or 'test'; did you mean `test`\?  \[data\.kind=tets\]"):
        OverrideRun(data={"path": "."}).override("data.kind=tets")


# ---- nested configs that do not exist yet


def test_overrides_of_its_fields_create_an_optional_config_that_is_none():
    config = OverrideRun().override("data.path=/tmp/x", "data.kind=test")
    assert config.data == OverrideData(path="/tmp/x", kind="test")


def test_the_error_for_an_optional_config_names_its_missing_field():
    with pytest.raises(ConfigError, match=r"data\.path: is missing"):
        OverrideRun().override("data.kind=test")


def test_the_error_for_an_unknown_field_of_an_optional_config_suggests_the_nearest():
    with pytest.raises(UnknownKeyError, match=r"data\.pth: OverrideData has no such field; did you mean `path`"):
        OverrideRun().override("data.pth=x")


def test_a_free_key_of_an_optional_config_that_is_none_can_be_added():
    config = parallel().override("train_config.scheduler_config.name=step", "+train_config.scheduler_config.arguments.step_size=3")
    assert config.train_config.scheduler_config.arguments == {"step_size": 3}


def test_a_free_key_of_an_optional_group_that_is_none_can_be_added():
    config = parallel().override("+optim_metrics.accuracy=max", "optim_metric_name=accuracy")
    assert config.optim_metrics == {"accuracy": "max"}


def test_overriding_a_field_of_a_union_of_configs_needs_a_config_first():
    with pytest.raises(ConfigError, match=r"either\.width: `either` is None, not a group  \[either\.width=3\]"):
        OverrideRun().override("either.width=3")


def test_a_field_of_a_config_that_was_chosen_among_several_is_changed():
    assert OverrideRun(either=OverrideNet()).override("either.width=3").either == OverrideNet(width=3)


@both
@pytest.mark.parametrize(
    "texts",
    [
        ("net=null", "net.width=3"),
        ("net.width=3", "net=null"),
        ("net=3", "net.width=4"),
        ("net={width: 4, sizes: []}", "net.width=5"),
        ("net.sizes=[1]", "net.sizes.0=4"),
        ("net.width=1", "net.width=2"),
        ("net.width=1", "net.width=1"),
        ("net.width=1", "net.width =1"),
    ],
)
def test_a_value_that_two_overrides_set_is_refused(make, texts):
    """Otherwise, the result would depend on the order of the overrides."""
    with pytest.raises(ConfigError) as caught:
        make().override(*texts)
    problem = caught.value.problems[0]
    assert problem.text == f"is set by another override too: {texts[0]}"
    assert problem.where == texts[1]


def test_keys_with_a_common_prefix_are_different():
    config = Config({"net": 1, "nets": 2, "net_b": 3}).override("net=4", "nets=5", "net_b=6")
    assert config == {"net": 4, "nets": 5, "net_b": 6}


# ---- groups with dotted keys


def test_a_dotted_key_of_a_group_is_changed():
    space = parallel().override("search_space.train_config.batch_size={categorical_values: [8]}").search_space
    assert list(space) == ["train_config.batch_size", "random_seed"]
    assert space["train_config.batch_size"].categorical_values == [8]


def test_a_value_below_a_dotted_key_is_changed():
    space = parallel().override("search_space.train_config.batch_size.categorical_values=[8]").search_space
    assert space["train_config.batch_size"].categorical_values == [8]


def test_a_value_below_a_dotted_key_is_read():
    assert parallel()["search_space.train_config.batch_size.categorical_values"] == [2, 4]


def test_a_dotted_key_is_added_to_a_group():
    space = parallel().override("+search_space.train_config.optimizer_config.arguments.lr={value_range: [0.01, 1]}").search_space
    assert space["train_config.optimizer_config.arguments.lr"].value_range == (0.01, 1.0)


def test_a_value_below_a_plain_key_of_a_group_of_configs_is_changed():
    space = parallel().override("search_space.random_seed.categorical_values.1=7").search_space
    assert space["random_seed"].categorical_values == [1, 7]
    assert OverrideRun(nets={"a": {}}).override("nets.a.width=2").nets["a"].width == 2


def test_the_error_for_an_unknown_key_of_a_group_of_configs_suggests_the_nearest():
    with pytest.raises(UnknownKeyError, match=r"did you mean `search_space\.random_seed`"):
        parallel().override("search_space.random_sed={categorical_values: [1]}")


# ---- invalid overrides


@both
@pytest.mark.parametrize("text", ["name=", "name=  ", "name=\t"])
def test_the_error_for_an_empty_value_suggests_null_and_empty_text(make, text):
    with pytest.raises(ConfigError, match="no value; write name=null for none, or name='' for empty text"):
        make().override(text)


@both
@pytest.mark.parametrize("text", ["name", "", "+", "net.width", "--verbose"])
def test_text_that_is_not_a_key_and_a_value_is_refused(make, text):
    with pytest.raises(ConfigError, match="expected key=value"):
        make().override(text)


@both
@pytest.mark.parametrize("text", ["=3", "net.=3", ".net=3", "net..width=3", "+=3", " =3"])
def test_a_key_with_empty_parts_is_refused(make, text):
    with pytest.raises(ConfigError, match="a key has no empty parts"):
        make().override(text)


@both
def test_a_key_below_a_value_is_refused(make):
    with pytest.raises(ConfigError, match=r"shuffle\.x: `shuffle` is True, not a group"):
        make().override("shuffle.x=1")


@both
@pytest.mark.parametrize("value", ["[1, 2", "{a: 1", "'open", "a: b: c", "@x", "*nothing", "[1, 2]]", "%x"])
def test_a_value_that_is_not_yaml_is_refused_with_the_override_shown(make, value):
    with pytest.raises(ConfigError) as caught:
        make().override(f"name={value}")
    assert caught.value.problems[0].key == "name"
    assert caught.value.problems[0].where == f"name={value}"


@both
def test_a_comment_is_not_a_value(make):
    with pytest.raises(ConfigError, match="name"):
        make().override("name=# nothing")


@both
def test_a_document_mark_is_not_a_null(make):
    with pytest.raises(ConfigError, match="name"):
        make().override("name=---")


@both
def test_an_override_that_is_not_text_is_a_config_error_or_a_type_error(make):
    """Users easily write `override(args)` instead of `override(*args)`."""
    with pytest.raises((ConfigError, TypeError)):
        make().override(["name=x"])


def test_all_problems_of_a_typed_config_are_reported_at_once():
    with pytest.raises(ConfigError) as caught:
        OverrideRun().override("net.width=x", "shuffle=maybe", "net.sizes.0=y")
    assert {each.key for each in caught.value.problems} == {"net.width", "shuffle", "net.sizes.0"}


@both
def test_all_unknown_keys_are_reported_at_once(make):
    with pytest.raises(UnknownKeyError) as caught:
        make().override("net.widht=1", "shufle=true", "name=fine")
    assert [each.key for each in caught.value.problems] == ["net.widht", "shufle"]


@both
def test_all_invalid_overrides_are_reported_at_once(make):
    with pytest.raises(ConfigError) as caught:
        make().override("a", "name=", "net.width=[1", "name.=3", "shuffle=true")
    assert [each.where for each in caught.value.problems] == ["a", "name=", "net.width=[1", "name.=3"]


@both
def test_a_refused_override_leaves_the_original(make):
    config = make()
    with pytest.raises(ConfigError):
        config.override("net.width=3", "net.sizes.0=4", "nothing=5")
    assert config == make()


def test_a_key_that_a_config_cannot_have_is_refused():
    with pytest.raises(ConfigError, match="`update` is a method of Config"):
        free().override("+update=1")
    with pytest.raises(ConfigError, match="`__class__`"):
        free().override("+net.__class__=1")


@pytest.mark.parametrize("key", ["__class__", "_frozen", "_origins", "__dict__", "net.__dict__", "key", "uid", "clone", "net.override"])
def test_an_attribute_that_is_not_a_field_cannot_be_overridden(key):
    config = OverrideRun()
    with pytest.raises(UnknownKeyError, match="has no such field"):
        config.override(f"{key}=1")
    assert config == OverrideRun()


# ---- frozen configs


def test_an_override_of_a_frozen_config_is_not_frozen():
    config = OverrideRun(stages=[{}]).freeze()
    changed = config.override("net.width=3", "net.sizes.0=9", "stages.0.width=4")
    changed.net.width = 5
    changed.net.sizes.append(1)
    changed.stages[0].sizes.append(1)
    assert changed.net.width == 5
    with pytest.raises(FrozenConfigError, match="is frozen"):
        config.net.width = 5
    assert config.net.width == 8


# ---- hostile values

BOMB = "[&a [x,x,x,x,x,x,x,x,x,x], &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a], &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]"
BOMB += ", &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c], &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d], &f [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]]"


@both
@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("!!python/object/apply:os.system ['true']", "tag"),
        ("!!python/name:os.system", "tag"),
        ("!!str 3", "tag"),
        ("!mine x", "tag"),
        ("{<<: {a: 1}}", "merge keys"),
        ("[" * 101 + "]" * 101, "nested more than 100 deep"),
        ("[" * 100_000, "nested more than 100 deep"),
        ("{a: " * 5_000, "nested more than 100 deep"),
        (BOMB, "more than 50,000 values"),
        ("&a [*a]", "alias"),
        ("[" + "1," * 100_001 + "]", "more than 50,000 values"),
        ("9" * 5_000, "digits"),
        ("1e999", "beyond the range of a float"),
        ("0123", "octal"),
        ("{a: 1, a: 2}", "given twice"),
        ("--- 1\n--- 2", "a value, not a document"),
        ("a\x00b", "name"),
        ("\ud800", "name|surrogate|Unicode|UTF"),
    ],
)
def test_hostile_values_are_refused_at_once(make, value, why):
    start = time.perf_counter()
    with pytest.raises(ConfigError, match=why):
        make().override(f"name={value}")
    assert time.perf_counter() - start < 5


def test_an_override_never_runs_code(tmp_path):
    with pytest.raises(ConfigError):
        free().override(f"name=!!python/object/apply:os.mkdir ['{tmp_path / 'made'}']")
    assert not (tmp_path / "made").exists()


def test_deep_keys_do_not_crash():
    """A dotted key counts as nesting. If it is too deep to be stored, the error is a ConfigError, not a RecursionError."""
    with pytest.raises(ConfigError, match="deep"):
        Config().override(f"+{'.'.join('a' * 5_000)}=1")


# ---- keys of groups


@both
@pytest.mark.parametrize("key", ["width", "model.width", "nett.width"])
def test_the_error_for_a_key_of_another_group_suggests_the_full_key(make, key):
    with pytest.raises(UnknownKeyError, match=rf"{key}: .*; did you mean `net\.width`\?  \[{key}=3\]"):
        make().override(f"{key}=3")


def test_the_error_for_a_key_of_several_groups_suggests_all_full_keys():
    config = Config({"g": {"lr": 0.1}, "d": {"lr": 0.2}})
    with pytest.raises(UnknownKeyError, match=r"lr: no such key; did you mean `g\.lr` or `d\.lr`\?"):
        config.override("lr=1")


# ---- the types of numbers in a free-form config


@pytest.mark.parametrize(
    ("text", "value"),
    [("dropout=0", 0.0), ("dropout=-3", -3.0), ("dropout=0x10", 16.0), ("betas.1=1", 1.0), ("width=12.5", 12.5), ("width=8", 8)],
)
def test_a_number_has_the_type_of_the_float_that_it_replaces(text, value):
    config = Config({"dropout": 0.1, "width": 64, "betas": [0.9, 0.99]}).override(text)
    found = config[text.partition(".")[0].partition("=")[0]]
    found = found[1] if isinstance(found, list) else found
    assert (type(found), found) == (type(value), value)


def test_an_int_and_a_float_override_of_a_float_have_the_same_key():
    config = Config({"dropout": 0.5})
    assert key_of(config.override("dropout=0")) == key_of(config.override("dropout=0.0"))


def test_an_int_that_a_float_cannot_hold_is_not_changed():
    config = Config({"x": 0.5})
    assert config.override(f"x={2**53 + 1}").x == 2**53 + 1
    assert config.override(f"x=1{'0' * 400}").x == 10**400


def test_a_number_can_only_be_replaced_by_a_number_or_null():
    config = Config({"lr": 0.1, "seed": 0, "shuffle": True, "name": "a", "none": None, "clip": 1.0})
    with pytest.raises(ConfigError) as found:
        config.override("lr=fast", "seed=0..2", "clip=true", "shuffle=yes", "name=3", "none=x", "sed=1")
    assert [(each.key, each.text.partition(";")[0], each.value) for each in found.value.problems] == [
        ("lr", "expected a number, because it replaces 0.1", "'fast'"),
        ("seed", "expected a number, because it replaces 0", "'0..2'"),
        ("clip", "expected a number, because it replaces 1.0", "True"),
        ("sed", "no such key", ""),
    ]
    assert config.override("clip=null", "lr=.nan").clip is None


def test_the_numbers_of_a_free_group_in_a_typed_config_may_be_replaced_by_text():
    config = OverrideRun(net={"extra": {"a": 1}})
    assert config.override("net.extra.a=b").net.extra == {"a": "b"}


@pytest.mark.parametrize("texts", [("lr=0.1,", "0.01"), ("lr=[0.1,]", "0.01"), ("lr=0.1", ",0.01")])
def test_the_error_for_a_list_with_spaces_says_how_to_write_it(texts):
    with pytest.raises(ConfigError, match=r"expected key=value; a list is written without spaces: lr=0\.1,0\.01"):
        Config({"lr": "text"}).override(*texts)
    with pytest.raises(ConfigError) as found:
        Config({"lr": 0.1}).override("lr=0.2", "0.01")
    assert "spaces" not in str(found.value)
