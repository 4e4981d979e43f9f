"""Plain trees as YAML that readers of version 1.1 and 1.2 understand alike, as strict JSON, and as files."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
from typing import Any

import yaml

from trainmaster.config.identity import strict
from trainmaster.config.paths import MAX_BYTES
from trainmaster.config.plain import plain
from trainmaster.errors import ConfigFileError

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

# Text that is written without quotes: no reader takes it for anything else.
_BARE = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*( [A-Za-z0-9_./-]+)*")
_RUN_KEY = re.compile(r"[0-9a-f]{8,64}")  # always quoted: some look like numbers
_NOT_BARE = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}


class _Writer(_Dumper):  # type: ignore[misc]
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(writer: Any, value: str) -> Any:
    is_bare = _BARE.fullmatch(value) and not _RUN_KEY.fullmatch(value) and value.lower() not in _NOT_BARE
    return writer.represent_scalar("tag:yaml.org,2002:str", value, style=None if is_bare else '"')


def _number(writer: Any, value: float) -> Any:
    if math.isfinite(value):
        text = repr(value)
        if "e" in text and "." not in text:  # YAML 1.1 takes 1e-05 for text
            text = text.replace("e", ".0e")
    else:
        text = ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return writer.represent_scalar("tag:yaml.org,2002:float", text)


def _sequence(writer: Any, value: list[Any] | tuple[Any, ...]) -> Any:
    is_short = not any(isinstance(each, dict | list | tuple) for each in value)
    return writer.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=is_short)


_Writer.add_representer(str, _text)
_Writer.add_representer(float, _number)
_Writer.add_representer(list, _sequence)
_Writer.add_representer(tuple, _sequence)


def yaml_text(tree: dict[str, Any]) -> str:
    """A plain tree as YAML, in its own order.

    >>> print(yaml_text({"lr": 1e-05, "answer": "no", "sizes": [1, 2]}), end="")
    lr: 1.0e-05
    answer: "no"
    sizes: [1, 2]
    """
    text: str = yaml.dump(tree, Dumper=_Writer, sort_keys=False, allow_unicode=True, default_flow_style=False, width=2**30)
    return text


def json_text(tree: dict[str, Any]) -> str:
    """A plain tree as strict JSON, indented; NaN and the infinities are `{".float": "nan"}`."""
    return json.dumps(strict(tree), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_file(tree: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write JSON if the name ends in `.json`, else YAML; the file appears whole or not at all."""
    name = os.fspath(path)
    plain(tree)  # what could not be read again is not written
    text = json_text(tree) if name.endswith(".json") else yaml_text(tree)
    data = text.encode()
    if len(data) > MAX_BYTES:
        raise ConfigFileError(f"`{name}` cannot be written: {len(data):,} bytes, and a config has at most {MAX_BYTES:,}", where=name)
    aside = os.path.join(os.path.dirname(name), f".{secrets.token_hex(8)}.tmp")  # short, where the name is as long as can be
    try:
        with open(aside, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, name)
    except BaseException as error:
        with contextlib.suppress(OSError, ValueError):
            os.unlink(aside)
        if not isinstance(error, OSError | ValueError):
            raise  # an interrupt, which leaves nothing behind either
        why = error.strerror if isinstance(error, OSError) else str(error)  # a ValueError: a name with a NUL
        raise ConfigFileError(f"`{name!s}` cannot be written: {why}", where=name) from None
