"""Bugs that users found: each of these tests once failed with an error or a wrong result."""

import functools
import io
import pickle
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pytest
import torch
from annotated_types import Gt, MaxLen
from pydantic import AfterValidator, Field

from trainmaster.config import (
    Config,
    ConfigBase,
    Grid,
    OptimizerConfig,
    SchedulerConfig,
    Stateless,
    configclass,
    field,
    group_of,
    key_of,
    register_scheduler,
)
from trainmaster.errors import ConfigClassError, ConfigError


def Defines(annotation, default=...):
    namespace = {"__annotations__": {"x": annotation}} | ({} if default is ... else {"x": default})
    return configclass(type("Defined", (ConfigBase,), namespace))


@configclass
class Sgd(ConfigBase):
    lr: Annotated[float, Gt(0)] = 0.1
    log: Stateless[int] = 1


@configclass
class Adam(ConfigBase):
    lr: Annotated[float, Gt(0)] = 0.1
    log: Stateless[int] = 1


# keys


def test_the_key_of_a_schedule_does_not_depend_on_registered_schedules():
    before = SchedulerConfig(name="registered_later").key
    register_scheduler("registered_later", lambda optimizer: None, step_when="epoch")
    assert SchedulerConfig(name="registered_later").key == before
    assert SchedulerConfig(name="registered_later").moment == "epoch"


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str | Annotated[int, Gt(0)], 5),
        (int | Annotated[float, Gt(0)], 3.0),
        (list[int] | list[float], [1.0, 2.0]),
        (list[int] | list[str], ["1", "2"]),
        (dict[str, str] | dict[str, int], {"a": 1}),
        (int | Literal["1"], "1"),
        (int | Path, Path("5")),
        (str | bool, True),
    ],
)
def test_a_union_keeps_a_value_unchanged_if_a_member_accepts_it(annotation, value):
    taken = Defines(annotation)(x=value).x
    assert (taken, type(taken)) == (value, type(value))


def test_two_classes_with_equal_values_differ_inside_a_dict():
    assert key_of({"o": Sgd()}) != key_of({"o": Adam()})
    assert Grid({"o": [Sgd(), Adam(), Sgd()]}).count == 2


def test_a_list_that_was_changed_in_place_has_the_key_of_its_current_values():
    config = Defines(list[float])(x=[0.1])
    config.x.append(1)
    assert config.key == Defines(list[float])(x=[0.1, 1]).key == config.freeze().key


def test_freezing_does_not_check_a_scalar_again():
    config = Defines(Annotated[float, AfterValidator(lambda value: value * 2)])(x=1)
    assert config.freeze().x == 2.0


def test_a_field_that_is_declared_again_keeps_its_history():
    @configclass
    class Base(ConfigBase):
        lr: float = field(default=0.1, was="rate")
        decay: float = field(default=0.0, added=True)

    @configclass
    class Again(Base):
        lr: float = 0.1
        decay: float = 0.0

    assert Again().key == Base().key
    assert Again(rate=3).lr == 3


@pytest.mark.parametrize("was", ["opt.lr", "", "class", "3"])
def test_an_invalid_former_name_is_refused(was):
    with pytest.raises(ConfigClassError, match=r"x: .* is not a valid former name"):
        Defines(float, field(default=0.1, was=was))


# text that looks like a number


def test_a_text_is_checked_as_written(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("x: 1E5\n")
    assert Defines(Annotated[str, AfterValidator(str.lower)]).load(path).x == "1e5"
    path.write_text("x: 1.1000000\n")
    with pytest.raises(ConfigError, match="at most 4 items"):
        Defines(Annotated[str, MaxLen(4)]).load(path)
    path.write_text("x: 1.10\n")
    assert Defines(Literal["1.10"]).load(path).x == "1.10"


def test_a_text_in_json_is_kept_as_written(tmp_path):
    (tmp_path / "run.json").write_text('{"x": 1.100}')
    assert Defines(str).load(tmp_path / "run.json").x == "1.100"


@pytest.mark.parametrize(
    ("annotation", "text", "value"), [(float, "1.10", 1.1), (int, "0x10", 16), (Any, "[1.10]", [1.1]), (int | float, "1e3", 1e3)]
)
def test_a_number_becomes_a_plain_number_in_any_notation(annotation, text, value, tmp_path):
    (tmp_path / "run.yaml").write_text(f"x: {text}\n")
    for config in (Defines(annotation).load(tmp_path / "run.yaml"), Defines(annotation, value)().override(f"x={text}")):
        taken = config.x[0] if isinstance(value, list) else config.x
        assert taken == (value[0] if isinstance(value, list) else value)
        assert type(taken) in (int, float)


# values


def test_a_free_form_config_with_a_typed_config_is_not_written():
    with pytest.raises(ConfigError, match=r"m: a typed config must be written separately; use its `to_dict\(\)` here"):
        Config({"m": Sgd(log=9)}).to_yaml()


def test_a_typed_config_is_not_a_plain_value():
    with pytest.raises(ConfigError, match=r"x: a typed config is not a plain value; put its `to_dict\(\)` here, or annotate the field"):
        Defines(Any)(x=Sgd(log=9))


def test_a_cached_property_is_not_a_field():
    @configclass
    class Squared(ConfigBase):
        side: int = 3

        @functools.cached_property
        def area(self):
            return self.side**2

    config = Squared()
    assert config.area == 9
    assert config.clone() == config.freeze()
    assert vars(pickle.loads(pickle.dumps(Sgd()))) == {"lr": 0.1, "log": 1}
    assert config.to_dict() == {"side": 3}
    assert repr(config) == "Squared(side=3)"
    assert config.key == Squared().key
    config.check()


@pytest.mark.parametrize("name", ["__init__", "__post_init__"])
def test_a_constructor_that_would_not_be_called_is_refused(name):
    with pytest.raises(ConfigClassError, match=rf"{name}: .*write `problems\(\)`"):
        configclass(type("Own", (ConfigBase,), {name: lambda self: None, "__annotations__": {"x": int}}))


def test_a_property_over_a_field_of_a_base_class_is_refused():
    with pytest.raises(ConfigClassError, match="lr: hides a field of a base class"):
        configclass(type("Hidden", (Sgd,), {"lr": property(lambda self: 77)}))


def test_a_group_that_names_its_class_is_never_read_as_a_dict():
    with pytest.raises(ConfigError, match=r"x\.lr = -1: expected a value greater than 0"):
        Defines(Sgd | dict[str, Any])(x={"class": "Sgd", "lr": -1})
    with pytest.raises(ConfigError, match=r"x\.lr = -1: expected a value greater than 0"):
        Defines(Sgd | Adam)(x={"class": "Adam", "lr": -1})


def test_a_default_is_copied():
    values = [1]
    kind = Defines(list[int], values)
    values.append(2)
    assert kind().x == [1]


def test_a_field_is_inherited_from_the_nearest_base_that_declares_it():
    @configclass
    class Top(ConfigBase):
        x: int = 1

    @configclass
    class Left(Top):
        y: int = 0

    @configclass
    class Right(Top):
        x: int = 2

    @configclass
    class Both(Left, Right):
        pass

    assert Both().x == Both.x == 2


def test_an_optimizer_receives_plain_values_from_a_frozen_config():
    config = OptimizerConfig(name="rprop", arguments={"etas": [0.5, 1.2]}).freeze()
    optimizer = config.make_optimizer(torch.nn.Linear(1, 1))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["param_groups"][0]["etas"] == [0.5, 1.2]


def test_describing_a_large_list_is_fast():
    config = Defines(list[int])(x=list(range(20_000)))
    assert len(config.describe().splitlines()) == 20_000


def test_thousands_of_overrides_are_fast():
    config = Config({f"k{number}": 0 for number in range(3_000)})
    changed = config.override(*(f"k{number}={number}" for number in range(3_000)))
    assert changed.k2999 == 2999


# messages


class Before(Enum):
    A = "a"


def test_the_error_for_a_config_of_an_older_class_definition_says_so():
    old = Sgd()
    new = configclass(type("Sgd", (ConfigBase,), {"__annotations__": {"lr": float}, "lr": 0.1}))
    with pytest.raises(ConfigError, match="expected Sgd in its current definition; this object has an older one"):
        Defines(new)(x=old)


def test_the_error_for_a_number_instead_of_text_does_not_suggest_the_same_text():
    with pytest.raises(ConfigError) as caught:
        Defines(Literal["1"])(x=1)
    assert str(caught.value.problems[0]) == "x = 1: expected '1'"


@pytest.mark.parametrize("values", [None, 3, "abc", [1]])
def test_only_a_dict_is_a_config(values):
    with pytest.raises(ConfigError, match="expected a dict, or pairs of key and value"):
        Config(values)


def test_a_file_name_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="None is not a file name"):
        Config.load(None)


def test_problems_may_return_none():
    kind = configclass(type("Quiet", (ConfigBase,), {"__annotations__": {"x": int}, "problems": lambda self: None}))
    assert kind(x=1).x == 1


def test_the_error_for_a_free_key_of_a_group_that_is_not_set_suggests_a_plus():
    config = Defines(dict[str, float] | None, None)()
    with pytest.raises(ConfigError, match=r"`x` is not set; write \+x\.a=1"):
        config.override("x.a=1")
    assert config.override("+x.a=1").x == {"a": 1.0}


def test_group_of_also_ignores_replicate_fields_inside_a_dict():
    assert group_of({"s": Sgd(), "seed": 1}) == group_of({"s": Sgd(log=5), "seed": 2})


def test_self_means_the_class_that_inherits_it():
    @configclass
    class Node(ConfigBase):
        child: Self | None = None

    @configclass
    class Tree(Node):
        extra: int = 0

    assert Tree(child={"extra": 2}).child == Tree(extra=2)


def test_debug_loading_warns_about_broken_rules_and_unknown_classes(tmp_path, caplog):
    @configclass
    class Careful(ConfigBase):
        low: int = 0
        high: int = 1
        optimizer: Sgd = Sgd()

        def problems(self):
            if self.low > self.high:
                yield "low", "is above high"

    path = tmp_path / "run.yaml"
    path.write_text("low: 3\noptimizer: {class: Nowhere}\n")
    config = Careful.load(path, debug=True)
    assert (config.low, config.optimizer) == (3, None)
    assert "low = 3: is above high" in caplog.text
    assert "`optimizer` becomes None" in caplog.text
    path.write_text("low: x\n")
    assert Careful.load(path, debug=True).low is None


# further cases


def test_a_subclass_with_another_default_of_an_added_field_has_another_key():
    @configclass
    class Base(ConfigBase):
        lr: float = 0.1
        dropout: float = field(default=0.0, added=True)

    @configclass
    class Strong(Base):
        dropout: float = 0.5

    assert Strong().key != Base().key
    assert Strong(dropout=0.0).key == Base().key


def test_a_former_name_is_inherited_by_a_field_that_declares_only_its_default():
    @configclass
    class Base(ConfigBase):
        lr: float = field(default=0.1, was="rate")

    @configclass
    class Below(Base):
        lr: float = field(default=0.2)

    assert Below(lr=0.1).key == Base().key
    assert Below(rate=3).lr == 3


@pytest.mark.parametrize(
    "annotation", [list[Sgd] | list[dict[str, Any]], list[dict[str, Any]] | list[Sgd], dict[str, Sgd] | dict[str, Any]]
)
def test_a_config_deep_inside_a_union_keeps_its_class(annotation, tmp_path):
    value = {"a": Sgd(lr=3)} if "dict[str, test" in str(annotation) or str(annotation).startswith("dict") else [Sgd(lr=3)]
    kind = Defines(annotation)
    config = kind(x=value)
    for ending in ("yaml", "json"):
        config.write(tmp_path / f"run.{ending}")
        assert kind.load(tmp_path / f"run.{ending}") == config
        assert kind.load(tmp_path / f"run.{ending}").key == config.key


@pytest.mark.parametrize(
    ("annotation", "value", "change"),
    [
        (list[Sgd], [{}], lambda x: x.append({"lr": "2"})),
        (dict[str, Sgd], {"a": {}}, lambda x: x.update(b={"lr": "2"})),
        (tuple[list[float], ...], ([1.0],), lambda x: x[0].append(2)),
    ],
)
def test_a_value_that_was_changed_in_place_is_validated_like_a_new_one(annotation, value, change, tmp_path):
    config = Defines(annotation)(x=value)
    change(config.x)
    key = config.key
    config.freeze()
    config.write(tmp_path / "run.yaml")
    assert config.key == key == Defines(annotation).load(tmp_path / "run.yaml").key


def test_reading_unions_of_configs_that_refer_to_each_other_is_fast():
    @configclass
    class One(ConfigBase):
        ch: "list[One | Two]" = []

    @configclass
    class Two(ConfigBase):
        k: int
        ch: "list[One | Two]" = []

    value = {"k": 1}
    for _ in range(40):
        value = {"k": 1, "ch": [value]}
    assert One(ch=[value]).ch[0].ch[0].k == 1


@pytest.mark.parametrize(("text", "value"), [("9007199254740993.0", 9007199254740993), ("1e23", 10**23), ("1.5e1", 15)])
def test_a_whole_number_written_as_a_float_is_exact(text, value, tmp_path):
    (tmp_path / "run.yaml").write_text(f"x: {text}\n")
    assert Defines(int).load(tmp_path / "run.yaml").x == value
    assert Defines(int, 1)().override(f"x={text}").x == value


def test_an_alias_of_pydantic_is_refused():
    with pytest.raises(ConfigClassError, match=r"x: has an alias; write `= field\(was=...\)`"):
        Defines(Annotated[float, Field(alias="y")], 0.1)


def test_a_group_that_contains_itself_is_refused():
    kind = configclass(type("Node", (ConfigBase,), {"__annotations__": {"next": Self | None}, "next": None}))
    group = {}
    group["next"] = group
    with pytest.raises(ConfigError, match=r"nested more than 100 deep, or contains itself|[Rr]ecursion"):
        kind(**group)


def test_a_renamed_seed_is_a_replicate_field():
    kind = Defines(int, 0)
    seeded = configclass(type("Seeded", (kind,), {"__annotations__": {"seed": int}, "seed": field(default=0, was="rng")}))
    assert group_of(seeded(seed=1)) == group_of(seeded(seed=2))


def test_an_index_of_thousands_of_digits_is_refused():
    with pytest.raises(ConfigError, match="expected an index below"):
        Defines(list[int], [1])().override("x." + "9" * 5_000 + "=1")


def test_a_list_of_two_types_is_refused():
    with pytest.raises(ConfigClassError, match=r"write list\[int \| str\]"):
        Defines(list[int, str])
