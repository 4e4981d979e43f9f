"""An object's extensions can be passed, edited, named and shown. Also covers stages opened within themselves."""

import copy
import pickle
import types
from contextlib import nullcontext

import pytest

from trainmaster.errors import DuplicateExtensionError, ExtensionError, StageError
from trainmaster.stages import BODY, ENTRY, Extensible, Extension, Observer, Stage, StageTree, always, fixture
from trainmaster.stages.extension_map import ObservedList


class Teller:
    def __init__(self, label, log):
        self.label, self.log = label, log

    def pre_s(self):
        self.log.append(f"{self.label}.pre")

    def post_s(self):
        self.log.append(f"{self.label}.post")


class LossPlot(Extension):
    def pre_s(self): ...


class Named(Extension):
    name = "chosen"


def attached(given):
    host = Extensible()
    host.extensions = given
    return host


# passing extensions


def test_a_list_names_extensions_after_their_classes():
    assert list(attached([LossPlot(), Teller("a", [])]).extensions) == ["loss_plot", "teller"]


def test_the_name_attribute_names_an_extension():
    assert list(attached([Named()]).extensions) == ["chosen"]


def test_an_acronym_stays_one_word():
    class RMSPlotV2: ...

    assert list(attached([RMSPlotV2()]).extensions) == ["rms_plot_v2"]


def test_a_mapping_names_extensions_and_keeps_its_order():
    given = {"b": LossPlot(), "a": Named()}
    host = attached(given)
    assert list(host.extensions.items()) == list(given.items())


def test_pairs_name_extensions():
    assert list(attached([("x", LossPlot()), Named(), ("y", LossPlot())]).extensions) == ["x", "chosen", "y"]


def test_a_generator_of_extensions_is_accepted():
    assert list(attached(each for each in [LossPlot()]).extensions) == ["loss_plot"]


def test_a_class_attribute_gives_the_extensions_of_its_objects():
    class Host(Extensible):
        extensions = [LossPlot()]

    assert list(Host().extensions) == ["loss_plot"]


def test_objects_of_a_class_do_not_share_their_list_of_extensions():
    class Host(Extensible):
        extensions = [LossPlot()]

    one, other = Host(), Host()
    one.add_extension("more", Named())
    assert list(other.extensions) == ["loss_plot"]


def test_a_subclass_inherits_the_class_attribute():
    class Host(Extensible):
        extensions = [LossPlot()]

    class Sub(Host): ...

    assert list(Sub().extensions) == ["loss_plot"]


def test_a_subclass_may_replace_the_class_attribute():
    class Host(Extensible):
        extensions = [LossPlot()]

    class Sub(Host):
        extensions = {"other": Named()}

    assert list(Sub().extensions) == ["other"]
    assert list(Host().extensions) == ["loss_plot"]


def test_a_subclass_does_not_have_to_call_the_constructor_of_its_base():
    class Host(Extensible):
        def __init__(self, x):
            self.x = x

    host = Host(3)
    with host.staged("s", {"x": host.x}):
        assert host.fixtures["x"] == 3


def test_assigning_extensions_replaces_all_of_them():
    log = []
    host = attached([Teller("old", log)])
    with host.staged("s"):
        pass
    host.extensions = [Teller("new", log)]
    log.clear()
    with host.staged("s"):
        pass
    assert log == ["new.pre", "new.post"]


def test_a_refused_assignment_leaves_the_old_extensions():
    host = attached([LossPlot()])
    with pytest.raises(DuplicateExtensionError):
        host.extensions = [Named(), Named()]
    assert list(host.extensions) == ["loss_plot"]


def test_the_extensions_show_their_names_and_classes():
    assert repr(attached([LossPlot(), Named()]).extensions) == "Extensions(loss_plot=LossPlot, chosen=Named)"


# editing


def test_setting_a_name_keeps_its_position():
    host = attached({"a": LossPlot(), "b": LossPlot()})
    new = Named()
    host.extensions["a"] = new
    assert list(host.extensions) == ["a", "b"]
    assert host["a"] is new


def test_attaching_an_object_again_under_its_own_name_is_allowed():
    plot = LossPlot()
    host = attached({"a": plot, "b": Named()})
    host.add_extension("a", plot)
    assert list(host.extensions) == ["b", "a"]


def test_add_extension_at_start_runs_its_hooks_first():
    log = []
    host = attached({"a": Teller("a", log)})
    host.add_extension("b", Teller("b", log), at_start=True)
    with host.staged("s"):
        pass
    assert log == ["b.pre", "a.pre", "b.post", "a.post"]


def test_add_extension_as_default_does_not_replace():
    log = []
    host = attached({"a": Teller("a", log)})
    host.add_extension("a", Teller("b", log), as_default=True)
    with host.staged("s"):
        pass
    assert log == ["a.pre", "a.post"]


def test_an_extension_added_while_a_stage_is_open_is_not_called_when_it_closes():
    log = []
    host = attached({"a": Teller("a", log)})
    with host.staged("s"):
        host.add_extension("b", Teller("b", log))
    assert log == ["a.pre", "a.post"]


def test_an_extension_removed_while_a_stage_is_open_is_still_called_when_it_closes():
    log = []
    host = attached({"a": Teller("a", log)})
    with host.staged("s"):
        del host.extensions["a"]
    assert log == ["a.pre", "a.post"]


def test_an_edit_within_an_outer_stage_takes_effect_at_the_next_inner_entry():
    log = []
    host = attached({"a": Teller("a", log)})
    with host.staged("outer"):
        with host.staged("s"):
            host.extensions.pop("a")
            host.add_extension("b", Teller("b", log))
        with host.staged("s"):
            pass
    assert log == ["a.pre", "a.post", "b.pre", "b.post"]


def test_a_hook_may_remove_its_own_extension():
    log = []
    host = Extensible()

    class Once:
        def pre_s(self):
            log.append("once")
            del host.extensions["once"]

    host.add_extension("once", Once())
    for _ in range(2):
        with host.staged("s"):
            pass
    assert log == ["once"]


def test_an_around_hook_that_is_removed_while_it_is_open_still_closes():
    log = []

    class Around:
        def around_s(self):
            log.append("open")
            yield
            log.append("close")

    host = attached({"a": Around()})
    with host.staged("s"):
        host.extensions.clear()
    with host.staged("s"):
        pass
    assert log == ["open", "close"]


def test_extensions_may_be_removed_while_iterating():
    host = attached({"a": LossPlot(), "b": LossPlot()})
    for name in host.extensions:
        del host.extensions[name]
    assert len(host.extensions) == 0


# the observed list


class Observed:
    def __init__(self, *items):
        self.count, self.is_refusing = 0, False
        self.items = ObservedList(items, self.changed)

    def changed(self):
        self.count += 1
        if self.is_refusing:
            raise ValueError("refused")


MUTATIONS = {
    "append": (lambda items: items.append(9), [3, 1, 2, 9]),
    "clear": (lambda items: items.clear(), []),
    "extend": (lambda items: items.extend([8, 9]), [3, 1, 2, 8, 9]),
    "insert": (lambda items: items.insert(0, 9), [9, 3, 1, 2]),
    "pop": (lambda items: items.pop(), [3, 1]),
    "remove": (lambda items: items.remove(1), [3, 2]),
    "reverse": (lambda items: items.reverse(), [2, 1, 3]),
    "sort": (lambda items: items.sort(), [1, 2, 3]),
    "set item": (lambda items: items.__setitem__(0, 9), [9, 1, 2]),
    "set slice": (lambda items: items.__setitem__(slice(0, 2), [9]), [9, 2]),
    "delete": (lambda items: items.__delitem__(0), [1, 2]),
    "+=": (lambda items: items.__iadd__([9]), [3, 1, 2, 9]),
    "*=": (lambda items: items.__imul__(2), [3, 1, 2, 3, 1, 2]),
}


@pytest.mark.parametrize(("mutate", "after"), MUTATIONS.values(), ids=MUTATIONS)
def test_a_mutation_of_an_observed_list_notifies_its_owner_once(mutate, after):
    observed = Observed(3, 1, 2)
    mutate(observed.items)
    assert list(observed.items) == after
    assert observed.count == 1


@pytest.mark.parametrize("mutate", [mutate for mutate, _ in MUTATIONS.values()], ids=MUTATIONS)
def test_a_refused_mutation_of_an_observed_list_is_undone(mutate):
    observed = Observed(3, 1, 2)
    observed.is_refusing = True
    with pytest.raises(ValueError, match="refused"):
        mutate(observed.items)
    assert list(observed.items) == [3, 1, 2]


def test_a_mutator_returns_what_the_list_returns():
    observed = Observed(3, 1, 2)
    assert observed.items.pop() == 2


def test_in_place_addition_keeps_the_observed_list():
    observed = Observed(1)
    before = observed.items
    observed.items += [2]
    assert observed.items is before


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda items: pickle.loads(pickle.dumps(items))])
def test_a_copy_of_an_observed_list_is_a_plain_list(duplicate):
    observed = Observed(1, 2)
    again = duplicate(observed.items)
    assert type(again) is list
    assert again == [1, 2]


# describing


class Watcher:
    @fixture("batch", after="forward")
    def accuracy(self, prediction): ...

    def pre_batch(self, batch): ...

    def around_forward(self):
        yield

    @always
    def post_batch(self, accuracy, prediction=None): ...


class Declared(Extensible):
    tree = StageTree(
        Stage(
            "run",
            "all of it",
            {"result": BODY},
            (Stage("batch", fixtures={"batch": ENTRY, "prediction": "forward"}, stages=(Stage("forward", "the model"),)), Stage("report")),
        )
    )


def test_describe_shows_the_tree_with_fixtures_and_hooks():
    host = Declared()
    host.extensions = [("watcher", Watcher())]
    assert host.describe().splitlines() == [
        "run   all of it",
        "│  fixtures  result (body)",
        "├─ batch",
        "│  │  fixtures  batch, prediction (forward)",
        "│  │  lazy      accuracy   watcher, after forward",
        "│  │  pre       Watcher.pre_batch(batch)",
        "│  │  post      Watcher.post_batch(accuracy, prediction=)   always",
        "│  └─ forward   the model",
        "│        around    Watcher.around_forward()",
        "└─ report",
    ]


def test_describe_shows_hooks_in_the_order_in_which_they_run():
    class First(Watcher):
        accuracy = None

    class Second(First): ...

    host = Declared()
    host.extensions = [First()]
    host.add_extension("second", Second(), at_start=True)
    text = host.describe()
    assert text.index("Second.pre_batch") < text.index("First.pre_batch") < text.index("Second.post_batch") < text.index("First.post_batch")


def test_describe_shows_itself_at_the_prompt():
    described = Declared().describe()
    assert repr(described) == str(described)


def test_describe_shows_the_hooks_of_an_undeclared_host():
    class Hooks:
        def pre_first(self, x): ...

        def post_second(self): ...

    host = attached({"hooks": Hooks()})
    with host.staged("outer"):
        with host.staged("first", {"x": 1}):
            pass
        assert "second   (not opened yet)\n   post      Hooks.post_second()" in host.describe()
        assert "first\n   pre       Hooks.pre_first(x)" in host.describe()
        with host.staged("second"):
            pass
    assert "not opened yet" not in host.describe()


def test_describe_shows_a_stage_that_appears_twice_only_once():
    shared = Stage("eval", stages=(Stage("eval_batch"),))

    class Twice(Extensible):
        tree = StageTree(Stage("run", stages=(Stage("train", stages=(shared,)), shared)))

    text = Twice().describe()
    assert text.count("eval_batch") == 1
    assert text.count("(as above)") == 1


def test_describe_wraps_a_long_line_of_fixtures():
    names = [f"a_rather_long_fixture_{number}" for number in range(12)]

    class Wide(Extensible):
        tree = StageTree(Stage("run", fixtures=dict.fromkeys(names, ENTRY)))

    text = Wide().describe()
    assert max(map(len, text.splitlines())) <= 110
    assert [name for name in names if name in text] == names


# stages within themselves, and stages that are left open


def test_a_stage_opened_within_itself_runs_its_hooks_for_each_opening():
    log = []
    host = attached({"a": Teller("a", log)})
    with host.staged("s"):
        with host.staged("s"):
            log.append("body")
    assert log == ["a.pre", "a.pre", "body", "a.post", "a.post"]


def test_a_stage_opened_within_itself_keeps_the_fixtures_of_each_opening():
    host = Extensible()
    with host.staged("s", {"x": 1}):
        with host.staged("s", {"y": 2}):
            host.fixtures["z"] = 3
            assert dict(host.fixtures) == {"x": 1, "y": 2, "z": 3}
        assert dict(host.fixtures) == {"x": 1}
    assert dict(host.fixtures) == {}


def test_a_stage_opened_three_times_within_itself_returns_to_each_opening():
    host = Extensible()
    with host.staged("s", {"x": 1}):
        with host.staged("s", {"y": 2}):
            with host.staged("s", {"z": 3}):
                pass
            assert dict(host.fixtures) == {"x": 1, "y": 2}
        assert dict(host.fixtures) == {"x": 1}
    assert dict(host.fixtures) == {}
    with host.staged("s", {"x": 1, "y": 2, "z": 3}):
        pass


def test_a_stage_without_hooks_keeps_its_fixture_while_it_is_opened_twice_more_within_itself():
    host = Extensible()
    with host.staged("s"):
        host.fixtures["x"] = 1
        with host.staged("s"):
            with host.staged("s"):
                pass
            assert dict(host.fixtures) == {"x": 1}
        assert dict(host.fixtures) == {"x": 1}
    assert dict(host.fixtures) == {}


def test_a_stage_opened_within_itself_does_not_reuse_the_fixtures_passed_to_its_outer_opening():
    class Lazy:
        @fixture("s", after="inner")
        def late(self):
            return 1

    host = attached([Lazy()])
    with host.staged("s"):
        with host.staged("inner"):
            pass
        with host.staged("s"):
            assert "late" not in host.fixtures
        assert "late" in host.fixtures
    with host.staged("s"):
        assert "late" not in host.fixtures


def test_two_stages_with_one_name_that_are_created_before_they_open_keep_their_own_fixtures():
    host = Extensible()
    one, other = host.staged("s", {"x": 1}), host.staged("s", {"y": 2})
    with one:
        assert dict(host.fixtures) == {"x": 1}
    with other:
        assert dict(host.fixtures) == {"y": 2}


def test_a_stage_that_fails_within_itself_does_not_affect_the_outer_opening():
    host = Extensible()
    with host.staged("s", {"x": 1}):
        with pytest.raises(ValueError), host.staged("s", {"y": 2}):
            raise ValueError
        assert dict(host.fixtures) == {"x": 1}
        assert repr(host.fixtures) == "<Fixtures of s: x>"
    assert dict(host.fixtures) == {}


def test_around_hooks_of_a_stage_within_itself_nest():
    log = []

    class Around:
        def around_s(self, depth=0):
            log.append("open")
            yield
            log.append("close")

    host = attached([Around()])
    with host.staged("s"):
        with host.staged("s"):
            log.append("body")
        log.append("outer")
    assert log == ["open", "open", "body", "close", "outer", "close"]


def test_a_recursive_routine_works():
    seen = []

    class Counts:
        def pre_count(self, depth):
            seen.append(depth)

        def post_count(self, depth):
            seen.append(-depth)

    class Recursive(Extensible):
        extensions = [Counts()]

        def count(self, depth):
            with self.staged("count", defaults={"depth": depth}):
                self.fixtures.modify("depth", depth)
                if depth < 3:
                    self.count(depth + 1)
                self.fixtures.modify("depth", depth)

    Recursive().count(1)
    assert seen == [1, 1, 2, -3, -2, -1]


def test_an_observer_works_if_there_is_nothing_to_guard():
    class Watches(Observer):
        def pre_s(self):
            self.was_called = True

    watches = Watches()
    with attached([watches]).staged("s"):
        pass
    assert watches.was_called


def test_observers_run_under_the_guard_of_their_host():
    log = []

    class Guard:
        def __enter__(self):
            log.append("guard")

        def __exit__(self, *error):
            log.append("end")

    class Guarded(Extensible):
        def observer_guard(self):
            return Guard

    class Watches(Observer):
        def pre_s(self):
            log.append("observer")

    class Acts(Extension):
        def pre_s(self):
            log.append("extension")

    host = Guarded()
    host.extensions = {"a": Watches(), "b": Watches(), "c": Acts(), "d": Watches()}
    with host.staged("s"):
        pass
    assert log == ["guard", "observer", "observer", "end", "extension", "guard", "observer", "end"]


def test_an_error_in_a_guarded_observer_blames_that_observer():
    class Guarded(Extensible):
        def observer_guard(self):
            return nullcontext

    class Watches(Observer):
        def post_s(self): ...

    class Fails(Observer):
        def post_s(self):
            raise ValueError

    host = Guarded()
    host.extensions = [Watches(), Fails()]
    with pytest.raises(ValueError) as caught, host.staged("s"):
        pass
    assert "`Fails.post_s` (extension `fails`" in caught.value.__notes__[0]


class Twice(Extensible):
    """A host whose routine opens one stage many times."""

    def run(self, act):
        with self.staged("outer"):
            for number in range(4):
                act(number)
                with self.staged("inner"):
                    pass


class Counts:
    def __init__(self):
        self.count = 0

    def around_inner(self):
        self.count += 1
        yield

    def pre_outer(self): ...


def test_a_stage_without_hooks_calls_an_extension_that_is_added_later_every_time():
    host, counts = Twice(), Counts()
    host.run(lambda number: host.add_extension("counts", counts) if number == 2 else None)
    assert counts.count == 2
    host.run(lambda number: None)
    assert counts.count == 6


def test_entering_the_same_stage_object_twice_is_an_error():
    host = Extensible()
    stage = host.staged("s", {"x": 1})
    with stage, pytest.raises(StageError, match="stage `s` is already open"), stage:
        pass
    assert "x" not in host.fixtures


def test_an_extension_added_in_a_stage_without_hooks_runs_at_the_end_of_inner_openings_only():
    calls = []

    class Late:
        def post_s(self):
            calls.append("post")

    host = Extensible()
    with host.staged("outer"), host.staged("s"):
        host.extensions["late"] = Late()
        with host.staged("s"):
            pass
    assert calls == ["post"]


@pytest.mark.parametrize("given", [["x"], {"a": 3}, [None], [("a", {"b": 1})], [len], [lambda: None]])
def test_a_value_that_is_not_an_extension_is_refused(given):
    with pytest.raises(ExtensionError, match="which has no hooks") as caught:
        attached(given)
    assert "extensions=[Progress()]" in str(caught.value)


def test_a_module_with_hooks_is_an_extension():
    module = types.ModuleType("hooks")
    module.pre_s = lambda: None
    assert list(attached({"hooks": module}).extensions) == ["hooks"]


# state


@pytest.mark.parametrize(
    ("methods", "hint"),
    [
        (["state_dict"], "define `load_state_dict` as well"),
        (["load_state_dict"], "define `state_dict` as well"),
        (["state_dict", "load_state_dic"], "rename `load_state_dic`"),
        (["statedict", "load_state_dict"], "rename `statedict`"),
        (["statedict"], "rename `statedict`"),
    ],
)
def test_an_extension_whose_state_would_be_lost_is_refused(methods, hint):
    kind = type("Half", (Extension,), dict.fromkeys(methods, lambda self, *state: None))
    with pytest.raises(ExtensionError, match=r"extension `half` has .*, but no ") as caught:
        attached([kind()])
    assert hint in str(caught.value)


@pytest.mark.parametrize("methods", [[], ["state_dict", "load_state_dict"], ["load_state", "save_state"], ["state"]])
def test_an_extension_with_both_state_methods_or_none_is_accepted(methods):
    kind = type("Whole", (Extension,), dict.fromkeys(methods, lambda self, *state: None))
    assert list(attached([kind()]).extensions) == ["whole"]
