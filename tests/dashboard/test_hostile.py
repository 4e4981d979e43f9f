"""The dashboard safely shows a hostile store with scripts in every field, links out of it, and misleading file types."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from dashboard_site import TOKEN, make_client
from hostile_store import SCRIPTS, file_name, make_hostile_store
from starlette.testclient import TestClient

from trainmaster.dashboard import guard
from trainmaster.store import Store


def test_script_is_always_data(tmp_path: Path) -> None:
    """Every field contains 40 scripts. The server sends them unchanged, as JSON that no browser interprets as HTML."""
    store, key, other = make_hostile_store(tmp_path / "runs")
    client = make_client(store, tmp_path / "static")

    def get(path: str, **params: str) -> Any:
        answer = client.get(f"/api/v1/{path}", params=params)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json"), path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.text.isascii()
        return answer.json()

    run = get(f"runs/{key}")
    assert len({*SCRIPTS}) == 40
    assert [each["name"] for each in run["metric_names"]] == [*SCRIPTS]
    assert {each["value"] for each in run["config"]} >= {f"{text} 0.1" for text in SCRIPTS}
    assert {each["name"] for each in run["config"]} >= {f"key {at} {text}".replace(".", "_") for at, text in enumerate(SCRIPTS)}
    assert [each["event"]["text"] for each in run["texts"]][-40:] == [*SCRIPTS]
    assert {*run["files"]} >= {f"attempt-0001/plots/{file_name(text)}" for text in SCRIPTS}
    assert run["notes"] == run["reason"] == get(f"runs/{key}/log")["text"].removesuffix("\n") == "\n".join(SCRIPTS)
    assert get(f"runs/{key}/environment") == {text: f"{text} 0.1" for text in SCRIPTS}
    code = get(f"runs/{key}/code")
    assert code["snapshot"]["changed"] == [*SCRIPTS]
    assert all(f"+{text}\n" in code["patch"] for text in SCRIPTS)
    assert {each["name"] for each in get("store")["metrics"]} >= {*SCRIPTS}
    single = [text for text in SCRIPTS if "\n" not in text]
    assert [each["metric"] for each in get("curves", keys=key, metrics="\n".join(single))["curves"]] == single
    assert {each["name"] for each in get("compare", keys=f"{key},{other}")["environment"]} == {*SCRIPTS}
    assert [each["reason"] for each in get("searches/hostile")["trials"]] == [*SCRIPTS]
    for path in ("attention", "runs", "searches", "verdicts"):
        get(path)


@pytest.mark.parametrize("text", SCRIPTS, ids=map(str, range(len(SCRIPTS))))
def test_a_script_is_not_a_label_a_key_or_a_name(hostile: tuple[TestClient, Store, str], text: str) -> None:
    client, store, key = hostile
    headers = {"origin": "http://127.0.0.1:7400", guard.TOKEN_HEADER: TOKEN}
    assert client.post(f"/api/v1/runs/{key}/tags", json={"add": [text]}, headers=headers).status_code == 400
    assert store.tags[key] == ()
    for part in ("runs", "searches"):
        answer = client.get(f"/api/v1/{part}/{quote(text, safe='')}")
        assert (answer.status_code, answer.headers["content-type"], answer.text.isascii()) == (404, "application/json", True)
    for params in ({"where": text}, {"sort": text}, {"columns": text}):
        answer = client.get("/api/v1/runs", params=params)
        assert (answer.status_code in (200, 400), answer.headers["content-type"]) == (True, "application/json")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[TestClient, Store, str]:
    folder = tmp_path_factory.mktemp("hostile")
    store, key, _ = make_hostile_store(folder / "runs")
    return make_client(store, folder / "static", TOKEN), store, key


@pytest.mark.parametrize("name", ["page.png", "vector.svg", "huge.png", "link.png", "pipe.png", "short.png"])
def test_only_small_png_images_are_sent(tmp_path: Path, name: str) -> None:
    """Covers faults S10 and S11."""
    store, key, _ = make_hostile_store(tmp_path / "runs")
    plots = tmp_path / "runs" / "previews" / key[:2] / key / "attempt-0001" / "plots"
    (tmp_path / "secret.png").write_bytes(png(1, 1))
    (plots / "page.png").write_text("<html><script>alert(1)</script>")
    (plots / "vector.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    (plots / "huge.png").write_bytes(png(50_000, 50_000))
    (plots / "short.png").write_bytes(png(1, 1)[:20])
    (plots / "link.png").symlink_to(tmp_path / "secret.png")
    os.mkfifo(plots / "pipe.png")
    answer = make_client(store, tmp_path / "static").get(f"/api/v1/runs/{key}/image", params={"path": f"attempt-0001/plots/{name}"})
    assert answer.status_code in (404, 422, 503)
    assert answer.headers["content-type"] == "application/json"


def png(width: int, height: int) -> bytes:
    return (
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
        + width.to_bytes(4, "big")
        + height.to_bytes(4, "big")
        + b"\x08\x00\x00\x00\x00"
        + b"\x00" * 20
    )


def test_links_in_the_store_are_not_followed(tmp_path: Path) -> None:
    """Covers fault S10."""
    store, key, _ = make_hostile_store(tmp_path / "runs")
    (tmp_path / "secret").write_text("top secret")
    attempt = tmp_path / "runs" / "stats" / key[:2] / key / "attempt-0001"
    (attempt / "log").unlink()
    (attempt / "log").symlink_to(tmp_path / "secret")
    folder = tmp_path / "runs" / "previews" / key[:2] / key / "attempt-0001"
    (folder / "environment.json").unlink()
    (folder / "environment.json").symlink_to(tmp_path / "secret")
    (tmp_path / "runs" / "notes" / key[:2] / f"{key}.txt").unlink()
    (tmp_path / "runs" / "notes" / key[:2] / f"{key}.txt").symlink_to(tmp_path / "secret")
    client = make_client(store, tmp_path / "static")
    for path in ("", "/log", "/environment", "/code"):
        answer = client.get(f"/api/v1/runs/{key}{path}")
        assert answer.status_code in (200, 422, 503)
        assert "top secret" not in answer.text
