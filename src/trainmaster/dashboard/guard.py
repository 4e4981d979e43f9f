"""Decides which requests are answered. Every request that is not explicitly allowed here is refused.

By default, the server listens on the loopback address only. The remaining threat is a page from another site that is open in the user's own
browser. Such a page can send requests, but it cannot set their `Host`, `Origin` and `Sec-Fetch-Site` headers. These headers and
the method are checked:

- `Host` must be a loopback name. A host name that an attacker points to 127.0.0.1 (DNS rebinding) is refused. Any port is allowed, because
  an SSH tunnel changes the port.
- If the request has an `Origin` header, its value must be the address of the dashboard.
- A request is refused if `Sec-Fetch-Site` shows that another site caused it. A link on another site may still
  open a page of the dashboard, because the HTML of a page contains no data.
- `GET` and `HEAD` are allowed. `POST` needs the token that `trainmaster ui --allow-edit` prints, in a header that no form can send. All
  other methods are refused.

With `trainmaster ui --host`, other machines can connect, so every request also needs a token. When a page is opened with `?token=`, the
server sets a cookie and redirects to the URL without the token. All other requests send the token in this cookie or as
`Authorization: Bearer`.

Every response, including errors, has headers that keep a browser from running or embedding content from runs.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from starlette.responses import Response

from trainmaster.dashboard.wire import encode

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_HEADER = "x-trainmaster-token"
MAX_BODY = 100_000
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
LOOPBACK_FRAMES = "frame-ancestors http://localhost:* http://127.0.0.1:*"
"""The origins of notebooks that may embed the page."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_API = "/api/"


@dataclass(frozen=True)
class Access:
    """The settings that determine who may read and change runs."""

    edit_token: str | None = None
    """The token that a request must send to change runs. If None, runs cannot be changed."""
    view_token: str | None = None
    """The token that every request must send, or None if the server listens on a loopback address only."""
    hosts: frozenset[str] = field(default_factory=frozenset)
    """The host names of this machine in lower case, in addition to the loopback names."""
    has_any_address: bool = False
    """Whether the server listens on all addresses. If so, the `Host` header may contain any IP address."""
    is_framed: bool = False
    """Whether a notebook on a loopback address may show the page in a frame."""

    def is_own_host(self, name: str) -> bool:
        if name in _LOOPBACK or name.lower() in self.hosts:
            return True
        return self.has_any_address and _is_ip_address(name)

    def headers(self) -> dict[str, str]:
        """Return the headers that every response gets."""
        if not self.is_framed:
            return HEADERS
        policy = POLICY.replace("frame-ancestors 'none'", LOOPBACK_FRAMES)
        return {**{name: each for name, each in HEADERS.items() if name != "x-frame-options"}, "content-security-policy": policy}


def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class Guard:
    """ASGI middleware that refuses requests that are not allowed and adds security headers to all responses."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access
        self._headers = [(name.encode(), value.encode()) for name, value in access.headers().items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a web socket
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name, value) for name, value in message.get("headers", []) if name.lower() not in _OWN]
                message = {**message, "headers": [*own, *self._headers]}
            await send(message)

        status, reason = _verdict(scope, self._access)
        app = self._app
        if status:
            app = Response(encode({"error": reason}), status, {"connection": "close"}, "application/json")
        elif self._access.view_token is not None and _has_token_in_query(scope):
            app = _redirect(scope, self._access.view_token)
        await app(scope, receive, send_with_headers)


_OWN = {*(name.encode() for name in HEADERS), b"server"}


def _verdict(scope: Scope, access: Access) -> tuple[int, str]:
    """Return the HTTP status and the reason if a request is refused. The status is 0 if the request is allowed."""
    method, path, headers = scope["method"], scope["path"], scope["headers"]
    hosts = _values(headers, b"host")
    host = _HOST.fullmatch(hosts[0].decode("latin-1")) if len(hosts) == 1 else None
    if host is None or not access.is_own_host(host[1]):
        return 421, "this host name is not allowed; use the address that `trainmaster ui` printed"
    origins = _values(headers, b"origin")
    if origins and origins != [b"http://" + hosts[0]]:
        return 403, "requests from other pages are not allowed"
    is_opened = method == "GET" and not path.startswith(_API) and _values(headers, b"sec-fetch-mode") == [b"navigate"]
    if any(site not in (b"same-origin", b"none") for site in _values(headers, b"sec-fetch-site")) and not is_opened:
        return 403, "requests from other pages are not allowed"
    if access.view_token is not None and not _has_token(scope, access.view_token):
        return 401, "the token is missing or wrong: open the address that `trainmaster ui --host` printed"
    if method in ("GET", "HEAD"):
        return 0, ""
    if method != "POST" or not path.startswith(_API):
        return 405, "this method is not allowed"
    if access.edit_token is None:
        return 403, "this page is read-only: start it with --allow-edit to change runs"
    given = _values(headers, TOKEN_HEADER.encode())
    if len(given) != 1 or not _is_same(given[0], access.edit_token):
        return 403, "the token is missing or wrong: open the address that `trainmaster ui --allow-edit` printed"
    lengths = _values(headers, b"content-length")
    if len(lengths) != 1 or not lengths[0].isdigit() or int(lengths[0]) > MAX_BODY:
        return 413, f"a change has a content-length of at most {MAX_BODY:,} bytes"
    if not origins:
        return 403, "a change needs an origin"
    return 0, ""


def _is_same(given: bytes, token: str) -> bool:
    """Compare two tokens in constant time, so that the response time does not reveal how many characters match."""
    return hmac.compare_digest(given, token.encode())


def _has_token(scope: Scope, token: str) -> bool:
    """Return whether a request sends the view token: in the cookie, in `Authorization`, or in the URL of the page that it opens."""
    headers = scope["headers"]
    cookies = [part.strip() for value in _values(headers, b"cookie") for part in value.split(b";")]
    given = [value for name, _, value in (part.partition(b"=") for part in cookies) if name == _cookie_name(scope)]
    given += [value.removeprefix(b"Bearer ") for value in _values(headers, b"authorization") if value.startswith(b"Bearer ")]
    if _has_token_in_query(scope):
        given += [value.encode() for name, value in _query(scope) if name == "token"]
    return len(given) > 0 and all(_is_same(each, token) for each in given)


def _has_token_in_query(scope: Scope) -> bool:
    """Return whether the request opens a page (not the API or a static file) with a token in its URL."""
    is_page = scope["method"] == "GET" and not scope["path"].startswith((_API, "/static/"))
    return is_page and any(name == "token" for name, _ in _query(scope))


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="replace")


def _cookie_name(scope: Scope) -> bytes:
    """Return a cookie name that contains the port, because browsers send the same cookies to all ports of a host."""
    port = scope["server"][1] if scope.get("server") else 0
    return b"trainmaster-%d" % (port or 0)


def _values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for each, value in headers if each.lower() == name]


def _redirect(scope: Scope, token: str) -> Response:
    """Return a response that moves the token from the URL to a cookie that no script can read and no other site can send."""
    rest = urlencode([(name, value) for name, value in _query(scope) if name != "token"])
    # A browser would treat a path such as //evil.example as the address of another site.
    path = "/" + scope["raw_path"].decode("latin-1").lstrip("/\\") if scope.get("raw_path") else "/"
    cookie = f"{_cookie_name(scope).decode()}={token}; HttpOnly; SameSite=Strict; Path=/"
    return Response(status_code=303, headers={"location": path + (f"?{rest}" if rest else ""), "set-cookie": cookie})
