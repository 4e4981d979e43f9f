"""Writes plain values as strict JSON, or as YAML that parsers of YAML 1.1 and 1.2 read in the same way."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import yaml

from trainmaster.config.identity import to_strict_json

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

# Text that is written without quotes, because every parser reads it as text.
_BARE = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*( [A-Za-z0-9_./-]+)*")
_RUN_KEY = re.compile(r"[0-9a-f]{8,64}")  # always quoted, because some keys look like numbers
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
        if "e" in text and "." not in text:  # YAML 1.1 reads 1e-05 as text
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
    """Convert plain values to YAML. The order of the keys is kept.

    >>> print(yaml_text({"lr": 1e-05, "answer": "no", "sizes": [1, 2]}), end="")
    lr: 1.0e-05
    answer: "no"
    sizes: [1, 2]
    """
    text: str = yaml.dump(tree, Dumper=_Writer, sort_keys=False, allow_unicode=True, default_flow_style=False, width=2**30)
    return text


def json_text(tree: dict[str, Any]) -> str:
    """Convert plain values to indented strict JSON. NaN and infinity become objects such as `{".float": "nan"}`."""
    return json.dumps(to_strict_json(tree), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
