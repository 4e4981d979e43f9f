"""Metrics can be given by their full names or by unambiguous endings."""

from __future__ import annotations

import pytest

from trainmaster.errors import MetricNameError
from trainmaster.store.metric_names import MAX_LENGTH, checked_metric_name, matching_metrics, refuse_misspelled, resolve_metric

KNOWN = ["train/loss", "valid/loss", "valid/accuracy", "train/accuracy", "valid/sample_loss/max", "lr", "grad_norm/0.weight", "lossy"]


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("valid/loss", "valid/loss"),
        ("loss", "valid/loss"),  # the only evaluation set takes precedence over training
        ("train/loss", "train/loss"),
        ("accuracy", "valid/accuracy"),
        ("max", "valid/sample_loss/max"),
        ("sample_loss/max", "valid/sample_loss/max"),
        ("lr", "lr"),
        ("0.weight", "grad_norm/0.weight"),
    ],
)
def test_a_metric_is_known_by_any_unambiguous_ending(name: str, full: str) -> None:
    assert resolve_metric(name, KNOWN) == full


def test_a_full_name_is_that_metric_even_if_others_end_with_it() -> None:
    assert resolve_metric("loss", ["loss", "valid/loss"]) == "loss"


def test_a_training_metric_is_found_if_no_evaluation_has_the_name() -> None:
    assert resolve_metric("loss", ["train/loss", "lr"]) == "train/loss"


def test_a_metric_of_an_evaluation_set_has_precedence_over_one_without_a_set() -> None:
    assert resolve_metric("norm", ["valid/loss", "valid/norm", "grad/norm", "train/norm"]) == "valid/norm"
    assert resolve_metric("norm", ["valid/loss", "grad/norm", "train/norm"]) == "grad/norm"


def test_names_of_older_stores_are_also_resolved() -> None:
    old = ["losses/train/loss", "losses/valid/loss", "losses/valid/loss_per_batch", "metrics/valid/accuracy"]
    assert resolve_metric("loss", old) == "losses/valid/loss"
    assert resolve_metric("valid/accuracy", old) == "metrics/valid/accuracy"


def test_an_ending_begins_after_a_slash() -> None:
    for name in ("oss", "id/loss", "weight", "", "/loss"):
        assert matching_metrics(name, KNOWN) == []


def test_an_ambiguous_ending_is_an_error_that_lists_the_candidates() -> None:
    with pytest.raises(MetricNameError) as error:
        resolve_metric("loss", ["test/loss", "valid/loss", "train/loss"])
    assert str(error.value).split("\n") == [
        "`loss` may refer to 2 metrics",
        "  known   test/loss, valid/loss",
        "  try     use the full name",
    ]


def test_an_unknown_name_is_an_error_that_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(MetricNameError) as error:
        resolve_metric("acuracy", KNOWN[:3])
    assert str(error.value).split("\n") == [
        "there is no metric `acuracy`",
        "  known   train/loss, valid/accuracy, valid/loss",
        "  try     did you mean `accuracy`?",
    ]
    with pytest.raises(MetricNameError, match=r"(?s)known   none"):
        resolve_metric("loss", [])


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("val_loss", "valid/loss"),
        ("val_acc", "valid/accuracy"),
        ("acc", "accuracy"),
        ("Accuracy", "accuracy"),
        ("validation/loss", "valid/loss"),
    ],
)
def test_names_of_other_libraries_get_a_suggestion(name: str, meant: str) -> None:
    known = ["train/loss", "train/accuracy", "valid/loss", "valid/accuracy"]
    with pytest.raises(MetricNameError, match=f"did you mean `{meant}`"):
        resolve_metric(name, known)
    with pytest.raises(MetricNameError, match=f"did you mean `{meant}`"):
        refuse_misspelled(name, known)


@pytest.mark.parametrize("name", ["loss", "valid/loss", "test/accuracy", "valid/f1", "valid/mae", "reward", "vl_ls"])
def test_known_names_and_names_that_may_be_new_are_not_misspelled(name: str) -> None:
    refuse_misspelled(name, ["train/loss", "train/accuracy", "valid/loss", "valid/accuracy", "valid/mse"])
    refuse_misspelled(name, [])


def test_errors_stay_short_and_harmless_with_hostile_names() -> None:
    hostile = [f"valid/\x1b[2J{number}" + "x" * 10**6 for number in range(3)] + [f"m{number}" for number in range(1000)]
    with pytest.raises(MetricNameError) as error:
        resolve_metric("\x1b" * 10**5, hostile)
    assert len(str(error.value)) < 3000
    assert "\x1b" not in str(error.value)


def test_a_name_that_is_too_long_is_refused() -> None:
    assert checked_metric_name("x" * MAX_LENGTH) == "x" * MAX_LENGTH
    with pytest.raises(MetricNameError, match=r"a metric name has 1,000,000 characters; the limit is 200: `xxx"):
        checked_metric_name("x" * 10**6)
