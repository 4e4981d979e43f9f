"""Reading a record returns exactly what was written, or raises an error that names the file (faults I03 and I14)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.errors import StoreDamagedError
from trainmaster.store.checksummed_json import find_record, parse_record, read_record, record_bytes
from trainmaster.store.memory_files import MemoryFiles

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3),
    max_leaves=10,
)
RECORDS = st.dictionaries(st.text().filter(lambda name: name != "checksum"), VALUES, min_size=1, max_size=5)
RECORD = record_bytes({"epoch": 3, "name": "ü\ud800\n", "deep": {"a": [1, None, 2.5]}})


@settings(max_examples=100, deadline=None)
@given(RECORDS)
def test_a_record_is_read_as_it_was_written(members: dict[str, Any]) -> None:
    assert parse_record(record_bytes(members), "a.json") == members


@settings(max_examples=50, deadline=None)
@given(RECORDS)
def test_a_record_is_json_that_anyone_can_read(members: dict[str, Any]) -> None:
    found = json.loads(record_bytes(members))
    assert len(found.pop("checksum")) == 64
    assert found == members


def test_a_record_has_a_line_for_each_member() -> None:
    lines = record_bytes({"epoch": 3, "deep": {"a": [1, 2]}}).decode().split("\n")
    assert lines[:3] == ["{", ' "epoch": 3,', ' "deep": {"a": [1, 2]},']


def test_a_record_truncated_anywhere_is_damaged() -> None:
    for size in range(len(RECORD)):
        with pytest.raises(StoreDamagedError) as caught:
            parse_record(RECORD[:size], "a.json")
        assert caught.value.rows["why"] == ("it is truncated, or was not written by trainmaster" if size else "it is empty")


def test_a_record_with_any_byte_changed_is_damaged() -> None:
    for place in range(len(RECORD)):
        for flip in (1, 0x20, 0x80):
            changed = bytearray(RECORD)
            changed[place] ^= flip
            with pytest.raises(StoreDamagedError):
                parse_record(bytes(changed), "a.json")


def test_a_record_with_something_after_it_is_damaged() -> None:
    for more in (b"\n", b"}", b" ", RECORD):
        with pytest.raises(StoreDamagedError):
            parse_record(RECORD + more, "a.json")


def test_the_error_names_the_file_the_reason_and_what_to_do() -> None:
    with pytest.raises(StoreDamagedError) as caught:
        parse_record(RECORD.replace(b"3", b"4", 1), "stats/ab/status.json")
    assert str(caught.value) == (
        "`stats/ab/status.json` is damaged\n"
        "  why     its checksum does not match: it was changed after it was written\n"
        "  try     restore the file from a copy; `verify()` lists all damaged files"
    )


def test_a_number_that_json_lacks_is_not_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        record_bytes({"loss": float("nan")})


@pytest.mark.parametrize("value", [..., None, "3", 3.0, True, [3]])
def test_a_missing_member_or_a_wrong_type_is_damage(value: Any) -> None:
    data = record_bytes({"other": 1} | ({} if value is ... else {"epoch": value}))
    with pytest.raises(StoreDamagedError) as caught:
        parse_record(data, "a.json", {"epoch": int})
    assert caught.value.rows["why"] == "its `epoch` is missing or of the wrong type"


def test_a_member_may_be_of_one_of_several_types() -> None:
    members = {"parent": (int, type(None))}
    assert parse_record(record_bytes({"parent": None}), "a", members) == {"parent": None}
    with pytest.raises(StoreDamagedError):
        parse_record(record_bytes({"parent": "1"}), "a", members)


def test_true_is_not_a_number_even_if_none_is_allowed() -> None:
    with pytest.raises(StoreDamagedError):
        parse_record(record_bytes({"parent": True}), "a", {"parent": (int, type(None))})


def test_a_missing_record_is_none_or_not_found() -> None:
    assert find_record(MemoryFiles(), "a.json") is None
    with pytest.raises(FileNotFoundError):
        read_record(MemoryFiles(), "a.json")


def test_a_record_nested_too_deep_is_damage_and_no_crash() -> None:
    deep = b'{\n "a": ' + b"[" * 200_000 + b"]" * 200_000
    data = deep + b',\n "checksum": "' + hashlib.sha256(deep).hexdigest().encode() + b'"\n}\n'
    with pytest.raises(StoreDamagedError):
        parse_record(data, "a.json")
