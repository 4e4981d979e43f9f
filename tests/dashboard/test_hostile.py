"""A hostile store: script in every field, links out of the store, files that are not what they say."""

from __future__ import annotations

import json
import os
from pathlib import Path

import dashboard_store
import pytest
from dashboard_site import make_client

from trainmaster.store import Store

SCRIPTS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "javascript:alert(1)",
    "</title><script>alert(1)</script>",
    "{{constructor.constructor('alert(1)')()}}",
    "${alert(1)}",
    "\u202egnp.exe",
    "\x1b]0;title\x07",
    "' onmouseover='alert(1)",
    "<!--",
    "]]>",
    "\u2028alert(1)\u2029",
    "data:text/html,<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
]


def hostile_store(root: Path) -> tuple[Store, str]:
    """A run that has a script in every field that it can choose."""
    store = Store(root)
    config = {f"key {number} {text}".replace(".", "_"): text for number, text in enumerate(SCRIPTS)}
    rows = [{"tag": text, "value": 1.0, "step": 1, "over": text, "time": 1.0} for text in SCRIPTS]
    rows += [{"tag": text, "text": text, "step": 1, "time": 1.0} for text in SCRIPTS]
    key = dashboard_store.add_run(store, {**config, "lr": 0.1}, outcome="failed", error="\n".join(SCRIPTS), metrics=SCRIPTS, rows=rows)
    store.notes.write(key, "\n".join(SCRIPTS))
    folder = root / "previews" / key[:2] / key / "attempt-0001"
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    (folder / "plots" / "<script>alert(1)<").write_text("x")
    (folder / "plots" / "page.png").write_text("<html><script>alert(1)</script>")
    (folder / "plots" / "vector.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    (folder / "environment.json").write_text(json.dumps({text: text for text in SCRIPTS}))
    (folder / "code" / "c-t").mkdir(parents=True)
    (folder / "code" / "c-t" / "code.json").write_text(json.dumps({"commit": SCRIPTS[0], "subject": SCRIPTS[1], "tree": SCRIPTS[2]}))
    (folder / "code" / "c-t" / "changes.patch").write_text(f"diff --git a/{SCRIPTS[0]} b/{SCRIPTS[0]}\n@@ -1 +1 @@\n+{SCRIPTS[1]}\n")
    (root / "stats" / key[:2] / key / "attempt-0001" / "log").write_text("\n".join(SCRIPTS))
    return store, key


def test_script_is_always_data(tmp_path: Path) -> None:
    store, key = hostile_store(tmp_path / "runs")
    client = make_client(store, tmp_path / "static")
    for path in (
        "store",
        "runs?columns=config:lr",
        f"runs/{key}",
        f"runs/{key}/code",
        f"runs/{key}/environment",
        f"runs/{key}/log",
        "attention",
    ):
        answer = client.get(f"/api/v1/{path}")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json"), path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.text.isascii()
        json.loads(answer.text)
    names = [each["name"] for each in client.get(f"/api/v1/runs/{key}").json()["metric_names"]]
    assert names == SCRIPTS


@pytest.mark.parametrize("name", ["page.png", "vector.svg", "huge.png", "link.png", "pipe.png", "short.png"])
def test_only_small_png_images_are_sent(tmp_path: Path, name: str) -> None:
    """S10, S11."""
    store, key = hostile_store(tmp_path / "runs")
    plots = tmp_path / "runs" / "previews" / key[:2] / key / "attempt-0001" / "plots"
    (tmp_path / "secret.png").write_bytes(png(1, 1))
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
    """S10."""
    store, key = hostile_store(tmp_path / "runs")
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
