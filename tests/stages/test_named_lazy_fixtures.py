"""Lazy fixtures can have names that depend on the object, and can be valid after the body of their own stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trainmaster.errors import FixtureExistsError, FixtureScopeError, HookSignatureError
from trainmaster.stages import BODY, ENTRY, Extensible, Extension, Stage, StageTree, always, fixture


class Shop(Extensible):
    tree = StageTree(Stage("day", fixtures={"takings": ENTRY, "weekday": ENTRY}, stages=(Stage("sale", fixtures={"price": ENTRY}),)))

    def __init__(self, *extensions: object) -> None:
        self.extensions = [(f"ext{number}", each) for number, each in enumerate(extensions)]

    def open(self, *prices: int) -> None:
        with self.staged("day", {"takings": [], "weekday": 1}):
            for price in prices:
                with self.staged("sale", {"price": price}):
                    self.fixtures["takings"].append(price)


class Sums(Extension):
    """Provides a fixture for each of its names: the sum of `takings`, multiplied by a factor."""

    def __init__(self, **factors: int) -> None:
        self.factors = factors
        self.computed: list[str] = []

    def named_fixtures(self) -> Mapping[str, Callable[..., Any]]:
        return {name: self._sum(name, factor) for name, factor in self.factors.items()}

    def _sum(self, name: str, factor: int) -> Callable[..., int]:
        @fixture("day", after=BODY)
        def value(takings: list[int]) -> int:
            self.computed.append(name)
            return factor * sum(takings)

        return value


class Asks:
    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def post_day(self, once: int, twice: int) -> None:
        self.seen.append((once, twice))


def test_each_object_names_its_own_fixtures() -> None:
    asks = Asks()
    Shop(Sums(once=1), Sums(twice=2), asks).open(1, 2)
    assert asks.seen == [(3, 6)]


@pytest.mark.parametrize("is_producer_first", [True, False])
def test_they_are_computed_once_per_stage_in_any_order(is_producer_first: bool) -> None:
    sums, asks, also = Sums(once=1, twice=2, never=3), Asks(), Asks()
    shop = Shop(sums, asks, also) if is_producer_first else Shop(asks, also, sums)
    shop.open(1, 2)
    shop.open(10)
    assert asks.seen == also.seen == [(3, 6), (10, 20)]
    assert sums.computed == ["once", "twice"] * 2


def test_a_name_of_the_tree_is_refused() -> None:
    with pytest.raises(FixtureExistsError, match=r"lazy fixture `Sums.weekday` has the name of a fixture that already exists in `day`"):
        Shop(Sums(weekday=1)).open(1)


def test_two_objects_cannot_have_the_same_name() -> None:
    with pytest.raises(FixtureExistsError, match="two lazy fixtures in stage `day` are named `once`"):
        Shop(Sums(once=1), Sums(once=2)).open(1)


@pytest.mark.parametrize("name", ["not a name", "2nd", "class", ""])
def test_a_name_that_cannot_be_a_parameter_is_refused_when_attached(name: str) -> None:
    with pytest.raises(
        HookSignatureError, match=rf"`Sums.named_fixtures` names a fixture '{name}', which cannot be the name of a parameter"
    ):
        Shop(Sums(**{name: 1}))


def test_a_function_without_a_mark_is_refused_when_attached() -> None:
    class Unmarked(Extension):
        def named_fixtures(self) -> Mapping[str, Callable[..., Any]]:
            return {"once": lambda takings: sum(takings)}

    with pytest.raises(HookSignatureError, match=r"`Unmarked.named_fixtures` returns a function for `once` that is not marked"):
        Shop(Unmarked())


@pytest.mark.parametrize("returned", [None, ["once"], "once"])
def test_named_fixtures_that_are_not_a_mapping_are_refused_when_attached(returned: Any) -> None:
    class Wrong(Extension):
        def named_fixtures(self) -> Mapping[str, Callable[..., Any]]:
            return returned  # type: ignore[no-any-return]

    with pytest.raises(HookSignatureError, match=r"`Wrong.named_fixtures` returns (None|\['once'\]|'once')\n"):
        Shop(Wrong())


def test_they_are_on_the_stage_map() -> None:
    assert "lazy      once   ext0, after body" in Shop(Sums(once=1)).describe()


# after its body


@pytest.mark.parametrize("hook", ["pre_day", "around_day", "pre_sale", "post_sale"])
def test_asking_before_the_body_has_run_is_refused_at_the_start(hook: str) -> None:
    def ask(self: object, once: int) -> Any:
        yield

    def ask_plainly(self: object, once: int) -> None: ...

    asks = type("Early", (), {hook: ask if hook.startswith("around") else ask_plainly})()
    with pytest.raises(FixtureScopeError) as caught:
        Shop(Sums(once=1), asks).open(1)
    assert str(caught.value).startswith(f"`Early.{hook}` asks for `once`, which does not exist at that point")
    assert "  why     `once` is valid in `day` after its body" in str(caught.value)


def test_reading_before_the_body_has_ended_is_refused() -> None:
    shop = Shop(sums := Sums(once=1))
    with shop.staged("day", {"takings": [5]}):
        with shop.staged("sale", {"price": 5}):
            pass
        assert "once" not in shop.fixtures
        with pytest.raises(FixtureScopeError, match="`once` is not valid here"):
            shop.fixtures["once"]
    assert sums.computed == []


def test_it_is_not_valid_if_the_body_failed() -> None:
    seen: list[Any] = []

    class AsksAlways:
        @always
        def post_day(self, once: Any = "missing") -> None:
            seen.append(once)

    shop = Shop(Sums(once=1), AsksAlways())
    with pytest.raises(ZeroDivisionError), shop.staged("day", {"takings": []}):
        raise ZeroDivisionError
    shop.open(4)
    assert seen == ["missing", 4]


def test_it_is_not_valid_yet_when_the_stage_opens_again() -> None:
    shop = Shop(Sums(once=1))
    shop.open(1)
    with shop.staged("day", {"takings": []}):
        assert "once" not in shop.fixtures


def test_a_stage_opened_in_its_own_post_hook_has_not_run_its_body() -> None:
    class Reopens:
        def __init__(self) -> None:
            self.seen: list[bool] = []

        def post_day(self, fixtures: Any, once: int) -> None:
            if not self.seen:
                with shop.staged("day"):
                    self.seen.append("twice" in fixtures)

    shop = Shop(Sums(once=1, twice=2), reopens := Reopens())
    shop.open(1)
    assert reopens.seen == [False]
