"""`/api/v1` returns the table, runs, curves, comparisons and searches."""

from __future__ import annotations

import json
import math
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import dashboard_store
import pytest
from dashboard_site import Site, make_client

from trainmaster.store import Store
from trainmaster.store.checksummed_json import record_bytes


def rows_of(answer: Any) -> list[str]:
    return [row["key"] for row in answer["rows"]]


def test_the_store_describes_its_columns(site: Site) -> None:
    about = site.get("store")
    assert (about["num_runs"], about["states"]) == (6, {"finished": 5, "failed": 1})
    assert {"name": "lr", "is_number": True, "values": [0.1, 0.5, 9.0, 99.0]} in [
        each | {"values": sorted(each["values"])} if each["name"] == "lr" else each for each in about["config"]
    ]
    assert about["monitored"] == {"valid/loss": "min"}
    assert [each["name"] for each in about["metrics"]] == ["valid/loss", "valid/accuracy", "train/loss"]


def test_the_filter_is_that_of_ls(site: Site) -> None:
    found = site.get("runs", where="lr<1 and seed=1")
    assert {*rows_of(found)} == {site.keys["0.1-1"], site.keys["0.5-1"]}
    assert (found["num_runs"], found["num_all"], found["varying"]) == (2, 6, ["lr"])
    assert rows_of(site.get("runs", where="state=failed")) == [site.keys["failed"]]


def test_a_wrong_filter_shows_the_place(site: Site) -> None:
    answer = site.get("runs", 400, where="lr<")
    assert answer["error"].startswith("the condition is invalid")
    assert answer["where"].splitlines()[1] == "   ^"
    assert site.get("runs", 400, where="lrr<1")["hint"] == "did you mean `lr`?"
    assert "nested more than" in site.get("runs", 400, where="(" * 200)["error"]


@pytest.mark.parametrize("sort", ["metric:valid/loss", "-metric:valid/loss", "config:lr", "fact:key", "-fact:started", "fact:best", "loss"])
def test_rows_are_sorted(site: Site, sort: str) -> None:
    found = site.get("runs", sort=sort, columns="metric:valid/loss\nconfig:lr")
    values = [row["values"][0] for row in found["rows"]]
    if "loss" in sort:  # `loss` selects the loss of the evaluation set
        assert values == sorted(values, reverse=sort.startswith("-"))
    assert len(found["rows"]) == 6


def test_a_column_that_does_not_exist_is_an_error_only_if_its_kind_is(site: Site) -> None:
    assert site.get("runs", columns="metric:nothing")["rows"][0]["values"] == [None]
    assert site.get("runs", 400, columns="x:y")["error"] == "`x:y` is not a column"
    assert "cannot sort by" in site.get("runs", 400, sort="nothing")["error"]


def test_groups_have_the_mean_and_the_sample_deviation_of_their_seeds(site: Site) -> None:
    found = site.get("runs", group="1", where="lr=0.5", columns="metric:valid/loss\nconfig:lr\nconfig:seed")
    (row,) = found["rows"]
    losses = [dashboard_store.value_at("loss", {"lr": 0.5, "seed": seed}, 5) for seed in (0, 1)]
    mean = sum(losses) / 2
    assert row["values"][0] == {"mean": pytest.approx(mean), "std": pytest.approx(abs(losses[0] - losses[1]) / math.sqrt(2)), "num": 2}
    assert row["values"][1:] == [0.5, None]
    assert ({*row["keys"]}, row["states"]) == ({site.keys["0.5-0"], site.keys["0.5-1"]}, {"finished": 2})


def test_a_failed_run_is_not_in_the_mean_of_its_group(site: Site) -> None:
    (row,) = site.get("runs", group="1", where="state=failed", columns="metric:valid/loss")["rows"]
    assert row["values"] == [None]


def test_a_window_of_rows(site: Site) -> None:
    every = rows_of(site.get("runs", sort="fact:key"))
    assert rows_of(site.get("runs", sort="fact:key", offset="2", limit="3")) == every[2:5]
    assert rows_of(site.get("runs", sort="fact:key", offset="100")) == []
    assert site.get("runs", 400, offset="-1")["error"] == "offset=-1: this is not a whole number"


def test_an_unknown_parameter_is_refused(site: Site) -> None:
    found = site.get("runs", 400, limitt="3")
    assert found["error"] == "`limitt` is not a parameter of this address"
    assert found["hint"] == "did you mean `limit`?"
    assert found["known"] == "archived, columns, group, limit, offset, sort, where"
    for path in ("store", "attention", f"runs/{site.keys['0.1-0']}", "curves", "compare", "searches", "verdicts", "importance"):
        assert "is not a parameter" in site.get(path, 400, wheree="lr<1")["error"], path
    assert site.get("store", 400, x="1")["hint"] == "this address has no parameters"


def test_a_number_above_its_maximum_is_refused(site: Site) -> None:
    assert len(site.get("runs", limit="500")["rows"]) == 6
    assert site.get("runs", 400, limit="501")["error"] == "limit=501: at most 500 are allowed"
    assert "at most 4,000" in site.get("curves", 400, keys=site.keys["0.1-0"], metrics="valid/loss", points="4001")["error"]


def test_a_switch_is_0_or_1(site: Site) -> None:
    assert site.get("runs", group="0") == site.get("runs")
    assert site.get("runs", 400, group="true")["error"] == "group=true: expected 0 or 1"


def test_groups_are_sorted_by_the_mean_of_a_metric_with_and_without_its_kind(site: Site) -> None:
    wanted = rows_of(site.get("runs", group="1", sort="metric:valid/loss"))
    assert rows_of(site.get("runs", group="1", sort="valid/loss")) == wanted
    means = [row["values"][0] for row in site.get("runs", group="1", sort="valid/loss", columns="metric:valid/loss")["rows"]]
    known = [each["mean"] for each in means if each is not None and isinstance(each["mean"], float)]
    assert known == sorted(known)


def test_what_has_not_changed_is_not_sent_again(site: Site) -> None:
    for path in ("/api/v1/runs?where=lr<1", "/api/v1/store", f"/api/v1/runs/{site.keys['0.1-0']}", "/", "/static/icon.svg"):
        tag = site.client.get(path).headers["etag"]
        again = site.client.get(path, headers={"if-none-match": tag})
        assert (again.status_code, again.content) == (304, b""), path


def test_a_server_that_was_restarted_does_not_confirm_old_rows(site: Site, tmp_path: Path) -> None:
    tag = site.client.get("/api/v1/runs").headers["etag"]
    again = make_client(site.store, tmp_path / "static").get("/api/v1/runs", headers={"if-none-match": tag})
    assert again.status_code == 200


def test_answers_are_strict_json(site: Site) -> None:
    text = site.client.get("/api/v1/curves", params={"keys": site.keys["diverged"], "metrics": "valid/loss"}).text

    def refuse(value: str) -> None:
        raise AssertionError(value)

    answer = json.loads(text, parse_constant=refuse)
    assert answer["curves"][0]["y"][-1] == "nan"


# ---- curves


def test_curves_of_runs(site: Site) -> None:
    answer = site.get("curves", keys=f"{site.keys['0.1-0']},{site.keys['0.5-0']}", metrics="valid/loss\ntrain/loss\nnothing")
    assert [(each["key"], each["metric"], each["over"]) for each in answer["curves"]] == [
        (site.keys[name], metric, "epoch") for name in ("0.1-0", "0.5-0") for metric in ("valid/loss", "train/loss")
    ]
    first = answer["curves"][0]
    assert first["x"] == [0, 1, 2, 3, 4, 5]
    assert first["y"] == [pytest.approx(math.exp(-0.1 * epoch)) for epoch in range(6)]
    assert first["is_sampled"] is False


def test_the_mean_of_a_group_has_a_t_interval(site: Site) -> None:
    row = site.get("runs", where="lr=0.1")["rows"][0]
    (curve,) = site.get("curves", groups=row["group"], metrics="valid/loss")["curves"]
    ones = [dashboard_store.value_at("loss", {"lr": 0.1, "seed": seed}, 3) for seed in (0, 1)]
    margin = 12.706 * abs(ones[0] - ones[1]) / 2
    assert (curve["num_runs"], curve["y"][3]) == (2, pytest.approx(sum(ones) / 2))
    assert (curve["low"][3], curve["high"][3]) == (pytest.approx(sum(ones) / 2 - margin), pytest.approx(sum(ones) / 2 + margin))


def test_curves_over_time_start_with_the_run(site: Site) -> None:
    (curve,) = site.get("curves", keys=site.keys["0.1-0"], metrics="valid/loss", axis="time")["curves"]
    assert curve["over"] == "second"
    steps = [later - sooner for sooner, later in zip(curve["x"], curve["x"][1:], strict=False)]
    assert steps == [pytest.approx(1.0)] * 5


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"keys": "x", "metrics": "m"}, "is not a key"),
        ({"keys": "ffffffff", "metrics": "m", "axis": "moon"}, "this is not an axis"),
        ({"keys": "ffffffff", "metrics": "m", "points": "many"}, "this is not a whole number"),
        ({"keys": "ffffffff", "metrics": "m", "from": "here"}, "this is not a number"),
        ({"keys": ",".join(["ffffffff"] * 500), "metrics": "m"}, "too many curves"),
    ],
)
def test_wrong_requests_for_curves(site: Site, params: dict[str, str], error: str) -> None:
    answer = site.client.get("/api/v1/curves", params=params)
    assert answer.status_code in (400, 404)
    assert error in answer.json()["error"]


# ---- a run


def test_everything_about_a_run(site: Site) -> None:
    run = site.get(f"runs/{site.keys['0.1-0']}", where="lr<1", sort="fact:key")
    assert (run["state"], run["epoch"], run["num_epochs"], run["num_attempts"]) == ("finished", 5, 5, 1)
    assert {"name": "model.arch", "value": "vit", "num_same": 4, "origin": None} in run["config"]
    assert [each["name"] for each in run["metric_names"]] == ["valid/loss", "valid/accuracy", "train/loss"]
    assert run["metric_names"][0]["low"] == pytest.approx(math.exp(-0.5))
    assert [each["step"] for each in run["checkpoints"]] == [50]
    assert {each["key"] for each in run["replicates"]} == {site.keys["0.1-0"], site.keys["0.1-1"]}
    ordered = sorted(site.keys[name] for name in ("0.1-0", "0.1-1", "0.5-0", "0.5-1"))
    at = ordered.index(site.keys["0.1-0"])
    assert (run["position"], run["num"]) == (at, 4)
    assert run["next"] == (ordered[at + 1] if at < 3 else None)
    assert run["previous"] == (ordered[at - 1] if at else None)


def test_a_failed_run_says_why(site: Site) -> None:
    run = site.get(f"runs/{site.keys['failed']}")
    assert (run["state"], run["reason"]) == ("failed", "ValueError: no")


def test_code_environment_and_log_of_a_run_without_them(site: Site) -> None:
    key = site.keys["0.1-0"]
    assert site.get(f"runs/{key}/code")["snapshot"] is None
    assert site.get(f"runs/{key}/environment") == {}
    assert site.get(f"runs/{key}/log")["attempt"] is None


def test_code_environment_log_and_figures(tmp_path: Path) -> None:
    store, keys = dashboard_store.make_store(tmp_path / "runs")
    key = keys["0.1-0"]
    folder = tmp_path / "runs" / "previews" / key[:2] / key / "attempt-0001"
    (folder / "code" / "abc-def").mkdir(parents=True)
    (folder / "code" / "abc-def" / "code.json").write_text(
        json.dumps({"commit": "abc", "tree": "def", "subject": "first", "checksum": "x"})
    )
    (folder / "code" / "abc-def" / "changes.patch").write_bytes(b"diff --git a/x b/x\n\xff")
    (folder / "environment.json").write_text(json.dumps({"torch": {"version": "2.13"}, "started": "now"}))
    (folder / "plots").mkdir()
    (folder / "plots" / "a.png").write_bytes(png(4, 4))
    (tmp_path / "runs" / "stats" / key[:2] / key / "attempt-0001" / "log").write_bytes("zeile ü\n".encode() * 3 + b"\xfftail")
    client = make_client(store, tmp_path / "static")
    code = client.get(f"/api/v1/runs/{key}/code").json()
    assert (code["snapshot"]["commit"], code["patch"]) == ("abc", "diff --git a/x b/x\n\\xff")
    assert client.get(f"/api/v1/runs/{key}/environment").json() == {"torch.version": "2.13", "started": "now"}
    log = client.get(f"/api/v1/runs/{key}/log").json()
    assert log["text"] == "zeile ü\n" * 3
    rest = client.get(f"/api/v1/runs/{key}/log", params={"start": log["end"], "attempt": 1}).json()
    assert (rest["start"], rest["text"]) == (log["end"], "\\xfftail")
    image = client.get(f"/api/v1/runs/{key}/image", params={"path": "attempt-0001/plots/a.png"})
    assert (image.status_code, image.headers["content-type"]) == (200, "image/png")


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
        + chunk(b"IDAT", b"")
        + chunk(b"IEND", b"")
    )


# ---- comparing


def test_only_what_differs_is_marked(site: Site) -> None:
    found = site.get("compare", keys=f"{site.keys['0.1-0']},{site.keys['0.5-1']}")
    assert {each["name"]: each["is_same"] for each in found["config"]} == {"lr": False, "model.arch": True, "seed": False}
    assert found["config"][0]["values"] == [0.1, 0.5]


def test_the_difference_of_two_configs_is_paired_by_seed(site: Site) -> None:
    found = site.get("compare", keys=f"{site.keys['0.1-0']},{site.keys['0.5-0']}")
    [difference] = found["differences"]
    assert difference["key"] == site.keys["0.5-0"]
    by_name = {each["name"]: each for each in difference["metrics"]}
    pairs = [
        dashboard_store.value_at("loss", {"lr": 0.5, "seed": seed}, 5) - dashboard_store.value_at("loss", {"lr": 0.1, "seed": seed}, 5)
        for seed in (0, 1)
    ]
    assert by_name["valid/loss"]["mean"] == pytest.approx(sum(pairs) / 2)
    assert (by_name["valid/loss"]["method"], by_name["valid/loss"]["n_a"]) == ("paired t", 2)


def test_seeds_of_one_config_have_no_interval(site: Site) -> None:
    found = site.get("compare", keys=f"{site.keys['0.1-0']},{site.keys['0.1-1']}")
    why = "both runs have the same config except for the seed"
    assert found["differences"] == [{"key": site.keys["0.1-1"], "metrics": [], "why_no_interval": why}]


def test_several_runs_have_one_difference_from_the_first_run_for_each_other_config(site: Site) -> None:
    names = ("0.1-0", "0.1-1", "0.5-1", "0.5-0")
    found = site.get("compare", keys=",".join(site.keys[name] for name in names))
    assert [each["key"] for each in found["differences"]] == [site.keys["0.5-1"]]
    two = site.get("compare", keys=f"{site.keys['0.1-0']},{site.keys['0.5-1']}")
    assert found["differences"] == two["differences"]


def test_comparing_needs_runs_that_exist(site: Site) -> None:
    assert site.get("compare", 400, keys=site.keys["0.1-0"])["error"] == "1 runs cannot be compared"
    assert site.get("compare", 404, keys=f"{site.keys['0.1-0']},ffffffff")["error"] == "there is no run ffffffff"


# ---- runs that need attention, and searches


def test_failed_and_diverged_runs_need_attention(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    dashboard_store.add_run(store, {"lr": 0.1}, outcome="failed", error="no")
    diverged = dashboard_store.add_run(store, {"lr": 0.2}, metrics=["valid/loss"])
    path = tmp_path / "runs" / "previews" / diverged[:2] / diverged / "attempt-0001" / "preview.json"
    path.write_bytes(
        record_bytes({"key": diverged, "attempt": 1, "preview": {"valid/loss": {".float": "nan"}}, "step": 50, "checkpoint": "step-000050"})
    )
    items = make_client(store, tmp_path / "static").get("/api/v1/attention").json()["items"]
    assert [(each["kind"], each["keys"], each["where"]) for each in items] == [
        ("failed", [], "state=failed"),
        ("diverged", [diverged], f"key in ({diverged})"),
    ]


def test_searches_show_their_best_trial_and_what_runs(tmp_path: Path) -> None:
    store, keys = dashboard_store.make_store(tmp_path / "runs")
    three = [keys["0.1-0"], keys["0.5-0"], "ffffffff"]
    dashboard_store.write_search(tmp_path / "runs", "one", three, ["minimize"], [[0.6], [0.2], []])
    dashboard_store.write_search(tmp_path / "runs", "two", three, ["minimize", "maximize"], [[0.6, 5.0], [0.2, 1.0], ["nan", 9.0]])
    client = make_client(store, tmp_path / "static")
    listed = client.get("/api/v1/searches").json()["searches"]
    assert [(each["name"], each["states"]) for each in listed] == [("one", {"complete": 2, "running": 1}), ("two", {"complete": 3})]
    one = client.get("/api/v1/searches/one").json()
    assert (one["best"]["number"], one["parameters"], one["trials"][2]["run_states"]) == (1, ["lr"], ["missing"])
    assert client.get("/api/v1/searches/two").json()["front"] == [0, 1]
    assert client.get("/api/v1/searches/three").status_code == 404


# ---- stores that change or break


def test_a_new_run_appears_and_a_deleted_one_disappears(tmp_path: Path, always_scanned: None) -> None:
    store, keys = dashboard_store.make_store(tmp_path / "runs")
    client = make_client(store, tmp_path / "static")
    assert client.get("/api/v1/runs").json()["num_all"] == 6
    other = Store(tmp_path / "runs")
    new = dashboard_store.add_run(other, {"lr": 7.0})
    assert new in rows_of(client.get("/api/v1/runs").json())
    other.remove(keys["0.1-0"])
    other.tags.add(new, ["best"])
    rows = client.get("/api/v1/runs").json()["rows"]
    assert keys["0.1-0"] not in [row["key"] for row in rows]
    assert next(row["tags"] for row in rows if row["key"] == new) == ["best"]


def test_a_run_is_followed_from_start_to_end(tmp_path: Path, always_scanned: None) -> None:
    store = Store(tmp_path / "runs")
    client = make_client(Store(tmp_path / "runs"), tmp_path / "static")
    key = store.configs.add({"lr": 0.1})
    seen = []

    def look() -> None:
        row = client.get("/api/v1/runs", params={"columns": "metric:loss"}).json()["rows"][0]
        curves = client.get("/api/v1/curves", params={"keys": key, "metrics": "loss"}).json()["curves"]
        seen.append((row["state"], row["epoch"], row["values"][0], [each["y"] for each in curves]))

    look()
    with store.attempt(key, "process") as attempt:
        attempt.start(None)
        look()
        for epoch in (1, 2):
            attempt.log.append({"tag": "loss", "value": 1 / epoch, "step": epoch, "over": "epoch", "time": 1.0})
            attempt.save(epoch, {}, {"epoch": epoch, "step": epoch, "toc": 1.0}, {"loss": 1 / epoch})
            look()
        attempt.release("finished")
    look()
    assert seen == [
        ("new", None, None, []),
        ("running", None, None, []),
        ("running", 1, 1.0, [[1.0]]),
        ("running", 2, 0.5, [[1.0, 0.5]]),
        ("finished", 2, 0.5, [[1.0, 0.5]]),
    ]


def test_an_empty_store_and_one_that_is_removed(tmp_path: Path, always_scanned: None) -> None:
    store = Store(tmp_path / "runs")
    client = make_client(store, tmp_path / "static")
    assert client.get("/api/v1/store").json()["num_runs"] == 0
    assert client.get("/api/v1/runs").json()["rows"] == []
    dashboard_store.add_run(store, {"lr": 0.1})
    assert client.get("/api/v1/store").json()["num_runs"] == 1
    shutil.rmtree(tmp_path / "runs")
    assert client.get("/api/v1/store").json()["num_runs"] == 0
    assert client.get("/api/v1/attention").json()["items"][0]["kind"] == "missing"


@pytest.mark.parametrize("name", ["attempt.json", "status.json", "outcome.json", "resume.json", "events.jsonl"])
def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path, name: str) -> None:
    store, keys = dashboard_store.make_store(tmp_path / "runs")
    key = keys["0.1-0"]
    (tmp_path / "runs" / "stats" / key[:2] / key / "attempt-0001" / name).write_bytes(b"\x00{broken")
    client = make_client(store, tmp_path / "static")
    rows = {row["key"]: row["state"] for row in client.get("/api/v1/runs").json()["rows"]}
    assert len(rows) == 6
    assert list(rows.values()).count("finished") >= 4
    for path in ("", "/code", "/environment", "/log"):
        assert client.get(f"/api/v1/runs/{key}{path}").status_code == 200
    assert client.get("/api/v1/curves", params={"keys": ",".join(keys.values()), "metrics": "valid/loss"}).status_code == 200
    assert client.get("/api/v1/compare", params={"keys": ",".join(keys.values())}).status_code == 200


def test_a_damaged_config_is_a_row_too(tmp_path: Path) -> None:
    store, keys = dashboard_store.make_store(tmp_path / "runs")
    key = keys["0.1-0"]
    (tmp_path / "runs" / "configs" / key[:2] / f"{key}.json").write_text("{")
    client = make_client(store, tmp_path / "static")
    rows = {row["key"]: row["state"] for row in client.get("/api/v1/runs").json()["rows"]}
    assert rows[key] == "damaged"
    assert client.get(f"/api/v1/runs/{key}").status_code == 200
