"""Lazy fixtures are computed once, when a hook first asks for them."""

import pytest

from trainmaster.errors import FixtureCycleError, FixtureExistsError, FixtureScopeError, UnknownStageError
from trainmaster.stages import BODY, ENTRY, Extensible, Stage, StageTree, always, fixture


class Host(Extensible):
    def __init__(self, *extensions):
        self.extensions = [(f"ext{number}", each) for number, each in enumerate(extensions)]


class Declared(Host):
    tree = StageTree(
        Stage("batch", fixtures={"x": ENTRY, "loss": "forward"}, stages=(Stage("forward"), Stage("backward"), Stage("step"))),
    )

    def run(self, x=1):
        with self.staged("batch", {"x": x}):
            for inner in ("forward", "backward", "step"):
                with self.staged(inner):
                    if inner == "forward":
                        self.fixtures["loss"] = x * 10


class Doubles:
    """Provides `double`, which is twice `x`, and counts how often it is computed."""

    def __init__(self):
        self.count = 0

    @fixture("batch")
    def double(self, x):
        self.count += 1
        return 2 * x


class Asks:
    def __init__(self):
        self.seen = []

    def post_batch(self, double):
        self.seen.append(double)


def test_a_lazy_fixture_is_computed_from_its_own_parameters():
    asks = Asks()
    Declared(Doubles(), asks).run(4)
    assert asks.seen == [8]


def test_a_lazy_fixture_is_computed_once_no_matter_how_many_hooks_ask():
    doubles = Doubles()
    Declared(doubles, Asks(), Asks(), Asks()).run()
    assert doubles.count == 1


def test_a_lazy_fixture_that_no_hook_asks_for_is_never_computed():
    doubles = Doubles()
    Declared(doubles).run()
    assert doubles.count == 0


def test_asking_whether_a_lazy_fixture_exists_does_not_compute_it():
    doubles = Doubles()
    host = Declared(doubles)
    with host.staged("batch", {"x": 1}):
        assert "double" in host.fixtures
    assert doubles.count == 0


def test_a_lazy_fixture_is_removed_with_its_stage():
    doubles, asks = Doubles(), Asks()
    host = Declared(doubles, asks)
    host.run(1)
    host.run(2)
    assert asks.seen == [2, 4]
    assert "double" not in host.fixtures


def test_a_lazy_fixture_asked_for_in_an_inner_stage_lives_as_long_as_its_owner():
    doubles = Doubles()
    host = Declared(doubles)
    with host.staged("batch", {"x": 3}):
        with host.staged("forward"):
            assert host.fixtures["double"] == 6
        assert "double" in list(host.fixtures)
        assert host.fixtures["double"] == 6
    assert doubles.count == 1


def test_a_producer_may_come_after_its_consumer():
    asks = Asks()
    Declared(asks, Doubles()).run(4)
    assert asks.seen == [8]


def test_a_lazy_fixture_may_ask_for_another():
    class Quadruples:
        @fixture("batch")
        def quadruple(self, double, offset=1):
            return 2 * double + offset

        def post_batch(self, quadruple):
            self.seen = quadruple

    quadruples = Quadruples()
    Declared(quadruples, Doubles()).run(3)
    assert quadruples.seen == 13


def test_get_computes_a_lazy_fixture():
    host = Declared(Doubles())
    with host.staged("batch", {"x": 3}):
        assert host.fixtures.get("double") == 6


def test_get_returns_the_default_if_a_lazy_fixture_is_not_valid():
    host = Declared(Doubles())
    assert host.fixtures.get("double", "none") == "none"


def test_a_lazy_fixture_outside_its_stage_is_not_among_the_fixtures():
    class Late:
        @fixture("step")
        def late(self):
            return 1

    host = Declared(Late())
    with host.staged("batch", {"x": 3}):
        assert "late" not in host.fixtures
        with host.staged("step"):
            assert "late" in host.fixtures


def test_a_lazy_fixture_without_a_value_is_not_listed():
    host = Declared(Doubles())
    with host.staged("batch", {"x": 3}):
        assert list(host.fixtures) == ["x"]
        assert len(host.fixtures) == 1


class AfterBackward:
    @fixture("batch", after="backward")
    def norm(self, loss):
        return loss + 1


def test_a_lazy_fixture_is_valid_in_the_post_hooks_of_the_stage_it_comes_after():
    class AsksAtOnce(AfterBackward):
        def post_backward(self, norm):
            self.seen = norm

    asks = AsksAtOnce()
    Declared(asks).run(1)
    assert asks.seen == 11


def test_a_lazy_fixture_is_valid_in_later_inner_stages_and_in_post_hooks_of_its_owner():
    class AsksLater(AfterBackward):
        def pre_step(self, norm):
            self.inner = norm

        def post_batch(self, norm):
            self.outer = norm

    asks = AsksLater()
    Declared(asks).run(1)
    assert (asks.inner, asks.outer) == (11, 11)


@pytest.mark.parametrize("hook", ["pre_batch", "around_batch", "post_forward", "pre_backward", "around_backward"])
def test_asking_for_a_lazy_fixture_before_it_is_valid_is_refused_at_the_start(hook):
    def ask(self, norm):
        yield

    def ask_plainly(self, norm): ...

    asks = type("Asks", (AfterBackward,), {hook: ask if hook.startswith("around") else ask_plainly})()
    host = Declared(asks)
    with pytest.raises(FixtureScopeError) as caught:
        host.run()
    text = str(caught.value)
    assert text.startswith(f"`Asks.{hook}` asks for `norm`, which does not exist at that point")
    assert "  why     `norm` is valid in `batch` after `backward`" in text


def test_reading_a_lazy_fixture_before_it_is_valid_is_refused():
    host = Declared(AfterBackward())
    with host.staged("batch", {"x": 1}), host.staged("forward"):
        assert "norm" not in host.fixtures
        with pytest.raises(FixtureScopeError) as caught:
            host.fixtures["norm"]
    assert "`norm` is not valid here" in str(caught.value)
    assert "  where   stage batch > forward" in str(caught.value)
    assert "  why     `norm` is valid in `batch` after `backward`" in str(caught.value)


def test_a_lazy_fixture_is_not_valid_yet_when_the_stage_opens_again():
    host = Declared(AfterBackward())
    host.run()
    with host.staged("batch", {"x": 1}):
        assert "norm" not in host.fixtures


def test_a_lazy_fixture_is_not_valid_after_a_stage_that_failed():
    seen = []

    class AsksAlways(AfterBackward):
        @always
        def post_batch(self, norm="missing"):
            seen.append(norm)

    host = Declared(AsksAlways())
    with pytest.raises(ValueError), host.staged("batch", {"x": 1}), host.staged("backward"):
        raise ValueError
    assert seen == ["missing"]


def test_a_lazy_fixture_may_belong_to_several_stages():
    class Where:
        @fixture("train", "eval")
        def where(self, mode):
            return f"in {mode}"

        def __init__(self):
            self.seen = []

        def post_train(self, where):
            self.seen.append(where)

        def post_eval(self, where):
            self.seen.append(where)

    class Modes(Host):
        tree = StageTree(Stage("run", stages=(Stage("train", fixtures={"mode": ENTRY}), Stage("eval", fixtures={"mode": ENTRY}))))

    where = Where()
    host = Modes(where)
    with host.staged("run"):
        for mode in ("train", "eval"):
            with host.staged(mode, {"mode": mode}):
                pass
    assert where.seen == ["in train", "in eval"]


def test_a_lazy_fixture_of_nested_stages_belongs_to_the_innermost():
    class Depth:
        @fixture("outer", "inner")
        def depth(self, level):
            return level

    host = Host(Depth())
    with host.staged("outer", {"level": 1}):
        with host.staged("inner"):
            host.fixtures.modify("level", 2)
            assert host.fixtures["depth"] == 2
        host.fixtures.modify("level", 1)
        assert host.fixtures["depth"] == 1


class Cyclic:
    @fixture("batch")
    def hen(self, egg): ...

    @fixture("batch")
    def egg(self, hen): ...


def test_a_cycle_is_refused_at_the_start_of_the_routine():
    host = Declared(Cyclic())
    log = []
    with pytest.raises(FixtureCycleError) as caught, host.staged("batch", {"x": 1}):
        log.append("body")
    assert log == []
    text = str(caught.value)
    assert text.startswith("lazy fixtures depend on each other: egg -> hen -> egg")
    assert "Cyclic.egg (" in text
    assert "Cyclic.hen (" in text
    assert "  try     compute one of them without the other" in text


def test_a_lazy_fixture_that_asks_for_itself_is_a_cycle():
    class Selfish:
        @fixture("batch")
        def me(self, me): ...

    with pytest.raises(FixtureCycleError, match="me -> me"):
        Declared(Selfish()).run()


def test_a_cycle_between_defaults_is_found_when_it_is_asked_for():
    class CyclicDefaults:
        @fixture("batch")
        def hen(self, egg=None):
            return egg

        @fixture("batch")
        def egg(self, hen=None):
            return hen

    host = Declared(CyclicDefaults())
    with host.staged("batch", {"x": 1}):
        with pytest.raises(FixtureCycleError) as caught:
            host.fixtures["hen"]
    assert "lazy fixtures depend on each other: hen -> egg -> hen" in str(caught.value)
    assert "  where   stage batch" in str(caught.value)


def test_a_host_without_a_cyclic_extension_runs_again():
    host = Declared(Cyclic())
    with pytest.raises(FixtureCycleError):
        host.run()
    del host.extensions["ext0"]
    host.run()


def test_a_host_may_declare_lazy_fixtures_itself():
    class Own(Declared):
        @fixture("batch")
        def double(self, x):
            return 2 * x

    asks = Asks()
    Own(asks).run(5)
    assert asks.seen == [10]


def test_a_lazy_fixture_that_failed_is_computed_again_at_the_next_request():
    class Fails:
        count = 0

        @fixture("batch")
        def broken(self):
            self.count += 1
            raise ValueError("broken")

    fails = Fails()
    host = Declared(fails)
    with host.staged("batch", {"x": 1}):
        for _ in range(2):
            with pytest.raises(ValueError):
                host.fixtures["broken"]
    assert fails.count == 2


def test_an_error_in_a_lazy_fixture_names_the_fixture():
    class Fails:
        @fixture("batch")
        def broken(self):
            raise ValueError("broken")

        def post_batch(self, broken): ...

    with pytest.raises(ValueError) as caught:
        Declared(Fails()).run()
    assert caught.value.__notes__[0].startswith("while computing the lazy fixture `broken` (Fails.broken, ")
    assert "`Fails.post_batch`" in caught.value.__notes__[1]


def test_two_lazy_fixtures_of_one_name_and_stage_are_refused():
    class Doubles2(Doubles): ...

    with pytest.raises(FixtureExistsError) as caught:
        Declared(Doubles(), Doubles2()).run()
    assert "two lazy fixtures in stage `batch` are named `double`" in str(caught.value)
    assert "Doubles.double and Doubles2.double (" in str(caught.value)


def test_a_lazy_fixture_with_the_name_of_a_declared_one_is_refused():
    class Hides:
        @fixture("forward")
        def loss(self): ...

    with pytest.raises(FixtureExistsError, match=r"lazy fixture `Hides\.loss` has the name of a fixture that already exists in `forward`"):
        Declared(Hides()).run()


def test_a_lazy_fixture_of_an_unknown_stage_is_refused_on_attaching():
    class Misspelled:
        @fixture("bach")
        def y(self): ...

    with pytest.raises(UnknownStageError) as caught:
        Declared(Misspelled())
    assert "lazy fixture `Misspelled.y` belongs to `bach`, which is not a stage" in str(caught.value)
    assert "did you mean `batch`?" in str(caught.value)


def test_a_lazy_fixture_after_an_unknown_stage_is_refused_on_attaching():
    class Misspelled:
        @fixture("batch", after="bakward")
        def y(self): ...

    with pytest.raises(UnknownStageError) as caught:
        Declared(Misspelled())
    assert "lazy fixture `Misspelled.y` is declared as valid after `bakward`, which is not an inner stage of its own stage" in str(
        caught.value
    )
    assert "  known   backward, forward, step" in str(caught.value)
    assert "did you mean `backward`?" in str(caught.value)


def test_a_lazy_fixture_without_a_stage_is_refused_when_it_is_defined():
    with pytest.raises(TypeError, match="@fixture needs the name of the stage that owns the fixture"):

        @fixture
        def y(self): ...


def test_a_parameter_of_a_lazy_fixture_that_nothing_provides_is_refused_at_the_start():
    class Asking:
        @fixture("batch")
        def y(self, nothing_like_it): ...

    with pytest.raises(TypeError, match=r"lazy fixture `Asking\.y` asks for `nothing_like_it`, which nothing provides"):
        Declared(Asking()).run()


def test_lazy_fixtures_work_without_a_declared_tree():
    class Both(Asks):
        @fixture("batch", after="forward")
        def double(self, x):
            return 2 * x

    both = Both()
    host = Host(both)
    with host.staged("batch", {"x": 3}):
        assert "double" not in host.fixtures
        with host.staged("forward"):
            pass
    assert both.seen == [6]


def test_a_fixture_of_a_body_is_visible_to_a_lazy_one_in_post_hooks_only():
    class Half:
        @fixture("work")
        def half(self, result):
            return result / 2

        def pre_work(self, half): ...

    class Works(Host):
        tree = StageTree(Stage("work", fixtures={"result": BODY}))

    with pytest.raises(FixtureScopeError, match=r"`Half\.pre_work` asks for `half`, which does not exist at that point"):
        with Works(Half()).staged("work"):
            pass
