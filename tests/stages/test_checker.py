"""The checker refuses wrong hooks when they are attached, or before the first stage runs."""

import pytest

from trainmaster.errors import (
    FixtureExistsError,
    FixtureNotFoundError,
    FixtureScopeError,
    UnknownHookError,
    UnknownStageError,
)
from trainmaster.stages import BODY, ENTRY, Extensible, Stage, StageTree, always, fixture, not_a_hook

TREE = StageTree(
    Stage(
        "life",
        fixtures={"fixtures": ENTRY},
        is_permanent=True,
        stages=(
            Stage(
                "run",
                fixtures={"epoch_num": ENTRY, "summary": BODY},
                stages=(
                    Stage(
                        "train_step",
                        fixtures={"batch": ENTRY, "prediction": "forward", "loss": "compute_loss"},
                        stages=(Stage("forward"), Stage("compute_loss"), Stage("backward")),
                    ),
                    Stage("report"),
                ),
            ),
        ),
    )
)


class Host(Extensible):
    tree = TREE

    def __init__(self, *extensions):
        self.log = []
        self.extensions = [(f"ext{number}", each) for number, each in enumerate(extensions)]
        self.staged("life", {"fixtures": self.fixtures}).open_permanently()

    def run(self):
        with self.staged("run", {"epoch_num": 0}):
            self.log.append("run")
            with self.staged("train_step", {"batch": 1}):
                with self.staged("forward"):
                    self.fixtures["prediction"] = 2
                with self.staged("compute_loss"):
                    self.fixtures["loss"] = 3
                with self.staged("backward"):
                    pass
            with self.staged("report"):
                pass
            self.fixtures["summary"] = 4


def hook(name, parameters, owner="Ext", **attributes):
    """Create an extension with one hook."""
    names = {}
    exec(f"def {name}(self, {parameters}): self.seen = ({parameters.split('=')[0]})", names)
    return type(owner, (), {name: names[name], **attributes})()


# names


def test_a_misspelled_hook_name_is_refused_on_attaching():
    class Misspelled:
        def pre_train_stap(self): ...

    host = Host()
    with pytest.raises(UnknownHookError) as caught:
        host.add_extension("misspelled", Misspelled())
    text = str(caught.value)
    assert text.startswith("`Misspelled.pre_train_stap` is named like a hook, but there is no stage `train_stap`")
    assert "  where   " in text
    assert "test_checker.py:" in text
    assert "  known   life, run, train_step, forward, compute_loss, backward, report" in text
    assert "  try     did you mean `pre_train_step`" in text
    assert "@not_a_hook" in text


def test_a_refused_extension_is_not_attached():
    class Misspelled:
        def pre_train_stap(self): ...

    host = Host()
    with pytest.raises(UnknownHookError):
        host.add_extension("misspelled", Misspelled())
    assert list(host.extensions) == []


def test_a_refused_extension_does_not_replace_one_with_the_same_name():
    class Misspelled:
        def pre_train_stap(self): ...

    good = hook("pre_train_step", "batch")
    host = Host(good)
    with pytest.raises(UnknownHookError):
        host.extensions["ext0"] = Misspelled()
    assert host["ext0"] is good


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("arround_train_step", "around_train_step"),
        ("pots_backward", "post_backward"),
        ("per_forward", "pre_forward"),
        ("before_train_step", "pre_train_step"),
        ("after_run", "post_run"),
        ("aroundbackward", "around_backward"),
        ("postcompute_loss", "post_compute_loss"),
        ("pos_train_step", "post_train_step"),
        ("pst_run", "post_run"),
        ("ost_backward", "post_backward"),
        ("pr_backward", "pre_backward"),
        ("befor_run", "pre_run"),
        ("afer_train_step", "post_train_step"),
        ("aroud_forward", "around_forward"),
        ("aroun_forward", "around_forward"),
        ("Post_run", "post_run"),
        ("PRE_backward", "pre_backward"),
        ("preBackward", "pre_backward"),
        ("postTrainStep", "post_train_step"),
        ("prebackward", "pre_backward"),
        ("beforerun", "pre_run"),
    ],
)
def test_a_misspelled_prefix_is_an_error_when_the_extension_is_attached(name, meant):
    extension = type("Ext", (), {name: lambda self: None})()
    with pytest.raises(UnknownHookError, match=f"rename it to `{meant}`"):
        Host(extension)
    setattr(type(extension), name, not_a_hook(lambda self: None))
    Host(extension).run()


@pytest.mark.parametrize(
    "name",
    [
        "stop_run",
        "forward",
        "train_step",
        "prev_report",
        "compute_loss",
        "_after_run",
        "prerun",
        "prerun_checks",
        "re_run",
        "rerun",
        "pos_forward",
        "round_run",
    ],
)
def test_other_methods_with_the_name_of_a_stage_are_allowed(name):
    Host(type("Ext", (), {name: lambda self: None})()).run()


def test_a_subclass_can_mark_a_method_of_its_base_class():
    class Base:
        def before_run(self): ...

    class Marked(Base):
        @not_a_hook
        def before_run(self): ...

    Host(Marked()).run()
    with pytest.raises(UnknownHookError):
        Host(Base())


def test_a_method_marked_not_a_hook_is_never_called():
    class Helper:
        @not_a_hook
        def pre_process(self):
            raise AssertionError("called")

    Host(Helper()).run()


def test_a_property_named_like_a_hook_is_ignored():
    class Helper:
        @property
        def pre_process(self):
            raise AssertionError("read")

    Host(Helper()).run()


# parameters


def test_an_unknown_fixture_is_refused_before_the_first_stage_runs():
    host = Host(hook("post_report", "epoch_nun"))
    with pytest.raises(FixtureNotFoundError) as caught:
        host.run()
    assert host.log == []
    text = str(caught.value)
    assert text.startswith("`Ext.post_report` asks for `epoch_nun`, which nothing provides")
    assert "stage run > report" in text
    assert "  open    epoch_num, exc_type, exc_value, fixtures, traceback\n" in text
    assert "  try     did you mean `epoch_num`?" in text


def test_the_error_for_an_unknown_fixture_explains_how_to_declare_it():
    with pytest.raises(FixtureNotFoundError) as caught:
        Host(hook("post_report", "zebra")).run()
    assert "  try     attach the extension that provides it, declare it in `creates`, or give the parameter a default;" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "parameter", "why"),
    [
        ("pre_train_step", "loss", "`loss` belongs to `train_step` and is created in `compute_loss`"),
        ("post_forward", "loss", "`loss` belongs to `train_step` and is created in `compute_loss`"),
        ("pre_forward", "prediction", "`prediction` belongs to `train_step` and is created in `forward`"),
        ("pre_run", "summary", "`summary` belongs to `run` and is created in its body"),
        ("post_train_step", "summary", "`summary` belongs to `run` and is created in its body"),
        ("pre_run", "batch", "`batch` belongs to `train_step` and is created at its start"),
        ("post_report", "batch", "`batch` belongs to `train_step` and is created at its start"),
        ("pre_report", "exc_value", "`exc_value` exists in post hooks only"),
    ],
)
def test_a_fixture_is_refused_before_it_is_created_and_outside_its_stage(name, parameter, why):
    host = Host(hook(name, parameter))
    with pytest.raises(FixtureScopeError) as caught:
        host.run()
    assert host.log == []
    text = str(caught.value)
    assert text.startswith(f"`Ext.{name}` asks for `{parameter}`, which does not exist at that point")
    assert f"  why     {why}" in text
    assert "  open    " in text
    assert "  try     ask for it in a later hook or in its own stage" in text


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        ("pre_train_step", "batch", 1),
        ("post_forward", "prediction", 2),
        ("pre_compute_loss", "prediction", 2),
        ("post_compute_loss", "loss", 3),
        ("pre_backward", "loss", 3),
        ("post_train_step", "loss", 3),
        ("pre_backward", "epoch_num", 0),
        ("post_run", "summary", 4),
        ("post_run", "exc_value", None),
    ],
)
def test_a_hook_receives_a_fixture_once_it_is_created(name, parameter, value):
    extension = hook(name, parameter)
    Host(extension).run()
    assert extension.seen == value


def test_a_fixture_created_in_an_inner_stage_lives_in_its_declared_owner():
    host = Host()
    with host.staged("run", {"epoch_num": 0}), host.staged("train_step", {"batch": 1}):
        with host.staged("forward"):
            host.fixtures["prediction"] = 2
        assert host.fixtures["prediction"] == 2
        with host.staged("compute_loss"):
            pass
        assert "prediction" in host.fixtures


def test_a_fixture_created_in_an_inner_stage_is_removed_with_its_declared_owner():
    host = Host()
    with host.staged("run", {"epoch_num": 0}):
        with host.staged("train_step", {"batch": 1}), host.staged("forward"):
            host.fixtures["prediction"] = 2
        assert dict(host.fixtures).keys() == {"fixtures", "epoch_num"}


def test_several_problems_are_reported_in_one_error():
    host = Host(hook("pre_run", "batch", "One"), hook("post_report", "zebra", "Two"), hook("pre_forward", "prediction", "Three"))
    with pytest.raises(FixtureScopeError) as caught:
        host.run()
    text = str(caught.value)
    assert text.startswith("`One.pre_run` asks for `batch`")
    assert (
        "  also    `Two.post_report` asks for `zebra`, which nothing provides\n"
        "          `Three.pre_forward` asks for `prediction`, which does not exist at that point"
    ) in text


def test_one_problem_has_no_row_for_others():
    with pytest.raises(FixtureScopeError) as caught:
        Host(hook("pre_run", "batch")).run()
    assert "also" not in str(caught.value)


def test_a_parameter_with_a_default_is_not_refused():
    extension = hook("pre_report", "zebra=5")
    Host(extension).run()
    assert extension.seen == 5


def test_hooks_can_ask_for_fixtures_that_an_extension_declares_in_creates():
    class Creates:
        creates = {"zebra": "run"}

        def pre_run(self):
            host.fixtures["zebra"] = "striped"

    asks = hook("post_report", "zebra")
    host = Host(Creates(), asks)
    host.run()
    assert asks.seen == "striped"


def test_a_fixture_that_an_extension_creates_belongs_to_the_declared_stage():
    class Creates:
        creates = {"zebra": "run"}

        def pre_forward(self):
            host.fixtures["zebra"] = "striped"

    asks = hook("post_report", "zebra")
    host = Host(Creates(), asks)
    host.run()
    assert asks.seen == "striped"
    assert "zebra" not in host.fixtures


def test_a_fixture_that_an_extension_creates_cannot_be_requested_outside_its_stage():
    class Creates:
        creates = {"zebra": "train_step"}

    with pytest.raises(FixtureScopeError, match="`zebra` belongs to `train_step` and is created in its body"):
        Host(Creates(), hook("post_report", "zebra")).run()


def test_a_host_can_declare_the_fixtures_it_creates():
    class Grown(Host):
        creates = {"zebra": "run"}

    with pytest.raises(FixtureNotFoundError, match=r"`Ext\.post_report` asks for `zebra`, which no open stage provides"):
        Grown(hook("post_report", "zebra")).run()  # the checker accepts it, but calling the hook fails because the fixture was not created


def test_creates_with_an_unknown_stage_is_refused():
    class Creates:
        creates = {"zebra": "reprot"}

    with pytest.raises(UnknownStageError) as caught:
        Host(Creates()).run()
    assert "`Creates.creates` assigns `zebra` to `reprot`, which is not a stage" in str(caught.value)
    assert "did you mean `report`?" in str(caught.value)


def test_an_unknown_name_is_allowed_if_an_extension_takes_the_fixtures():
    class Creates:
        def pre_run(self, fixtures):
            fixtures["zebra"] = "striped"

    asks = hook("post_report", "zebra")
    Host(Creates(), asks).run()
    assert asks.seen == "striped"


def test_a_near_miss_is_refused_even_if_an_extension_takes_the_fixtures():
    class Takes:
        def pre_run(self, fixtures): ...

    host = Host(Takes(), hook("post_report", "epoch_nun"))
    with pytest.raises(FixtureNotFoundError, match="did you mean `epoch_num`"):
        host.run()
    assert host.log == []


def test_an_allowed_name_that_never_appears_is_refused_when_the_hook_is_called():
    class Takes:
        def pre_run(self, fixtures): ...

    host = Host(Takes(), hook("post_report", "zebra"))
    with pytest.raises(FixtureNotFoundError) as caught:
        host.run()
    assert host.log == ["run"]
    text = str(caught.value)
    assert text.startswith("`Ext.post_report` asks for `zebra`, which no open stage provides")
    assert "stage run > report" in text
    assert "  try     attach the extension that provides it;" in text


def test_a_lazy_fixture_counts_as_known():
    class Lazy:
        @fixture("run")
        def zebra(self, epoch_num):
            return epoch_num + 1

    asks = hook("pre_forward", "zebra")
    Host(Lazy(), asks).run()
    assert asks.seen == 1


def test_a_lazy_fixture_cannot_have_the_name_of_an_error_fixture():
    class Lazy:
        @fixture("run")
        def exc_value(self): ...

    with pytest.raises(FixtureExistsError):
        Host(Lazy()).run()


def test_extensions_attached_later_are_checked_at_the_next_stage():
    host = Host()
    host.run()
    host.add_extension("late", hook("pre_run", "batch"))
    with pytest.raises(FixtureScopeError):
        host.run()


def test_after_a_failed_check_the_object_works_without_the_bad_extension():
    good = hook("post_report", "epoch_num")
    host = Host(good, hook("pre_run", "batch"))
    with pytest.raises(FixtureScopeError):
        host.run()
    del host.extensions["ext1"]
    host.run()
    assert good.seen == 0
    assert list(host.fixtures) == ["fixtures"]


def test_a_failed_check_fails_again_if_nothing_was_changed():
    host = Host(hook("pre_run", "batch"))
    for _ in range(2):
        with pytest.raises(FixtureScopeError):
            host.run()
    assert host.log == []


def test_a_stage_with_two_paths_is_checked_on_both():
    class TwoPaths(Extensible):
        extensions = [hook("pre_shared", "only_left")]
        tree = StageTree(Stage("run", stages=(Stage("left", fixtures={"only_left": ENTRY}, stages=(Stage("shared"),)), Stage("shared"))))

    with pytest.raises(FixtureScopeError, match="stage run > shared"), TwoPaths().staged("run"):
        pass


# stages


def test_opening_an_undeclared_stage_is_refused():
    host = Host()
    with pytest.raises(UnknownStageError) as caught:
        host.staged("reprot")
    text = str(caught.value)
    assert text.startswith("`Host` opens stage `reprot`, which its tree does not declare")
    assert "  known   life, run, train_step, forward, compute_loss, backward, report" in text
    assert "  try     did you mean `report`?" in text


def test_the_error_for_an_undeclared_stage_explains_how_to_declare_it():
    with pytest.raises(UnknownStageError) as caught:
        Host().staged("mixup")
    assert '  try     declare it: tree = Host.tree.with_stage("parent", Stage("mixup"))' in str(caught.value)


def test_with_stage_declares_a_stage_of_a_subclass():
    class Grown(Host):
        tree = Host.tree.with_stage("train_step", Stage("mixup", fixtures={"mix": ENTRY}))

    sees = hook("pre_mixup", "batch, mix")
    host = Grown(sees)
    with host.staged("run", {"epoch_num": 0}), host.staged("train_step", {"batch": 1}), host.staged("mixup", {"mix": 2}):
        pass
    assert sees.seen == (1, 2)


def test_with_stage_does_not_change_the_original_tree():
    TREE.with_stage("train_step", Stage("mixup"))
    assert "mixup" not in TREE.paths


def test_with_stage_adds_the_stage_at_the_end():
    grown = TREE.with_stage("train_step", Stage("mixup"))
    assert [stage.name for stage in grown.paths["train_step"][0][-1].stages] == ["forward", "compute_loss", "backward", "mixup"]


def test_with_stage_keeps_the_progress_fixtures():
    assert StageTree(Stage("run"), ("epoch_num",)).with_stage("run", Stage("x")).progress == ("epoch_num",)


def test_adding_a_stage_to_an_unknown_parent_is_refused():
    with pytest.raises(UnknownStageError) as caught:
        TREE.with_stage("train_stap", Stage("mixup"))
    assert "cannot add stage `mixup` to `train_stap`: there is no stage `train_stap`" in str(caught.value)
    assert "did you mean `train_step`?" in str(caught.value)


# without a tree


class Unmatched:
    def pre_runn(self): ...

    @always
    def post_zebra(self): ...


def test_a_host_without_a_tree_warns_about_hooks_that_never_matched():
    host = Extensible()
    host.add_extension("unmatched", Unmatched())
    with pytest.warns(UserWarning, match="was never called") as caught, host.staged("run"), host.staged("inner"):
        pass
    texts = sorted(str(each.message) for each in caught)
    assert len(texts) == 2
    assert texts[0].startswith("`Unmatched.post_zebra` (")
    assert texts[0].endswith("was never called, because no stage `zebra` was opened; opened stages: inner, run")
    assert texts[1].startswith("`Unmatched.pre_runn` (")
    assert texts[1].endswith("was never called, because no stage `runn` was opened; did you mean `run`?")


def test_an_undeclared_host_warns_once():
    host = Extensible()
    host.add_extension("unmatched", Unmatched())
    with pytest.warns(UserWarning, match="was never called"), host.staged("run"):
        pass
    with host.staged("run"):  # warnings are errors here
        pass


def test_an_undeclared_host_does_not_warn_before_the_outermost_stage_closes():
    host = Extensible()
    host.add_extension("late", hook("pre_late", ""))
    with host.staged("outer"):
        with host.staged("early"):
            pass
        with host.staged("late"):
            pass


def test_an_undeclared_host_does_not_warn_about_hooks_that_matched():
    host = Extensible()
    host.add_extension("matched", hook("pre_run", ""))
    with host.staged("run"):
        pass


def test_an_undeclared_host_checks_parameters_when_the_hook_is_called():
    host = Extensible()
    host.add_extension("asks", hook("post_run", "batch"))
    log = []
    with pytest.raises(FixtureNotFoundError, match=r"`Ext\.post_run` asks for `batch`"), host.staged("run", {"bach": 1}):
        log.append("body")
    assert log == ["body"]
