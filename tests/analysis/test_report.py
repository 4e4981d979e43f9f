"""The report has the expected content, invents no numbers, and refuses bad input."""

from __future__ import annotations

import base64
import errno
import gzip
import hashlib
import html
import json
import math
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import report_store
from report_store import EPOCHS, HOSTILE, add_run

from trainmaster.analysis.report import make_report, write_report
from trainmaster.errors import MetricNameError, SettingError, StoreAccessError
from trainmaster.store import Store
from trainmaster.text import printable

DAY = datetime(2026, 11, 17, tzinfo=UTC)


class Page(HTMLParser):
    """Parses the elements, attributes and visible text of a page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.sections: dict[str, str] = {}
        self._in_section = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self._in_section = str(dict(attrs)["id"])

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self._in_section:
            self.sections[self._in_section] = self.sections.get(self._in_section, "") + data

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The columns of the table of all runs."""
        data = re.search(r'id="data">([^<]*)<', self.source)
        assert data is not None
        return {each["name"]: each["values"] for each in json.loads(gzip.decompress(base64.b64decode(data[1])))}


def report_of(store: Store, **arguments: Any) -> Page:
    return Page(make_report(store, date=DAY, **arguments))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("report") / "digits")
    report_store.fill(store)
    return store


@pytest.fixture(scope="module")
def page(filled: Store) -> Page:
    return report_of(filled)


def add_settings(store: Store, values: dict[str, list[float]], name: str = "valid/loss") -> None:
    """Add a setting for each list; the values in the list are the results of its seeds."""
    for setting, numbers in values.items():
        for seed, number in enumerate(numbers):
            add_run(store, {"setting": setting, "seed": seed}, {name: {EPOCHS: number}}, monitor=name)


# ---- content


def test_a_report_has_all_sections(page: Page) -> None:
    names = ["settings", "curves", "importance", "runs", "unfinished", "failures", "config", "code", "environment"]
    assert list(page.sections) == names


def test_the_best_setting_comes_first_with_its_interval_and_a_warning_about_selection(page: Page) -> None:
    settings = page.sections["settings"]
    assert settings.index("0.940 [0.935, 0.946]") < settings.index("0.927")
    assert "chosen as the best of 12 settings" in page.text


def test_settings_with_one_seed_do_not_hide_the_best_setting_with_several() -> None:
    store = Store(None)
    add_settings(store, {"lucky": [0.1], "luckier": [0.05], "good": [0.2, 0.3, 0.4], "poor": [0.7, 0.8]})
    page = report_of(store)
    best = "The best setting with several seeds is setting=good: 0.3 [0.1, 0.5], 3 seeds."
    assert f"The first 2 settings have one seed each, which may be a lucky one. {best}" in page.sections["settings"]
    assert page.text.count(best) == 2
    assert "which may be a lucky one" not in report_of(store, where="setting in (good, poor)").text
    assert "The first setting has one seed, which may be a lucky one" in report_of(store, where="setting!=lucky").sections["settings"]


def test_the_metric_can_be_chosen_and_lower_losses_are_better(filled: Store) -> None:
    settings = report_of(filled, metric="valid/loss").sections["settings"]
    assert "Lower valid/loss is better" in settings
    values = [float(each) for each in re.findall(r"([\d.]+) \[", settings)]
    assert values == sorted(values)


def test_the_table_lists_every_run_in_any_state(page: Page, filled: Store) -> None:
    columns = page.columns
    assert sorted(columns["run"]) == sorted(filled.configs)
    assert {*columns["state"]} == {"finished", "stopped", "failed", "new"}
    assert columns["valid/accuracy"][0] == max(each for each in columns["valid/accuracy"] if isinstance(each, float))
    assert "nan" in columns["valid/accuracy"]
    assert "data" not in columns  # the key does not vary


def test_failures_are_grouped_by_reason_and_include_nan_results(page: Page) -> None:
    failures = page.sections["failures"]
    assert "RuntimeError: CUDA out of memory" in failures
    assert "KeyError: 'label'" in failures
    assert "valid/accuracy is nan" in failures


def test_forecasts_state_their_measured_coverage(page: Page) -> None:
    unfinished = page.sections["unfinished"]
    assert re.search(r"0\.\d+ \[0\.\d+, 0\.\d+\]", unfinished)
    assert re.search(
        r"Bands for 90% of valid/accuracy at epoch 12, from 48 finished curves; with one curve left out at a time, \d+%",
        unfinished,
        re.IGNORECASE,
    )


def test_the_config_section_separates_varying_from_constant_values(page: Page) -> None:
    varied, same = page.sections["config"].split("The same in all runs")
    assert "model.activation" in varied
    assert "gelu, relu" in varied
    assert "digits" in same


def test_a_condition_selects_runs(filled: Store) -> None:
    page = report_of(filled, where="model.activation=relu and lr<0.05")
    assert {*page.columns["model.width"]} == {16, 64}
    assert "model.activation" not in page.columns
    assert "where model.activation=relu and lr<0.05" in page.text


def test_forecasts_of_a_selection_use_all_finished_runs_of_the_store(filled: Store) -> None:
    assert "from 48 finished curves" in report_of(filled, where="lr=0.001").sections["unfinished"]


def test_code_and_environment_list_the_runs_that_differ(store: Store) -> None:
    for number in range(3):
        key = store.configs.add({"number": number})
        with store.attempt(key, "process", facts={"num_threads": 1 + number // 2}) as attempt:
            program = {
                "file": "train.py",
                "made_by": "",
                "classes": ["Digits"],
                "root": "/x",
                "main": "",
                "files": {"train.py": f"{number // 2}"},
            }
            attempt.start(None, facts={"program": program})
            attempt.save(1, {}, {"epoch": 1, "toc": 1.0}, {"loss": 1.0})
            attempt.release("finished")
    page = report_of(store)
    assert "train.py:Digits" in page.sections["code"]
    assert "These differ between runs: source files." in page.sections["code"]
    assert "These differ between runs: threads." in page.sections["environment"]


# ---- numbers that must not be invented


def test_a_setting_with_one_seed_has_no_interval(store: Store) -> None:
    add_settings(store, {"a": [0.5], "b": [0.7]})
    settings = report_of(store).sections["settings"]
    assert "[" not in settings.split("seeds")[-1]


def test_a_setting_with_a_nan_has_no_mean_and_comes_last(store: Store) -> None:
    add_settings(store, {"a": [0.5, math.nan, 0.1], "b": [0.7, 0.8, 0.9]})
    page = report_of(store)
    assert "nan (1 of 3 are NaN or infinite)" in page.sections["settings"]
    assert page.sections["settings"].index("0.8") < page.sections["settings"].index("nan")
    assert "setting=b" in page.text


def test_equal_values_have_no_interval_and_no_importance(store: Store) -> None:
    add_settings(store, {name: [0.5, 0.5, 0.5] for name in "abcdef"})
    page = report_of(store)
    assert "[0.5" not in page.sections["settings"]
    assert "all 18 runs have the same value" in page.sections["importance"]


def test_different_numbers_of_seeds_are_reported(store: Store) -> None:
    add_settings(store, {"a": [0.5, 0.6, 0.55], "b": [0.7]})
    assert "2 settings of 1 to 3 seeds" in report_of(store).text


def test_a_metric_that_only_some_runs_have_is_reported_as_missing_in_the_others(store: Store) -> None:
    add_settings(store, {"a": [0.5, 0.6]})
    add_run(store, {"setting": "a", "seed": 2}, {"other": {EPOCHS: 1.0}}, monitor="valid/loss")
    page = report_of(store)
    assert "(1 without it)" in page.sections["settings"]
    assert page.columns["valid/loss"].count(None) == 1


def test_a_report_says_if_its_metric_is_a_guess(store: Store) -> None:
    for seed in range(3):
        add_run(store, {"lr": 0.1, "seed": seed}, {"area": {EPOCHS: 0.5}, "score": {EPOCHS: 0.5 + seed}})
    said = "The runs do not monitor one metric, so area is a guess: `--metric NAME` chooses another."
    assert said in html.unescape(make_report(store))
    assert "The runs do not monitor" not in make_report(store, metric="score")


def test_a_report_says_if_the_direction_of_its_metric_is_a_guess(store: Store) -> None:
    for seed in range(3):
        add_run(store, {"lr": 0.1, "seed": seed}, {"area": {EPOCHS: 0.5 + seed}, "accuracy": {EPOCHS: 0.5 + seed}})
    assert "That lower area is better is a guess" in html.unescape(make_report(store, metric="area"))
    assert "is a guess" not in make_report(store, metric="accuracy")


def test_duplicate_replicates_count_once(store: Store) -> None:
    for number in range(3):
        add_run(store, {"lr": 0.1, "seed": 0, "note_seed": number}, {"valid/loss": {EPOCHS: 0.5 + number}}, monitor="valid/loss")
    assert report_of(store).sections["settings"]


def test_without_a_finished_run_there_is_nothing_to_compare(store: Store) -> None:
    add_run(store, {"lr": 0.1}, {"valid/loss": {1: 0.5}}, "failed", error="boom")
    page = report_of(store)
    assert "No run has finished, so there is nothing to compare." in page.sections["settings"]
    assert "boom" in page.sections["failures"]
    assert "curves" not in page.sections


def test_runs_without_any_metric_are_listed(store: Store) -> None:
    add_run(store, {"lr": 0.1}, {})
    store.configs.add({"lr": 0.2})
    assert report_of(store).columns["run"]


def test_large_integers_stay_exact(store: Store) -> None:
    for seed in (2**63 - 1, 2**63 - 2):
        add_run(store, {"seed": seed}, {"valid/loss": {EPOCHS: 0.5}}, monitor="valid/loss")
    assert {*report_of(store).columns["seed"]} == {str(2**63 - 1), str(2**63 - 2)}


def test_an_empty_selection_and_an_unknown_metric_are_errors(filled: Store) -> None:
    with pytest.raises(SettingError, match="there is no run to report"):
        make_report(filled, where="lr>5")
    with pytest.raises(MetricNameError, match="valid/accuracy"):
        make_report(filled, metric="valid/acuracy")


# ---- one safe file


def test_the_page_allows_only_its_own_style_and_script(page: Page) -> None:
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "unsafe" not in policy
    for name in ("style", "script"):
        content = re.search(rf"<{name}>(.*?)</{name}>", page.source, re.DOTALL)
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")


def test_the_page_contains_no_url_and_no_folder_of_this_machine(page: Page, filled: Store) -> None:
    urls = [attrs[name] for _, attrs in page.tags for name in ("src", "href") if name in attrs]
    assert all(url is not None and (url.startswith("#") or url == "data:,") for url in urls)
    assert not any(attribute.startswith("on") or attribute == "style" for _, attrs in page.tags for attribute in attrs)
    assert str(filled.root) not in page.source


def hostile_store(store: Store) -> None:
    for number, evil in enumerate(HOSTILE):
        name = evil.replace(".", "").strip() or "x"
        config = {"lr": 0.1 * number, f"key {name}": evil, "nested": {name: number, "list": [evil]}, "seed": number % 3}
        curves = {"valid/loss": {epoch: 1.0 + number / (1 + epoch) for epoch in range(EPOCHS + 1)}, f"m {name}"[:100]: {EPOCHS: 1.0}}
        outcome = {"outcome": "failed", "error": f"{evil}\n{evil}"} if number % 2 else {"outcome": "finished"}
        key = add_run(store, config, curves, monitor="valid/loss", **outcome)
        if "/" not in evil and "\0" not in evil:
            store.files.create(f"tags/{key[:2]}/{key}/{evil}", b"")  # not a valid label, but anyone can create such a file


def test_hostile_names_and_values_appear_as_text(store: Store, page: Page) -> None:
    assert len(HOSTILE) >= 40
    hostile_store(store)
    usual = {tag for tag, _ in page.tags}
    page = report_of(store, title=HOSTILE[0], where=f"lr>=0 or nested.list!='{HOSTILE[5]}'")
    assert {tag for tag, _ in page.tags} <= usual | {"pre"}
    scripts = [attrs for tag, attrs in page.tags if tag == "script"]
    assert scripts == [{"type": "application/octet-stream", "id": "data"}, {}]
    shown = page.text
    for evil in HOSTILE:
        for line in evil.split("\n"):
            assert printable(line) in shown or printable(line)[:20] in shown, evil
    assert all(each.isprintable() or each in "\n" for each in page.source)
    values = {str(value) for column in page.columns.values() for value in column}
    assert all(printable(evil) in values for evil in HOSTILE)


def test_the_same_store_gives_the_same_bytes(filled: Store) -> None:
    assert make_report(filled, date=DAY) == make_report(Store(filled.root), date=DAY)
    os.remove(f"{filled.root}/index/runs.jsonl")
    assert make_report(Store(filled.root), date=DAY) == make_report(filled, date=DAY)


def test_the_page_without_its_data_is_small(page: Page) -> None:
    assert len(page.source) - len(json.dumps(page.columns)) < 100_000


# ---- files


def test_a_report_is_written_completely_or_not_at_all(filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "report.html"
    path.write_text("the old report")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreAccessError, match="cannot be written: No space left on device"):
        write_report(path, filled)
    assert path.read_text() == "the old report"
    assert os.listdir(tmp_path) == ["report.html"]


def test_an_unwritable_path_is_an_error(filled: Store, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="there is no folder"):
        write_report(tmp_path / "missing" / "report.html", filled)
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreAccessError, match="`folder` cannot be written"):
        write_report(tmp_path / "folder", filled)
    assert os.listdir(tmp_path) == ["folder"]


def test_a_store_that_changes_during_the_report_gives_a_complete_report(store: Store) -> None:
    keys = report_store.fill(store, num_seeds=2)
    removed = list(keys[:5])

    def change(read: list[str]) -> Iterator[str]:
        for number, key in enumerate(read):
            if number % 7 == 3 and removed:
                store.remove(removed.pop())
                add_run(store, {"lr": 9, "seed": number}, {"valid/accuracy": {EPOCHS: 0.1}}, monitor="valid/accuracy")
            yield key

    page = report_of(store, progress=change)
    assert not removed
    assert 30 <= len(page.columns["run"]) <= 41
    assert list(page.sections)[-1] == "environment"


def test_a_damaged_run_is_listed_and_the_others_are_reported(store: Store) -> None:
    keys = report_store.fill(store, num_seeds=2, has_problems=False)
    log = Path(str(store.root), "stats", keys[-1][:2], keys[-1], "attempt-0001", "events.jsonl")
    log.write_bytes(log.read_bytes()[:1000])
    Path(str(store.root), "configs", keys[1][:2], f"{keys[1]}.json").write_text("{}")
    Path(str(store.root), "stats", keys[2][:2], keys[2], "attempt-0001", "status.json").write_text("{}")
    with pytest.warns(UserWarning, match=f"the log of run {keys[-1]} cannot be read"):
        page = report_of(store)
    assert keys[1] in page.sections["failures"]
    assert "is damaged" in page.sections["failures"]
    assert len(page.columns["run"]) == len(keys)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def test_the_title_of_the_report_can_be_set(filled: Store) -> None:
    page = report_of(filled, title="Does GELU beat ReLU?")
    assert html.escape("Does GELU beat ReLU?") in page.source


def test_columns_with_the_same_name_are_distinguished(store: Store) -> None:
    for number in range(2):
        add_run(
            store, {"lr": 0.1 + number, "run": number, "state": f"s{number}"}, {"lr": {EPOCHS: 5.0}, "loss": {EPOCHS: 1.0}}, monitor="loss"
        )
    columns = report_of(store).columns
    assert {"run", "run (config)", "state", "state (config)", "lr", "lr (metric)", "loss"} <= columns.keys()
    assert sorted(columns["lr"]) == [0.1, 1.1]
    assert columns["lr (metric)"] == [5.0, 5.0]


def test_enormous_numbers_are_reported(store: Store) -> None:
    for number, value in enumerate([1e308, -1e308, 10**400, 1e-320, math.inf]):
        add_run(store, {"lr": number % 2, "seed": number}, {"valid/loss": {EPOCHS: value}}, monitor="valid/loss")
    assert len(report_of(store).columns["run"]) == 5


def test_different_numbers_of_epochs_are_reported(store: Store) -> None:
    add_run(store, {"lr": 0.1}, {"valid/loss": {5: 1.0}}, target=5, monitor="valid/loss")
    add_run(store, {"lr": 0.2}, {"valid/loss": {9: 1.0}}, target=9, monitor="valid/loss")
    assert "trained for different numbers of epochs: 5 to 9" in report_of(store).sections["settings"]


def test_without_optuna_the_report_names_the_missing_package(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "optuna"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "pip install 'trainmaster[analysis]'" in report_of(filled).sections["importance"]
