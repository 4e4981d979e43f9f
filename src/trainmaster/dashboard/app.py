"""The routes of the dashboard: the page, its static files, and `/api/v1`.

The API is read-only, except for `POST /api/v1/runs/KEY/...`. Responses are strict JSON with an `ETag`. A failed
request returns `{"error": ...}` with status 400 for invalid input, 404 for a missing run or file, 409 for a run that is in
use, 422 for a damaged record, or 503 for a store that cannot be read.
"""

from __future__ import annotations

import contextlib
import json
import mimetypes
import os
import secrets
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import trainmaster
from trainmaster.analysis.plan_records import plan_names
from trainmaster.dashboard.attention import needs_attention
from trainmaster.dashboard.comparison import compare, diff_code
from trainmaster.dashboard.curves import AXES, MAX_POINTS, Curve, band_of, metric_names, read_curve, thin
from trainmaster.dashboard.edits import EDITS
from trainmaster.dashboard.event_columns import EventColumns
from trainmaster.dashboard.guard import MAX_BODY, Access, Guard
from trainmaster.dashboard.live_table import LiveTable, View
from trainmaster.dashboard.run_details import code_of, describe_run, environment_of, log_of, read_image
from trainmaster.dashboard.run_rows import ARCHIVED, MAX_ROWS, Query, Selections, describe_columns, monitored, window
from trainmaster.dashboard.searches import describe_search, list_searches
from trainmaster.dashboard.verdicts import list_verdicts
from trainmaster.dashboard.wire import encode, etag_of, is_known, not_modified, reply
from trainmaster.errors import (
    KeyTextError,
    RunBusyError,
    SearchError,
    SettingError,
    StoreAccessError,
    StoreDamagedError,
    StoreFormatError,
    TrainmasterError,
    UnknownRunError,
    did_you_mean,
)
from trainmaster.store import Run, Store
from trainmaster.store.keys import check_key
from trainmaster.store.replicates import group_rows

STATIC = Path(__file__).parent / "static"
PAGES = ("/", "/run/{key}", "/compare", "/searches", "/searches/{name}", "/verdicts")
"""The URLs of pages. They all return the same HTML file. Its script reads the URL and shows the matching page."""
MAX_CURVES = 2000
_MAX_RUNS = 400
_MAX_NAMED = 20
"""A comparison reads the names of metrics from at most this many of the compared runs."""
_STATUS: Mapping[int, tuple[type[Exception], ...]] = {
    404: (UnknownRunError, KeyTextError, SearchError, FileNotFoundError),
    409: (RunBusyError,),
    422: (StoreDamagedError,),
    503: (StoreAccessError, StoreFormatError),
    400: (TrainmasterError,),
}
"""The HTTP status for each kind of error. The first matching entry is used."""


class Dashboard:
    """The state that all requests share: the store, its table of runs, and the logs that were read most recently."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.live = LiveTable(store)
        self.columns = EventColumns()
        self.selections = Selections()
        self.name = secrets.token_hex(8)
        """A random string in each ETag. Without it, another server could use the same ETag for different data."""
        self._described: tuple[int, dict[str, Any]] = (-1, {})
        self._describing = threading.Lock()

    def prepare(self) -> threading.Thread:
        """Start a thread that computes the data for the first page. This takes about a second for 100,000 runs."""

        def first_page() -> None:
            with contextlib.suppress(TrainmasterError, OSError):  # the next request reports the error
                self.describe()
                self.selections.of(self.live.current(), Query())

        thread = threading.Thread(target=first_page, name="first page", daemon=True)
        thread.start()
        return thread

    def describe(self) -> dict[str, Any]:
        """Return a summary of the table. It is cached until the table changes."""
        view = self.live.current()
        with self._describing:
            if self._described[0] != view.number:
                self._described = (view.number, _describe_view(view))
            return self._described[1]


Answer = Callable[[Dashboard, Request], Any]
"""A function that handles a request. It returns a response, or a value that is sent as JSON."""


def make_app(dashboard: Dashboard, access: Access | None, static: Path) -> Guard:
    """Return the web application for a store. By default, it answers only requests from this machine and cannot change the store."""
    handlers: dict[Any, Any] = {HTTPException: _answer_http_error, Exception: _answer_bug}
    app = Starlette(routes=make_routes(dashboard, static), exception_handlers=handlers)
    return Guard(app, access or Access())  # the outermost layer, so that it also handles responses to unexpected errors


def make_routes(dashboard: Dashboard, static: Path) -> list[Route]:
    def get(path: str, answer: Answer, *parameters: str) -> Route:
        return Route(f"/api/v1/{path}", _endpoint(dashboard, answer, parameters))

    return [
        get("store", get_store),
        get("attention", lambda given, _: {"items": needs_attention(given.store, given.live.current(), given.columns)}),
        get("runs", get_runs, "where", "sort", "group", "archived", "columns", "offset", "limit"),
        get("runs/{key}", get_run, "where", "sort", "archived"),
        get("runs/{key}/code", lambda given, request: code_of(given.store, _known_key(given, request))),
        get("runs/{key}/environment", lambda given, request: environment_of(given.store, _known_key(given, request))),
        get("runs/{key}/log", get_log, "attempt", "start"),
        get("runs/{key}/image", get_image, "path"),
        get("curves", get_curves, "keys", "groups", "metrics", "axis", "points", "from", "to"),
        get("compare", get_comparison, "keys"),
        get("diff", lambda given, request: diff_code(given.store, _keys(request)), "keys"),
        get("searches", lambda given, _: {"searches": list_searches(given.store)}),
        get("searches/{name}", lambda given, request: describe_search(given.store, given.live.current(), request.path_params["name"])),
        get("importance", get_importance, "where", "metric"),
        get("verdicts", lambda given, _: list_verdicts(given.store)),
        *(Route(f"/api/v1/runs/{{key}}/{name}", _edit_endpoint(dashboard, name), methods=["POST"]) for name in EDITS),
        *_static_routes(static),
    ]


# ---- the API


def get_store(dashboard: Dashboard, request: Request) -> Any:
    """Return the name of the store, the number of runs in each state, and the columns of the table."""
    store = dashboard.store
    about = {"name": os.path.basename(store.root or "") or "memory", "root": store.root, "version": trainmaster.__version__}
    return {**about, **dashboard.describe(), "num_searches": len(plan_names(store, "search"))}


def _describe_view(view: View) -> dict[str, Any]:
    return {
        "num_runs": len(view.table),
        "states": dict(Counter(view.table.fact("state"))),
        "num_archived": sum(ARCHIVED in labels for labels in view.tags.values()),
        "tags": sorted({label for labels in view.tags.values() for label in labels}),
        "monitored": monitored(view),
        **describe_columns(view),
    }


def get_runs(dashboard: Dashboard, request: Request) -> Any:
    """Return some rows of the table. Parameters: `where`, `sort`, `group`, `archived`, `columns`, `offset`, `limit`."""
    view, given = dashboard.live.current(), request.query_params
    tag = etag_of("runs", dashboard.name, view.number, str(given))
    if is_known(request, tag):
        return not_modified(tag)
    query = _query(request)
    columns = _list(given.get("columns"), separator="\n")[:200]
    offset, limit = _int(given.get("offset"), "offset", 0, 10**9), _int(given.get("limit"), "limit", 100, MAX_ROWS)
    selection = dashboard.selections.of(view, query)
    return Response(encode(window(view, query, selection, columns, offset, limit)), 200, {"etag": tag}, "application/json")


def _query(request: Request) -> Query:
    given = request.query_params
    is_grouped, has_archived = (_flag(given.get(name), name) for name in ("group", "archived"))
    return Query(given.get("where", ""), given.get("sort", ""), is_grouped, has_archived)


def get_run(dashboard: Dashboard, request: Request) -> Any:
    """Return a run, and the keys of the runs before and after it in the table.

    The parameters `where`, `sort` and `archived` filter and sort the table.
    """
    view, key = dashboard.live.current(), _known_key(dashboard, request)
    rows = [group[0] for group in dashboard.selections.of(view, _query(request)._replace(is_grouped=False)).groups]
    at = rows.index(view.rows[key]) if view.rows.get(key) in rows else None
    before = view.table.keys[rows[at - 1]] if at else None
    after = view.table.keys[rows[at + 1]] if at is not None and at + 1 < len(rows) else None
    about = describe_run(dashboard.store, view, dashboard.columns, key)
    return {**about, "previous": before, "next": after, "position": at, "num": len(rows)}


def get_log(dashboard: Dashboard, request: Request) -> Any:
    given = request.query_params
    attempt = _int(given["attempt"], "attempt", 0, 10**9) if "attempt" in given else None
    start = _int(given["start"], "start", 0, 2**53) if "start" in given else None
    return log_of(dashboard.store, _known_key(dashboard, request), attempt, start)


def get_image(dashboard: Dashboard, request: Request) -> Any:
    """Return a PNG figure from the run's folder. It is always sent as an image, never as an HTML page."""
    data = read_image(dashboard.store, _known_key(dashboard, request), request.query_params.get("path", ""))
    tag = etag_of(data)
    return not_modified(tag) if is_known(request, tag) else Response(data, 200, {"etag": tag}, "image/png")


def get_curves(dashboard: Dashboard, request: Request) -> Any:
    """Return the curves of the runs in `keys` or, if `groups` is passed, the mean curve of each group.

    The runs in a group differ only in their seed.

    Other parameters: `metrics`, `axis`, `points`, `from`, `to`.
    """
    given = request.query_params
    groups = _groups(dashboard, _list(given.get("groups"))) or [(key, [key]) for key in _list(given.get("keys"))]
    metrics = _list(given.get("metrics"), separator="\n")
    axis = given.get("axis", "step")
    if axis not in AXES:
        raise SettingError(f"axis={axis:.40}: this is not an axis", known=", ".join(AXES))
    points = _int(given.get("points"), "points", MAX_POINTS, MAX_POINTS)
    low, high = (_float(given.get(name), name) for name in ("from", "to"))
    num_runs = sum(len(keys) for _, keys in groups)
    if num_runs > _MAX_RUNS or len(groups) * len(metrics) > MAX_CURVES:
        raise SettingError(f"{num_runs:,} runs x {len(metrics):,} metrics are too many curves", hint=f"at most {MAX_CURVES:,}")
    found, missing = [], []
    for name, keys in groups:
        runs = [dashboard.store.run(key) for key in keys]
        for metric in metrics:
            curves = [curve for run in runs if (curve := _curve(dashboard, run, metric, axis)) is not None]
            if not all(curve.is_placed for curve in curves):  # a mean over the other runs could be mistaken for the mean of the group
                missing.append({"key": name, "metric": metric})
                continue
            curves = [curve for curve in curves if len(curve.x)]
            if curves:
                found.append({"key": name, "metric": metric, **_drawn(curves, "groups" in given, points, low, high)})
    return {"curves": found, "missing": missing}


def _drawn(curves: list[Curve], is_grouped: bool, points: int, low: float | None, high: float | None) -> dict[str, Any]:
    """Return the points to draw for one curve or, if runs are grouped, for the mean of several curves and its confidence band."""
    if not is_grouped:
        (curve,) = curves
        columns = {"x": curve.x, "y": curve.y}
    else:
        band = band_of(curves)
        curve = Curve(band.over, band.x, band.mean)
        columns = {"x": band.x, "y": band.mean, "low": band.low, "high": band.high}
    part = thin(curve, points, low, high)
    rows = [*part.rows]
    about = {"over": curve.over, "num_runs": len(curves), "num": len(curve.x), "is_sampled": part.is_sampled}
    return about | {name: values[rows].tolist() for name, values in columns.items()}


def _groups(dashboard: Dashboard, names: list[str]) -> list[tuple[str, list[str]]]:
    """Return each group name with the keys of its runs. As in the table, only one run is used for each seed."""
    if not names:
        return []
    table = dashboard.live.current().table
    found = {table.facts["group"][rows[0]]: rows for rows in group_rows(table, range(len(table)))}
    return [(name, [table.keys[row] for row in found.get(name, ())]) for name in names]


def _curve(dashboard: Dashboard, run: Run, metric: str, axis: str) -> Any:
    try:
        return read_curve(dashboard.columns, run, metric, axis)
    except (StoreDamagedError, FileNotFoundError):  # the table shows the run as damaged
        return None


def get_comparison(dashboard: Dashboard, request: Request) -> Any:
    keys = _keys(request)
    found = compare(dashboard.store, dashboard.live.current(), keys)
    names: dict[str, None] = {}
    for key in keys[:_MAX_NAMED]:
        with contextlib.suppress(StoreDamagedError, FileNotFoundError):  # the table shows the run as damaged
            names |= dict.fromkeys(metric_names(dashboard.columns, dashboard.store.run(key)))
    return {**found, "metric_names": [*names]}


def get_importance(dashboard: Dashboard, request: Request) -> Any:
    """Return how much each config key and the seed influence `metric`, based on the finished runs that match `where`."""
    given = request.query_params
    from trainmaster.analysis.results import Results

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the notes of the result already mention the runs that are left out
        found = Results(dashboard.store, where=given.get("where") or None).importance(given.get("metric") or None)
    return {"metric": found.metric, "shares": found.values, "num_runs": found.num_runs, "notes": found.notes}


# ---- requests and responses


def _endpoint(dashboard: Dashboard, answer: Answer, parameters: Sequence[str]) -> Callable[[Request], Response]:
    """Return an endpoint that responds with JSON. It runs in a thread, so that a slow disk does not block other requests."""

    def endpoint(request: Request) -> Response:
        try:
            _refuse_unknown(request, parameters)
            value = answer(dashboard, request)
        except (TrainmasterError, FileNotFoundError) as error:
            return _answer_error(request, error)
        return value if isinstance(value, Response) else reply(request, value)

    return endpoint


def _edit_endpoint(dashboard: Dashboard, name: str) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool

        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY:
                return reply(request, {"error": "the body is too large"}, 413)
        return await run_in_threadpool(_edit, request, body)

    def _edit(request: Request, body: bytes) -> Response:
        try:
            change = json.loads(body or b"{}")
            if not isinstance(change, dict):
                raise ValueError
        except (ValueError, RecursionError):
            return reply(request, {"error": "the body is not a JSON object"}, 400)
        try:
            value = EDITS[name](dashboard.store, _known_key(dashboard, request), change)
        except (TrainmasterError, FileNotFoundError) as error:
            return _answer_error(request, error)
        dashboard.live.forget()
        return reply(request, value)

    return endpoint


def _answer_error(request: Request, error: Exception) -> Response:
    """Return a response with the error message. The path in a `FileNotFoundError` is left out."""
    status = next(code for code, kinds in _STATUS.items() if isinstance(error, kinds))
    if not isinstance(error, TrainmasterError):
        return reply(request, {"error": "there is no such file"}, status)
    rows = {name: error.rows[name] for name in ("where", "why", "known", "hint") if error.rows.get(name)}
    if "x-trainmaster-page" in request.headers:  # an error status would fill the browser's console while the user types
        return reply(request, {"error": error.fact, **rows, "status": status})
    return reply(request, {"error": error.fact, **rows}, status)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return reply(request, {"error": "there is nothing at this address" if status == 404 else "this is not possible"}, status)


async def _answer_bug(request: Request, error: Exception) -> Response:
    """Return a response to an unexpected error. The response reveals nothing about the machine; the terminal shows the traceback."""
    traceback.print_exception(error)
    return reply(request, {"error": "the server failed; its terminal has the details"}, 500)


def _known_key(dashboard: Dashboard, request: Request) -> str:
    key = check_key(request.path_params["key"])
    dashboard.store.configs.require(key)
    return key


def _keys(request: Request) -> list[str]:
    return [check_key(key) for key in _list(request.query_params.get("keys"))]


def _refuse_unknown(request: Request, known: Sequence[str]) -> None:
    for name in request.query_params:
        if name not in known:
            hint = did_you_mean(name[:40], known) if known else "this address has no parameters"
            raise SettingError(f"`{name:.40}` is not a parameter of this address", known=", ".join(sorted(known)), hint=hint)


def _list(text: str | None, separator: str = ",") -> list[str]:
    return [each for each in (text or "").split(separator) if each]


def _int(text: str | None, name: str, default: int, most: int) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 16:
        raise SettingError(f"{name}={text:.40}: this is not a whole number")
    if int(text) > most:
        raise SettingError(f"{name}={text}: at most {most:,} are allowed")
    return int(text)


def _flag(text: str | None, name: str) -> bool:
    if text not in (None, "0", "1"):
        raise SettingError(f"{name}={text:.40}: expected 0 or 1")
    return text == "1"


def _float(text: str | None, name: str) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise SettingError(f"{name}={text:.40}: this is not a number") from None


# ---- the page


def _static_routes(static: Path) -> list[Route]:
    """Return a route for each built file. The files are read at startup, so no URL is ever turned into a file path."""
    page = static / "index.html"
    if not page.is_file():
        return []
    files = sorted(path for path in static.rglob("*") if path.is_file())
    routes = [Route(f"/static/{path.relative_to(static).as_posix()}", _send_file(path)) for path in files if path != page]
    return [*routes, *(Route(address, _send_file(page)) for address in PAGES)]


def _send_file(path: Path) -> Callable[[Request], Response]:
    data, kind = path.read_bytes(), mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    tag = etag_of(data)

    def endpoint(request: Request) -> Response:
        return not_modified(tag) if is_known(request, tag) else Response(data, 200, {"etag": tag}, kind)

    return endpoint
