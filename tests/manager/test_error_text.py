"""Errors are recorded and printed as readable text."""

from __future__ import annotations

import pytest
from torch._utils import ExceptionWrapper

from trainmaster.config import Config
from trainmaster.manager.error_text import error_text


def from_a_loader(error: Exception) -> Exception:
    """Return the error that torch raises in the main process for an error in a DataLoader worker."""
    try:
        raise error
    except Exception:
        wrapped = ExceptionWrapper(where="in DataLoader worker process 3")  # type: ignore[no-untyped-call]
    with pytest.raises(type(error)) as caught:
        wrapped.reraise()
    return caught.value


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad sample"), "ValueError: bad sample"),
        (KeyError("name"), "KeyError: 'name'"),
        (RuntimeError(), "RuntimeError"),
        (Exception("two: parts"), "Exception: two: parts"),
    ],
)
def test_a_loader_error_is_recorded_without_its_traceback(error: Exception, text: str) -> None:
    assert error_text(from_a_loader(error)) == f"{text} (in DataLoader worker process 3)"


def test_a_loader_error_keeps_all_lines_of_its_message() -> None:
    with pytest.raises(KeyError) as caught:
        Config({"lr": 0.1})["lrr"]
    first, *more = error_text(from_a_loader(caught.value)).split("\n")
    assert first == "UnknownKeyError: the config has no key `lrr` (in DataLoader worker process 3)"
    assert more == ["  known   lr", "  try     did you mean `lr`?"]
    assert error_text(from_a_loader(ValueError("one\ntwo: 2"))) == "ValueError: one (in DataLoader worker process 3)\ntwo: 2"


def test_the_last_of_several_chained_loader_errors_is_recorded() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error
    except ValueError as error:
        chained = error
    assert error_text(from_a_loader(chained)) == "ValueError: second (in DataLoader worker process 3)"


def test_any_other_error_is_recorded_unchanged() -> None:
    assert error_text(ValueError("one\ntwo")) == "ValueError: one\ntwo"
    assert error_text(ValueError("Caught up in work.")) == "ValueError: Caught up in work."
