"""Only the page itself gets responses: the tests try all routes and methods with headers a hostile page can send."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dashboard_store
import pytest
from dashboard_site import TOKEN, Site, built_page, make_client
from starlette.testclient import TestClient

from trainmaster.dashboard import app, guard, wire
from trainmaster.store import Store

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
HOSTS = {
    "own": ("127.0.0.1:7400", True),
    "localhost through a tunnel": ("localhost:9000", True),
    "IPv6": ("[::1]:7400", True),
    "rebound name": ("evil.example:7400", False),
    "a name that ends like ours": ("127.0.0.1.evil.example", False),
    "a name that begins otherwise": ("evil-localhost:7400", False),
    "user part": ("127.0.0.1@evil.example", False),
    "other loopback": ("127.0.0.2:7400", False),
    "empty": ("", False),
}
ORIGINS = {
    "none": (None, True),
    "own": ("http://127.0.0.1:7400", True),
    "null": ("null", False),
    "other site": ("http://evil.example", False),
    "other port": ("http://127.0.0.1:8888", False),
    "other scheme": ("https://127.0.0.1:7400", False),
    "prefix": ("http://127.0.0.1:7400.evil.example", False),
    "two": ("http://127.0.0.1:7400 http://evil.example", False),
}


FORMS = [
    *((host, None, is_ok) for host, is_ok in HOSTS.values()),
    *(("127.0.0.1:7400", origin, is_ok) for origin, is_ok in ORIGINS.values()),
]


def addresses(folder: Path, key: str) -> list[str]:
    """Return an address for every route of the app, and one without a route."""
    routes = app.make_routes(app.Dashboard(Store(None)), built_page(folder))
    return [*(route.path.replace("{key}", key).replace("{name}", "x") for route in routes), "/nothing"]


async def ask(application: Any, method: str, path: str, headers: Mapping[str, str], query: bytes = b"") -> tuple[int, dict[str, str]]:
    """Send a request, and return the status and the headers of the response.

    No client library is used, because it would take longer than the rest of these tests.
    """
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query, "headers": raw}
    scope |= {"http_version": "1.1", "scheme": "http"}
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await application(scope, receive, send)
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("token", [None, TOKEN], ids=["read-only", "editable"])
def test_only_the_page_itself_gets_an_answer(site: Site, tmp_path: Path, method: str, token: str | None) -> None:
    """Fault S07: the test tries all routes with 8 methods and 17 variants of host and origin.

    No request has the token, so none may change anything.
    """
    paths = addresses(tmp_path / "routes", site.keys["0.1-0"])
    application = app.make_app(app.Dashboard(site.store), guard.Access(token), built_page(tmp_path / "static"))

    async def battery() -> None:
        for path, (host, origin, is_ok) in itertools.product(paths, FORMS):
            given = {"host": host, "sec-fetch-site": "same-origin", **({"origin": origin} if origin is not None else {})}
            status, headers = await ask(application, method, path, given)
            if not is_ok:
                assert status in (403, 421), (path, host, origin)
            elif method not in ("GET", "HEAD"):
                assert status in (403, 405), (path, host, origin)
            assert status != 500, (path, host, origin)
            assert guard.HEADERS.items() <= headers.items(), path
            assert "access-control-allow-origin" not in headers

    asyncio.run(battery())


def test_the_battery_knows_every_route(site: Site, tmp_path: Path) -> None:
    """The addresses come from the app, and all except `/nothing` have a handler, so the test above requests real routes."""
    found = addresses(tmp_path / "routes", site.keys["0.1-0"])
    assert {"/", "/verdicts", "/static/icon.svg", "/api/v1/importance", "/api/v1/verdicts"} < {*found}
    assert sum(path.endswith(("/image", "/tags", "/delete")) for path in found) == 3
    unknown = {"error": "there is nothing at this address"}
    assert [path for path in found if site.client.get(path).content == wire.encode(unknown)] == ["/nothing"]


def test_nothing_changes_without_permission(site: Site) -> None:
    key = site.keys["0.1-0"]
    for edit, body in {"tags": {"add": ["x"]}, "notes": {"text": "x"}, "delete": {"confirm": key}}.items():
        answer = site.client.post(
            f"/api/v1/runs/{key}/{edit}", json=body, headers={"origin": "http://127.0.0.1:7400", guard.TOKEN_HEADER: TOKEN}
        )
        assert (answer.status_code, "--allow-edit" in answer.text) == (403, True)
    assert site.store.tags[key] == ()
    assert site.store.notes[key] == ""


@pytest.mark.parametrize(
    ("headers", "is_allowed"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, True),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, False),
    ],
)
def test_another_site_cannot_read_data(site: Site, headers: dict[str, str], is_allowed: bool) -> None:
    assert (site.client.get("/api/v1/store", headers=headers).status_code == 200) is is_allowed


def test_a_link_on_another_site_may_open_the_page(site: Site) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert site.client.get("/", headers=headers).status_code == 200
    assert site.client.post("/", headers=headers).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/assets/%00",
        "/..%2f..%2fetc%2fpasswd",
        "/api/v1/runs/..%2f..%2fstore.json",
        "/api/v1/runs/%00",
        "/api/v1/searches/..%2f..",
        "/api/v1/runs/ABCDEFGH",
        "/run/../../etc/passwd",
    ],
)
def test_a_path_cannot_leave_its_place(site: Site, path: str) -> None:
    answer = site.client.get(path)
    assert answer.status_code in (404, 405)
    assert "root:" not in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "path", ["../outcome.json", "attempt-0001/../../x.png", "/etc/passwd", "attempt-0001/preview.json", "", "attempt-0001/plots"]
)
def test_an_image_is_one_of_the_files_of_the_run(site: Site, path: str) -> None:
    assert site.get(f"runs/{site.keys['0.1-0']}/image", 404, path=path) == {"error": "there is no such file"}


def test_errors_do_not_reflect_or_reveal(site: Site) -> None:
    """Covers fault S16."""
    answer = site.client.get("/<script>alert(1)</script>")
    assert answer.headers["content-type"] == "application/json"
    assert "script" not in answer.text
    assert str(site.store.root) not in site.client.get("/api/v1/runs/ffffffff").text
    assert site.client.get("/api/v1/runs/ffffffff").status_code == 404


def test_a_bug_reveals_nothing_and_has_the_same_headers(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("top secret")

    monkeypatch.setattr("trainmaster.dashboard.app.needs_attention", fail)
    answer = site.client.get("/api/v1/attention")
    assert (answer.status_code, answer.json()) == (500, {"error": "the server failed; its terminal has the details"})
    assert answer.headers["content-security-policy"] == guard.POLICY
    assert "RuntimeError: top secret" in capsys.readouterr().err


# ---- access from other machines

VIEW = "view-token"
BEYOND = guard.Access(TOKEN, VIEW, frozenset({"gpu7.lab", "10.0.0.7"}))
FOREIGN_HOSTS = ("gpu7.lab:7400", "GPU7.lab:7400", "10.0.0.7:7400", "127.0.0.1:7400")


@pytest.fixture
def beyond(site: Site, tmp_path: Path) -> TestClient:
    application = app.make_app(app.Dashboard(site.store), BEYOND, built_page(tmp_path / "static"))
    return TestClient(application, base_url="http://gpu7.lab:7400", raise_server_exceptions=False, follow_redirects=False)


@pytest.mark.parametrize("method", METHODS)
def test_beyond_this_machine_nothing_is_answered_without_the_token(site: Site, tmp_path: Path, method: str) -> None:
    """Faults S07 and S08: the test tries all routes with 8 methods, several hosts and wrong tokens.

    The token for edits does not give read access.
    """
    paths = addresses(tmp_path / "routes", site.keys["0.1-0"])
    application = app.make_app(app.Dashboard(site.store), BEYOND, built_page(tmp_path / "static"))
    wrong: list[dict[str, str]] = [
        {},
        {"cookie": "trainmaster-0="},
        {"cookie": f"trainmaster-0={VIEW}x"},
        {"cookie": f"trainmaster-1={VIEW}"},
        {"cookie": f"trainmaster-0={VIEW}; trainmaster-0=wrong"},
        {"authorization": f"Basic {VIEW}"},
        {"authorization": f"Bearer {TOKEN}"},
        {guard.TOKEN_HEADER: TOKEN},
        {guard.TOKEN_HEADER: VIEW},
    ]

    async def battery() -> None:
        for path, host, headers in itertools.product(paths, FOREIGN_HOSTS, wrong):
            status, answered = await ask(application, method, path, {"host": host, **headers})
            assert status == 401, (path, host, headers)
            assert guard.HEADERS.items() <= answered.items()
        for path, (host, is_ok) in itertools.product(paths, [*HOSTS.values(), ("10.0.0.8:7400", False)]):
            status, _ = await ask(application, method, path, {"host": host, "authorization": f"Bearer {VIEW}"})
            assert (status == 421) is not is_ok, (path, host)
            assert status in (200, 400, 404, 405, 421) if method in ("GET", "HEAD") else status in (403, 405, 421), (path, host)

    asyncio.run(battery())


def test_the_token_moves_from_the_address_to_a_cookie(beyond: TestClient) -> None:
    answer = beyond.get(f"/?token={VIEW}&where=lr<1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/?where=lr%3C1")
    name, _, rest = answer.headers["set-cookie"].partition("=")
    assert rest == f"{VIEW}; HttpOnly; SameSite=Strict; Path=/"
    assert name.startswith("trainmaster-")
    assert beyond.get("/api/v1/store").status_code == 200
    assert beyond.get("/").status_code == 200


@pytest.mark.parametrize("path", ["/?token=wrong", "/?token=", f"/api/v1/store?token={VIEW}", f"/static/icon.svg?token={VIEW}"])
def test_only_a_page_is_opened_with_the_token_in_its_address(beyond: TestClient, path: str) -> None:
    answer = beyond.get(path)
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)


def test_a_program_sends_the_token_in_a_header(beyond: TestClient) -> None:
    assert beyond.get("/api/v1/store", headers={"authorization": f"Bearer {VIEW}"}).json()["num_runs"] == 6


@pytest.mark.parametrize("path", ["//evil.example/", "/\\\\evil.example/", "///evil.example/"])
def test_the_redirect_stays_on_this_server(site: Site, tmp_path: Path, path: str) -> None:
    application = app.make_app(app.Dashboard(site.store), BEYOND, built_page(tmp_path / "static"))
    query = f"token={VIEW}".encode()
    status, headers = asyncio.run(ask(application, "GET", path, {"host": "gpu7.lab"}, query))
    assert (status, headers["location"]) == (303, "/evil.example/")


def test_the_cookie_alone_changes_nothing(beyond: TestClient, site: Site) -> None:
    beyond.get(f"/?token={VIEW}")
    key = site.keys["0.1-0"]
    headers = {"origin": "http://gpu7.lab:7400"}
    assert beyond.post(f"/api/v1/runs/{key}/tags", json={"add": ["x"]}, headers=headers).status_code == 403
    assert site.store.tags[key] == ()


def test_all_addresses_of_a_machine_are_its_own_hosts() -> None:
    access = guard.Access(None, VIEW, frozenset({"gpu7"}), has_any_address=True)
    found = {
        name: access.is_own_host(name) for name in ("10.1.2.3", "[fe80::1]", "gpu7", "localhost", "evil.example", "1.2.3.4.evil.example")
    }
    assert found == {
        "10.1.2.3": True,
        "[fe80::1]": True,
        "gpu7": True,
        "localhost": True,
        "evil.example": False,
        "1.2.3.4.evil.example": False,
    }


# ---- in a frame


def test_only_a_page_for_a_notebook_may_be_framed_and_only_by_this_machine() -> None:
    usual, framed = guard.Access().headers(), guard.Access(is_framed=True).headers()
    assert (usual["x-frame-options"], "frame-ancestors 'none'" in usual["content-security-policy"]) == ("DENY", True)
    assert "x-frame-options" not in framed
    assert framed["content-security-policy"].split("; ")[-1] == "frame-ancestors http://localhost:* http://127.0.0.1:*"
    assert framed["content-security-policy"].split("; ")[:-1] == usual["content-security-policy"].split("; ")[:-1]


# ---- with permission


@pytest.fixture
def editing(tmp_path: Path) -> tuple[TestClient, Any, str]:
    store, keys = dashboard_store.make_store(tmp_path / "runs")
    return make_client(store, tmp_path / "static", TOKEN), store, keys["0.1-0"]


def post(client: TestClient, path: str, body: Any, **headers: str) -> Any:
    given = {"origin": "http://127.0.0.1:7400", guard.TOKEN_HEADER: TOKEN, **headers}
    return client.post(f"/api/v1/runs/{path}", content=json.dumps(body), headers=given)


def test_edits_need_the_token_and_an_origin(editing: Any) -> None:
    client, store, key = editing
    assert post(client, f"{key}/tags", {"add": ["x"]}, **{guard.TOKEN_HEADER: "wrong"}).status_code == 403
    assert client.post(f"/api/v1/runs/{key}/tags", json={"add": ["x"]}, headers={guard.TOKEN_HEADER: TOKEN}).status_code == 403
    for wrong in ("http://evil.example", "null"):
        assert post(client, f"{key}/tags", {"add": ["x"]}, origin=wrong).status_code == 403
    assert post(client, f"{key}/tags", {"add": ["x"]}, **{"content-length": "999999999"}).status_code == 413
    assert store.tags[key] == ()


def test_labels_and_notes_are_files_of_the_store(editing: Any) -> None:
    client, store, key = editing
    assert post(client, f"{key}/tags", {"add": ["best", "paper"]}).json() == {"tags": ["best", "paper"]}
    assert post(client, f"{key}/tags", {"remove": ["paper"]}).json() == {"tags": ["best"]}
    assert post(client, f"{key}/notes", {"text": "<b>bold</b>"}).json() == {"notes": "<b>bold</b>"}
    assert (Path(store.root) / "notes" / key[:2] / f"{key}.txt").read_text() == "<b>bold</b>"
    assert client.get(f"/api/v1/runs/{key}").json()["tags"] == ["best"]
    assert post(client, f"{key}/tags", {"add": ["../x"]}).status_code == 400
    assert post(client, f"{key}/notes", {"text": 3}).status_code == 400
    assert post(client, f"{key}/tags", [1]).status_code == 400


def test_deleting_needs_a_confirmation(editing: Any) -> None:
    client, store, key = editing
    assert post(client, f"{key}/delete", {}).status_code == 400
    assert key in store.configs
    assert post(client, f"{key}/delete", {"confirm": key}).json() == {"deleted": key}
    assert key not in store.configs
    assert client.get("/api/v1/store").json()["num_runs"] == 5


def test_stopping_a_run_that_does_not_run_is_refused(editing: Any) -> None:
    client, _, key = editing
    answer = post(client, f"{key}/stop", {"confirm": key})
    assert (answer.status_code, answer.json()["error"]) == (400, f"no process is training run {key}")


def test_a_run_at_work_cannot_be_deleted(editing: Any) -> None:
    client, store, _ = editing
    key = store.configs.add({"lr": 3.0})
    with store.attempt(key, "process") as attempt:
        attempt.start(None)
        assert post(client, f"{key}/delete", {"confirm": key}).status_code == 409
        assert client.get(f"/api/v1/runs/{key}").json()["state"] == "running"
        assert post(client, f"{key}/stop", {"confirm": key}).status_code == 200
        attempt.release("stopped")


def test_an_archived_run_is_shown_only_on_request(editing: Any) -> None:
    client, _, key = editing
    post(client, f"{key}/tags", {"add": ["archived"]})
    shown = {name: [row["key"] for row in client.get("/api/v1/runs", params=params).json()["rows"]] for name, params in {
        "usual": {}, "asked": {"archived": "1"}, "by label": {"where": "tag=archived"},
    }.items()}  # fmt: skip
    assert key not in shown["usual"]
    assert key in shown["asked"]
    assert shown["by label"] == [key]


def test_every_combination_of_a_token_and_a_method(editing: Any) -> None:
    client, store, key = editing
    for method, path in itertools.product(METHODS, (f"/api/v1/runs/{key}", "/", "/api/v1/store")):
        answer = client.request(method, path, headers={"origin": "http://127.0.0.1:7400", guard.TOKEN_HEADER: TOKEN})
        assert answer.status_code == 200 if method in ("GET", "HEAD") else answer.status_code in (405, 413), (method, path)
    assert len([*store.configs]) == 6
