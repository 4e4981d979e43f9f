"""The engine and a small model of the contracts run the same random programs (E2, E5 to E10, E15, E18)."""

import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.errors import FixtureExistsError, NoRunningStageError
from trainmaster.stages import Extensible, Stage, StageTree, always, staged

NAMES = ("f0", "f1", "f2", "f3")
STAGES = ("s0", "s1")
SUB = "sub"  # the stage that hooks open


class Boom(Exception): ...


@pytest.fixture(autouse=True, scope="module")
def silent_log() -> Iterator[None]:
    """Do not log swallowed errors. A failed test would print hundreds of them, and hide the difference that it found."""
    logger = logging.getLogger("trainmaster")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


# programs


@dataclass(frozen=True)
class Node:
    """One opening of a stage: the fixtures it creates, the inner stages it opens, and how its body ends."""

    stage: str
    initial: tuple[str, ...] = ()
    created: tuple[str, ...] = ()
    inner: tuple["Node", ...] = ()
    is_raising: bool = False
    is_caught: bool = False
    """Whether the outer body catches the error from this one and continues."""


@dataclass(frozen=True)
class Hooks:
    """The hooks of one extension for one stage. A missing hook is None; a post hook is a pair (act, is_always)."""

    pre: str | None
    around: str | None
    post: tuple[str, bool] | None


names = st.lists(st.sampled_from(NAMES), max_size=2, unique=True).map(tuple)
nodes = st.recursive(
    st.builds(Node, st.sampled_from(STAGES), names, names, st.just(()), st.booleans(), st.booleans()),
    lambda inner: st.builds(
        Node,
        st.sampled_from(STAGES),
        names,
        names,
        st.lists(inner, max_size=3).map(tuple),
        st.sampled_from([False, False, True]),
        st.booleans(),
    ),
    max_leaves=5,
)
creating = st.sampled_from([f"create {name}" for name in NAMES])


def hooks(*more):
    act = st.one_of(st.sampled_from(["look", "look", "look", "raise", *more]), creating)
    return st.builds(
        Hooks,
        pre=st.none() | act,
        around=st.none() | st.sampled_from(["wrap", "wrap", "raise at open", "raise at close", "try to swallow"]),
        post=st.none() | st.tuples(st.one_of(act, st.just("swallow")), st.booleans()),
    )


extensions = st.lists(st.fixed_dictionaries({"s0": hooks("open"), "s1": hooks("open"), SUB: hooks()}), max_size=3)
sub_node = Node(SUB, initial=("sub_x",), created=("sub_y",))


# the engine


def label(error):
    return None if error is None else "exists" if isinstance(error, FixtureExistsError) else str(error)


def later(error):
    return sum(note.startswith("then `") for note in getattr(error, "__notes__", ()))


class Undeclared(Extensible):
    """Runs a program and logs what happened and which fixtures were visible."""

    def __init__(self, specs):
        self.log = []
        self.bodies = []
        """For each open stage, whether its body was reached."""
        self.extensions = [(f"ext{number}", extension(self, number, spec)) for number, spec in enumerate(specs)]

    def see(self, what, error=None):
        self.log.append((what, dict(self.fixtures), label(error)))

    def act(self, act, who):
        if act == "raise":
            raise Boom(who)
        if act.startswith("create"):
            self.fixtures[act.split()[1]] = who
        elif act == "open":
            self.execute(sub_node)

    def execute(self, node):
        self.bodies.append(False)
        try:
            with self.staged(node.stage, dict.fromkeys(node.initial, f"initial of {node.stage}")):
                self.bodies[-1] = True
                self.see(f"body {node.stage}")
                for name in node.created:
                    self.fixtures[name] = f"body of {node.stage}"
                for inner in node.inner:
                    try:
                        self.execute(inner)
                    except (Boom, FixtureExistsError) as error:
                        if not inner.is_caught:
                            raise
                        self.see("caught", error)
                if node.is_raising:
                    raise Boom(f"body of {node.stage}")
        finally:
            self.bodies.pop()


class Declared(Undeclared):
    tree = StageTree(Stage("root", stages=tuple(map(Stage, (*STAGES, SUB)))))


def extension(host, number, spec):
    methods = {}
    for stage, each in spec.items():
        who = f"ext{number} {stage}"
        if each.pre:
            methods[f"pre_{stage}"] = pre_hook(host, f"{who} pre", each.pre)
        if each.around:
            methods[f"around_{stage}"] = around_hook(host, f"{who} around", each.around)
        if each.post:
            methods[f"post_{stage}"] = post_hook(host, f"{who} post", *each.post)
    return type("Ext", (), methods)()


def pre_hook(host, who, act):
    def hook(self):
        host.see(who)
        host.act(act, who)

    return hook


def around_hook(host, who, act):
    def hook(self):
        host.see(f"{who} opens")
        if act == "raise at open":
            raise Boom(who)
        try:
            yield
        except (Boom, FixtureExistsError):
            if act != "try to swallow":
                raise
        finally:
            host.see(f"{who} closes")
            if act == "raise at close":
                raise Boom(who)

    return hook


def post_hook(host, who, act, is_always):
    def hook(self, exc_value):
        host.see(who, exc_value)
        if act == "swallow":
            return host.bodies[-1]  # an error before the body cannot be swallowed
        return host.act(act, who)

    return always(hook) if is_always else hook


# the model


@dataclass
class ModelError(Exception):
    text: str
    later: int = 0
    """How many later errors were attached to this one."""


@dataclass
class Model:
    """A simple and slow implementation of the contracts."""

    specs: list
    levels: list = field(default_factory=list)
    log: list = field(default_factory=list)

    def see(self, what, error=None):
        self.log.append((what, {name: value for level in self.levels for name, value in level.items()}, error and error.text))

    def create(self, fresh):
        if any(name in level for name in fresh for level in self.levels):
            raise ModelError("exists")
        self.levels[-1].update(fresh)

    def act(self, act, who):
        if act == "raise":
            raise ModelError(who)
        if act.startswith("create"):
            self.create({act.split()[1]: who})
        elif act == "open":
            self.execute(sub_node)

    def execute(self, node):
        all_hooks = [(f"ext{number} {node.stage}", spec[node.stage]) for number, spec in enumerate(self.specs)]
        errors, opened, is_reached = [], [], False
        self.levels.append({})
        try:
            self.create(dict.fromkeys(node.initial, f"initial of {node.stage}"))
            for who, each in all_hooks:  # E2: all pre hooks, in order
                if each.pre:
                    self.see(f"{who} pre")
                    self.act(each.pre, f"{who} pre")
            for who, each in all_hooks:
                if each.around:
                    self.see(f"{who} around opens")
                    if each.around == "raise at open":
                        raise ModelError(f"{who} around")
                    opened.append((who, each.around))
            is_reached = True
            self.body(node)
        except ModelError as error:
            errors.append(error)
        for who, around in reversed(opened):
            self.see(f"{who} around closes")
            if around == "raise at close":
                self.attach(errors, ModelError(f"{who} around"))
        for who, each in all_hooks:  # E2: post hooks in the same order
            if each.post and (each.post[1] or not errors):  # E5, E9
                act = each.post[0]
                self.see(f"{who} post", errors[0] if errors else None)  # E6
                try:
                    if act != "swallow":
                        self.act(act, f"{who} post")  # E8: a fixture that it creates belongs to this stage
                    elif errors and is_reached:
                        errors.pop(0)  # E7
                except ModelError as error:
                    self.attach(errors, error)
        self.levels.pop()  # E18
        if errors:
            raise errors[0]

    def body(self, node):
        self.see(f"body {node.stage}")
        for name in node.created:
            self.create({name: f"body of {node.stage}"})
        for inner in node.inner:
            try:
                self.execute(inner)
            except ModelError as error:
                if not inner.is_caught:
                    raise
                self.see("caught", error)
        if node.is_raising:
            raise ModelError(f"body of {node.stage}")

    def attach(self, errors, error):
        if errors:
            errors[0].later += 1
        errors.append(error)


def outcome(function, node):
    try:
        function(node)
    except ModelError as error:
        return error.text, error.later
    except (Boom, FixtureExistsError) as error:
        return label(error), later(error)
    return None


def check(kind, specs, node):
    model, host = Model(specs), kind(specs)
    expected = outcome(model.execute, node)
    for _ in range(2):  # the second run shows whether the first left anything behind
        host.log.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an undeclared host warns about hooks whose stage the program does not open
            result = outcome(host.execute, node)
        assert host.log == model.log
        assert result == expected
        assert repr(host.fixtures) == "<Fixtures of no running stage: nothing>"
        assert "exc_value" not in host.fixtures
        with pytest.raises(NoRunningStageError):
            staged("s0")


@pytest.mark.parametrize("kind", [Undeclared, Declared])
@settings(max_examples=150, deadline=None)
@given(specs=extensions, node=nodes)
def test_the_engine_matches_the_model(kind, specs, node):
    check(kind, specs, node)


@pytest.mark.parametrize("kind", [Undeclared, Declared])
@settings(max_examples=100, deadline=None)
@given(specs=extensions, more=extensions, node=nodes)
def test_the_engine_matches_the_model_after_the_extensions_were_changed(kind, specs, more, node):
    model, host = Model(more), kind(specs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome(host.execute, node)
        host.log.clear()
        host.extensions.clear()
        for number, spec in enumerate(more):
            host.add_extension(f"ext{number}", extension(host, number, spec))
        result = outcome(host.execute, node)
    assert result == outcome(model.execute, node)
    assert host.log == model.log
