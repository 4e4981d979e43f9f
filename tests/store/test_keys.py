"""Keys become paths, so every public function accepts only keys of 8 to 64 hex digits (fault I11)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.errors import KeyTextError
from trainmaster.store import Store
from trainmaster.store.keys import attempt_folder, attempt_number, check_key, config_path, is_key, run_folder

NO_KEYS: list[Any] = [
    "", "ab12cd3", "a" * 65, "AB12CD34", "ab12cd3g", "ab12cd34\n", " ab12cd34", "../../etc", "ab12cd34/..", "ab12cd3\u0664", "ab12cd34\0",
    12345678, 12345e3, None, b"ab12cd34", ["ab12cd34"],
]  # fmt: skip


@pytest.mark.parametrize("key", ["ab12cd34", "0" * 64, "12345678", "1234e567"])
def test_hex_digits_are_a_key(key: str) -> None:
    assert is_key(key)
    assert check_key(key) == key


@pytest.mark.parametrize("key", NO_KEYS, ids=ascii)
def test_any_other_text_is_refused(key: Any) -> None:
    assert not is_key(key)
    with pytest.raises(KeyTextError, match="is not a key"):
        check_key(key)


def test_the_error_for_a_number_asks_for_quotes() -> None:
    with pytest.raises(KeyTextError, match="a key is text: write it with quotes"):
        check_key(12345678)


def test_a_long_text_is_shortened_in_the_error() -> None:
    with pytest.raises(KeyTextError) as caught:
        check_key("x" * 10_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("key", NO_KEYS, ids=ascii)
def test_every_method_of_a_store_refuses_an_invalid_key(key: Any) -> None:
    store = Store(None)
    entrances = [
        store.configs.__getitem__,
        lambda key: store.configs.__setitem__(key, {"lr": 0.1}),
        store.stats.__getitem__,
        store.ckpts.__getitem__,
        store.previews.__getitem__,
        lambda key: store.ckpts.__setitem__(key, 1),
        lambda key: store.previews.__setitem__(key, {}),
        store.run,
        store.pop,
        lambda key: store.attempt(key, "test").__enter__(),
        lambda key: store.migrate(Store(None), keys=[key]),
    ]
    for enter in entrances:
        with pytest.raises(KeyTextError):
            enter(key)
    assert key not in store.configs
    assert key not in store.stats
    assert store.files.names("") == []


def test_files_are_in_a_folder_named_after_the_first_two_digits() -> None:
    assert config_path("ab12cd34") == "configs/ab/ab12cd34.json"
    assert run_folder("stats", "ab12cd34") == "stats/ab/ab12cd34"
    assert attempt_folder("ckpts", "ab12cd34", 7) == "ckpts/ab/ab12cd34/attempt-0007"


@given(st.integers(1, 999_999_999))
def test_the_number_of_an_attempt_is_read_from_its_folder(number: int) -> None:
    assert attempt_number(attempt_folder("stats", "ab12cd34", number).rpartition("/")[2]) == number


@pytest.mark.parametrize(
    "name", ["attempt-1", "attempt-00001", "attempt-0001x", "attempt--001", "Attempt-0001", "attempt-\u0661\u0661\u0661\u0661"]
)
def test_other_names_are_not_attempts(name: str) -> None:
    assert attempt_number(name) is None
