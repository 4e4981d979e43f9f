"""Error messages from the engine say what happened and where, what the options are, and what to try."""

import os
import pickle
import re

import pytest

from trainmaster import errors
from trainmaster.errors import (
    AroundHookError,
    DuplicateExtensionError,
    EscapedStopIterationError,
    ExtensionError,
    FixtureExistsError,
    FixtureNotFoundError,
    FixtureScopeError,
    HookSignatureError,
    TrainmasterError,
    UnknownExtensionError,
)
from trainmaster.stages import ENTRY, Extensible, Stage, StageTree, always, fixture


class Host(Extensible):
    def __init__(self, *extensions):
        self.extensions = [(f"ext{number}", each) for number, each in enumerate(extensions)]


def rows(error):
    """Return the rows of an error's text, in order: each label with its text."""
    fact, *lines = str(error).splitlines()
    return {"fact": fact, **{line[2:9].strip(): line[10:] for line in lines}}


HERE = r"\S*test_errors\.py:\d+"


# fixtures


def test_a_redefinition_names_the_owner_of_the_fixture_and_modify():
    host = Host()
    with host.staged("outer", {"x": 1}), host.staged("inner"):
        with pytest.raises(FixtureExistsError) as caught:
            host.fixtures["x"] = 2
    assert rows(caught.value) == {
        "fact": "fixture `x` already exists",
        "where": "stage outer > inner",
        "why": "`x` belongs to `outer`",
        "try": 'change it with fixtures.modify("x", value), or use another name',
    }


def test_a_stage_that_redefines_several_fixtures_names_them_all():
    host = Host()
    with host.staged("outer", {"x": 1, "y": 1}):
        with pytest.raises(FixtureExistsError) as caught, host.staged("inner", {"x": 2, "z": 2, "y": 2}):
            pass
    told = rows(caught.value)
    assert told["fact"] == "fixture `x` and `y` already exists"
    assert told["where"] == "stage outer > inner"
    assert told["why"] == "`x` belongs to `outer`; `y` belongs to `outer`"


@pytest.mark.parametrize("name", ["exc_type", "exc_value", "traceback"])
def test_the_names_of_the_error_fixtures_cannot_be_taken(name):
    host = Host()
    with host.staged("s"), pytest.raises(FixtureExistsError) as caught:
        host.fixtures[name] = 1
    assert rows(caught.value)["why"] == f"`{name}` is reserved for post hooks"


def test_modifying_a_missing_fixture_lists_open_fixtures_and_suggests_a_name():
    host = Host()
    with host.staged("s", {"epoch_num": 1, "other": 2}), pytest.raises(FixtureNotFoundError) as caught:
        host.fixtures.modify("epoch_nun", 2)
    assert rows(caught.value) == {
        "fact": "there is no fixture `epoch_nun` to modify",
        "where": "stage s",
        "open": "epoch_num, other",
        "try": "did you mean `epoch_num`?",
    }


def test_modifying_an_unknown_fixture_explains_how_to_create_it():
    with pytest.raises(FixtureNotFoundError) as caught:
        Host().fixtures.modify("x", 2)
    assert rows(caught.value) == {
        "fact": "there is no fixture `x` to modify",
        "where": "outside any running stage",
        "open": "nothing",
        "try": 'create it: fixtures["x"] = ...',
    }


@pytest.mark.parametrize("create", [lambda fixtures: fixtures.update(x=1), lambda fixtures: fixtures.__setitem__("x", 1)])
def test_creating_a_fixture_outside_any_stage_explains_how_to_open_one(create):
    with pytest.raises(FixtureScopeError) as caught:
        create(Host().fixtures)
    assert rows(caught.value) == {
        "fact": "cannot create fixture `x`: no stage is open",
        "why": "a fixture lives as long as the stage that owns it",
        "try": 'open a stage first: with self.staged("...", {"x": ...}):',
    }


def test_a_missing_fixture_lists_open_fixtures_and_suggests_a_name():
    host = Host()
    with host.staged("s", {"epoch_num": 1}), pytest.raises(FixtureNotFoundError) as caught:
        host.fixtures["epoch_nun"]
    assert rows(caught.value) == {
        "fact": "no open stage provides `epoch_nun`",
        "where": "stage s",
        "open": "epoch_num",
        "try": "did you mean `epoch_num`? `describe()` lists every stage and its fixtures",
    }


def test_a_hook_that_asks_for_a_missing_fixture_is_shown_with_its_file():
    class Plateau:
        def post_s(self, val_los): ...

    with pytest.raises(FixtureNotFoundError) as caught, Host(Plateau()).staged("s", {"val_loss": 1}):
        pass
    told = rows(caught.value)
    assert told["fact"] == "`Plateau.post_s` asks for `val_los`, which no open stage provides"
    assert re.fullmatch(HERE + ", stage s", told["where"])
    assert told["open"] == "val_loss"
    assert told["try"].startswith("did you mean `val_loss`?")


def test_a_missing_fixture_that_another_stage_owns_names_that_stage():
    class Declared(Host):
        tree = StageTree(Stage("run", fixtures={"x": "inner"}, stages=(Stage("inner"),)))

    host = Declared()
    with host.staged("run"), pytest.raises(FixtureNotFoundError) as caught:
        host.fixtures["x"]
    assert rows(caught.value)["try"].startswith("`x` belongs to `run` and exists there only after it is created")


# extensions


class One:
    def pre_s(self): ...


def test_the_same_name_twice_is_refused():
    with pytest.raises(DuplicateExtensionError) as caught:
        Extensible().extensions = [One(), ("one", Host())]
    assert rows(caught.value) == {
        "fact": "two extensions are named `one`",
        "where": "One and Host",
        "try": 'pass them with names: {"one": ..., "one_2": ...}, or set the `name` of one',
    }


def test_one_object_under_two_names_is_refused():
    one = One()
    host = Host(one)
    with pytest.raises(DuplicateExtensionError) as caught:
        host.add_extension("again", one)
    assert rows(caught.value) == {
        "fact": "extension `again` is the same object as `ext0`",
        "why": "each of its hooks would run twice",
        "try": "attach the object once, or create a second one",
    }
    assert list(host.extensions) == ["ext0"]


def test_a_class_instead_of_an_object_is_refused():
    with pytest.raises(ExtensionError) as caught:
        Extensible().extensions = [One]
    assert rows(caught.value) == {"fact": "extension `one` is the class One, not an instance of it", "try": "create one: One(...)"}


@pytest.mark.parametrize("name", ["", 3, None])
def test_a_name_that_is_not_a_string_is_refused(name):
    with pytest.raises(ExtensionError) as caught:
        Extensible().add_extension(name, One())
    assert str(caught.value).startswith(f"an extension's name must be a non-empty string, not {name!r}")


@pytest.mark.parametrize(("given", "kind"), [("progress", "str"), (3, "int")])
def test_extensions_that_are_not_a_list_are_refused(given, kind):
    with pytest.raises(ExtensionError) as caught:
        Extensible().extensions = given
    assert str(caught.value).startswith(f"extensions must be a list or a mapping, not {kind}")


def test_the_error_for_an_unknown_extension_suggests_the_nearest_name():
    host = Extensible()
    host.extensions = {"progress": One()}
    with pytest.raises(UnknownExtensionError) as caught:
        host["progres"]
    assert rows(caught.value) == {"fact": "there is no extension `progres`", "known": "progress", "try": "did you mean `progress`?"}


def test_the_error_for_an_unknown_extension_says_if_none_is_attached():
    with pytest.raises(UnknownExtensionError) as caught:
        del Extensible().extensions["progress"]
    assert rows(caught.value)["known"] == "none is attached"
    assert rows(caught.value)["try"] == "attach it with add_extension(name, extension)"


# signatures


def test_an_async_hook_is_refused():
    class Async:
        async def pre_s(self): ...

    with pytest.raises(HookSignatureError) as caught:
        Host(Async())
    told = rows(caught.value)
    assert told["fact"] == "`Async.pre_s` is a coroutine function: calling it would not run its code"
    assert re.fullmatch(HERE, told["where"])
    assert told["try"] == "use a plain function, or name the hook `around_s` if it has to yield"


@pytest.mark.parametrize("phase", ["pre", "post"])
def test_a_generator_as_pre_or_post_hook_is_refused(phase):
    def generator(self):
        yield

    with pytest.raises(HookSignatureError) as caught:
        Host(type("Yields", (), {f"{phase}_s": generator})())
    assert rows(caught.value)["fact"] == f"`Yields.{phase}_s` is a generator function: calling it would not run its code"


def test_a_positional_only_default_is_refused():
    class Slash:
        def pre_s(self, x=1, /): ...

    with pytest.raises(HookSignatureError) as caught:
        Host(Slash())
    assert rows(caught.value)["try"] == "remove the `/` from its signature"


def test_a_hook_without_a_readable_signature_is_refused():
    class Builtin:
        pre_s = staticmethod(dict)

    with pytest.raises(HookSignatureError) as caught:
        Host(Builtin())
    assert rows(caught.value)["fact"] == "`Builtin.pre_s` has no readable signature"
    assert rows(caught.value)["try"] == "wrap it in a function whose parameters name its fixtures"


def test_the_error_for_a_star_parameter_suggests_an_alternative():
    class Stars:
        def pre_s(self, *names): ...

    with pytest.raises(HookSignatureError) as caught:
        Host(Stars())
    told = rows(caught.value)
    assert re.fullmatch(HERE, told["where"])
    assert told["try"] == "name each fixture, or take `fixtures` and read from it"


# errors that propagate


class FailingPre:
    def pre_s(self):
        raise KeyError("later")


class FailingAroundOpen:
    def around_s(self):
        raise ValueError("first")
        yield


class FailingAround:
    def around_s(self):
        try:
            yield
        finally:
            raise KeyError("later")


class FailingPost:
    @always
    def post_s(self):
        raise KeyError("later")


class FirstInPre:
    def pre_s(self):
        raise ValueError("first")


class FirstInPost:
    def post_s(self):
        raise ValueError("first")


class FirstInAroundClose:
    def around_s(self):
        yield
        raise ValueError("first")


@pytest.mark.parametrize(
    ("extensions", "fails_in_body", "later"),
    [
        ([FailingAround()], True, "`FailingAround.around_s`"),
        ([FailingPost()], True, "`FailingPost.post_s`"),
        ([FirstInPre(), FailingPost()], False, "`FailingPost.post_s`"),
        ([FailingAround(), FailingAroundOpen()], False, "`FailingAround.around_s`"),
        ([FailingAround(), FirstInAroundClose()], False, "`FailingAround.around_s`"),
        ([FirstInPost(), FailingPost()], False, "`FailingPost.post_s`"),
    ],
    ids=["body, around", "body, post", "pre, post", "around opening, around", "around closing, around", "post, post"],
)
def test_the_first_error_is_raised_and_later_ones_are_attached(extensions, fails_in_body, later):
    with pytest.raises(ValueError, match="first") as caught, Host(*extensions).staged("s"):
        if fails_in_body:
            raise ValueError("first")
    notes = [note for note in caught.value.__notes__ if note.startswith("then ")]
    assert len(notes) == 1
    assert re.fullmatch(f"then {re.escape(later)} \\({HERE}\\) failed too: KeyError: 'later'", notes[0])


def test_every_later_error_is_attached_in_order():
    class Another(FailingPost): ...

    with pytest.raises(ValueError) as caught, Host(FailingAround(), FailingPost(), Another()).staged("s"):
        raise ValueError("first")
    later = [note.split("`")[1] for note in caught.value.__notes__ if note.startswith("then ")]
    assert later == ["FailingAround.around_s", "FailingPost.post_s", "Another.post_s"]


def test_an_error_raised_after_a_swallowed_one_propagates():
    class Swallows:
        @always
        def post_s(self):
            return True

    with pytest.raises(KeyError, match="later"), Host(Swallows(), FailingPost()).staged("s"):
        raise ValueError("first")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_propagates_and_closes_the_stage(error):
    host = Host(One())
    with pytest.raises(error), host.staged("s", {"x": 1}):
        raise error
    assert repr(host.fixtures) == "<Fixtures of no running stage: nothing>"


class Exhausted:
    """Raises StopIteration in the given hook."""

    def __init__(self, name):
        setattr(self, name, lambda: next(iter([])))


@pytest.mark.parametrize("name", ["pre_s", "post_s"])
def test_a_stop_iteration_from_a_hook_is_turned_into_an_error(name):
    def step(number):
        with Host(Exhausted(name)).staged("s"):
            return number

    with pytest.raises(EscapedStopIterationError) as caught:
        for _ in map(step, range(3)):  # a StopIteration would end this loop silently
            pass
    assert rows(caught.value) == {
        "fact": f"`Exhausted.{name}` raised StopIteration",
        "where": "stage s",
        "try": "catch it there, or use next(iterator, default) or a for loop",
    }
    assert isinstance(caught.value.__cause__, StopIteration)


def test_a_stop_iteration_from_a_body_is_turned_into_an_error():
    def step(number):
        with Host().staged("outer"), Host().staged("s"):
            return next(iter([]))

    with pytest.raises(EscapedStopIterationError) as caught:
        for _ in map(step, range(3)):
            pass
    assert rows(caught.value)["fact"] == "the body of stage `s` raised StopIteration"
    assert isinstance(caught.value.__cause__, StopIteration)


def test_a_stop_iteration_from_an_around_hook_does_not_end_a_loop_silently():
    class Stops:
        def around_s(self):
            next(iter([]))
            yield

    def step(number):
        with Host(Stops()).staged("s"):
            return number

    with pytest.raises(RuntimeError):
        list(map(step, range(3)))


def test_a_stop_iteration_from_an_always_hook_after_another_error_is_attached():
    class Stops:
        @always
        def post_s(self):
            next(iter([]))

    with pytest.raises(ValueError) as caught, Host(Stops()).staged("s"):
        raise ValueError
    assert any("EscapedStopIterationError: `Stops.post_s` raised StopIteration" in note for note in caught.value.__notes__)


def test_a_stop_iteration_from_a_lazy_fixture_is_turned_into_an_error():
    class Lazy:
        @fixture("s")
        def exhausted(self):
            return next(iter([]))

        def pre_s(self, exhausted): ...

    with pytest.raises(EscapedStopIterationError), Host(Lazy()).staged("s"):
        pass


@pytest.mark.parametrize("phase", ["pre", "around", "post"])
def test_the_note_of_an_error_names_extension_hook_file_and_stage_path(phase):
    def fail(self):
        raise ValueError("hook")

    def fail_around(self):
        raise ValueError("hook")
        yield

    host = Extensible()
    host.add_extension("mine", type("Fails", (), {f"{phase}_s": fail_around if phase == "around" else fail})())
    with pytest.raises(ValueError) as caught, host.staged("outer"), host.staged("s"):
        pass
    (note,) = caught.value.__notes__
    assert re.fullmatch(rf"in `Fails\.{phase}_s` \(extension `mine`, {HERE}\), stage outer > s", note)


def test_the_note_of_an_error_in_a_body_names_the_innermost_stage_path_once():
    host = Host()
    with pytest.raises(ValueError) as caught, host.staged("outer"), host.staged("s"):
        raise ValueError
    assert caught.value.__notes__ == ["in stage outer > s"]


def test_the_note_of_an_error_shows_the_progress_fixtures_that_exist():
    class Declared(Host):
        tree = StageTree(
            Stage("run", fixtures={"epoch": ENTRY}, stages=(Stage("batch", fixtures={"batch_num": ENTRY, "late": "body"}),)),
            progress=("epoch", "batch_num", "late"),
        )

    host = Declared()
    with pytest.raises(ValueError) as caught, host.staged("run", {"epoch": 3}), host.staged("batch", {"batch_num": 7}):
        raise ValueError
    assert caught.value.__notes__ == ["in stage run > batch, epoch 3, batch_num 7"]


def test_a_missing_fixture_error_raised_by_a_hook_itself_is_unchanged():
    """A FixtureNotFoundError raised inside a hook comes from the hook's code, not from its parameters."""
    host = Host()

    class Reads:
        def pre_s(self, x):
            host.fixtures["nothing"]

    host.extensions = [Reads()]
    with pytest.raises(FixtureNotFoundError) as caught, host.staged("s", {"x": 1}):
        pass
    assert rows(caught.value)["fact"] == "no open stage provides `nothing`"
    assert "`Reads.pre_s`" in caught.value.__notes__[0]


# the errors themselves

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling(kind):
    error = kind("the fact", where="here", hint="this\nor that")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.fact, again.rows, str(again)) == (error.fact, error.rows, str(error))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_text_of_an_error_has_a_row_for_each_part(kind):
    error = kind("the fact", where="here", open=None, known="", why="because", hint="this\nor that")
    assert str(error) == "the fact\n  where   here\n  why     because\n  try     this\n          or that"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_can_be_caught_as_a_trainmaster_error(kind):
    assert issubclass(kind, TrainmasterError)


def test_the_errors_a_stage_raises_survive_pickling():
    class Asks:
        def pre_s(self, missing): ...

    with pytest.raises(FixtureNotFoundError) as caught, Host(Asks()).staged("s"):
        pass
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_an_around_hook_that_fails_is_a_runtime_error():
    assert issubclass(AroundHookError, RuntimeError)


# forks (L15)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (RuntimeError("of the child"), 1, "RuntimeError: of the child"),
        (SystemExit(3), 3, ""),
        (SystemExit(None), 0, ""),
        (SystemExit("no more"), 1, "no more"),
    ],
    ids=str,
)
def test_an_error_in_a_process_that_a_hook_forked_ends_it_without_hooks(error, code, said, capfd):
    seen = []
    cleaned = []

    class Forking:
        def pre_step(self):
            child = os.fork()
            if child == 0:
                raise error
            seen.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

        @always
        def post_step(self):
            os.write(2, b"cleaned up\n")
            cleaned.append(os.getpid())

    parent = os.getpid()
    try:
        with Host(Forking()).staged("step"):
            pass
    finally:
        if os.getpid() != parent:  # the child must not continue with the tests
            os._exit(99)
    assert (seen, cleaned) == ([code], [os.getpid()])
    err = capfd.readouterr().err
    assert err.count("cleaned up") == 1
    assert said in err


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_routine_that_starts_in_a_forked_process_raises_its_errors():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with Host().staged("step"):
                raise RuntimeError("of the routine")
        except RuntimeError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"of the routine"
    for fd in (read, write):
        os.close(fd)
