"""Typed configs satisfy contracts A0 to A6, A8, A10 and A11, which come from ablator, an earlier project."""

# ruff: noqa: UP006, UP007, UP045 - the tests also use the old spellings of annotations

import copy
import enum
import logging
import pickle
import typing
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Optional, Self, Union

import numpy as np
import pytest
import torch
from annotated_types import Gt, Len, MinLen
from pydantic import Field
from torch import nn

from trainmaster.config import Config, ConfigBase, Derived, Replicate, Stateless, configclass, field
from trainmaster.errors import ConfigClassError, ConfigError, FrozenConfigError, UnknownKeyError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@configclass
class Train(ConfigBase):
    batch_size: int = 4
    lr: float = 0.1
    epochs: Stateless[int] = 10


@configclass
class WarmTrain(Train):
    warmup: int = 5


@configclass
class Run(ConfigBase):
    train: Train
    save_dir: Stateless[str] = "runs"
    num_classes: Derived[int]
    seed: Replicate[int] = 0


@configclass
class Everything(ConfigBase):
    """A config with one field of each kind."""

    whole: int = 1
    number: float = 1.0
    text: str = "text"
    flag: bool = False
    path: Path = Path("a/b")
    anything: Any = None
    colour: Colour = "red"  # type: ignore[assignment]
    choice: Literal["a", "b", 3] = "a"
    maybe: int | None = None
    either: int | str = 0
    sizes: list[int] = [1, 2]
    pair: tuple[int, str] = (1, "a")
    some: tuple[float, ...] = ()
    weights: dict[str, float] = {"x": 0.5}
    train: Train = Train()
    trains: list[Train] = []
    named: dict[str, Train] = {}
    child: Self | None = None


class Defines:
    """Creates a config class with one field, for annotations that are not known before the test runs."""

    def __new__(cls, annotation, **default):
        body = {"__annotations__": {"x": annotation}, "__module__": __name__, **default}
        return configclass(type("One", (ConfigBase,), body))


def problems_of(caught):
    return [str(each) for each in caught.value.problems]


def refused(owner, **values):
    """Check that a config with `values` is refused, and return the text of each problem."""
    with pytest.raises(ConfigError) as caught:
        owner(**values)
    return problems_of(caught)


# A0: the example in ablator's README


class DigitsWrapper(torch.utils.data.Dataset):
    """A data set that yields dicts."""

    def __init__(self, root, train):
        self.root = root
        self.count = 10 if train else 4

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        x = torch.full((3, 2, 2), float(index))
        return {"x": x, "labels": index % 2, "custom_input": torch.zeros(x.shape, dtype=torch.bool)}


def load_digits(config, flag="train"):
    dataset = DigitsWrapper(root=config["save_dir"], train=flag == "train")
    return torch.utils.data.DataLoader(dataset, batch_size=config["train"]["batch_size"], shuffle=True)


class MyModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.linear = nn.Linear(12, 2)

    def forward(self, x, labels=None, custom_input=None):
        scores = self.linear(x.flatten(1).masked_fill(custom_input.flatten(1), 0))
        return scores.argmax(axis=-1), nn.functional.cross_entropy(scores, labels)


@pytest.mark.parametrize(("flag", "num_batches"), [("train", 4), ("eval", 2)])
def test_the_example_data_loader_reads_a_typed_config_by_item(tmp_path, flag, num_batches):
    """Covers contract A0."""
    config = Run(train=Train(batch_size=3), save_dir=str(tmp_path))
    loader = load_digits(config, flag)
    assert loader.dataset.root == str(tmp_path)
    assert loader.batch_size == 3
    assert len(loader) == num_batches


def test_a_batch_of_the_example_data_matches_the_parameters_of_forward():
    """Covers contract A0."""
    config = Run(train={"batch_size": 3})
    predictions, loss = MyModel(config)(**next(iter(load_digits(config))))
    assert predictions.shape == (3,)
    assert loss.ndim == 0


def test_nested_items_dotted_items_and_attributes_are_the_same_value():
    """Covers contract A0."""
    config = Run(train=Train(batch_size=3))
    assert config["train"]["batch_size"] == config["train.batch_size"] == config.train["batch_size"] == config.train.batch_size == 3


# A1: defining a config class


def test_an_undecorated_class_is_an_error_when_it_is_used():
    """Covers contract A1."""

    class Bare(ConfigBase):
        x: int = 1

    with pytest.raises(ConfigClassError) as caught:
        Bare()
    assert str(caught.value) == "`Bare` is not decorated with @configclass\n  try     write @configclass above `class Bare`"


def test_an_undecorated_subclass_of_a_decorated_class_is_an_error_when_it_is_used(tmp_path):
    """Covers contract A1."""

    class Bare(Train):
        x: int = 1

    with pytest.raises(ConfigClassError, match="`Bare` is not decorated with @configclass"):
        Bare()
    (tmp_path / "bare.yaml").write_text("x: 1\n")
    with pytest.raises(ConfigClassError, match="`Bare` is not decorated with @configclass"):
        Bare.load(tmp_path / "bare.yaml")


def test_an_undecorated_class_between_two_decorated_ones_is_an_error_when_the_class_is_defined():
    """Contract A1: the fields of the undecorated class would be lost silently."""

    class Between(Train):
        between: int = 1

    with pytest.raises(ConfigClassError, match="`Between` is not decorated with @configclass"):

        @configclass
        class Last(Between):
            last: int = 1


def test_an_undecorated_class_as_a_fields_type_is_an_error_when_the_class_is_defined():
    """Covers contract A1."""

    class Bare(ConfigBase):
        x: int = 1

    with pytest.raises(ConfigClassError) as caught:
        Defines(Bare)
    assert problems_of(caught) == ["x: `Bare` is not decorated with @configclass"]


def test_the_base_class_itself_is_not_a_config():
    """Covers contract A1."""
    with pytest.raises(ConfigClassError, match="`ConfigBase` is not decorated with @configclass"):
        ConfigBase()


def test_decorating_another_class_is_an_error():
    """Covers contract A1."""
    with pytest.raises(ConfigClassError, match="a config class must be a subclass of ConfigBase"):

        @configclass
        class Other:
            x: int = 1


@pytest.mark.parametrize("value", [3, "text", None, [1], field(default=3)])
def test_an_attribute_without_annotation_is_an_error_when_the_class_is_defined(value):
    """Covers contract A1."""
    with pytest.raises(ConfigClassError) as caught:
        configclass(type("Wrong", (ConfigBase,), {"__annotations__": {"lr": float}, "lr": 0.1, "epochs": value}))
    assert str(caught.value) == "a problem in the config class Wrong\n  wrong   epochs: has no annotation"


def test_a_new_default_without_annotation_is_an_error_when_the_class_is_defined():
    """Contract A1: the parent's default would silently be kept."""
    with pytest.raises(ConfigClassError) as caught:

        @configclass
        class Wrong(Train):
            lr = 0.5

    assert problems_of(caught) == ["lr: has no annotation"]


def test_only_keyword_arguments_are_accepted():
    """Covers contract A1."""
    with pytest.raises(ConfigError) as caught:
        Train(3)
    assert str(caught.value) == "a problem in Train\n  wrong   3: expected keyword arguments only\n  try     Train(batch_size=...)"


@pytest.mark.parametrize("kind", [KeyError, AttributeError, ValueError, ConfigError, UnknownKeyError])
def test_an_unknown_keyword_is_a_key_error_an_attribute_error_and_a_value_error(kind):
    """Covers contract A1."""
    with pytest.raises(kind):
        Train(learning_rate=3)


def test_the_error_for_an_unknown_keyword_suggests_the_nearest_name():
    """Covers contract A1."""
    assert refused(Train, batchsize=3) == ["batchsize = 3: Train has no such field; did you mean `batch_size`?"]


def test_the_error_for_an_unknown_keyword_without_a_similar_name_lists_all_names():
    """Covers contract A1."""
    assert refused(Train, zzz=3) == ["zzz = 3: Train has no such field; it has `batch_size`, `lr`, `epochs`"]


def test_missing_fields_are_one_value_error_that_lists_their_names():
    """Covers contract A1."""

    @configclass
    class Needs(ConfigBase):
        a: int
        b: str
        c: list[float]
        d: Literal["x", 3]
        e: Train
        f: Colour
        g: tuple[int, ...]
        h: dict[str, bool]
        i: int | None
        given: int

    with pytest.raises(ValueError) as caught:
        Needs(given=1)
    assert type(caught.value) is ConfigError
    assert str(caught.value).split("\n") == [
        "9 problems in Needs",
        "  wrong   a: is missing; expected a whole number",
        "          b: is missing; expected text",
        "          c: is missing; expected a list of: a number",
        "          d: is missing; expected 'x' or 3",
        "          e: is missing; expected Train",
        "          f: is missing; expected 'red' or 'blue'",
        "          g: is missing; expected (a whole number, ...)",
        "          h: is missing; expected a group of: true or false",
        "          i: is missing; expected a whole number or null",
    ]


def test_an_unknown_attribute_is_an_attribute_error_so_hasattr_is_false():
    """Covers contract A1."""
    assert hasattr(Train(), "lr")
    assert not hasattr(Train(), "lrr")


def test_the_error_for_an_unknown_attribute_suggests_the_nearest_name():
    """Covers contract A1."""
    with pytest.raises(UnknownKeyError) as caught:
        Train().lrr  # noqa: B018
    assert problems_of(caught) == ["lrr: Train has no such field; did you mean `lr`?"]


def test_an_unknown_attribute_cannot_be_set():
    """Covers contract A1."""
    with pytest.raises(UnknownKeyError) as caught:
        Train().epoch = 3
    assert problems_of(caught) == ["epoch: Train has no such field; did you mean `epochs`?"]


def test_methods_and_properties_of_a_config_class_are_not_fields():
    """Covers contract A1."""

    @configclass
    class Net(ConfigBase):
        width: int = 2
        depth: int = 3

        def grow(self, by):
            self.width += by

        @property
        def size(self):
            return self.width * self.depth

        @staticmethod
        def twice(value):
            return 2 * value

        @classmethod
        def small(cls):
            return cls(width=1)

    net = Net.small()
    net.grow(3)
    assert net.keys() == ["width", "depth"]
    assert (net.size, net.twice(4)) == (12, 8)


def test_an_error_inside_a_property_is_not_mistaken_for_an_unknown_field():
    """Contract A1: the original error is raised."""

    @configclass
    class Net(ConfigBase):
        width: int = 2

        @property
        def size(self):
            return self.width.nonsense

    with pytest.raises(AttributeError, match="nonsense"):
        Net().size  # noqa: B018


def test_a_class_variable_is_not_a_field():
    """Covers contract A1."""

    @configclass
    class Net(ConfigBase):
        limit: ClassVar[int] = 100
        unset: ClassVar[str]
        bare: ClassVar = 3
        width: int = 2

    assert Net().keys() == ["width"]
    assert (Net.limit, Net().limit, Net.bare) == (100, 100, 3)
    with pytest.raises(UnknownKeyError):
        Net().limit = 3


def test_names_with_an_underscore_are_ignored_unless_they_are_annotated():
    """Covers contract A1."""

    @configclass
    class Net(ConfigBase):
        _cache = {}
        width: int = 2

    assert Net().keys() == ["width"]
    with pytest.raises(ConfigClassError) as caught:
        configclass(type("Wrong", (ConfigBase,), {"__annotations__": {"_x": int}}))
    assert problems_of(caught) == ["_x: begins with an underscore"]


@pytest.mark.parametrize("name", ["keys", "clone", "uid", "key", "freeze", "problems", "load", "diff", "origin", "check"])
def test_the_name_of_a_method_of_every_config_cannot_be_a_field(name):
    """Covers contract A1."""
    with pytest.raises(ConfigClassError) as caught:
        configclass(type("Wrong", (ConfigBase,), {"__annotations__": {name: int}}))
    assert problems_of(caught) == [f"{name}: is a method of every config; choose another name"]


def test_a_subclass_has_the_fields_of_its_parents_first():
    """Covers contract A1."""
    assert WarmTrain().keys() == ["batch_size", "lr", "epochs", "warmup"]


def test_a_subclass_may_change_the_default_and_type_of_a_field_and_keeps_its_position():
    """Covers contract A1."""

    @configclass
    class Other(Train):
        lr: str = "fast"
        batch_size: int

    assert Other(batch_size=2).to_dict() == {"batch_size": 2, "lr": "fast", "epochs": 10}
    assert Train().lr == 0.1


def test_a_field_redefined_without_default_is_required():
    """Contract A1: as in dataclasses, a redefined field has only the default from its new definition."""

    @configclass
    class Other(ConfigBase):
        a: int = 1

    @configclass
    class Below(Other):
        a: int
        b: int = 2

    assert refused(Below) == ["a: is missing; expected a whole number"]


def test_a_subclass_may_change_a_fields_state():
    """Covers contract A1."""

    @configclass
    class Other(Train):
        lr: Stateless[float] = 0.1

    assert Other().to_dict(ignore_stateless=True) == {"batch_size": 4}


def test_a_class_has_the_fields_of_both_parents():
    """Covers contract A1."""

    @configclass
    class Saved(ConfigBase):
        save_dir: str = "runs"

    @configclass
    class Both(Train, Saved):
        last: int = 1

    assert set(Both().keys()) == {"batch_size", "lr", "epochs", "save_dir", "last"}


def test_the_default_of_a_field_is_an_attribute_of_the_class():
    """Covers contract A1."""

    @configclass
    class Net(ConfigBase):
        width: int = field(default=3, was="size")
        depth: int = field()

    assert Net.width == 3
    assert not hasattr(Net, "depth")


def test_a_former_name_is_read_as_the_current_one():
    @configclass
    class Net(ConfigBase):
        width: int = field(was=("size", "num_units"))

    assert Net(num_units=3) == Net(size=3) == Net(width=3)
    assert Net(size=3).to_dict() == {"width": 3}


def test_a_field_given_by_its_former_and_its_current_name_is_refused():
    @configclass
    class Net(ConfigBase):
        width: int = field(was="size")

    assert set(refused(Net, size=3, width=3)) == {"width = 3: is given twice"}


def test_a_field_added_later_needs_a_default():
    with pytest.raises(ConfigClassError) as caught:
        Defines(int, x=field(added=True))
    assert problems_of(caught) == ["x: was added later, so it needs a default: the value that all older configs had"]


# A2: the annotations


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (int, 3, 3),
        (float, 3.5, 3.5),
        (str, "x", "x"),
        (bool, True, True),
        (Path, "a/b", Path("a/b")),
        (Any, {"a": [1, None, "x"]}, {"a": [1, None, "x"]}),
        (Colour, "blue", Colour.BLUE),
        (Colour, Colour.BLUE, Colour.BLUE),
        (Literal["a", 3, None], 3, 3),
        (Literal["a", 3, None], None, None),
        (Optional[int], None, None),
        (Optional[int], "3", 3),
        (int | None, None, None),
        (Union[int, str], "3", "3"),
        (Union[int, str], 3, 3),
        (float | str, "3", "3"),
        (int | list[int], ["3"], [3]),
        (list, [1, "a"], [1, "a"]),
        (list[int], ["1", 2.0], [1, 2]),
        (typing.List[int], [1], [1]),
        (typing.Dict[str, int], {"a": 1}, {"a": 1}),
        (typing.Tuple[int, str], [1, 2], (1, "2")),
        (list[list[float]], [[1], (2,)], [[1.0], [2.0]]),
        (list[int | None], [1, None], [1, None]),
        (tuple, [1, "a"], (1, "a")),
        (tuple[int, str, bool], [1, "a", "f"], (1, "a", False)),
        (tuple[int, ...], [1, "2", 3], (1, 2, 3)),
        (tuple[int, ...], [], ()),
        (tuple[tuple[int, int], str], [[1, 2], "a"], ((1, 2), "a")),
        (dict, {"a": 1}, {"a": 1}),
        (dict[str, int], {"a": "1"}, {"a": 1}),
        (dict[str, dict[str, list[float]]], {"a": {"b": [1]}}, {"a": {"b": [1.0]}}),
        (dict[str, int | None], {"a": None}, {"a": None}),
        (Stateless[int], "3", 3),
        (Stateless[Optional[int]], None, None),
        (Stateless[list[int]], ("3",), [3]),
        (Derived[int], "3", 3),
        (Derived[int], None, None),
        (Derived[list[int]], None, None),
        (Derived[Annotated[int, Gt(0)]], None, None),
        (Replicate[int], 3, 3),
        (Annotated[int, Gt(0)], 3, 3),
        (Stateless[Annotated[int, Gt(0)]], 3, 3),
        (Annotated[Stateless[int], Gt(0)], 3, 3),
        (Annotated[int | None, Gt(0)], None, None),
        ("list['Colour']", ["red"], [Colour.RED]),
    ],
)
def test_the_annotation_is_supported(annotation, value, stored):
    """Covers contracts A2 and A3."""
    config = Defines(annotation)(x=value)
    assert config.x == stored
    assert type(config.x) is type(stored)


@pytest.mark.parametrize(
    ("annotation", "told"),
    [
        (set[int], "set[int] is not a type that a config can have"),
        (set, "set is not a type that a config can have; use a config class or several fields instead"),
        (frozenset[str], "frozenset[str] is not a type that a config can have"),
        (bytes, "bytes is not a type that a config can have; use a config class or several fields instead"),
        (complex, "complex is not a type that a config can have; use a config class or several fields instead"),
        (object, "object is not a type that a config can have; use a config class or several fields instead"),
        (nn.Module, "Module is not a type that a config can have; use a config class or several fields instead"),
        (Config, "Config is not a type that a config can have; use a config class or several fields instead"),
        (typing.Callable, "typing.Callable is not a type that a config can have"),
        (typing.Callable[[int], int], "typing.Callable[[int], int] is not a type that a config can have"),
        (type[int], "type[int] is not a type that a config can have"),
        (list[set[int]], "set[int] is not a type that a config can have"),
        (int | complex, "complex is not a type that a config can have; use a config class or several fields instead"),
        (Optional[Stateless[int]], "`Stateless[...]` must wrap the whole annotation, not a part of it"),
        (list[Derived[int]], "`Derived[...]` must wrap the whole annotation, not a part of it"),
        (list[Annotated[Stateless[int], Gt(0)]], "`Stateless[...]` must wrap the whole annotation, not a part of it"),
        (dict[str, Replicate[int]], "`Replicate[...]` must wrap the whole annotation, not a part of it"),
        (Stateless[Derived[int]], "`Derived` and `Stateless` at once; an attribute has one state"),
        (Replicate[Stateless[int]], "`Stateless` and `Replicate` at once; an attribute has one state"),
        (dict[int, str], "dict[int, str] is not a dict[str, ...]; the keys of a config are text"),
        (Literal[1.5], "typing.Literal[1.5] has values other than text, whole numbers, booleans and None"),
        (enum.Enum("Steps", {"A": (1, 2)}), "Steps.A is (1, 2), which cannot be written to a file"),
    ],
)
def test_a_misused_annotation_is_an_error_when_the_class_is_defined(annotation, told):
    """Contract A2: an arbitrary class cannot be the type of a field."""
    with pytest.raises(ConfigClassError) as caught:
        Defines(annotation)
    assert str(caught.value) == f"a problem in the config class One\n  wrong   x: {told}"


@pytest.mark.parametrize("annotation", [Stateless, Derived, Replicate])
def test_the_error_for_a_state_without_a_type_asks_for_one(annotation):
    """Covers contract A2."""
    with pytest.raises(ConfigClassError) as caught:
        Defines(annotation)
    [told] = problems_of(caught)
    assert "~T" not in told


@pytest.mark.parametrize("annotation", [Annotated[int, MinLen(3)], Annotated[int | str, Gt(0)], Annotated[bool, Len(2)]])
def test_a_constraint_that_cannot_apply_to_its_type_is_not_a_raw_type_error(annotation):
    """Contract A2: the error is a ConfigError, raised when the class is defined or when a value is checked."""
    with pytest.raises(ConfigError, match="x"):
        Defines(annotation)(x="a" if annotation == Annotated[int | str, Gt(0)] else 1)


def test_the_error_for_pydantics_field_as_a_default_shows_where_to_put_it():
    """Covers contract A2."""
    with pytest.raises(ConfigClassError) as caught:
        Defines(float, x=Field(gt=0))
    assert problems_of(caught) == ["x: put pydantic's Field into the annotation: `Annotated[float, Field(gt=0)] = 0.1`"]


def test_all_misused_annotations_of_a_class_are_reported_at_once():
    """Covers contract A2."""
    with pytest.raises(ConfigClassError) as caught:

        @configclass
        class Wrong(ConfigBase):
            a: set[int]
            b: int = 3
            c: dict[int, int] = {}
            clone: int = 1
            d = 4

    assert problems_of(caught) == [
        "a: set[int] is not a type that a config can have",
        "c: dict[int, int] is not a dict[str, ...]; the keys of a config are text",
        "clone: is a method of every config; choose another name",
        "d: has no annotation",
    ]


def test_a_misused_annotation_with_a_forward_reference_is_an_error_at_first_use():
    """Covers contract A2."""

    @configclass
    class Early(ConfigBase):
        x: "list[Late]"

    class Late:
        pass

    with pytest.raises(ConfigClassError, match="x: Late is not a type that a config can have"):
        Early(x=[])


def test_an_annotation_with_an_undefined_name_is_an_error_at_first_use():
    """Covers contract A2."""

    @configclass
    class Early(ConfigBase):
        x: "Nowhere"  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(ConfigClassError) as caught:
        Early(x=1)
    assert problems_of(caught) == ["an annotation names `Nowhere`, which is not defined"]


@configclass
class Tree(ConfigBase):
    name: str = "root"
    children: "list[Tree]" = []
    leaf: Optional["Leaf"] = None


@configclass
class Leaf(ConfigBase):
    of: Tree | None = None


def test_forward_references_to_the_class_itself_and_to_later_classes_work():
    """Covers contract A2."""
    tree = Tree(children=[{"name": "left", "children": [{"name": "deep"}]}, Tree(leaf={"of": {"name": "up"}})])
    assert tree["children.0.children.0"] == Tree(name="deep")
    assert tree["children.1.leaf"] == Leaf(of=Tree(name="up"))


def test_self_means_the_class_it_is_in():
    """Covers contract A2."""

    @configclass
    class Node(ConfigBase):
        value: int = 0
        next: Self | None = None
        others: list[Self] = []

    node = Node(next={"value": 1}, others=[{"value": "2"}])
    assert (type(node.next), node.next.value, node.others[0].value) == (Node, 1, 2)
    assert refused(Node, next={"next": {"value": "x"}}) == ["next.next.value = 'x': expected a whole number"]


@pytest.mark.parametrize(
    ("annotation", "wrong", "told"),
    [
        (Annotated[float, Gt(0)], -1, "x = -1: expected a value greater than 0"),
        (Annotated[float, Field(gt=0, le=1)], 1.5, "x = 1.5: expected a value less than or equal to 1"),
        (Stateless[Annotated[int, Field(ge=2)]], 1, "x = 1: expected a value greater than or equal to 2"),
        (Annotated[int | None, Gt(0)], 0, "x = 0: expected a value greater than 0"),
        (Optional[Annotated[int, Gt(0)]], 0, "x = 0: expected a value greater than 0"),
        (list[Annotated[int, Gt(0)]], [1, 0, 2], "x.1 = 0: expected a value greater than 0"),
        (dict[str, Annotated[int, Gt(0)]], {"a": 0}, "x.a = 0: expected a value greater than 0"),
        (tuple[int, Annotated[int, Gt(0)]], (0, 0), "x.1 = 0: expected a value greater than 0"),
        (Derived[Annotated[int, Gt(0)]], 0, "x = 0: expected a value greater than 0"),
        (Annotated[str, Field(pattern="^[a-z]+$")], "A", "x = 'A': string should match pattern '^[a-z]+$'"),
    ],
)
def test_constraints_of_pydantic_are_checked(annotation, wrong, told):
    """Covers contract A2."""
    assert refused(Defines(annotation), x=wrong) == [told]


def test_a_constraint_is_checked_after_the_conversion():
    """Covers contracts A2 and A3."""
    assert Defines(Annotated[int, Gt(2)])(x="3").x == 3
    assert refused(Defines(Annotated[int, Gt(2)]), x="2") == ["x = '2': expected a value greater than 2"]


def test_a_constraint_is_checked_on_assignment():
    """Covers contracts A2 and A3."""
    config = Defines(Annotated[float, Gt(0)])(x=1)
    with pytest.raises(ConfigError) as caught:
        config.x = 0
    assert problems_of(caught)[0].endswith("expected a value greater than 0")
    assert config.x == 1.0


def test_a_list_can_have_a_length():
    """Covers contract A2."""
    assert Defines(Annotated[list[int], Len(1, 2)])(x=[1, 2]).x == [1, 2]
    [told] = refused(Defines(Annotated[list[int], Len(1, 2)]), x=[])
    assert told == "x = []: value should have at least 1 item after validation, not 0"
    [told] = refused(Defines(Annotated[list[int], Len(1, 2)]), x=[1, 2, 3])
    assert told == "x = [1, 2, 3]: value should have at most 2 items after validation, not 3"


# A3: values


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("whole", "3", 3),
        ("whole", " -3 ", -3),
        ("whole", 3.0, 3),
        ("whole", np.int64(3), 3),
        ("whole", np.float32(3), 3),
        ("whole", 10**30, 10**30),
        ("number", 3, 3.0),
        ("number", "3", 3.0),
        ("number", "1e-3", 0.001),
        ("number", np.float32(0.5), 0.5),
        ("number", 2**53, float(2**53)),
        ("number", "inf", float("inf")),
        ("text", 3, "3"),
        ("text", 1.5, "1.5"),
        ("text", Path("a/b"), "a/b"),
        ("text", Colour.RED, "red"),
        ("path", "a/b", Path("a/b")),
        ("colour", "blue", Colour.BLUE),
        ("choice", 3, 3),
        ("choice", np.int64(3), 3),
        ("sizes", (1, 2), [1, 2]),
        ("sizes", [], []),
        ("pair", [2, "b"], (2, "b")),
        ("weights", {}, {}),
        ("weights", Config({"a": 1}), {"a": 1.0}),
        ("either", 1.5, "1.5"),
        ("maybe", "3", 3),
        ("anything", (1, np.float64(2)), [1, 2.0]),
        ("train", {"lr": "3"}, Train(lr=3)),
        ("train", Config({"lr": "3"}), Train(lr=3)),
    ],
)
@pytest.mark.parametrize("way", ["construction", "assignment", "item"])
def test_a_value_is_converted(name, value, stored, way):
    """Contract A3: values are converted on construction and on every assignment."""
    if way == "construction":
        config = Everything(**{name: value})
    else:
        config = Everything()
        if way == "item":
            config[name] = value
        else:
            setattr(config, name, value)
    assert config[name] == stored
    assert type(config[name]) is type(stored)


@pytest.mark.parametrize("value", [True, "true", "True", "T", "t", "1", 1, "yes", "ON", np.True_])
def test_values_that_are_true(value):
    """Covers contract A3."""
    assert Everything(flag=value).flag is True


@pytest.mark.parametrize("value", [False, "false", "FALSE", "F", "f", "0", 0, "no", "off", np.False_])
def test_values_that_are_false(value):
    """Covers contract A3."""
    config = Everything(flag=True)
    config.flag = value
    assert config.flag is False


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("whole", 1.999, "whole = 1.999: expected a whole number; the fraction would be lost"),
        ("whole", "1.5", "whole = '1.5': expected a whole number"),
        ("whole", "many", "whole = 'many': expected a whole number"),
        ("whole", True, "whole = True: expected a whole number"),
        ("whole", np.True_, f"whole = {np.True_!r}: expected a whole number"),
        ("whole", None, "whole = None: expected a whole number"),
        ("whole", float("nan"), "whole = nan: expected a whole number"),
        ("whole", [1], "whole = [1]: expected a whole number"),
        ("number", True, "number = True: expected a number"),
        ("number", "fast", "number = 'fast': expected a number"),
        ("number", None, "number = None: expected a number"),
        ("number", 2**53 + 1, "number = 9007199254740993: expected a number that a float holds exactly"),
        ("number", "1e999", "number = '1e999': expected a number within the range of a float"),
        ("text", True, "text = True: expected text"),
        ("text", None, "text = None: expected text"),
        ("text", ["a"], "text = ['a']: expected text"),
        ("text", b"a", "text = b'a': expected text"),
        ("flag", 2, "flag = 2: expected true or false"),
        ("flag", "maybe", "flag = 'maybe': expected true or false"),
        ("flag", None, "flag = None: expected true or false"),
        ("colour", "bleu", "colour = 'bleu': expected 'red' or 'blue'; did you mean `blue`?"),
        ("colour", "RED", "colour = 'RED': expected 'red' or 'blue'"),
        ("choice", "c", "choice = 'c': expected 'a', 'b' or 3"),
        ("sizes", {1, 2}, "sizes = {1, 2}: expected a list"),
        ("sizes", 3, "sizes = 3: expected a list"),
        ("sizes", "12", "sizes = '12': expected a list"),
        ("sizes", {"a": 1}, "sizes = {'a': 1}: expected a list"),
        ("sizes", [1, 2.5], "sizes.1 = 2.5: expected a whole number; the fraction would be lost"),
        ("pair", (1,), "pair = (1,): expected (a whole number, text)"),
        ("pair", (1, "a", 2), "pair = (1, 'a', 2): expected (a whole number, text)"),
        ("pair", ("x", "a"), "pair.0 = 'x': expected a whole number"),
        ("weights", [1], "weights = [1]: expected a group of keys with values"),
        ("weights", {"a": "x"}, "weights.a = 'x': expected a number"),
        ("weights", {1: 2.0}, "weights = {1: 2.0}: expected other keys than 1: a key must be text, not int"),
        ("train", 3, "train = 3: expected Train: a group of keys with values"),
        ("train", None, "train = None: expected Train: a group of keys with values"),
        ("train", (0.1, 2), "train = (0.1, 2): expected Train: a group of keys with values"),
        ("train", Leaf(), "train = Leaf(of=None): expected Train"),
        ("train", {"lr": "x"}, "train.lr = 'x': expected a number"),
        ("trains", [{}, {"lr": "x"}], "trains.1.lr = 'x': expected a number"),
        ("named", {"a": {"lr": "x"}}, "named.a.lr = 'x': expected a number"),
        ("maybe", "x", "maybe = 'x': expected a whole number"),
        ("either", [1], "either = [1]: expected a whole number or text"),
        ("either", True, "either = True: expected a whole number or text"),
    ],
)
@pytest.mark.parametrize("way", ["construction", "assignment", "item"])
def test_a_lossy_conversion_is_refused(name, value, told, way):
    """Contract A3: values are checked on construction and on every assignment."""
    config = Everything()
    before = config.clone()
    with pytest.raises(ConfigError) as caught:
        if way == "construction":
            Everything(**{name: value})
        elif way == "item":
            config[name] = value
        else:
            setattr(config, name, value)
    assert str(caught.value) == f"a problem in Everything\n  wrong   {told}"
    assert config == before


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes", 1j, [object()], {"a": {1}}])
def test_any_accepts_only_plain_values(value):
    """Covers contract A3."""
    [told] = refused(Everything, anything=value)
    assert "cannot be stored in a config" in told


@pytest.mark.parametrize("annotation", [Literal[1, "a"], enum.IntEnum("One", {"ONE": 1}), enum.Enum("One", {"ONE": 1})])
def test_true_is_not_accepted_for_the_choice_1(annotation):
    """Contract A3: True is never a number."""
    assert refused(Defines(annotation), x=True) != []


def test_a_tuple_of_another_length_inside_a_list_is_reported_with_its_own_key():
    """Covers contract A3."""
    assert refused(Defines(list[tuple[int, int]]), x=[(1, 2), (1,)]) == ["x.1 = (1,): expected (a whole number, a whole number)"]
    assert refused(Defines(list[tuple[int, int]]), x=[(1, 2, 3)]) == ["x.0 = (1, 2, 3): expected (a whole number, a whole number)"]


@pytest.mark.parametrize("key", [1, 1.5, None, ("a", "b")])
def test_a_nested_config_given_with_keys_that_are_not_text_is_refused(key):
    """Covers contract A3."""
    with pytest.raises(ConfigError, match=r"train.*key"):
        Run(train={key: 2})


def test_a_nested_config_is_copied_in():
    """Contract A3: a config copies the values it is given."""
    train = Train(lr=1)
    config = Run(train=train)
    train.lr = 2
    other = Run(train=config.train)
    other.train.lr = 3
    assert (config.train.lr, train.lr, other.train.lr) == (1, 2, 3)


def test_a_list_and_a_dict_are_copied_in():
    """Contract A3: a config copies the values it is given."""
    sizes, weights, anything = [1], {"a": 1.0}, {"deep": [1]}
    config = Everything(sizes=sizes, weights=weights, anything=anything)
    sizes.append(2)
    weights["b"] = 2.0
    anything["deep"].append(2)
    assert (config.sizes, config.weights, config.anything) == ([1], {"a": 1.0}, {"deep": [1]})


def test_a_nested_config_can_be_given_by_dotted_keys():
    """Covers contract A3."""
    assert Run(**{"train.lr": 3, "train.epochs": 4}) == Run(train={"lr": 3, "epochs": 4})
    assert refused(Run, **{"train": {"lr": 1}, "train.lr": 3}) == ["train.lr = 3: is given twice"]


def test_a_field_of_a_base_class_accepts_a_config_of_a_subclass():
    config = Run(train=WarmTrain(warmup=2))
    assert type(config.train) is WarmTrain
    assert config.to_dict()["train"] == {"class": "WarmTrain", "batch_size": 4, "lr": 0.1, "epochs": 10, "warmup": 2}


def test_a_field_of_a_subclass_refuses_a_config_of_its_base_class():
    assert refused(Defines(WarmTrain), x=Train()) == ["x = Train(batch_size=4, lr=0.1, epochs=10): expected WarmTrain"]


@pytest.mark.parametrize("name", ["run.yaml", "run.json"])
def test_a_config_of_a_subclass_is_loaded_from_a_file_by_its_class_name(tmp_path, name):
    config = Everything(
        train=WarmTrain(warmup=2), trains=[Train(), WarmTrain(warmup=3)], named={"a": WarmTrain()}, child=Everything(train=WarmTrain())
    )
    config.write(tmp_path / name)
    assert Everything.load(tmp_path / name) == config


def test_the_error_for_an_unknown_class_name_suggests_the_nearest():
    assert refused(Run, train={"class": "WarmTran"}) == [
        "train.class = 'WarmTran': no config class that fits here has this name; did you mean `WarmTrain`?"
    ]


def test_a_class_that_does_not_fit_the_field_is_refused():
    [told] = refused(Run, train={"class": "Leaf"})
    assert told.startswith("train.class = 'Leaf': no config class that fits here has this name; known: ")
    assert told.endswith("Train, WarmTrain")


@pytest.mark.parametrize("name", [3, None, ["Train"], {"a": 1}])
def test_a_class_that_is_not_a_name_is_refused(name):
    [told] = refused(Run, train={"class": name})
    assert told.startswith(f"train.class = {name!r}: ")


def test_an_ambiguous_class_name_in_a_file_is_refused():
    """Two classes have this name, so the file does not determine which one to use."""

    @configclass
    class Base(ConfigBase):
        x: int = 1

    def one():
        @configclass
        class Twin(Base):
            y: int = 1

        return Twin

    def other():
        @configclass
        class Twin(Base):
            y: int = 2

        return Twin

    kinds = one(), other()
    with pytest.raises(ConfigError, match=r"x\.class = 'Twin'.*"):
        Defines(Base)(x={"class": "Twin"})
    assert len(kinds) == 2


# A4: states


def test_a_stateless_field_still_needs_a_value():
    """Covers contract A4."""
    assert refused(Defines(Stateless[int])) == ["x: is missing; expected a whole number"]


def test_an_optional_field_without_default_needs_a_value():
    """Contract A4: this is the same as in dataclasses."""
    assert refused(Defines(Optional[int])) == ["x: is missing; expected a whole number or null"]
    assert Defines(Optional[int])(x=None).x is None


def test_a_derived_field_is_none_until_it_is_set():
    """Covers contract A4."""
    config = Run(train={})
    assert config.num_classes is None
    config.num_classes = "10"
    assert config.num_classes == 10
    config.num_classes = None
    assert config.num_classes is None


def test_a_derived_field_is_checked_when_it_is_set():
    """Covers contract A4."""
    with pytest.raises(ConfigError, match="num_classes = 'many': expected a whole number"):
        Run(train={}).num_classes = "many"


def test_a_derived_field_can_have_a_default():
    """Covers contract A4."""
    assert Defines(Derived[int], x=3)().x == 3
    assert Defines(Derived[int], x=field(default=None))().x is None


def test_all_derived_fields_without_a_value_are_reported_at_once():
    """Covers contract A4."""

    @configclass
    class Inner(ConfigBase):
        size: Derived[int]
        maybe: Derived[int | None]
        constrained: Derived[Annotated[int, Gt(0)]]

    @configclass
    class Outer(ConfigBase):
        inner: Inner = Inner()
        inners: list[Inner] = [Inner(size=1, constrained=1), Inner(constrained=1)]
        shape: Derived[tuple[int, int]]

    config = Outer()
    with pytest.raises(ConfigError) as caught:
        config.assert_unambigious()
    assert str(caught.value).split("\n") == [
        "4 problems in Outer",
        "  wrong   inner.size: is a derived field that has not been set",
        "          inner.constrained: is a derived field that has not been set",
        "          inners.1.size: is a derived field that has not been set",
        "          shape: is a derived field that has not been set",
    ]
    config["inner.size"] = config["inner.constrained"] = config["inners.1.size"] = 3
    config.shape = [1, 2]
    config.assert_unambigious()


# A5: defaults


def test_an_invalid_default_is_an_error_only_when_it_is_used():
    """Covers contract A5."""
    kind = Defines(int, x="many")
    assert kind(x=3).x == 3
    assert refused(kind) == ["x = 'many': expected a whole number"]


def test_a_default_is_parsed_like_a_value():
    """Covers contract A5."""

    @configclass
    class Net(ConfigBase):
        colour: Colour = "blue"
        width: float = "1e3"
        sizes: tuple[int, ...] = ["1", 2.0]
        train: Train = {"lr": "3"}
        maybe: Derived[int] = "3"

    assert Net() == Net(colour=Colour.BLUE, width=1000.0, sizes=(1, 2), train=Train(lr=3.0), maybe=3)


def test_mutable_defaults_are_not_shared_between_configs():
    """Covers contract A5."""
    one, other = Everything(), Everything()
    one.sizes.append(3)
    one.weights["y"] = 1.0
    one.trains.append(Train())
    one.train.lr = 5.0
    assert other == Everything()
    assert (Everything.sizes, Everything.weights) == ([1, 2], {"x": 0.5})


def test_a_mutable_default_of_a_field_of_any_type_is_not_shared():
    """Covers contract A5."""
    kind = Defines(Any, x={"a": [1]})
    kind().x["a"].append(2)
    assert kind().x == {"a": [1]}


def test_a_frozen_config_as_a_default_gives_configs_that_can_be_changed():
    """Covers contract A5."""
    config = Defines(Train, x=Train(lr=1).freeze())()
    config.x.lr = 2
    assert config.x.lr == 2


# A6: as plain values


def full():
    return Everything(
        colour="blue",
        anything={"a": [1, None], "b": {}},
        maybe=3,
        some=(1, 2.5),
        trains=[Train(lr=1), WarmTrain(warmup=9)],
        named={"a": {"lr": 2}, "b": WarmTrain()},
        child={"child": {"whole": 7}},
    )


def test_the_constructor_accepts_the_result_of_to_dict():
    """Covers contract A6."""
    assert Everything(**full().to_dict()) == full()


def test_the_constructor_accepts_another_config():
    """Covers contract A6."""
    config = full()
    other = Everything(**config)
    assert other == config
    other.train.lr = 99
    assert config.train.lr == 0.1


def test_to_dict_is_plain_and_keeps_order_and_tuples():
    """Covers contract A6."""
    config = Run(train=Train(lr=1), seed=3)
    assert config.to_dict() == {
        "train": {"batch_size": 4, "lr": 1.0, "epochs": 10},
        "save_dir": "runs",
        "num_classes": None,
        "seed": 3,
    }
    assert list(config.to_dict()) == config.keys() == ["train", "save_dir", "num_classes", "seed"]
    assert full().to_dict()["pair"] == (1, "a")
    assert full().to_dict()["colour"] == "blue"
    assert full().to_dict()["path"] == "a/b"


def test_to_dict_can_leave_out_stateless_and_derived_fields():
    """Covers contract A6."""
    assert Run(train={}, num_classes=3).to_dict(ignore_stateless=True) == {"train": {"batch_size": 4, "lr": 0.1}, "seed": 0}


def test_the_result_of_to_dict_shares_nothing_with_the_config():
    """Covers contract A6."""
    config = full()
    tree = config.to_dict()
    tree["sizes"].append(99)
    tree["train"]["lr"] = 99
    tree["anything"]["a"].append(99)
    assert config == full()


def test_flatten_has_primitives_by_dotted_keys_and_elements_of_lists_by_number():
    """Covers contract A6."""
    config = Everything(sizes=[5, 6], trains=[{"lr": 3}], weights={"a": 1})
    flat = config.flatten()
    assert (flat["sizes.0"], flat["sizes.1"], flat["trains.0.lr"], flat["weights.a"], flat["pair.1"]) == (5, 6, 3.0, 1.0, "a")
    assert all(type(value) in (int, float, str, bool, type(None)) for key, value in flat.items() if value not in ([], {}, ()))


def test_to_dot_path_is_flatten_as_yaml():
    """Covers contract A6."""
    assert Run(train=Train(lr=1e-5)).to_dot_path() == (
        "train.batch_size: 4\ntrain.lr: 1.0e-05\ntrain.epochs: 10\nsave_dir: runs\nnum_classes: null\nseed: 0\n"
    )
    assert Run(train={}).to_dot_path(ignore_stateless=True) == "train.batch_size: 4\ntrain.lr: 0.1\nseed: 0\n"


def test_to_yaml_is_nested():
    """Covers contract A6."""
    assert Run(train={}).to_yaml(ignore_stateless=True) == "train:\n  batch_size: 4\n  lr: 0.1\nseed: 0\n"


@pytest.mark.parametrize("name", ["run.yaml", "run.yml", "run.json"])
def test_a_written_config_is_equal_after_loading(tmp_path, name):
    """Covers contract A6."""
    full().write(tmp_path / name)
    assert Everything.load(tmp_path / name) == full()
    assert Everything.load(str(tmp_path / name)).to_dict() == full().to_dict()


@pytest.mark.parametrize("name", ["run.yaml", "run.json"])
def test_floats_that_are_not_numbers_survive_a_file(tmp_path, name):
    """Covers contract A6."""
    config = Everything(number=float("nan"), some=[float("inf"), -float("inf"), 1e-300, 0.1 + 0.2])
    config.write(tmp_path / name)
    assert Everything.load(tmp_path / name) == config


def test_a_text_field_keeps_the_text_of_the_file(tmp_path):
    """Contracts A3 and A6: `1.10` is a version, not 1.1."""
    file = tmp_path / "run.yaml"
    file.write_text("text: 1.10\nnumber: 1.10\n")
    config = Everything.load(file)
    assert (config.text, config.number) == ("1.10", 1.1)


def test_a_file_without_keys_is_refused(tmp_path):
    """Covers contract A6."""
    file = tmp_path / "run.yaml"
    file.write_text("[1, 2]\n")
    with pytest.raises(ConfigError, match="is not a config: it holds a list, not keys with values"):
        Everything.load(file)


# A8: debug loading


def debug_load(kind, tmp_path, caplog, text):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with caplog.at_level(logging.WARNING, logger="trainmaster.config"):
        config = kind.load(file, debug=True)
    return config, sorted(each.getMessage().removeprefix(f"{file}: ") for each in caplog.records)


def test_debug_loading_uses_valid_values_and_warns_about_the_others(tmp_path, caplog):
    """Covers contract A8."""

    @configclass
    class Old(ConfigBase):
        train: Train
        name: str
        rate: float
        sizes: list[int] = [1]

    config, warnings = debug_load(
        Old, tmp_path, caplog, "train:\n  lr: fast\n  batch_size: 8\n  momentum: 1\nrate: 1.5.3\nsizes: [1, x]\ngone: 3\n"
    )
    assert (config.train.batch_size, config.train.lr, config.train.epochs) == (8, None, 10)
    assert (config.name, config.rate, config.sizes) == (None, None, None)
    assert warnings == [
        "`gone` is unknown and ignored",
        "`name` is missing and becomes None",
        "`rate` becomes None: expected a number",
        "`sizes` becomes None: expected a whole number",
        "`train.lr` becomes None: expected a number",
        "`train.momentum` is unknown and ignored",
    ]


def test_debug_loading_of_a_valid_file_does_not_warn(tmp_path, caplog):
    """Covers contract A8."""
    config, warnings = debug_load(Run, tmp_path, caplog, "train: {lr: 3}\nseed: 4\n")
    assert config == Run(train={"lr": 3}, seed=4)
    assert warnings == []


def test_debug_loading_keeps_the_defaults_of_values_that_are_not_in_the_file(tmp_path, caplog):
    """Covers contract A8."""
    config, _ = debug_load(Run, tmp_path, caplog, "train: {lr: 3}\nseed: x\n")
    assert (config.save_dir, config.num_classes, config.seed) == ("runs", None, None)


def test_debug_loading_reads_former_names_and_dotted_keys(tmp_path, caplog):
    """Covers contract A8."""

    @configclass
    class Old(ConfigBase):
        train: Train
        rate: float = field(was="lr")

    config, warnings = debug_load(Old, tmp_path, caplog, "train.batch_size: 8\nlr: 3\nother: 4\n")
    assert (config.train.batch_size, config.rate) == (8, 3.0)
    assert warnings == ["`other` is unknown and ignored"]


def test_debug_loading_does_not_mistake_a_dict_of_configs_for_a_config(tmp_path, caplog):
    """Covers contract A8."""
    config, warnings = debug_load(Everything, tmp_path, caplog, "named:\n  a: {lr: fast}\n")
    assert config.named is None or type(config.named) is dict
    assert any("named" in each and "expected a number" in each for each in warnings)


def test_debug_loading_keeps_the_class_of_a_group(tmp_path, caplog):
    """Covers contract A8."""
    config, warnings = debug_load(Run, tmp_path, caplog, "train: {class: WarmTrain, warmup: 7, lr: fast}\n")
    assert type(config.train) is WarmTrain
    assert config.train.warmup == 7
    assert warnings == ["`train.lr` becomes None: expected a number"]


def test_a_file_with_a_problem_is_an_error_without_debug(tmp_path):
    """Covers contract A8."""
    file = tmp_path / "run.yaml"
    file.write_text("train: {}\nseed: x\n")
    with pytest.raises(ConfigError, match="seed = 'x': expected a whole number"):
        Run.load(file)


def test_debug_loading_of_a_file_that_is_not_yaml_is_an_error(tmp_path):
    """Covers contract A8."""
    file = tmp_path / "run.yaml"
    file.write_text("train: [\n")
    with pytest.raises(ConfigError):
        Run.load(file, debug=True)


# items


def test_keys_iteration_and_in_refer_to_fields():
    config = Run(train={})
    assert config.keys() == list(config) == ["train", "save_dir", "num_classes", "seed"]
    assert dict(config)["train"] == Train()


@pytest.mark.parametrize("key", ["train", "train.lr", "trains.0", "trains.0.lr", "sizes.1", "weights.x", "pair.0", "child"])
def test_a_config_contains_an_existing_key(key):
    assert key in Everything(trains=[{}])


@pytest.mark.parametrize("key", ["lr", "train.lrr", "trains.1", "sizes.2", "sizes.x", "weights.y", "child.whole", "", ".", "a..b", 3, None])
def test_a_config_does_not_contain_an_unknown_key(key):
    assert key not in Everything(trains=[{}])


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("lr", "lr: Everything has no such field; it has "),
        ("trian", "trian: Everything has no such field; did you mean `train`"),
        ("train.epoch", "train.epoch: Train has no such field; did you mean `epochs`?"),
        ("trains.0.epoch", "trains.0.epoch: Train has no such field; did you mean `epochs`?"),
        ("named.a.epoch", "named.a.epoch: Train has no such field; did you mean `epochs`?"),
        ("sizes.7", "sizes.7: `7` does not exist"),
        ("weights.momentun", "weights.momentun: `momentun` does not exist; did you mean `momentum`?"),
        ("whole.x", "whole.x: `x` does not exist"),
    ],
)
def test_the_error_for_an_unknown_key_has_the_whole_key(key, told):
    config = Everything(trains=[{}], named={"a": {}}, weights={"momentum": 0.9})
    with pytest.raises(UnknownKeyError) as caught:
        config[key]
    [problem] = problems_of(caught)
    assert problem.startswith(told)


def test_a_value_is_set_by_dotted_item():
    config = Everything(trains=[{}, {}], named={"a": {}}, child={"child": {}}, anything={"deep": {"er": 1}})
    config["train.lr"] = "3"
    config["trains.1.lr"] = "4"
    config["named.a.lr"] = 5
    config["sizes.0"] = "6"
    config["weights.x"] = 7
    config["child.child.whole"] = "8"
    config["anything.deep.er"] = 9
    assert (config.train.lr, config.trains[1].lr, config.trains[0].lr, config.named["a"].lr) == (3.0, 4.0, 0.1, 5.0)
    assert (config.sizes, config.weights, config.child.child.whole, config.anything) == ([6, 2], {"x": 7.0}, 8, {"deep": {"er": 9}})


def test_an_element_of_a_tuple_is_set_by_dotted_item():
    config = Everything(anything=None)
    config["pair.0"] = "5"
    assert config.pair == (5, "a")


def test_a_config_in_a_list_keeps_its_subclass_when_one_of_its_values_is_set():
    config = Everything(trains=[WarmTrain()])
    config["trains.0.warmup"] = 9
    assert config.trains == [WarmTrain(warmup=9)]


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("train.lr", "x", "lr = 'x': expected a number"),
        ("trains.0.lr", "x", "trains.0.lr = 'x': expected a number"),
        ("sizes.0", "x", "sizes.0 = 'x': expected a whole number"),
        ("weights.x", "y", "weights.x = 'y': expected a number"),
        ("sizes.5", 1, "sizes.5: `sizes` is a list of 2; expected an index below that"),
        ("train.epoch", 1, "train.epoch: Train has no such field; did you mean `epochs`?"),
        ("whole.x", 1, "whole.x: `whole` is 1, not a group"),
    ],
)
def test_a_value_that_does_not_fit_is_not_set_by_dotted_item(key, value, told):
    config = Everything(trains=[{}])
    before = config.clone()
    with pytest.raises(ConfigError) as caught:
        config[key] = value
    [problem] = problems_of(caught)
    assert problem.endswith(told)
    assert config == before


def test_a_value_that_does_not_fit_a_nested_field_is_reported_with_the_whole_key():
    with pytest.raises(ConfigError) as caught:
        Run(train={})["train.lr"] = "x"
    assert problems_of(caught) == ["train.lr = 'x': expected a number"]


def test_a_new_key_of_a_dict_can_be_set_by_item_and_is_checked():
    config = Everything()
    config["weights.new"] = 1
    assert config.weights["new"] == 1.0
    with pytest.raises(ConfigError) as caught:
        config["weights.other"] = "x"
    assert problems_of(caught) == ["weights.other = 'x': expected a number"]


def test_deleting_a_field_is_refused():
    config = Train()
    with pytest.raises(ConfigError) as caught:
        del config.lr
    assert problems_of(caught) == ["lr: a field cannot be deleted"]
    with pytest.raises(ConfigError) as caught:
        del config["lr"]
    assert problems_of(caught) == ["lr: a field cannot be deleted"]
    assert config == Train()


def test_a_config_has_no_hash_because_it_can_change():
    with pytest.raises(TypeError, match="unhashable type: 'Train'"):
        hash(Train())


def test_the_repr_is_the_call_that_creates_the_config():
    config = Run(train=Train(lr=2))
    assert repr(config) == "Run(train=Train(batch_size=4, lr=2.0, epochs=10), save_dir='runs', num_classes=None, seed=0)"
    assert eval(repr(config)) == config


# rules between fields


@configclass
class Window(ConfigBase):
    low: int = 1
    high: int = 2

    def problems(self):
        if self.low > self.high:
            yield "low", "expected at most `high`"
            yield "", "the window is empty"


@configclass
class Windows(ConfigBase):
    first: Window = Window()
    others: list[Window] = [Window()]

    def problems(self):
        if self.others and self.first.low > self.others[0].low:
            yield "others.0.low", "expected at least `first.low`"


def test_rules_run_on_construction():
    assert refused(Window, low=3) == ["low = 3: expected at most `high`", "the window is empty"]
    assert refused(Windows, first={"low": 2}) == ["others.0.low = 1: expected at least `first.low`"]


def test_rules_of_nested_configs_are_reported_with_the_whole_key():
    assert refused(Windows, first={"low": 3}, others=[{}, {"low": 4}]) == [
        "first.low = 3: expected at most `high`",
        "first: the window is empty",
        "others.1.low = 4: expected at most `high`",
        "others.1: the window is empty",
    ]


def test_rules_do_not_run_on_assignment():
    window = Window()
    window.low = 5
    window.high = 6
    window.check()


@pytest.mark.parametrize("method", ["freeze", "check"])
def test_freeze_and_check_report_broken_rules_of_nested_configs_at_once(method):
    windows = Windows()
    windows.first.low = 5
    windows.others[0].low = 6
    with pytest.raises(ConfigError) as caught:
        getattr(windows, method)()
    assert problems_of(caught) == [
        "first.low = 5: expected at most `high`",
        "first: the window is empty",
        "others.0.low = 6: expected at most `high`",
        "others.0: the window is empty",
    ]


def test_a_config_that_could_not_be_frozen_is_not_frozen_at_all():
    windows = Windows(first={"low": 1}, others=[{}, {}])
    windows.others[1].low = 6
    with pytest.raises(ConfigError):
        windows.freeze()
    windows.first.high = 7
    windows.others[0].high = 7
    windows.others.append(Window())
    windows.others[1].low = 1
    windows.freeze()


def test_rules_run_on_load_and_override(tmp_path):
    (tmp_path / "w.yaml").write_text("high: 2\nlow: 3\n")
    with pytest.raises(ConfigError, match=r"low = 3: expected at most `high`  \[.*w\.yaml:2:1\]"):
        Window.load(tmp_path / "w.yaml")
    with pytest.raises(ConfigError, match=r"low = 3: expected at most `high`  \[low=3\]"):
        Window().override("low=3")


def test_check_finds_a_wrong_value_that_was_appended_to_a_list():
    config = Everything()
    config.sizes.append("many")
    with pytest.raises(ConfigError) as caught:
        config.check()
    assert problems_of(caught) == ["sizes.2 = 'many': expected a whole number"]


def test_freeze_converts_a_value_that_was_appended_to_a_list():
    config = Everything()
    config.sizes.append("3")
    assert config.freeze().sizes == [1, 2, 3]


# A10: by dotted path


def test_the_value_and_the_type_at_a_dotted_path():
    """Covers contract A10."""
    config = Everything(trains=[{}], train=WarmTrain())
    assert config.get_val_with_dot_path("train.lr") == 0.1
    assert config.get_type_with_dot_path("train.lr") is float
    assert config.get_type_with_dot_path("train") is WarmTrain
    assert config.get_val_with_dot_path("trains.0.lr") == 0.1
    assert config.get_type_with_dot_path("sizes.0") is int
    assert config.get_type_with_dot_path("maybe") is type(None)


def test_the_annotation_at_a_dotted_path_is_without_its_state():
    """Covers contract A10."""
    config = Run(train=WarmTrain())
    assert config.get_annot_type_with_dot_path("train") is Train
    assert config.get_annot_type_with_dot_path("train.warmup") is int
    assert config.get_annot_type_with_dot_path("train.epochs") is int
    assert config.get_annot_type_with_dot_path("num_classes") is int
    assert Everything().get_annot_type_with_dot_path("maybe") == int | None


def test_the_annotation_inside_a_config_in_a_list_is_found():
    """Covers contract A10."""
    assert Everything(trains=[{}]).get_annot_type_with_dot_path("trains.0.lr") is float


def test_an_element_of_a_list_has_no_annotation():
    """Covers contract A10."""
    with pytest.raises(ConfigError) as caught:
        Everything().get_annot_type_with_dot_path("sizes.0")
    assert problems_of(caught) == ["sizes.0: is inside the value of a field, so it has no annotation"]


@pytest.mark.parametrize("method", ["get_val_with_dot_path", "get_type_with_dot_path", "get_annot_type_with_dot_path"])
def test_an_unknown_dotted_path_is_an_unknown_key_error(method):
    """Covers contract A10."""
    with pytest.raises(UnknownKeyError) as caught:
        getattr(Run(train={}), method)("train.epoch")
    assert problems_of(caught) == ["train.epoch: Train has no such field; did you mean `epochs`?"]


# A11: frozen configs

WRITES = {
    "attribute": lambda c: setattr(c, "whole", 3),
    "same value": lambda c: setattr(c, "whole", 1),
    "unknown attribute": lambda c: setattr(c, "nothing", 3),
    "item": lambda c: c.__setitem__("whole", 3),
    "nested attribute": lambda c: setattr(c.train, "lr", 3),
    "nested item": lambda c: c.__setitem__("train.lr", 3),
    "config in list": lambda c: setattr(c.trains[0], "lr", 3),
    "config in list by item": lambda c: c.__setitem__("trains.0.lr", 3),
    "config in dict": lambda c: setattr(c.named["a"], "lr", 3),
    "config in config": lambda c: setattr(c.child.train, "lr", 3),
    "element by dotted item": lambda c: c.__setitem__("sizes.0", 3),
    "append": lambda c: c.sizes.append(3),
    "extend": lambda c: c.sizes.extend([3]),
    "insert": lambda c: c.sizes.insert(0, 3),
    "pop": lambda c: c.sizes.pop(),
    "remove": lambda c: c.sizes.remove(1),
    "clear": lambda c: c.sizes.clear(),
    "sort": lambda c: c.sizes.sort(),
    "reverse": lambda c: c.sizes.reverse(),
    "element": lambda c: c.sizes.__setitem__(0, 3),
    "slice": lambda c: c.sizes.__setitem__(slice(None), [3]),
    "delete element": lambda c: c.sizes.__delitem__(0),
    "+=": lambda c: c.sizes.__iadd__([3]),
    "*=": lambda c: c.sizes.__imul__(2),
    "dict item": lambda c: c.weights.__setitem__("x", 3),
    "dict update": lambda c: c.weights.update(y=3),
    "dict |=": lambda c: c.weights.__ior__({"y": 3}),
    "dict pop": lambda c: c.weights.pop("x"),
    "dict popitem": lambda c: c.weights.popitem(),
    "dict setdefault": lambda c: c.weights.setdefault("y", 3),
    "dict clear": lambda c: c.weights.clear(),
    "dict delete": lambda c: c.weights.__delitem__("x"),
    "deep in anything": lambda c: c.anything["a"][1]["b"].append(3),
}


def frozen():
    return Everything(trains=[{}], named={"a": {}}, child={}, anything={"a": [1, {"b": [2]}]}).freeze()


@pytest.mark.parametrize("write", WRITES)
def test_a_frozen_config_refuses_changes(write):
    """Contract A11: nested values cannot be changed either."""
    config = frozen()
    with pytest.raises(FrozenConfigError):
        WRITES[write](config)
    assert config == frozen()


@pytest.mark.parametrize("kind", [AttributeError, TypeError, ValueError])
def test_the_error_for_a_change_to_a_frozen_config_is_also_a_builtin_error(kind):
    """Covers contract A11."""
    with pytest.raises(kind):
        frozen().whole = 3


def test_the_error_for_a_change_to_a_frozen_config_says_what_to_do():
    """Covers contract A11."""
    with pytest.raises(FrozenConfigError) as caught:
        frozen().train.lr = 3
    assert str(caught.value) == "`Train` is frozen, `lr` cannot be set\n  try     change a `clone()` of it, or use `override(...)`"
    with pytest.raises(FrozenConfigError) as caught:
        frozen().sizes.append(3)
    assert str(caught.value) == "a list or dict in a frozen config cannot be changed\n  try     change a `clone()` of the config"


def test_freeze_returns_the_config_and_can_be_repeated():
    """Covers contract A11."""
    config = Train()
    assert config.freeze() is config
    assert config.freeze() is config


def test_a_clone_of_a_frozen_config_can_be_changed_at_every_level():
    """Covers contract A11."""
    config = frozen().clone()
    assert config == frozen()
    for write in ("attribute", "nested item", "config in list", "config in dict", "append", "dict update", "deep in anything"):
        WRITES[write](config)
    assert type(config.sizes) is list
    assert type(config.weights) is dict


def test_an_override_of_a_frozen_config_can_be_changed():
    """Covers contract A11."""
    config = frozen()
    other = config.override("whole=5")
    other.whole = 6
    assert (config.whole, other.whole) == (1, 6)


def test_a_frozen_config_inside_another_config_becomes_a_copy_that_can_be_changed():
    """Covers contract A11."""
    config = Run(train=Train().freeze())
    config.train.lr = 3
    assert config.train.lr == 3


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_copies_of_a_frozen_config_are_equal_and_frozen(duplicate):
    """Covers contract A11."""
    other = duplicate(frozen())
    assert other == frozen()
    for write in ("attribute", "nested attribute", "append", "dict update", "deep in anything"):
        with pytest.raises(FrozenConfigError):
            WRITES[write](other)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c)), lambda c: c.clone()])
def test_changing_a_copy_does_not_change_the_original(duplicate):
    config = Train()
    other = duplicate(config)
    other.lr = 5
    assert (config.lr, other.lr) == (0.1, 5.0)
    assert "set in code" not in config.describe()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c)), lambda c: c.clone()])
def test_a_deep_copy_shares_nothing(duplicate):
    config = frozen().clone()
    other = duplicate(config)
    for write in ("nested attribute", "config in list", "config in dict", "append", "dict update", "deep in anything"):
        WRITES[write](other)
    assert config == frozen()


def test_a_frozen_config_can_be_diffed_written_loaded_and_hashed_to_its_key(tmp_path):
    """Covers contract A11."""
    config = frozen()
    config.write(tmp_path / "run.yaml")
    config.write(tmp_path / "run.json")
    assert Everything.load(tmp_path / "run.yaml") == Everything.load(tmp_path / "run.json") == config
    assert config.diff(config.clone()) == []
    assert config.uid == config.clone().uid
    assert config.to_yaml() == config.clone().to_yaml()
    assert Everything(**config.to_dict()) == config
    config.check()


def test_lists_and_dicts_of_a_frozen_config_can_be_read_like_any_others():
    """Covers contract A11."""
    config = frozen()
    assert isinstance(config.sizes, list)
    assert isinstance(config.weights, dict)
    assert config.sizes.__add__([3]) == [1, 2, 3]
    assert config.weights | {"y": 1.0} == {"x": 0.5, "y": 1.0}
    assert torch.tensor(config.sizes).tolist() == [1, 2]
    free = config.sizes.copy()
    free.append(3)
    assert config.sizes == [1, 2]
