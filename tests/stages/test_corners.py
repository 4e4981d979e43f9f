"""Regression tests for corner cases of the engine."""

from __future__ import annotations

import pickle

import pytest

from trainmaster.errors import FixtureExistsError, FixtureNotFoundError, HookSignatureError, UnknownStageError
from trainmaster.stages import BODY, Extensible, Stage, StageTree, always, fixture


class Host(Extensible):
    def __init__(self, *extensions: object) -> None:
        self.extensions = list(extensions)


class Counter:
    num_calls = 0

    def pre_s(self) -> None:
        self.num_calls += 1


def test_setting_no_extensions_detaches_all() -> None:
    counter = Counter()
    host = Host(counter)
    with host.staged("s"):
        pass
    host.extensions = []
    with host.staged("s"):
        pass
    assert counter.num_calls == 1


def test_a_stage_that_was_never_exited_closes_with_its_outer_stage() -> None:
    """Covers contract E18."""
    host = Host()
    with host.staged("a"):
        host.staged("b", {"x": 1}).__enter__()
    assert "x" not in host.fixtures
    with host.staged("b", {"x": 2}):
        assert host.fixtures["x"] == 2


def test_the_warning_about_unmatched_hooks_does_not_hide_an_error() -> None:
    with pytest.raises(ValueError, match="real"), Host(Counter()).staged("t"):
        raise ValueError("real")


def test_an_inner_stage_does_not_remove_an_outer_fixture_with_the_same_name() -> None:
    """Covers contract E18."""

    class Nested(Extensible):
        tree = StageTree(Stage("a", fixtures={"x": BODY}, stages=(Stage("b", fixtures={"x": BODY}),)))

    host = Nested()
    with host.staged("a"):
        host.fixtures["x"] = 1
        with host.staged("b"):
            pass
        assert host.fixtures["x"] == 1
        with host.staged("a"):
            pass
        assert host.fixtures["x"] == 1


@pytest.mark.parametrize("how", ["fixtures", "defaults"])
def test_the_names_of_the_error_fixtures_are_reserved_for_post_hooks(how: str) -> None:
    """Covers contract E6."""
    host = Host()
    with pytest.raises(FixtureExistsError, match="`exc_value` is reserved for post hooks"), host.staged("s", **{how: {"exc_value": 5}}):
        pass
    with host.staged("s"):
        pass


def test_an_async_generator_is_refused_as_a_hook() -> None:
    class Async:
        async def around_s(self):
            yield

    with pytest.raises(HookSignatureError, match=r"`Async\.around_s` is a coroutine"):
        Host(Async())


def test_a_lazy_fixture_that_yields_is_refused() -> None:
    class Yields:
        @fixture("s")
        def value(self):
            yield 1

    with pytest.raises(HookSignatureError, match=r"`Yields\.value` is a generator(.|\n)*return the value"):
        Host(Yields())


def test_an_error_keeps_its_notes_through_pickle() -> None:
    error = FixtureExistsError("fact", hint="advice")
    error.add_note("in stage a")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["in stage a"]


def test_the_first_error_gets_one_note_even_if_another_follows() -> None:
    class Fails:
        @always
        def post_i(self) -> None:
            raise KeyError("later")

    host = Host(Fails())
    with pytest.raises(ValueError, match="first") as caught, host.staged("o"), host.staged("i"):
        raise ValueError("first")
    assert [note.split("`")[0] for note in caught.value.__notes__] == ["in stage o > i", "then "]


def test_raising_the_current_error_again_is_not_a_second_error() -> None:
    class Again:
        @always
        def post_s(self, exc_value: BaseException) -> None:
            raise exc_value

    class Swallow:
        @always
        def post_s(self) -> bool:
            return True

    with Host(Again(), Swallow()).staged("s"):
        raise ValueError


def test_an_error_before_the_body_cannot_be_swallowed() -> None:
    class Swallow:
        @always
        def post_s(self) -> bool:
            return True

    class Fails:
        was_called = False

        def pre_s(self) -> None:
            raise ValueError("before")

        def post_s(self) -> None:
            self.was_called = True

    fails = Fails()
    with pytest.raises(ValueError, match="before"), Host(Swallow(), fails).staged("s"):
        pass
    assert not fails.was_called


def test_get_does_not_hide_an_error_in_a_lazy_fixture() -> None:
    class Broken:
        @fixture("s")
        def value(self) -> int:
            return {}["nothing"]

    host = Host(Broken())
    with host.staged("s"), pytest.raises(KeyError, match="nothing"):
        host.fixtures.get("value")


def test_fixtures_is_itself_a_fixture() -> None:
    """Covers contract E21."""

    class Creates:
        def pre_s(self, fixtures) -> None:
            fixtures["x"] = 1

    host = Host(Creates())
    with host.staged("s"):
        assert host.fixtures["x"] == 1


def test_an_override_may_have_any_name() -> None:
    """Covers contract E20."""
    assert Host().fixtures(lambda function: function, function=3) == 3


def test_a_routine_called_from_within_a_stage_can_have_fixtures_of_the_same_names() -> None:
    host = Host()
    with host.staged("run", {"kept": 1}), host.staged("batch", {"x": 1}), host.staged("batch", {"y": 2}):
        with host._scope.set_aside("run"), host.staged("batch", {"x": 3}):
            assert dict(host.fixtures) == {"kept": 1, "x": 3}
        assert dict(host.fixtures) == {"kept": 1, "x": 1, "y": 2}
    with pytest.raises(FixtureNotFoundError):
        host.fixtures["x"]


def test_a_tree_with_a_fixture_created_in_an_unknown_stage_is_refused() -> None:
    with pytest.raises(UnknownStageError, match=r"`bread` of stage `day` is declared as created in `bkae`(.|\n)*did you mean `bake`"):
        StageTree(Stage("day", fixtures={"bread": "bkae"}, stages=(Stage("bake"),)))
