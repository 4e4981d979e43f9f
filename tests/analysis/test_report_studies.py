"""A report shows the verdicts and ablations of real studies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import toy_study

from trainmaster.analysis.report import make_report
from trainmaster.store import Store
from trainmaster.store.checksummed_json import record_bytes


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Store:
    root = tmp_path_factory.mktemp("studies") / "runs"
    manager = toy_study.Toy(root, verbose=False)
    for name in ("true", "false"):
        toy_study.hypothesis(name).test(manager)
    toy_study.ablation().run(manager)
    return Store(root)


def test_verdicts_come_first_and_are_checked_against_the_runs(studied: Store) -> None:
    page = make_report(studied)
    claim = "act=gelu has a higher accuracy than act=relu by more than 0.005."
    assert f"<strong>Supported.</strong> {claim}" in page
    assert f"<strong>Refuted.</strong> {claim}" in page
    assert page.count("Checked against the runs in the store: every value agrees.") == 2
    assert page.index("Supported.") < page.index('id="settings"')


def test_a_store_called_runs_is_named_with_its_parent_folder(studied: Store) -> None:
    assert studied.root is not None
    assert f"store {Path(studied.root).parent.name}/runs" in make_report(studied)


def test_an_ablation_has_a_row_for_each_part(studied: Store) -> None:
    section = make_report(studied).split('id="ablations"')[1].split("</section>")[0]
    assert "<td>helps</td>" in section
    assert section.count('class="whisker') == 3
    assert "p (Holm)" in section


def test_a_single_claim_becomes_the_title(studied: Store) -> None:
    page = make_report(studied, where="gain=0.02")
    assert "<h1>act=gelu has a higher accuracy than act=relu by more than 0.005</h1>" in page
    assert "Refuted" not in page


def test_a_study_is_left_out_with_a_note_if_only_some_of_its_runs_are_selected(studied: Store) -> None:
    page = make_report(studied, where="act=gelu and gain=0.02")
    assert "Supported." not in page
    assert "The hypothesis true is left out: only 5 of its 10 runs are selected." in page
    assert "hypothesis false" not in page


def test_a_verdict_that_contradicts_the_runs_is_marked(studied: Store, tmp_path: Path) -> None:
    """The report also lists a record that cannot be read, and shows everything else."""
    root = tmp_path / "runs"
    shutil.copytree(str(studied.root), root)
    change(root / "sweeps" / "true" / "pairs" / "000000.json", lambda pair: pair["a"].update(value=0.99))
    (root / "sweeps" / "false" / "hypothesis.json").write_text("{}")
    page = make_report(Store(root))
    assert "its log has" in page
    assert "every value agrees" not in page
    assert "The hypothesis false cannot be read: `sweeps/false/hypothesis.json` is damaged" in page


def change(path: Path, edit: Any) -> None:
    """Change a record and give it a valid checksum."""
    record = json.loads(path.read_bytes())
    edit(record)
    del record["checksum"]
    path.write_bytes(record_bytes(record))
