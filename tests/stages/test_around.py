"""Around hooks are generators that yield once; the stage's body runs at that point."""

import contextlib
from contextlib import suppress

import pytest

from trainmaster.errors import AroundHookError
from trainmaster.stages import Extensible, always


class Host(Extensible):
    def __init__(self, *extensions):
        self.extensions = [(f"ext{number}", each) for number, each in enumerate(extensions)]


class Around:
    def __init__(self, name, log):
        self.label, self.log = name, log

    def around_s(self):
        self.log.append(f"{self.label}.open")
        try:
            yield
        finally:
            self.log.append(f"{self.label}.close")


class Everywhere(Around):
    def pre_s(self):
        self.log.append(f"{self.label}.pre")

    def post_s(self):
        self.log.append(f"{self.label}.post")


def test_around_hooks_wrap_only_the_body_and_close_in_reverse_order():
    log = []
    with Host(Everywhere("a", log), Everywhere("b", log)).staged("s"):
        log.append("body")
    assert log == ["a.pre", "b.pre", "a.open", "b.open", "body", "b.close", "a.close", "a.post", "b.post"]


def test_an_around_hook_takes_fixtures():
    class Takes:
        def around_s(self, x, y=5):
            self.seen = x, y
            yield

    takes = Takes()
    with Host(takes).staged("s", {"x": 1}):
        pass
    assert takes.seen == (1, 5)


def test_an_around_hook_sees_fixtures_that_pre_hooks_created():
    host = Host()

    class Creates:
        def pre_s(self):
            host.fixtures["made"] = 3

        def around_s(self, made):
            self.seen = made
            yield

    creates = Creates()
    host.extensions = [creates]
    with host.staged("s"):
        pass
    assert creates.seen == 3


def test_an_around_hook_runs_again_at_every_entry():
    log = []
    host = Host(Around("a", log))
    for _ in range(3):
        with host.staged("s"):
            pass
    assert log == ["a.open", "a.close"] * 3


def test_an_around_hook_sees_the_error_in_the_body():
    class Sees:
        def around_s(self):
            try:
                yield
            except ValueError as error:
                self.seen = error
                raise

    sees = Sees()
    error = ValueError("body")
    with pytest.raises(ValueError), Host(sees).staged("s"):
        raise error
    assert sees.seen is error


def test_an_around_hook_cannot_swallow_an_error():
    class Swallows:
        def around_s(self):
            with suppress(ValueError):
                yield

    with pytest.raises(ValueError, match="body"), Host(Swallows()).staged("s"):
        raise ValueError("body")


def test_outer_around_hooks_see_an_error_that_an_inner_one_tried_to_swallow():
    seen = []

    class Swallows:
        def around_s(self):
            try:
                yield
            except ValueError as error:
                seen.append(str(error))

    with pytest.raises(ValueError), Host(Swallows(), Swallows()).staged("s"):
        raise ValueError("body")
    assert seen == ["body", "body"]


def test_around_hooks_clean_up_on_an_error_in_the_body():
    log = []
    with pytest.raises(ValueError), Host(Around("a", log), Around("b", log)).staged("s"):
        raise ValueError
    assert log == ["a.open", "b.open", "b.close", "a.close"]


def test_around_hooks_do_not_open_when_a_pre_hook_failed():
    class Fails:
        def pre_s(self):
            raise ValueError

    log = []
    with pytest.raises(ValueError), Host(Around("a", log), Fails()).staged("s"):
        pass
    assert log == []


def test_open_around_hooks_close_when_a_later_one_fails_to_open():
    class Fails:
        def around_s(self):
            raise ValueError("opening")
            yield

    log = []
    with pytest.raises(ValueError, match="opening"), Host(Around("a", log), Fails(), Around("b", log)).staged("s"):
        log.append("body")
    assert log == ["a.open", "a.close"]


def test_open_around_hooks_close_when_an_inner_one_fails_to_close():
    class Fails:
        def around_s(self):
            yield
            raise ValueError("closing")

    log = []
    with pytest.raises(ValueError, match="closing"), Host(Around("a", log), Fails()).staged("s"):
        log.append("body")
    assert log == ["a.open", "body", "a.close"]


def test_after_an_error_in_an_around_hook_only_always_hooks_run():
    log = []

    class Fails:
        def around_s(self):
            yield
            raise ValueError("closing")

        def post_s(self):
            log.append("post")

    class Always:
        @always
        def post_s(self, exc_value):
            log.append(str(exc_value))

    with pytest.raises(ValueError), Host(Fails(), Always()).staged("s"):
        pass
    assert log == ["closing"]


def test_around_hooks_close_before_always_hooks_run():
    log = []

    class Both(Around):
        @always
        def post_s(self):
            self.log.append("post")

    with pytest.raises(ValueError), Host(Both("a", log)).staged("s"):
        raise ValueError
    assert log == ["a.open", "a.close", "post"]


def test_an_error_in_an_around_hook_while_another_is_raised_is_attached_to_the_first():
    class Fails:
        def around_s(self):
            try:
                yield
            finally:
                raise KeyError("cleanup")

    first = ValueError("body")
    with pytest.raises(ValueError) as caught, Host(Fails()).staged("s"):
        raise first
    assert caught.value is first
    assert any("`Fails.around_s`" in note and "failed too: KeyError: 'cleanup'" in note for note in first.__notes__)


def test_a_generator_that_ends_before_its_yield_is_refused():
    class Never:
        def around_s(self, is_on=False):
            if is_on:
                yield

    log = []
    with pytest.raises(AroundHookError) as caught, Host(Never()).staged("s"):
        log.append("body")
    assert log == []
    text = str(caught.value)
    assert text.startswith("around hook `Never.around_s` never yields")
    assert "  where   " in text
    assert "test_around.py:" in text
    assert "  try     yield exactly once, at the point where the stage's body should run" in text


def test_a_plain_function_is_refused_as_an_around_hook():
    class Plain:
        def around_s(self):
            return None

    with pytest.raises(AroundHookError, match=r"`Plain\.around_s` never yields"), Host(Plain()).staged("s"):
        pass


def test_an_around_hook_that_cannot_yield_is_refused_when_it_is_attached():
    class Forgets:
        def around_s(self):
            with contextlib.suppress(OSError):
                print("inside")

    class Decorated:
        @contextlib.contextmanager
        def around_s(self):
            yield

    for extension in (Forgets(), Decorated()):
        with pytest.raises(AroundHookError, match=r"`\w+\.around_s` never yields\n.*\n.*do not use @contextmanager"):
            Host(extension)


def test_an_around_hook_may_return_the_generator_of_another_object():
    calls = []

    class Inner:
        def around_s(self):
            calls.append("before")
            yield
            calls.append("after")

    class Outer:
        def around_s(self):
            return Inner().around_s()

    with Host(Outer()).staged("s"):
        calls.append("body")
    assert calls == ["before", "body", "after"]


def test_a_second_yield_is_refused():
    class Twice:
        def around_s(self):
            yield
            yield

    with pytest.raises(AroundHookError) as caught, Host(Twice()).staged("s"):
        pass
    assert str(caught.value).startswith("around hook `Twice.around_s` yields twice")
    assert "  try     yield exactly once, at the point where the stage's body should run" in str(caught.value)


def test_a_generator_that_yields_twice_is_closed():
    log = []

    class Twice:
        def around_s(self):
            try:
                yield
                yield
            finally:
                log.append("closed")

    with pytest.raises(AroundHookError), Host(Twice()).staged("s"):
        pass
    assert log == ["closed"]


def test_a_yield_after_an_error_is_attached_to_the_error():
    class Again:
        def around_s(self):
            try:
                yield
            except ValueError:
                yield

    with pytest.raises(ValueError) as caught, Host(Again()).staged("s"):
        raise ValueError("body")
    assert any("yields again after an error" in note for note in caught.value.__notes__)


def test_the_stage_is_closed_after_an_around_hook_has_failed():
    class Fails:
        def around_s(self):
            raise ValueError
            yield

    host = Host(Fails())
    with pytest.raises(ValueError), host.staged("s", {"x": 1}):
        pass
    assert repr(host.fixtures) == "<Fixtures of no running stage: nothing>"


def test_a_failed_around_hook_leaves_nothing_for_the_next_entry():
    log = []

    class FailsOnce(Around):
        def around_s(self):
            yield
            if "failed" not in self.log:
                self.log.append("failed")
                raise ValueError

    host = Host(Around("a", log), FailsOnce("b", log))
    with pytest.raises(ValueError), host.staged("s"):
        pass
    log[:] = ["failed"]
    with host.staged("s"):
        pass
    assert log == ["failed", "a.open", "a.close"]
