"""Typed configs work with `from __future__ import annotations`, which turns annotations into strings (contract A2)."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Optional, Self

import pytest
from annotated_types import Gt

from trainmaster.config import ConfigBase, Derived, Replicate, Stateless, configclass, field
from trainmaster.errors import ConfigClassError, ConfigError

if TYPE_CHECKING:
    from decimal import Decimal


@configclass
class Net(ConfigBase):
    width: int
    depth: Stateless[int] = 2
    kind: ClassVar[str] = "mlp"
    bare: ClassVar = 1
    rate: Annotated[float, Gt(0)] = 0.1
    mode: Literal["a", "b"] = "a"
    path: Path = Path("x")
    extra: dict[str, Any] = {}
    size: Derived[int] = field(default=None)
    seed: Replicate[int] = 0
    next: Optional[Self] = None  # noqa: UP045
    later: list[Later] = []


@configclass
class Later(ConfigBase):
    net: Net | None = None


def test_every_part_of_the_grammar_can_be_postponed():
    net = Net(width="3", rate="0.5", mode="b", path="y", extra={"a": 1}, next={"width": 4}, later=[{"net": {"width": 5}}])
    assert net.to_dict(ignore_stateless=True) == {
        "width": 3,
        "rate": 0.5,
        "mode": "b",
        "path": "y",
        "extra": {"a": 1},
        "seed": 0,
        "next": {"width": 4, "rate": 0.1, "mode": "a", "path": "x", "extra": {}, "seed": 0, "next": None, "later": []},
        "later": [{"net": {"width": 5, "rate": 0.1, "mode": "a", "path": "x", "extra": {}, "seed": 0, "next": None, "later": []}}],
    }
    assert (type(net.next), type(net["later.0.net"])) == (Net, Net)


def test_postponed_fields_are_checked():
    with pytest.raises(ConfigError) as caught:
        Net(width=1.5, rate=0, later=[{"net": {"width": "x"}}])
    assert [str(each) for each in caught.value.problems] == [
        "width = 1.5: expected a whole number; the fraction would be lost",
        "rate = 0: expected a value greater than 0",
        "later.0.net.width = 'x': expected a whole number",
    ]


def test_postponed_class_variables_are_not_fields():
    assert "kind" not in Net(width=1).keys()  # noqa: SIM118 - this tests the field names, not key lookup
    assert (Net.kind, Net.bare) == ("mlp", 1)


def test_names_local_to_a_function_are_found():
    class Mode(Enum):
        FAST = "fast"

    @configclass
    class Inner(ConfigBase):
        mode: Mode = "fast"

    @configclass
    class Outer(ConfigBase):
        inner: Inner
        inners: list[Inner] = []
        mode: Mode | None = None

    outer = Outer(inner={}, inners=[{"mode": "fast"}])
    assert outer.inner.mode is outer.inners[0].mode is Mode.FAST


def test_names_of_enclosing_functions_are_found():
    @configclass
    class Inner(ConfigBase):
        x: int = 1

    def build():
        @configclass
        class Outer(ConfigBase):
            inner: Inner = {}

        return Outer, Inner  # unless `build` uses `Inner`, Python does not keep the name for it

    assert build()[0]().inner == Inner()


def test_local_classes_that_refer_to_each_other_work():
    @configclass
    class Hen(ConfigBase):
        name: str = "hen"
        eggs: list[Egg] = []

    @configclass
    class Egg(ConfigBase):
        hen: Hen | None = None
        other: Egg | None = None

    hen = Hen(eggs=[{"hen": {"eggs": [{}]}}, {"other": {}}])
    assert hen["eggs.0.hen.eggs.0"] == Egg()
    assert hen.eggs[1].other == Egg()


def test_local_classes_that_refer_to_each_other_work_outside_their_function():
    def build():
        @configclass
        class Hen(ConfigBase):
            eggs: list[Egg] = []

        @configclass
        class Egg(ConfigBase):
            hen: Hen | None = None

        return Hen

    assert build()(eggs=[{"hen": {}}]).to_dict() == {"eggs": [{"hen": {"eggs": []}}]}


def test_a_subclass_defined_elsewhere_does_not_need_the_local_names_of_its_parent():
    def build():
        @configclass
        class Part(ConfigBase):
            x: int = 1

        @configclass
        class Whole(ConfigBase):
            part: Part = {}

        return Whole

    Whole = build()

    @configclass
    class More(Whole):
        y: int = 2

    assert More(part={"x": 3}).to_dict() == {"part": {"x": 3}, "y": 2}


def test_self_is_the_class_it_is_in():
    @configclass
    class Node(ConfigBase):
        value: int = 0
        left: Self | None = None
        others: dict[str, Self] = {}

    node = Node(left={"left": {"value": 2}}, others={"a": {"value": 3}})
    assert (type(node.left.left), node.left.left.value, node.others["a"].value) == (Node, 2, 3)


def test_a_field_may_be_named_like_the_class_of_another():
    @configclass
    class Optimizer(ConfigBase):
        lr: float = 0.1

    @configclass
    class Run(ConfigBase):
        Optimizer: Optimizer = {}
        second: Optimizer = {}

    assert Run().second.lr == 0.1


@pytest.mark.parametrize("use", ["construct", "keys", "load"])
def test_a_name_that_is_never_defined_is_an_error_at_first_use(use, tmp_path):
    @configclass
    class Wrong(ConfigBase):
        x: Nowhere = None  # noqa: F821

    (tmp_path / "x.yaml").write_text("x: 1\n")
    with pytest.raises(ConfigClassError) as caught:
        Wrong.load(tmp_path / "x.yaml") if use == "load" else Wrong() if use == "construct" else Wrong._schema()
    assert str(caught.value) == "a problem in the config class Wrong\n  wrong   an annotation names `Nowhere`, which is not defined"


def test_the_error_names_a_class_that_is_imported_only_for_type_checkers():
    @configclass
    class Wrong(ConfigBase):
        x: Decimal

    with pytest.raises(ConfigClassError, match="an annotation names `Decimal`, which is not defined"):
        Wrong(x=1)


@pytest.mark.parametrize(
    ("annotation", "told"),
    [
        ("set[int]", "set[int] is not a type that a config can have"),
        ("Optional[Stateless[int]]", "`Stateless[...]` must wrap the whole annotation, not a part of it"),
        ("Derived[Stateless[int]]", "`Stateless` and `Derived` at once; an attribute has one state"),
        ("dict[int, str]", "dict[int, str] is not a dict[str, ...]; the keys of a config are text"),
    ],
)
def test_a_misused_postponed_annotation_is_an_error_when_the_class_is_defined(annotation, told):
    with pytest.raises(ConfigClassError) as caught:
        configclass(type("Wrong", (ConfigBase,), {"__annotations__": {"x": annotation}, "__module__": __name__}))
    assert [str(each) for each in caught.value.problems] == [f"x: {told}"]


@pytest.mark.parametrize("annotation", ["list[", "1 +", "int int"])
def test_a_postponed_annotation_with_a_syntax_error_is_a_config_error(annotation):
    with pytest.raises(ConfigClassError, match="x"):
        configclass(type("Wrong", (ConfigBase,), {"__annotations__": {"x": annotation}, "__module__": __name__}))


@pytest.mark.parametrize("annotation", ["Path.nowhere", "list[int, str, 3]()", "int[str]"])
def test_a_postponed_annotation_that_fails_is_a_config_error(annotation):
    with pytest.raises(ConfigClassError, match="x"):
        configclass(type("Wrong", (ConfigBase,), {"__annotations__": {"x": annotation}, "__module__": __name__}))


def test_a_class_does_not_keep_the_function_alive_that_defined_it():
    import gc
    import weakref

    class Data:
        pass

    def build():
        data = Data()

        @configclass
        class Run(ConfigBase):
            x: int = 1

        return Run, weakref.ref(data)

    Run, data = build()
    gc.collect()
    assert Run().x == 1
    assert data() is None
