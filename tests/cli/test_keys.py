"""Run keys can be shortened to a prefix, and shells complete them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from trainmaster.cli.open_store import resolve_key
from trainmaster.errors import KeyTextError, StoreError, UnknownRunError
from trainmaster.store import Store

Call = Callable[..., Any]


@pytest.fixture
def keys(store: Store) -> list[str]:
    return sorted(store.configs.add_many({"seed": number} for number in range(300)))


def test_an_unambiguous_prefix_is_enough(store: Store, keys: list[str]) -> None:
    for number, key in enumerate(keys):
        others = keys[max(0, number - 1) : number] + keys[number + 1 : number + 2]
        shared = max(next(at for at in range(65) if key[:at] != each[:at]) - 1 for each in others)
        assert resolve_key(store, key[: shared + 1]) == key
    assert resolve_key(store, keys[0].upper()) == keys[0]


def test_an_ambiguous_prefix_is_refused_and_its_keys_are_listed(store: Store, keys: list[str]) -> None:
    start = next(key[:2] for key, after in itertools.pairwise(keys) if key[:2] == after[:2])
    with pytest.raises(StoreError) as error:
        resolve_key(store, start)
    assert all(key in error.value.rows["known"] for key in keys if key.startswith(start))


def test_a_complete_key_is_preferred_over_longer_keys(store: Store, keys: list[str]) -> None:
    key = keys[0]
    store.files.create(f"configs/{key[:2]}/{key}00000000.json", b"a longer one")
    assert resolve_key(store, key) == key
    with pytest.raises(StoreError, match="2 keys start with"):
        resolve_key(store, key[:-1])


def test_an_unknown_key_suggests_the_nearest(store: Store, keys: list[str]) -> None:
    wrong = keys[7][:5] + ("0" if keys[7][5] != "0" else "1") + keys[7][6:]
    with pytest.raises(UnknownRunError, match=f"did you mean.*`{keys[7]}`"):
        resolve_key(store, wrong)
    swapped = ("0" if keys[7][0] != "0" else "1") + keys[7][1:]  # this key would be in a different folder
    with pytest.raises(UnknownRunError, match=f"`{keys[7]}`"):
        resolve_key(store, swapped)


def test_an_invalid_key_is_refused(store: Store, keys: list[str]) -> None:
    """Covers fault I11."""
    for text in ["../x", "..", "", "/", "\x1b[2J", "zz", "a" * 65, "a/b", "١٢", "-", "con", "ab\0"]:
        with pytest.raises(KeyTextError) as error:
            resolve_key(store, text)
        assert "\x1b" not in str(error.value)


def test_a_prefix_of_two_digits_lists_only_one_folder(store: Store, keys: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault R01: a key must be found quickly among 100,000 keys."""
    asked: list[str] = []
    names = store.files.names
    monkeypatch.setattr(store.files, "names", lambda folder: asked.append(folder) or names(folder))
    resolve_key(store, keys[0])
    assert asked == [f"configs/{keys[0][:2]}"]


def test_a_shell_completes_commands_and_keys_with_their_states(make: Any, program: Call) -> None:
    key = make.run({"lr": 0.1})
    environment = {"_TRAINMASTER_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": f"trainmaster show {key[:3]}"}
    found = program(**environment)
    assert f'"{key}":"finished"' in found.out
    found = program(**{**environment, "_TYPER_COMPLETE_ARGS": "trainmaster ver"})
    assert '"verify"' in found.out
    found = program(**{**environment, "_TYPER_COMPLETE_ARGS": "trainmaster show --store nowhere "})
    assert (found.code, found.err) == (0, "")
