"""The engine satisfies contracts E1 to E21 of Train Manager. Each test names the contract that it covers."""

import logging

import pytest

from trainmaster.errors import (
    FixtureError,
    FixtureExistsError,
    FixtureNotFoundError,
    FixtureScopeError,
    HookSignatureError,
    UnknownHookError,
)
from trainmaster.stages import BODY, ENTRY, Extensible, Extension, Stage, StageTree, always


class Host(Extensible):
    def __init__(self, *extensions):
        self.extensions = [(f"ext{number}", each) for number, each in enumerate(extensions)]


class Teller:
    """Logs each call to its hooks for stage `s`."""

    def __init__(self, name, log):
        self.label, self.log = name, log

    def pre_s(self):
        self.log.append(f"{self.label}.pre")

    def post_s(self):
        self.log.append(f"{self.label}.post")


class AlwaysTeller(Teller):
    @always
    def post_s(self):
        self.log.append(f"{self.label}.post")


class Failing:
    """Raises an error in one of its hooks for stage `s`."""

    def __init__(self, phase, error):
        setattr(self, f"{phase}_s", self.fail)
        self.error = error

    def fail(self):
        raise self.error


# Stages and hooks


def test_hooks_run_before_and_after_the_body():
    """Covers contract E1."""
    log = []
    host = Host(Teller("a", log))
    with host.staged("s"):
        log.append("body")
    assert log == ["a.pre", "body", "a.post"]


def test_hook_parameters_are_filled_by_name():
    """Covers contract E1."""

    class Sees:
        def pre_s(self, second, first):
            self.seen = (first, second)

    sees = Sees()
    with Host(sees).staged("s", {"first": 1, "second": 2}):
        pass
    assert sees.seen == (1, 2)


def test_keyword_only_parameters_are_filled_by_name():
    """Covers contract E1."""

    class Sees:
        def pre_s(self, first, *, second):
            self.seen = (first, second)

    sees = Sees()
    with Host(sees).staged("s", {"first": 1, "second": 2}):
        pass
    assert sees.seen == (1, 2)


def test_a_hook_sees_the_fixtures_of_outer_stages():
    """Covers contract E1."""

    class Sees:
        def pre_inner(self, outermost):
            self.seen = outermost

    sees = Sees()
    host = Host(sees)
    with host.staged("outer", {"outermost": 7}), host.staged("inner"):
        pass
    assert sees.seen == 7


def test_pre_and_post_hooks_run_in_the_order_of_the_extensions():
    """Covers contract E2."""
    log = []
    host = Host(Teller("a", log), Teller("b", log), Teller("c", log))
    with host.staged("s"):
        log.append("body")
    assert log == ["a.pre", "b.pre", "c.pre", "body", "a.post", "b.post", "c.post"]


def test_an_extension_is_found_by_its_name():
    """Covers contract E3."""
    extension = Teller("a", [])
    host = Extensible()
    host.add_extension("teller", extension)
    assert host["teller"] is extension


def test_an_extension_does_not_have_to_inherit_from_a_base_class():
    """Contract E3: the base class has no hooks, and any object works as an extension."""

    class Inherits(Extension):
        def pre_s(self):
            self.was_called = True

    class Stranger:
        def pre_s(self):
            self.was_called = True

    both = Inherits(), Stranger()
    with Host(*both).staged("s"):
        pass
    assert [each.was_called for each in both] == [True, True]


def test_a_hook_that_is_none_counts_as_absent():
    """Covers contract E3."""

    class Silent(Teller):
        post_s = None

    log = []
    with Host(Silent("a", log)).staged("s"):
        pass
    assert log == ["a.pre"]


def test_an_extension_added_between_two_entries_is_called():
    """Covers contract E3."""
    log = []
    host = Host(Teller("a", log))
    with host.staged("s"):
        pass
    host.add_extension("b", Teller("b", log))
    with host.staged("s"):
        pass
    assert log == ["a.pre", "a.post", "a.pre", "b.pre", "a.post", "b.post"]


def test_an_extension_removed_between_two_entries_is_not_called():
    """Covers contract E3."""
    log = []
    host = Host(Teller("a", log), Teller("b", log))
    with host.staged("s"):
        pass
    del host.extensions["ext0"]
    log.clear()
    with host.staged("s"):
        pass
    assert log == ["b.pre", "b.post"]


def test_a_replaced_method_is_called_after_refresh():
    """Contract E3 with one difference: hooks are looked up only when extensions change or after `refresh()`."""
    log = []
    teller = Teller("a", log)
    host = Host(teller)
    with host.staged("s"):
        pass
    teller.pre_s = lambda: log.append("new")
    host.refresh()
    log.clear()
    with host.staged("s"):
        pass
    assert log == ["new", "a.post"]


def test_a_replaced_method_is_not_called_before_refresh():
    """Contract E3 with one difference: hooks are looked up only when extensions change."""
    log = []
    teller = Teller("a", log)
    host = Host(teller)
    with host.staged("s"):
        pass
    teller.pre_s = lambda: log.append("new")
    log.clear()
    with host.staged("s"):
        pass
    assert log == ["a.pre", "a.post"]


def test_a_method_set_to_none_is_absent_after_refresh():
    """Covers contract E3."""
    log = []
    teller = Teller("a", log)
    host = Host(teller)
    with host.staged("s"):
        pass
    teller.pre_s = None
    host.refresh()
    log.clear()
    with host.staged("s"):
        pass
    assert log == ["a.post"]


def test_add_extension_moves_an_existing_name_to_the_end():
    """Covers contract E4."""
    host = Host(Teller("a", []), Teller("b", []))
    new = Teller("new", [])
    host.add_extension("ext0", new)
    assert list(host.extensions) == ["ext1", "ext0"]
    assert host["ext0"] is new


def test_add_extension_at_start_puts_it_first():
    """Covers contract E4."""
    host = Host(Teller("a", []), Teller("b", []))
    host.add_extension("first", Teller("f", []), at_start=True)
    assert list(host.extensions) == ["first", "ext0", "ext1"]


def test_add_extension_at_start_moves_an_existing_name_to_the_start():
    """Covers contract E4."""
    host = Host(Teller("a", []), Teller("b", []))
    host.add_extension("ext1", Teller("new", []), at_start=True)
    assert list(host.extensions) == ["ext1", "ext0"]


def test_add_extension_as_default_keeps_an_existing_extension():
    """Covers contract E4."""
    old = Teller("old", [])
    host = Host(old, Teller("b", []))
    host.add_extension("ext0", Teller("new", []), as_default=True)
    assert host["ext0"] is old
    assert list(host.extensions) == ["ext0", "ext1"]


def test_add_extension_as_default_adds_a_new_name():
    """Covers contract E4."""
    host = Host()
    new = Teller("new", [])
    host.add_extension("new", new, as_default=True)
    assert host["new"] is new


def test_after_an_error_in_the_body_only_always_hooks_run():
    """Covers contract E5."""
    log = []
    host = Host(Teller("a", log), AlwaysTeller("b", log), Teller("c", log), AlwaysTeller("d", log))
    with pytest.raises(ValueError, match="body"), host.staged("s"):
        log.clear()
        raise ValueError("body")
    assert log == ["b.post", "d.post"]


def test_after_an_error_in_a_pre_hook_only_always_hooks_run():
    """Covers contract E5."""
    log = []
    host = Host(AlwaysTeller("a", log), Failing("pre", ValueError("pre")), Teller("b", log))
    with pytest.raises(ValueError, match="pre"), host.staged("s"):
        log.append("body")
    assert log == ["a.pre", "a.post"]


def test_after_an_error_in_a_post_hook_only_later_always_hooks_run():
    """Covers contract E5."""
    log = []
    host = Host(AlwaysTeller("a", log), Failing("post", ValueError("post")), Teller("b", log), AlwaysTeller("c", log))
    with pytest.raises(ValueError, match="post"), host.staged("s"):
        log.clear()
    assert log == ["a.post", "c.post"]


def test_the_error_that_propagates_is_the_object_that_was_raised():
    """Covers contract E5."""
    error = ValueError("body")
    with pytest.raises(ValueError) as caught, Host().staged("s"):
        raise error
    assert caught.value is error


class ErrorReader:
    @always
    def post_s(self, exc_type, exc_value, traceback):
        self.seen = exc_type, exc_value, traceback


def test_post_hooks_see_no_error_on_success():
    """Covers contract E6."""
    reader = ErrorReader()
    with Host(reader).staged("s"):
        pass
    assert reader.seen == (None, None, None)


def test_always_hooks_see_the_error():
    """Covers contract E6."""
    reader = ErrorReader()
    error = ValueError("body")
    with pytest.raises(ValueError), Host(reader).staged("s"):
        raise error
    assert reader.seen[:2] == (ValueError, error)
    assert reader.seen[2].tb_frame.f_code.co_name == "test_always_hooks_see_the_error"


def test_an_always_hook_sees_the_error_in_an_earlier_post_hook():
    """Covers contract E6."""
    reader = ErrorReader()
    error = ValueError("post")
    with pytest.raises(ValueError), Host(Failing("post", error), reader).staged("s"):
        pass
    assert reader.seen[1] is error


@pytest.mark.parametrize("name", ["exc_type", "exc_value", "traceback"])
def test_the_error_fixtures_vanish_after_the_stage(name):
    """Covers contract E6."""
    host = Host(ErrorReader())
    with host.staged("outer"):
        with host.staged("s"):
            pass
        assert name not in host.fixtures


@pytest.mark.parametrize("name", ["exc_type", "exc_value", "traceback"])
def test_the_error_fixtures_vanish_after_a_failed_stage(name):
    """Covers contract E6."""
    host = Host(ErrorReader())
    with host.staged("outer"):
        with pytest.raises(ValueError), host.staged("s"):
            raise ValueError
        assert name not in host.fixtures


class Swallower:
    @always
    def post_s(self):
        return True


def test_a_true_return_value_swallows_the_error():
    """Covers contract E7."""
    with Host(Swallower()).staged("s"):
        raise ValueError("gone")


def test_a_swallowed_error_is_logged(caplog):
    """Covers contract E7."""
    with caplog.at_level(logging.WARNING, logger="trainmaster"), Host(Swallower()).staged("s"):
        raise ValueError("gone")
    assert [record.name for record in caplog.records] == ["trainmaster"]
    assert caplog.messages == ["`Swallower.post_s` swallowed ValueError: gone"]


def test_after_swallowing_later_post_hooks_run_as_if_nothing_failed():
    """Covers contract E7."""
    log = []
    reader = ErrorReader()
    with Host(Teller("a", log), Swallower(), Teller("b", log), reader).staged("s"):
        log.clear()
        raise ValueError("gone")
    assert log == ["b.post"]
    assert reader.seen == (None, None, None)


def test_an_error_in_a_post_hook_can_be_swallowed():
    """Covers contract E7."""
    with Host(Failing("post", ValueError("gone")), Swallower()).staged("s"):
        pass


def test_a_true_return_value_without_an_error_does_nothing(caplog):
    """Covers contract E7."""
    log = []
    with Host(Swallower(), Teller("a", log)).staged("s"):
        pass
    assert log == ["a.pre", "a.post"]
    assert caplog.messages == []


def test_a_true_value_of_a_hook_that_is_not_always_swallows_nothing():
    """Contract E7: a hook that is not marked `always` does not run after an error."""

    class Plain:
        def post_s(self):
            return True

    with pytest.raises(ValueError), Host(Plain()).staged("s"):
        raise ValueError


def test_an_error_in_a_pre_hook_is_raised_even_if_a_post_hook_returns_true():
    """Contract E7 with one limit: a `with` cannot skip its body, so an error in a pre hook cannot be swallowed."""
    log = []
    with pytest.raises(ValueError, match="pre"), Host(Failing("pre", ValueError("pre")), Swallower()).staged("s"):
        log.append("body")
    assert log == []


def test_a_fixture_created_in_a_post_hook_is_seen_by_later_post_hooks():
    """Covers contract E8."""
    host = Host()

    class Creates:
        def post_s(self):
            host.fixtures["late"] = 5

    class Sees:
        def post_s(self, late):
            self.seen = late

    sees = Sees()
    host.extensions = [Creates(), sees]
    with host.staged("s"):
        pass
    assert sees.seen == 5


def test_a_fixture_created_in_a_post_hook_is_removed_with_the_stage():
    """Covers contract E8."""
    host = Host()

    class Creates:
        def post_s(self):
            host.fixtures["late"] = 5

    host.extensions = [Creates()]
    with host.staged("outer"):
        with host.staged("s"):
            pass
        assert "late" not in host.fixtures


def test_always_hooks_of_all_extensions_run_when_the_first_pre_hook_fails():
    """Covers contract E9."""
    log = []
    host = Host(Failing("pre", ValueError("pre")), AlwaysTeller("a", log), AlwaysTeller("b", log))
    with pytest.raises(ValueError), host.staged("s"):
        pass
    assert log == ["a.post", "b.post"]


def test_a_stage_with_post_hooks_can_be_opened_in_a_post_hook():
    """Covers contract E10."""
    host = Host()
    seen = []

    class Opens:
        def post_outer(self):
            with host.staged("inner"):
                seen.append("inner body")

        def post_inner(self, exc_value):
            seen.append(exc_value)

    host.extensions = [Opens()]
    with host.staged("outer"):
        pass
    assert seen == ["inner body", None]


def test_the_error_of_a_stage_in_a_post_hook_shadows_the_outer_one_only_inside():
    """Covers contract E10."""
    host = Host()
    seen = []

    class Opens:
        @always
        def post_outer(self, exc_value):
            seen.append(exc_value)
            try:
                with host.staged("inner"):
                    raise KeyError("inner")
            except KeyError:
                seen.append(host.fixtures["exc_value"])

        @always
        def post_inner(self, exc_value):
            seen.append(exc_value)

    host.extensions = [Opens()]
    outer = ValueError("outer")
    with pytest.raises(ValueError), host.staged("outer"):
        raise outer
    assert [type(each) for each in seen] == [ValueError, KeyError, ValueError]
    assert seen[2] is outer


def test_a_successful_stage_in_a_post_hook_shadows_the_outer_error_only_inside():
    """Covers contract E10."""
    host = Host()
    seen = []

    class Opens:
        @always
        def post_outer(self):
            with host.staged("inner"):
                pass
            seen.append(host.fixtures["exc_type"])

        def post_inner(self, exc_type):
            seen.append(exc_type)

    host.extensions = [Opens()]
    with pytest.raises(ValueError), host.staged("outer"):
        raise ValueError
    assert seen == [None, ValueError]


def test_a_parameter_keeps_its_default_if_the_fixture_is_missing():
    """Covers contract E11."""

    class Sees:
        @always
        def post_s(self, prediction=None, other=3):
            self.seen = prediction, other

    sees = Sees()
    with pytest.raises(ValueError), Host(sees).staged("s"):
        raise ValueError("before prediction")
    assert sees.seen == (None, 3)


def test_a_parameter_with_a_default_receives_the_fixture_if_it_exists():
    """Covers contract E11."""

    class Sees:
        @always
        def post_s(self, batch, prediction=None):
            self.seen = batch, prediction

    sees = Sees()
    host = Host(sees)
    with host.staged("s", {"batch": 1}):
        host.fixtures["prediction"] = 2
    assert sees.seen == (1, 2)


def test_a_collision_of_initial_fixtures_leaves_the_stack_clean():
    """Covers contract E12."""
    host = Host()
    with host.staged("outer", {"x": 1}):
        with pytest.raises(FixtureExistsError), host.staged("inner", {"x": 2}):
            pass
        host.fixtures["y"] = 1
        assert repr(host.fixtures) == "<Fixtures of outer: x, y>"
    assert list(host.fixtures) == []


def test_a_collision_of_initial_fixtures_keeps_the_old_value():
    """Covers contract E12."""
    host = Host()
    with host.staged("outer", {"x": 1}):
        with pytest.raises(FixtureExistsError), host.staged("inner", {"new": 3, "x": 2}):
            pass
        assert dict(host.fixtures) == {"x": 1}


def test_a_stage_can_be_opened_again_after_a_collision():
    """Covers contract E12."""
    host = Host()
    with host.staged("outer", {"x": 1}):
        with pytest.raises(FixtureExistsError), host.staged("inner", {"x": 2}):
            pass
        with host.staged("inner", {"y": 2}):
            assert dict(host.fixtures) == {"x": 1, "y": 2}


def test_a_collision_of_a_declared_fixture_keeps_that_of_the_outer_stage():
    """Contract E12 with a declared tree: both stages own an `x`.

    A stage that fails to open does not remove the `x` of the other stage.
    """

    class Declared(Extensible):
        tree = StageTree(Stage("outer", fixtures={"x": ENTRY}, stages=(Stage("inner", fixtures={"x": BODY}),)))

    host = Declared()
    with host.staged("outer", {"x": 1}):
        with pytest.raises(FixtureExistsError), host.staged("inner", {"x": 2}):
            pass
        assert dict(host.fixtures) == {"x": 1}


@pytest.mark.parametrize("stars", ["*args", "**kwargs"])
def test_star_parameters_are_refused_on_attaching(stars):
    """Covers contract E13."""

    class Stars:
        if stars == "*args":

            def pre_s(self, *args): ...
        else:

            def pre_s(self, **kwargs): ...

    with pytest.raises(HookSignatureError) as caught:
        Host(Stars())
    assert f"`Stars.pre_s` takes `{stars}`, but the parameters of a hook must be names of fixtures" in str(caught.value)


def test_a_misspelled_hook_is_refused_if_the_tree_is_declared():
    """Covers contract E13."""

    class Declared(Extensible):
        tree = StageTree(Stage("run", stages=(Stage("train"),)))

    class Misspelled:
        def pre_trian(self): ...

    host = Declared()
    with pytest.raises(UnknownHookError, match="did you mean `pre_train`"):
        host.add_extension("misspelled", Misspelled())


def test_a_misspelled_hook_causes_a_warning_if_no_tree_is_declared():
    """Covers contract E13."""

    class Misspelled:
        def pre_trian(self): ...

    host = Host(Misspelled())
    with pytest.warns(UserWarning, match="no stage `trian` was opened; did you mean `train`"), host.staged("train"):
        pass


class Forwards:
    def pre_model_forward(self): ...

    def pre_eval_model_forward(self): ...

    def post_model_forward(self): ...


def test_extension_methods_are_those_of_the_exact_stage():
    """Covers contract E14."""
    forwards = Forwards()
    host = Host(forwards)
    assert host.get_extension_methods("pre", "model_forward") == [forwards.pre_model_forward]
    assert host.get_extension_methods("pre", "eval_model_forward") == [forwards.pre_eval_model_forward]
    assert host.get_extension_methods("post", "eval_model_forward") == []


def test_extension_methods_accept_the_prefix_with_its_underscore():
    """Covers contract E14."""
    forwards = Forwards()
    assert Host(forwards).get_extension_methods("post_", "model_forward") == [forwards.post_model_forward]


def test_extension_methods_are_in_the_order_of_the_extensions():
    """Covers contract E14."""
    a, b = Teller("a", []), Teller("b", [])
    assert Host(a, b).get_extension_methods("pre", "s") == [a.pre_s, b.pre_s]


# Fixtures


def create_by_assignment(host):
    host.fixtures["x"] = 2


def create_by_update(host):
    host.fixtures.update({"x": 2})


def create_by_stage(host):
    with host.staged("inner", {"x": 2}):
        pass


@pytest.mark.parametrize("create", [create_by_assignment, create_by_update, create_by_stage])
def test_creating_a_fixture_that_exists_is_refused_and_names_modify(create):
    """Covers contract E15."""
    host = Host()
    with host.staged("outer", {"x": 1}), host.staged("s"):
        with pytest.raises(FixtureExistsError, match="modify"):
            create(host)
        assert host.fixtures["x"] == 1


def test_an_update_that_is_refused_creates_nothing():
    """Covers contract E15."""
    host = Host()
    with host.staged("s", {"x": 1}):
        with pytest.raises(FixtureExistsError):
            host.fixtures.update({"new": 1, "x": 2})
        assert dict(host.fixtures) == {"x": 1}


def test_modify_changes_the_value():
    """Covers contract E16."""
    host = Host()
    with host.staged("s", {"x": 1}):
        host.fixtures.modify("x", 2)
        assert host.fixtures["x"] == 2


def test_modify_does_not_change_the_owner():
    """Covers contract E16."""
    host = Host()
    with host.staged("outer", {"x": 1}):
        with host.staged("inner"):
            host.fixtures.modify("x", 2)
        assert host.fixtures["x"] == 2
    assert "x" not in host.fixtures


def test_modify_refuses_a_name_that_does_not_exist():
    """Covers contract E16."""
    host = Host()
    with host.staged("s"), pytest.raises(FixtureError, match="there is no fixture `x` to modify"):
        host.fixtures.modify("x", 2)


def test_defaults_create_only_what_is_missing():
    """Covers contract E17."""
    host = Host()
    with host.staged("outer", {"x": 1}), host.staged("inner", defaults={"x": 2, "y": 3}):
        assert dict(host.fixtures) == {"x": 1, "y": 3}


def test_defaults_are_removed_with_the_stage():
    """Covers contract E17."""
    host = Host()
    with host.staged("outer", {"x": 1}):
        with host.staged("inner", defaults={"x": 2, "y": 3}):
            pass
        assert dict(host.fixtures) == {"x": 1}


def test_an_initial_fixture_takes_precedence_over_a_default_of_the_same_stage():
    """Covers contract E17."""
    host = Host()
    with host.staged("s", {"x": 1}, defaults={"x": 2}):
        assert host.fixtures["x"] == 1


def test_exactly_the_fixtures_of_the_stage_are_removed():
    """Covers contract E18."""
    host = Host()
    with host.staged("outer", {"a": 1}):
        host.fixtures["b"] = 2
        with host.staged("inner", {"c": 3}):
            host.fixtures["d"] = 4
            assert dict(host.fixtures) == {"a": 1, "b": 2, "c": 3, "d": 4}
        assert dict(host.fixtures) == {"a": 1, "b": 2}
    assert dict(host.fixtures) == {}


def test_a_stage_does_not_remove_a_fixture_that_only_an_earlier_opening_created():
    """Covers contract E18."""
    host = Host()
    with host.staged("inner", {"x": 1}):
        pass
    with host.staged("outer", {"x": 2}):
        with host.staged("inner"):
            pass
        assert dict(host.fixtures) == {"x": 2}


def test_fixtures_are_also_removed_after_an_error():
    """Covers contract E18."""
    host = Host()
    with pytest.raises(ValueError), host.staged("s", {"a": 1}):
        host.fixtures["b"] = 2
        raise ValueError
    assert dict(host.fixtures) == {}


def test_a_fixture_cannot_be_created_outside_any_stage():
    """Covers contract E18."""
    with pytest.raises(FixtureScopeError, match="cannot create fixture `x`: no stage is open"):
        Host().fixtures["x"] = 1


def test_a_missing_fixture_is_a_key_error():
    """Covers contract E19."""
    with pytest.raises(KeyError) as caught:
        Host().fixtures["x"]
    assert isinstance(caught.value, FixtureError)


def test_a_missing_parameter_is_a_type_error_that_names_the_fixture_and_the_method():
    """Covers contract E19."""

    class Asks:
        def pre_s(self, missing): ...

    with pytest.raises(TypeError, match=r"`Asks\.pre_s` asks for `missing`"), Host(Asks()).staged("s"):
        pass


@pytest.mark.parametrize("params", ["(self, x, missing)", "(self, missing, other=1)", "(self, *, missing)"])
def test_every_kind_of_signature_names_the_missing_fixture(params):
    """Contract E19: each kind of signature is called in a different way."""
    names = {}
    exec(f"def pre_s{params}: ...", names)
    asks = type("Asks", (), {"pre_s": names["pre_s"]})()
    with pytest.raises(FixtureNotFoundError, match=r"`Asks\.pre_s` asks for `missing`"), Host(asks).staged("s", {"x": 1}):
        pass


def test_fixtures_call_a_function_with_the_fixtures_it_names():
    """Covers contract E20."""
    host = Host()
    with host.staged("s", {"a": 1, "b": 2}):
        assert host.fixtures(lambda b, a: (a, b)) == (1, 2)


def test_overrides_take_precedence_over_fixtures():
    """Covers contract E20."""
    host = Host()
    with host.staged("s", {"a": 1, "b": 2}):
        assert host.fixtures(lambda a, b: (a, b), b=5) == (1, 5)


def test_an_override_does_not_have_to_be_a_fixture():
    """Covers contract E20."""
    host = Host()
    with host.staged("s", {"a": 1}):
        assert host.fixtures(lambda a, other: (a, other), other=5) == (1, 5)


def test_a_called_function_keeps_its_defaults():
    """Covers contract E20."""
    host = Host()
    with host.staged("s", {"a": 1}):
        assert host.fixtures(lambda a=0, b=7: (a, b)) == (1, 7)


def test_a_called_function_that_asks_for_a_missing_fixture_is_named():
    """Covers contracts E20 and E19."""

    def asks(missing): ...

    with pytest.raises(FixtureNotFoundError, match=r"asks` asks for `missing`, which no open stage provides"):
        Host().fixtures(asks)


def test_an_override_that_the_function_does_not_take_is_refused():
    """Covers contract E20."""
    with pytest.raises(TypeError, match="has no parameter `b`"):
        Host().fixtures(lambda a: a, a=1, b=2)


class Lasting(Extensible):
    """A class with a permanent root stage, like `TrainManager`."""

    tree = StageTree(Stage("life", fixtures={"fixtures": ENTRY, "writer": ENTRY}, stages=(Stage("run"),), is_permanent=True))

    def __init__(self):
        self.staged("life", {"fixtures": self.fixtures, "writer": "a writer"}).open_permanently()


def test_fixtures_of_the_permanent_stage_exist_outside_every_routine():
    """Covers contract E21."""
    host = Lasting()
    assert host.fixtures["fixtures"] is host.fixtures
    assert host.fixtures["writer"] == "a writer"


def test_fixtures_of_the_permanent_stage_survive_failed_routines():
    """Covers contract E21."""
    host = Lasting()
    with pytest.raises(ValueError), host.staged("run"):
        raise ValueError
    assert dict(host.fixtures) == {"fixtures": host.fixtures, "writer": "a writer"}


def test_a_hook_can_take_the_fixtures_themselves():
    """Covers contract E21."""

    class Creates:
        def pre_run(self, fixtures):
            fixtures["made"] = 1

    host = Lasting()
    host.add_extension("creates", Creates())
    with host.staged("run"):
        assert host.fixtures["made"] == 1
    assert "made" not in host.fixtures
