"""Finds secrets in text by their values and replaces them with `***`.

The values come from the config, the environment and the command line.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from trainmaster.config.secret_patterns import (
    MASK,
    forms_to_find,
    is_harmless,
    is_like_credential,
    is_secret,
    masked_value,
    secret_parts,
)

_OPTION = re.compile(r"(?P<start>[-+]*(?P<name>[A-Za-z][\w.-]*)=)(?P<value>.*)", re.DOTALL)
_STRONG_LENGTH, _STRONG_MIXED_LENGTH = 12, 8
"""The minimum lengths of secrets that are unlikely to occur in text by accident.

The shorter length is for secrets that are not plain words or numbers.
"""


def secret_values(environ: Mapping[str, str]) -> list[str]:
    """Return the values of environment variables that look like secrets, longest first.

    This includes the values of variables that are named like a secret, unless the value is a switch such as `true`,
    a path, or shorter than 6 characters. It also includes tokens of well-known services, and the password in a URL of
    the form `scheme://user:password@host`.

    >>> secret_values({"HF_TOKEN": "hf_0123456789", "USE_TOKEN": "true", "HOME": "/data/me"})
    ['hf_0123456789']
    """
    values = set()
    for name, value in environ.items():
        is_token = name.upper().endswith(("_TOKEN", "_PAT")) and not is_harmless(value)
        values |= set(forms_to_find(value) if is_token else _secrets_in(name, value))
    return sorted(values, key=lambda value: (-len(value), value))


class Mask:
    """Replaces secret values in text, whether they appear unchanged, as written by `repr` or JSON, or percent-encoded in a URL.

    >>> Mask(["p@ss word"])("repr 'p@ss word', url p%40ss%20word")
    "repr '***', url ***"
    """

    __slots__ = ("_forms", "_values")

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values = tuple(value for value in values if value)
        self._forms = sorted({form for value in self._values for form in _forms(value)}, key=lambda form: (-len(form), form))

    @classmethod
    def of(cls, values: Iterable[str] = (), environ: Mapping[str, str] | None = None, argv: Iterable[str] | None = None) -> Mask:
        """Create a mask for `values`, such as the secrets of a config, and for the secrets in `environ` and `argv`."""
        from_command_line = argv_secrets(getattr(sys, "orig_argv", sys.argv) if argv is None else argv)
        return cls([*values, *secret_values(os.environ if environ is None else environ), *from_command_line])

    def only_strong(self) -> Mask:
        """Return a mask for only those secrets that are unlikely to occur in ordinary text by chance.

        Use it for data that a program will read back. Such data would be corrupted if text that is not a secret were masked.
        """
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
        """Return a copy of nested dicts, lists, tuples and sets with all secrets masked, or `node` itself if it contains none."""
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
        """If `text` may end in the middle of a secret, return the index at which that secret begins, otherwise `len(text)`."""
        if text.endswith("\n") and not any("\n" in form for form in self._forms):
            return len(text)
        cut = len(text)
        for form in self._forms:
            for size in range(min(len(form) - 1, len(text)), len(text) - cut, -1):
                if text.endswith(form[:size]):
                    cut = len(text) - size
                    break
        is_moved = True
        while is_moved:  # do not cut a secret in two
            is_moved = False
            for form in self._forms:
                at = text.find(form, max(0, cut - len(form) + 1), cut + len(form) - 1)
                if 0 <= at < cut:
                    cut, is_moved = at, True
        return cut


class MaskedStream:
    """Masks text that arrives in pieces.

    If the end of a piece may be the beginning of a secret, it is held back until the next piece arrives.

    >>> stream = MaskedStream(Mask(["hunter2"]))
    >>> stream.take("my hun"), stream.take("ter2!"), stream.rest()
    ('my ', '***!', '')
    """

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._waiting = ""

    def take(self, text: str) -> str:
        """Add a piece of text. Return all text that need not be held back, with secrets masked."""
        if not self._mask:
            return text
        text = self._waiting + text
        cut = self._mask.held(text)
        self._waiting = text[cut:]
        return self._mask(text[:cut])

    def rest(self) -> str:
        """Return the masked text that is still held back. Call this after the last piece."""
        text, self._waiting = self._waiting, ""
        return self._mask(text)


def _is_strong(value: str) -> bool:
    is_mixed = not value.isalpha() and not value.isdigit()
    return len(value) >= _STRONG_LENGTH or (is_mixed and len(value) >= _STRONG_MIXED_LENGTH) or is_like_credential(value)


def masked(text: str, values: Iterable[str]) -> str:
    """Replace every occurrence of `values` in `text` with `***`. To mask many strings, create a `Mask` once.

    >>> masked("login with hunter2!", ["hunter2"])
    'login with ***!'
    """
    return Mask(values)(text)


def masked_argv(argv: Iterable[str], mask: Mask) -> list[str]:
    """Return command-line arguments in which known secrets and the values of options such as `--api-key` are replaced by `***`.

    >>> masked_argv(["train.py", "--api-key=abc", "--password", "abc", "lr=0.1", "hub.token=hunter2"], Mask(["hunter2"]))
    ['train.py', '--api-key=***', '--password', '***', 'lr=0.1', 'hub.token=***']
    """
    return [mask(f"{start}{masked_value(name, value)}") for name, start, value in _options(argv)]


def argv_secrets(argv: Iterable[str]) -> list[str]:
    """Return the secrets in the arguments: values of options such as `--api-key`, tokens, and passwords in URLs."""
    return list(dict.fromkeys(text for name, _, value in _options(argv) for text in _secrets_in(name, value)))


def _secrets_in(name: str, value: str) -> Iterator[str]:
    """Yield the secrets in `value`, the value of an option or variable called `name`."""
    for text in [value] if is_secret(name, value) else [part.secret for part in secret_parts(value)]:
        yield from forms_to_find(text)


def _options(argv: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Split each argument into an option name (empty if there is none), the text before the value, and the value."""
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
