"""Users select runs with conditions such as `lr<0.1`."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.errors import StoreError
from trainmaster.store.dict_filter import Nothing
from trainmaster.store.query import MAX_DEPTH, MAX_LENGTH, parse_where

RUN = {
    "lr": 0.01,
    "arch": "ResNet18",
    "model.width": 64,
    "is_fast": True,
    "note": None,
    "loss": float("nan"),
    "sizes": [3, 5],
    "digits": "12",
    "tag": frozenset({"best", "v1.0"}),
    "key": "12345678",
    "spaced name": 1,
    "empty": [],
    "deep": [[1], ["a", "b c", True, None]],
    "accuracy[0]": 1,
}


def is_met(text: str, run: dict[str, Any] = RUN) -> bool | None:
    return parse_where(text).verdict(lambda name: run.get(name, Nothing.MISSING))


@pytest.mark.parametrize(
    "text",
    [
        "lr=0.01", "lr==1e-2", "lr!=0.1", "lr<0.1", "lr<=.01", "lr>0", "lr>=0.01", "lr>-1", "lr < 1 and arch = ResNet18", "arch='ResNet18'",
        'arch="ResNet18"', "arch!=ViT", "arch~net18", "arch~18", "arch in (ViT, ResNet18)", "arch in(ResNet18)", "not arch=ViT",
        "NOT arch=ViT AND lr<1", "model.width=64", "model.width=64.0", "is_fast=true", "is_fast=True", "is_fast!=false", "note=none",
        "note=null", "loss=nan", "loss!=3", "sizes~5", "digits='12'", "digits~1", "tag=best", "tag='v1.0'", "tag!=worst", "tag~v1",
        "tag in (worst, best)", "key=12345678", "key~345", "'spaced name'=1", "arch>A", "lr=1 or (lr<1 and (arch=ViT or digits~2))",
        "lr=1 or arch=ViT or lr<1", "sizes=[3, 5]",
        "sizes==[3,5]", "sizes=[3.0, 5]", "sizes!=[5, 3]", "sizes!=[3]", "sizes!=3", "sizes in ([1], [3, 5])", "empty=[]", "sizes!=[]",
        "deep=[[1], [a, 'b c', true, none]]", "accuracy[0]=1", "arch!=[a]", "not (lr=1 or arch=ViT)", "not not lr<1",
        "missing!=3 or lr<1", "not missing=3",
    ],
)  # fmt: skip
def test_a_condition_is_met(text: str) -> None:
    assert is_met(text) is True


@pytest.mark.parametrize(
    "text",
    [
        "lr=0.1", "lr<0.01", "arch=resnet18", "arch=ViT", "arch<5", "arch=5", "lr<abc", "lr='0.01'", "digits=12", "digits<13", "is_fast=1",
        "is_fast>0", "note<1", "loss<1", "loss>=1", "loss=1", "missing=1", "missing!=1", "missing<1", "missing~a", "tag=worst", "tag!=best",
        "tag<z and tag=q", "key=1234", "lr<1 and arch=ViT", "not lr<1", "sizes=3", "arch in (ViT, MLP)", "model=64", "epoch=3",
        "sizes!=[3, 5]", "sizes=[3]", "sizes=[3, 5, 7]", "sizes=[3, true]", "sizes=['3', 5]", "sizes in ([3], [5])", "missing!=[3]",
        "lr=[0.01]",
    ],
)  # fmt: skip
def test_a_condition_is_not_met(text: str) -> None:
    """Comparing text with a number is not an error, and neither is a name that only other runs have."""
    assert is_met(text) is False


def test_and_has_precedence_over_or() -> None:
    assert is_met("lr<1 or lr<1 and arch=ViT") is True
    assert is_met("(lr<1 or lr<1) and arch=ViT") is False


@pytest.mark.parametrize(
    ("text", "wanted"), [("lr<1 and later=1", None), ("lr>1 and later=1", False), ("lr<1 or later=1", True), ("not later=1", None)]
)
def test_the_verdict_is_unknown_only_if_it_depends_on_an_unknown_value(text: str, wanted: bool | None) -> None:
    assert parse_where(text).verdict(lambda name: RUN.get(name, Nothing.UNKNOWN)) is wanted


@pytest.mark.parametrize(
    ("text", "fact", "caret"),
    [
        ("", "expected a name, `not` or `(`", 0),
        ("lr", "expected one of = == != < <= > >= ~ or `in` after `lr`", 2),
        ("lr<", "expected a value", 3),
        ("lr<<3", "expected a value", 3),
        ("lr<1 arch=3", "expected `and`, `or` or the end", 5),
        ("(lr<1", "expected `)`", 5),
        ("lr<1)", "expected `and`, `or` or the end", 4),
        ("lr in 3", "expected `(` and values", 6),
        ("lr in (3", "expected `,` or `)`", 8),
        ("lr in ()", "expected a value", 7),
        ("arch='ViT", "this quote is not closed", 5),
        ("lr!3", "expected `!=` or `not`", 2),
        ("lr<1 and", "expected a name", 8),
        ("and lr<1", "expected a name", 0),
        ("a=[1", "expected `,` or `]`", 4),
        ("a=[1 2]", "expected `,` or `]`", 5),
        ("a=[,]", "expected a value", 3),
        ("a=[1,]", "expected a value", 5),
        ("a=[(1)]", "this is not allowed here", 3),
        ("a<[1]", "a list can be compared with =, != and `in`, not with <", 0),
        ("a~[1]", "a list can be compared with =, != and `in`, not with ~", 0),
        ("lr<1 and tag!=[best]", "`tag` is never a list", 9),
        ("__import__('os').system('true')", "expected one of", 10),
    ],
)
def test_a_mistake_is_shown_at_its_position(text: str, fact: str, caret: int) -> None:
    with pytest.raises(StoreError) as error:
        parse_where(text)
    assert fact in error.value.fact
    shown, below = error.value.rows["where"].split("\n")
    assert (shown, below) == (text, " " * caret + "^")


def test_the_position_of_a_mistake_is_right_after_escaped_and_wide_characters() -> None:
    with pytest.raises(StoreError) as error:
        parse_where("'\x1b漢'=1 )")
    shown, below = error.value.rows["where"].split("\n")
    assert shown == "'\\x1b漢'=1 )"
    assert below.index("^") == len("'\\x1b") + 2 + len("'=1 ")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10**5, "(" * (MAX_LENGTH - 1), "not " * 900, "x" * 10**6, "a=1 and " * 10**5, '"' + "\\" * 3990, "'" * 3999,
        "(a=1" + " or a=1" * 500,
        "a in (" + "1," * 1900, "((((a=1) or " * 300, "a" * 3000 + "!", " " * 3999 + "!",
        "a=" + "[" * 3000, "a=[" + "1," * 3000,
    ],
    ids=range(14),
)  # fmt: skip
def test_a_hostile_condition_is_refused_at_once(text: str) -> None:
    """Fault S13: a condition causes no infinite recursion, and no pattern takes forever."""
    begun = time.process_time()
    with pytest.raises(StoreError) as error:
        parse_where(text)
    assert time.process_time() - begun < 0.5
    assert len(str(error.value)) < 2000


def test_a_deep_or_long_condition_within_the_limits_is_parsed() -> None:
    assert is_met("(" * MAX_DEPTH + "lr<1" + ")" * MAX_DEPTH) is True
    assert is_met(" and ".join(["lr<1"] * 400)) is True


@given(st.text(alphabet="ab1.=<>!~()[]'\" ,\\-éand\x1b\n", max_size=60))
def test_any_text_is_a_condition_or_an_error(text: str) -> None:
    told = ""
    try:
        assert is_met(text) in (True, False)
    except StoreError as error:
        told = str(error)
    assert "\x1b" not in told
