"""Writes responses as strict JSON. JSON has no NaN or infinity, so they become "nan", "inf" and "-inf", as in the output of `--json`."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.store.run_table import MISSING

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MAX_INTEGER = 2**53
"""JavaScript cannot represent larger integers exactly, so they are sent as strings."""


def encode(value: Any) -> bytes:
    """Encode a value as strict JSON.

    >>> encode({"loss": float("nan"), "count": 2**60, "missing": None})
    b'{"loss":"nan","count":"1152921504606846976","missing":null}'
    """
    return json.dumps(plain(value), separators=(",", ":"), allow_nan=False, ensure_ascii=True).encode()


def plain(value: Any) -> Any:
    """Convert a value to types that strict JSON supports. A missing value becomes None."""
    if value is None or value is MISSING or isinstance(value, str | bool):
        return None if value is MISSING else value
    if isinstance(value, int):
        return value if abs(value) <= MAX_INTEGER else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list) and {*map(type, value)} == {float} and math.isfinite(sum(value)):  # a shortcut for curves
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return str(value)


def etag_of(*parts: object) -> str:
    return '"' + hashlib.blake2b(repr(parts).encode(errors="backslashreplace"), digest_size=12).hexdigest() + '"'


def reply(request: Request, value: Any, status: int = 200) -> Response:
    """Return a response with a JSON body, or "not modified" if the client already has this version."""
    from starlette.responses import Response

    body = encode(value)
    tag = etag_of(body)
    if status == 200 and is_known(request, tag):
        return not_modified(tag)
    return Response(body, status, {"etag": tag}, "application/json")


def is_known(request: Request, tag: str) -> bool:
    """Return whether the client already has the version with this ETag."""
    return request.headers.get("if-none-match") == tag


def not_modified(tag: str) -> Response:
    from starlette.responses import Response

    return Response(status_code=304, headers={"etag": tag})
