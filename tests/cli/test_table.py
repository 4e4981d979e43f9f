"""`trainmaster table`, `plot` and `curves` select runs like `ls`, and write text for other programs, or figures."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planted_runs import add_run

from trainmaster.analysis.result_table import Estimate
from trainmaster.analysis.table_text import to_csv, to_html, to_json, to_latex, to_markdown
from trainmaster.store import Store

Call = Callable[..., Any]


@pytest.fixture
def sweep(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Create two settings with two seeds each, and a run that failed."""
    monkeypatch.chdir(tmp_path)
    for lr in (0.1, 0.2):
        for seed in (0, 1):
            add_run(store, {"optim": {"lr": lr}, "arch": "MLP", "seed": seed}, [{"valid/loss": lr + seed / 100}], seed=seed)
    add_run(store, {"optim": {"lr": 0.3}, "arch": "MLP", "seed": 0}, outcome="failed", error="boom")
    return store


def test_a_table_has_the_finished_runs_with_varying_values_and_metrics(call: Call, sweep: Store) -> None:
    found = call("table", "--sort", "-loss")
    head, *rows = found.out.splitlines()
    assert head.split() == ["key", "optim.lr", "seed", "epoch", "valid/loss"]
    assert [row.split()[1:3] for row in rows] == [["0.2", "1"], ["0.2", "0"], ["0.1", "1"], ["0.1", "0"]]
    assert "left out: 1 failed run: " in found.err


def test_a_grouped_table_has_means_and_standard_deviations(call: Call, sweep: Store) -> None:
    head, first, second = call("table", "--group").out.splitlines()
    assert head.split() == ["optim.lr", "n", "valid/loss"]
    assert first.split() == ["0.1", "2", "0.1050", "±", "0.0071"]
    assert second.split()[:2] == ["0.2", "2"]
    assert call("table", "--by", "arch", "-f", "csv").out.splitlines()[0].startswith("arch,configs,valid/loss,valid/loss sd,valid/loss low")


def test_a_grouped_table_shows_if_a_metric_has_fewer_seeds(call: Call, store: Store) -> None:
    for seed in (0, 1, 2):
        part = {} if seed == 2 else {"valid/part": seed / 10}
        add_run(store, {"lr": 0.1, "seed": seed}, [{"valid/loss": seed / 10, **part}], seed=seed)
    row = call("table", "--group").out.splitlines()[1]
    assert row.split() == ["3", "0.10", "±", "0.10", "0.050", "±", "0.071", "(n=2)"]


def test_the_number_of_configs_does_not_include_seeds_of_another_metric(call: Call, store: Store) -> None:
    for lr in (0.1, 0.2):
        for seed in (0, 1, 2, 3, 4):
            part = {"valid/part": seed / 10} if lr == 0.1 else {}
            add_run(store, {"lr": lr, "arch": "MLP", "seed": seed}, [{"valid/loss": lr, **part}], seed=seed)
    row = json.loads(call("table", "--by", "arch", "--json").out)[0]
    assert (row["configs"], row["valid/loss n"], row["valid/part n"]) == (2, 2, 5)


def test_a_grouped_table_shows_different_numbers_of_epochs(call: Call, store: Store) -> None:
    for seed in (0, 1):
        add_run(store, {"lr": 0.1, "seed": seed}, [{"valid/loss": 0.1}] * (3 + seed * 6), seed=seed)
    epochs = [json.loads(call("ls", "--json", "--where", f"seed={seed}").out)[0]["epoch"] for seed in (0, 1)]
    assert epochs[0] < epochs[1]
    assert json.loads(call("table", "--group", "--json").out)[0]["epoch"] == f"{epochs[0]}-{epochs[1]}"


def test_filters_have_the_syntax_of_ls(call: Call, sweep: Store) -> None:
    assert len(json.loads(call("table", "--json", "--where", "lr<0.15").out)) == 2
    assert len(json.loads(call("table", "--json", "--where", "state=failed").out)) == 1
    found = call("table", "--where", "lrr<0.15")
    assert (found.code, found.out) == (2, "")
    assert "did you mean `lr`?" in found.err


@pytest.mark.parametrize("style", ["csv", "markdown", "latex", "json", "text"])
def test_every_format_works_with_zero_one_and_many_runs(call: Call, store: Store, style: str) -> None:
    assert call("table", "-f", style).code == 0
    add_run(store, {"lr": 1}, outcome="failed")
    found = call("table", "-f", style)
    assert found.code == 0
    assert "left out: 1 failed run" in found.err
    add_run(store, {"lr": 2})
    assert call("table", "-f", style).code == 0
    add_run(store, {"lr": 3})
    assert call("table", "-f", style, "--group").code == 0


def test_csv_and_json_have_exact_values(call: Call, sweep: Store) -> None:
    row = next(csv.DictReader(io.StringIO(call("table", "--group", "--format", "csv").out)))
    assert float(row["valid/loss"]) == (0.1 + 0.11) / 2
    assert (row["n"], row["valid/loss n"]) == ("2", "2")
    assert json.loads(call("table", "--group", "--json").out)[0]["valid/loss low"] < 0.105


def test_an_unknown_column_metric_or_group_is_reported(call: Call, sweep: Store) -> None:
    for args in (["--sort", "lss"], ["-m", "acuracy"], ["--by", "archh"], ["--by", "loss"]):
        found = call("table", *args)
        assert (found.code, found.out) == (2, "")
        assert "Traceback" not in found.err


HOSTILE = {
    "=cmd|' /C calc'!A0": ["a|b", "<script>", "\x1b[2J"],
    r"x_{1}%": [Estimate(0.5, 0.1, 0.3, 0.7, 4), None, Estimate(1, 0.1, 0, 2, 3)],
}


def test_a_grouped_table_says_that_the_direction_of_its_metric_is_unknown(call: Call, store: Store) -> None:
    for n in (1.0, 2.0):
        add_run(store, {"n": n}, [{"quality": n, "valid/loss": n}])
    found = call("table", "--group", "-m", "quality")
    assert [line.split()[0] for line in found.out.splitlines()[1:]] == ["1", "2"]
    assert "nothing says whether lower or higher quality is better, so the lowest mean comes first" in found.err
    for words in (["-m", "loss"], ["-m", "quality", "--sort", "-quality"]):
        assert "nothing says" not in call("table", "--group", *words).err


def test_hostile_names_and_values_are_escaped_in_every_format() -> None:
    assert to_csv(HOSTILE).startswith("\"'=cmd") or to_csv(HOSTILE).startswith("'=cmd")
    assert r"x\_\{1\}\%" in to_latex(HOSTILE)
    assert "a\\|b" in to_markdown(HOSTILE)
    assert "&lt;script>" in to_markdown(HOSTILE)
    assert "<script>" not in to_html(HOSTILE)
    assert all("\x1b" not in text for text in (to_latex(HOSTILE), to_markdown(HOSTILE), to_html(HOSTILE), to_json(HOSTILE)))


def test_numbers_that_json_does_not_have_become_strings() -> None:
    assert json.loads(to_json({"x": [float("nan"), float("inf")]}), parse_constant=pytest.fail) == [{"x": "nan"}, {"x": "inf"}]
    assert json.loads(to_json({"clip": [[0.0, float("inf")]]}), parse_constant=pytest.fail) == [{"clip": [0.0, "inf"]}]


def test_a_plot_is_named_after_its_axes_and_a_wrong_argument_is_an_error(call: Call, sweep: Store) -> None:
    assert call("plot", "x=lr", "y=valid/loss").out == "wrote valid-loss-by-optim.lr.png\n"
    assert Path("valid-loss-by-optim.lr.png").read_bytes().startswith(b"\x89PNG")
    assert call("plot", str(sweep.root), "x=arch", "-o", "figures/arch.html").code == 0
    assert Path("figures/arch.html").exists()
    for words, wanted in {
        ("z=lr",): "a plot has x and y",
        ("y=loss",): "the config key to draw is missing",
        ("a", "b", "x=lr"): "expected one store",
        ("x=lrr",): "no run has `lrr`",
        ("x=lr", "-o", "a.pdf"): "cannot be saved as `a.pdf`",
    }.items():
        found = call("plot", *words)
        assert (found.code, wanted in found.err) == (2, True), found.err


def test_curves_draw_single_runs_or_groups(call: Call, sweep: Store) -> None:
    keys = [run["key"] for run in json.loads(call("ls", "--json").out)]
    assert call("curves", keys[0][:6], keys[1], "-o", "two.png").out == "wrote two.png\n"
    assert call("curves", "--by", "lr").out == "wrote valid-loss-curves.png\n"
    assert call("curves", keys[0], "--by", "lr").code == 2
    assert call("curves", "0123456789").code == 2


@pytest.mark.parametrize("words", [["--json"], ["--format", "json"]])
def test_json_is_an_empty_list_if_no_run_matches(call: Call, sweep: Store, words: list[str]) -> None:
    assert json.loads(call("table", "--where", "lr=99", *words).out) == []


def test_table_imports_neither_torch_nor_pandas(sweep: Store) -> None:
    code = (
        "import sys; from trainmaster.cli.app import run; run(['table', '--store', sys.argv[1], '--group']);"
        "print([m for m in ('torch', 'pandas', 'optuna', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code, str(sweep.root)], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"
