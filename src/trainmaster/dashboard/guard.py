"""Decides whether a request is answered. Every request that is not explicitly allowed here is refused.

The server listens on the loopback address only, so the attacker is a page in the user's own browser, on another site. Such a page can send
requests, but it cannot set their `Host`, `Origin` and `Sec-Fetch-Site` headers:

- `Host` must be a loopback name. A host name that an attacker points to 127.0.0.1 (DNS rebinding) is refused. Any port is allowed, because
  an SSH tunnel changes it.
- `Origin` must be the address of the page itself.
- A request is refused if the browser says that another site caused it, except for opening a page, which contains no data.
- Only `GET` and `HEAD` are answered. `POST` needs the token that `trainmaster ui --allow-edit` prints, in a header that no form can send.

Every answer, including errors, has the headers that keep a browser from running or embedding what a run contains.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_HEADER = "x-trainmaster-token"
MAX_BODY = 100_000
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
_HOST = re.compile(rb"(?:127\.0\.0\.1|localhost|\[::1\])(?::[0-9]{1,5})?")
_API = "/api/"


class Guard:
    """Refuses requests, and adds headers to all answers."""

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a web socket
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name, value) for name, value in message.get("headers", []) if name.lower() not in _OWN]
                message = {**message, "headers": [*own, *_RAW_HEADERS]}
            await send(message)

        status, reason = _verdict(scope, self._token)
        if status:
            await _refuse(status, reason, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)


_RAW_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_OWN = {*(name.encode() for name in HEADERS), b"server"}


def _verdict(scope: Scope, token: str | None) -> tuple[int, str]:
    """The status and the reason of a refusal; 0 if the request is allowed."""
    method, path, headers = scope["method"], scope["path"], scope["headers"]
    hosts = _values(headers, b"host")
    if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
        return 421, "this host name is not allowed; use http://127.0.0.1"
    origins = _values(headers, b"origin")
    if origins and origins != [b"http://" + hosts[0]]:
        return 403, "requests from other pages are not allowed"
    is_opened = method == "GET" and not path.startswith(_API) and _values(headers, b"sec-fetch-mode") == [b"navigate"]
    if any(site not in (b"same-origin", b"none") for site in _values(headers, b"sec-fetch-site")) and not is_opened:
        return 403, "requests from other pages are not allowed"
    if method in ("GET", "HEAD"):
        return 0, ""
    if method != "POST" or not path.startswith(_API):
        return 405, "this method is not allowed"
    if token is None:
        return 403, "this page is read-only: start it with --allow-edit to change runs"
    given = _values(headers, TOKEN_HEADER.encode())
    if len(given) != 1 or not hmac.compare_digest(given[0], token.encode()):
        return 403, "the token is missing or wrong: open the address that `trainmaster ui --allow-edit` printed"
    lengths = _values(headers, b"content-length")
    if len(lengths) != 1 or not lengths[0].isdigit() or int(lengths[0]) > MAX_BODY:
        return 413, f"a change has a content-length of at most {MAX_BODY:,} bytes"
    if not origins:
        return 403, "a change needs an origin"
    return 0, ""


def _values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for each, value in headers if each.lower() == name]


async def _refuse(status: int, reason: str, send: Send) -> None:
    from trainmaster.dashboard.wire import encode

    body = encode({"error": reason})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
