"""Misspelled keys are distinguished from new keys."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.config import Config
from trainmaster.config.near_miss import find_near_misses, is_near_miss, suggestions

TYPOS = [
    *[("lrr", "lr"), ("lrs", "lr"), ("wdth", "width"), ("widht", "width"), ("widthh", "width"), ("wodth", "width"), ("depht", "depth")],
    *[("bathc_size", "batch_size"), ("batchsize", "batch_size"), ("batch_sise", "batch_size"), ("batch__size", "batch_size")],
    *[("drop_out", "dropout"), ("droput", "dropout"), ("dropuot", "dropout"), ("weight_decya", "weight_decay"), ("epoch", "epochs")],
    *[("learing_rate", "learning_rate"), ("earning_rate", "learning_rate"), ("learningRate", "learning_rate"), ("sead", "seed")],
    *[("momentun", "momentum"), ("momentem", "momentum"), ("optimiser", "optimizer"), ("LR", "lr"), ("Batch_size", "batch_size")],
    *[("wieght_dceay", "weight_decay"), ("n_layer", "n_layers"), ("esp", "eps"), ("layer2_widht", "layer2_width")],
]

NEW = [
    *[("beta2", "beta1"), ("lr_d", "lr_g"), ("width2", "width"), ("dropout_in", "dropout"), ("lr_d", "lr"), ("g_lr", "lr"), ("l1", "lr")],
    *[("n", "m"), ("x", "y"), ("N", "n"), ("lr", "wd"), ("rl", "lr"), ("a", "b"), ("bs", "ds"), ("mu", "nu"), ("k", "lr"), ("lr", "l")],
    *[("cnn", "rnn"), ("eta", "beta"), ("zeta", "beta"), ("encoder", "decoder"), ("encoder_width", "decoder_width"), ("height", "weight")],
    *[
        ("min_lr", "max_lr"),
        ("top_k", "top_p"),
        ("q_proj", "k_proj"),
        ("in_dim", "out_dim"),
        ("map", "max"),
        ("enc", "dec"),
        ("x_size", "size"),
    ],
    *[
        ("train", "test"),
        ("scheduler", "schedule_from"),
        ("warmup", "width"),
        ("layer1_width", "layer2_width"),
        ("conv10", "conv1"),
        ("lr", "lr"),
    ],
    *[("norm", "form"), ("pre_norm", "post_norm"), ("sigma", "gamma"), ("alpha", "lambda"), ("data", "date_of_birth"), ("", "lr")],
]


@pytest.mark.parametrize(("name", "known"), TYPOS)
def test_a_typo_is_a_near_miss(name: str, known: str) -> None:
    assert is_near_miss(name, known)
    assert known in suggestions(name, [known, "something_else"])


@pytest.mark.parametrize(("name", "known"), NEW)
def test_a_different_name_is_not_a_near_miss(name: str, known: str) -> None:
    assert not is_near_miss(name, known)


NAMES = st.text("abcdefgh_XY12", max_size=12)


@given(NAMES, NAMES)
def test_near_misses_are_symmetric(one: str, other: str) -> None:
    assert is_near_miss(one, other) == is_near_miss(other, one)


@given(st.text("abcdefgh", min_size=4, max_size=12), st.data())
def test_a_missing_or_doubled_letter_is_a_typo(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(name) - 1))
    assert is_near_miss(name[:at] + name[at + 1 :], name) or name[:at] + name[at + 1 :] == name
    assert is_near_miss(name[:at] + name[at] + name[at:], name)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"lrr": 1}, [("lrr", "lr")]),
        ({"lrr": 1, "lr": 2}, []),
        ({"optim": {"momentun": 1}}, [("optim.momentun", "optim.momentum")]),
        ({"optim.momentun": 1}, [("optim.momentun", "optim.momentum")]),
        ({"optm": {"momentum": 1}}, [("optm", "optim")]),
        ({"optim": 3, "loss": {"lrr": 1}}, []),
        ({"net": {"_target_": "Other", "widht": 1}}, []),
        ({"net": {"_target_": "Net", "widht": 1}}, [("net.widht", "net.width")]),
        ({}, []),
    ],
)
def test_keys_are_compared_group_by_group(config: dict[str, Any], found: list[tuple[str, str]]) -> None:
    defaults = Config({"lr": 0.1, "optim": {"momentum": 0.9}, "net": {"_target_": "Net", "width": 3}})
    assert list(find_near_misses(Config(config), defaults, "_target_")) == found
