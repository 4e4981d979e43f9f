"""Secrets in texts: found by their values, which the environment, the config and the command line at hand give, and hidden as `***`."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from trainmaster.config.secret_fields import (
    CLEAR,
    DOUBTFUL,
    MASK,
    config_secrets,
    is_like_credential,
    is_no_secret,
    is_of_data,
    kind_of_name,
    masked_value,
    may_hide_secrets,
    parts_of,
    without_parts,
    words_of,
    worth_hiding,
)

_OPTION = re.compile(r"(?P<start>[-+]*(?P<name>[A-Za-z][\w.-]*)=)(?P<value>.*)", re.DOTALL)
_STRONG_LENGTH, _STRONG_MIXED = 12, 8
"""A value of so many characters stands nowhere by accident; of fewer, if it is no plain word or number."""


def secret_values(environ: Mapping[str, str]) -> list[str]:
    """The values of environment variables that look like secrets, the longest first.

    These are what stands under the name of a secret, unless it is a switch, a path or shorter than 6 characters; and the password in
    any address of the form `scheme://user:password@host`.

    >>> secret_values({"HF_TOKEN": "hf_0123456789", "USE_TOKEN": "true", "HOME": "/data/me"})
    ['hf_0123456789']
    """
    found: dict[str, None] = {}
    for name, value in environ.items():
        if "=" not in value and "://" not in value and not may_hide_secrets(name) and not name.endswith("_PAT"):
            continue
        for text in [value] if _is_secret_variable(name, value) else [part.secret for part in parts_of(value)]:
            found.update(dict.fromkeys(worth_hiding(text)))
    return sorted(found, key=lambda value: (-len(value), value))


def _is_secret_variable(name: str, value: str) -> bool:
    words = words_of(name)
    if words in ("pwd", "oldpwd") or is_no_secret(value):
        return False
    is_token = words.endswith("_token") and not is_of_data(name)
    is_personal = words.endswith("_pat") and not any(char in value for char in "*?\\[")  # else it is a pattern
    kind = CLEAR if is_token or is_personal else kind_of_name(name)
    return kind == CLEAR or (kind == DOUBTFUL and is_like_credential(value))


class Mask:
    """Some secret values, ready to be taken out of many texts: as they are, as `repr` and JSON write them, and quoted for an address.

    >>> Mask(["p@ss word"])("repr 'p@ss word', url p%40ss%20word")
    "repr '***', url ***"
    """

    __slots__ = ("_forms", "_values")

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values = tuple(value for value in values if value)
        self._forms = sorted({form for value in self._values for form in _forms(value)}, key=lambda form: (-len(form), form))

    @classmethod
    def of(cls, tree: Any = None, environ: Mapping[str, str] | None = None, argv: Iterable[str] | None = None) -> Mask:
        """The mask for the secrets of a config, as a plain tree, those of the environment, and those of the command line."""
        given = argv_secrets(getattr(sys, "orig_argv", sys.argv) if argv is None else argv)
        return cls([*config_secrets(tree), *secret_values(os.environ if environ is None else environ), *given])

    def of_strong(self) -> Mask:
        """The mask for those values only that occur nowhere by accident: for what a program reads again."""
        return Mask(filter(_is_strong, self._values))

    def __bool__(self) -> bool:
        return bool(self._forms)

    def __call__(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return text

    def is_in(self, text: str) -> bool:
        return any(form in text for form in self._forms)

    def tree(self, node: Any, has_names: bool = True) -> Any:
        """A value with every text in its dicts, lists, tuples and sets masked, names too if asked; the same object if nothing changes."""
        kind = type(node)
        if kind is str:
            return self(node)
        if not self._forms or kind not in (dict, OrderedDict, list, tuple, set, frozenset):
            return node
        if kind is dict or kind is OrderedDict:
            pairs = [(key, each, self.tree(key) if has_names else key, self.tree(each, has_names)) for key, each in node.items()]
            if all(key is shown and each is after for key, each, shown, after in pairs):
                return node
            result = kind((shown, after) for _, _, shown, after in pairs)
            if kind is OrderedDict:
                vars(result).update(vars(node))
            return result
        elements = [self.tree(each, has_names) for each in node]
        return node if all(after is each for after, each in zip(elements, node, strict=True)) else kind(elements)

    def held(self, text: str) -> int:
        """Where the end of a text begins that may be the first part of a secret: it is complete up to there."""
        if text.endswith("\n") and not any("\n" in form for form in self._forms):
            return len(text)
        cut = len(text)
        for form in self._forms:
            for size in range(min(len(form) - 1, len(text)), len(text) - cut, -1):
                if text.endswith(form[:size]):
                    cut = len(text) - size
                    break
        is_moved = True
        while is_moved:  # no secret is to be cut in two
            is_moved = False
            for form in self._forms:
                at = text.find(form, max(0, cut - len(form) + 1), cut + len(form) - 1)
                if 0 <= at < cut:
                    cut, is_moved = at, True
        return cut


class MaskedStream:
    """Text that comes in pieces, of which a secret may lie in two: what may be the start of one waits for the next piece.

    >>> stream = MaskedStream(Mask(["hunter2"]))
    >>> stream.take("my hun"), stream.take("ter2!"), stream.rest()
    ('my ', '***!', '')
    """

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._waiting = ""

    def take(self, text: str) -> str:
        """What can be shown by now."""
        if not self._mask:
            return text
        text = self._waiting + text
        cut = self._mask.held(text)
        self._waiting = text[cut:]
        return self._mask(text[:cut])

    def rest(self) -> str:
        """What has waited, as no more comes."""
        text, self._waiting = self._waiting, ""
        return self._mask(text)


def _is_strong(value: str) -> bool:
    is_mixed = not value.isalpha() and not value.isdigit()
    return len(value) >= _STRONG_LENGTH or (is_mixed and len(value) >= _STRONG_MIXED) or is_like_credential(value)


def masked(text: str, values: Iterable[str]) -> str:
    """`text` with `***` for every occurrence of each of `values`; for many texts, keep one `Mask`.

    >>> masked("login with hunter2!", ["hunter2"])
    'login with ***!'
    """
    return Mask(values)(text)


def masked_argv(argv: Iterable[str], mask: Mask) -> list[str]:
    """The words of a command line without secrets: known values, and what is given for an option or a key with the name of a secret.

    >>> masked_argv(["train.py", "--api-key=abc", "--password", "abc", "lr=0.1", "hub.token=hunter2"], Mask(["hunter2"]))
    ['train.py', '--api-key=***', '--password', '***', 'lr=0.1', 'hub.token=***']
    """
    return [
        mask(f"{start}{masked_value(name, value)}" if name else f"{start}{without_parts(value)}") for name, start, value in _given(argv)
    ]


def argv_secrets(argv: Iterable[str]) -> list[str]:
    """The values that a command line gives for what is named like a secret."""
    found: dict[str, None] = {}
    for name, _, value in _given(argv):
        is_whole = bool(name) and masked_value(name, value) == MASK
        for text in [value] if is_whole else [part.secret for part in parts_of(value)]:
            found.update(dict.fromkeys(worth_hiding(text)))
    return list(found)


def _given(argv: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Each word as the name that its value is given for, what stands before the value, and the value."""
    before = ""
    for word in argv:
        option = _OPTION.fullmatch(word)
        if option is not None:
            yield option["name"], option["start"], option["value"]
        elif before and not word.startswith("-"):
            yield before, "", word
        else:
            yield "", "", word
        before = word.lstrip("-") if word.startswith("--") and option is None else ""


def _forms(value: str) -> Iterator[str]:
    yield value
    yield repr(value)[1:-1]
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    if not (value.isascii() and value.isalnum()):
        plain_bytes = value.encode(errors="surrogateescape")
        yield from (quote(plain_bytes, safe=""), quote(plain_bytes), quote_plus(plain_bytes))
