"""Recognizes secrets by their names and by the form of the text, and replaces them with `***`.

These patterns do not affect the key of a config. A secret is left out of the key only if it is declared (see
`declared_secrets.py`), because a key must not depend on a guess. The patterns are used to mask other text (a
command line, the environment, a failure capsule), and to reject configs that contain an undeclared secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

from trainmaster.config.paths import Path, map_leaves

MASK = "***"
MIN_LENGTH = 6
"""The length of the shortest secret that is masked in text. Shorter values are too likely to occur in text by accident."""

_SECRET_NAME = re.compile(
    r"(password|passwd|passphrase|passcode|secret|credential)s?$|[a-z0-9]_pwd$|(^|_)access_?key_?ids?$"
    r"|(^|_)(api|access|secret_access|secret|private|signing|encryption|account|master|auth|service)_?keys?$"
    r"|(^|_)(auth|access|api|bearer|refresh|session|oauth|secret|security|service|deploy|hub|hf|github|gitlab|wandb)_?tokens?$"
)
_POSSIBLE_NAME = re.compile(r"(^|_)(token|key|auth|pwd|dsn)s?$")
"""Matches names whose values are secrets only if the values look random."""
_UNMISTAKABLE_NAME = re.compile(r"(^|_)(password|(api|secret|private)_?key|(access|auth)_?token)$")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATORS = re.compile(r"[^A-Za-z0-9]+")

_TOKEN = re.compile(
    r"\bhf_[A-Za-z0-9]{30,}|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{30,}|\bglpat-[A-Za-z0-9_-]{18,}"
    r"|\bA(?:KIA|SIA)[0-9A-Z]{16}\b|\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\bAIza[A-Za-z0-9_-]{35}"
    r"|\bsk-(?P<key>[A-Za-z0-9_-]{20,})"
    r"|\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
"""Matches tokens of well-known services. Text that starts with `sk-` is a token only if the rest looks random."""
_TOKEN_LENGTH = 15
_ADDRESS = re.compile(
    r"://[^\s/:@]*:(?P<secret>[^\s/@]+)(?=@)(?!@sha256:)"  # `@sha256:` follows the tag of a container image
    r"|(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)://(?P<user>[^\s/:@]{16,})(?=@)"  # in Azure addresses, the user is a container
)
_PAIR_NAMES = r"\b(?:password|passwd|pwd|api_?key|access_?token|auth_?token|account_?key|secret_?key|client_?secret)="
_PAIR = re.compile(rf"{_PAIR_NAMES}(?P<secret>[^\s;&'\",]{{6,}})", re.IGNORECASE)

_RUN = re.compile(r"[A-Za-z0-9]{16,}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_BASE64 = re.compile(r"(?=.*[A-Z])(?=.*[a-z])(?=.*[0-9])[A-Za-z0-9+/=_-]{32,}")
_WORD = re.compile(r"[A-Z][a-z]{2,}|[a-z]{5,}")
_UNPRONOUNCEABLE = re.compile(r"[bcdfghjklmnpqrstvwxz]{4}", re.IGNORECASE)
_MIN_RANDOM = 0.4
"""Text looks random if at least this fraction of its characters is outside words.

The fraction is lower for `Conv2dBatchNorm2d` and `imagenet2012train`.
"""
_PATH = re.compile(r"(~|\.{1,2}|[A-Za-z]:)([/\\][\w.@ -]+)+[/\\]?|([/\\][\w.@ -]+){2,}[/\\]?")
_FILE = re.compile(r"(~|\.{1,2}|[A-Za-z]:)?[/\\]?([\w.@ =-]+[/\\])+[\w.@ =-]+\.[A-Za-z]\w{0,8}")
_PLACEHOLDER = re.compile(r"\$\{[^{}]+\}|\$[A-Z_][A-Z0-9_]*|\{\w+\}|<[^<>]*>|\[[^\[\]]*\]")
"""Matches a variable reference, a template field, or a special token of a tokenizer."""
_NEVER_SECRET = frozenset({"", "true", "false", "none", "null", "enabled", "disabled", "default", "required", "optional", MASK})


@lru_cache(maxsize=4096)
def _words(name: str) -> str:
    """Normalize a name: lower case, `_` between words, no number at the end. `apiKey2` becomes `api_key`."""
    return _SEPARATORS.sub("_", _CAMEL.sub("_", name)).strip("_").lower().rstrip("0123456789_")


@lru_cache(maxsize=4096)
def has_unmistakable_name(name: str) -> bool:
    """Return whether a name is enough to tell that its value is a secret.

    >>> [has_unmistakable_name(name) for name in ("password", "openai_api_key", "accessToken", "secret", "token", "rotary_key")]
    [True, True, True, False, False, False]
    """
    return _UNMISTAKABLE_NAME.search(_words(name)) is not None


def is_secret(name: str, value: str) -> bool:
    """Return whether `value` looks like a secret. `name` is the name of its option, argument or variable.

    >>> [is_secret(name, "hunter2") for name in ("db.password", "apiKey", "pad_token")], is_secret("token", "abcd1234efgh5678")
    ([True, True, False], True)
    """
    words = _words(name)
    if _SECRET_NAME.search(words):
        return not is_harmless(value)
    return _POSSIBLE_NAME.search(words) is not None and "://" not in value and is_like_credential(value) and not is_harmless(value)


def is_like_credential(value: str) -> bool:
    """Return whether a string looks random: 16 or more characters that mix letters and digits and are not mostly words.

    >>> [is_like_credential(each) for each in ("abcd1234efgh5678", "resnet50_layer4_features", "Conv2dBatchNorm2d")]
    [True, False, False]
    """
    if has_token(value):
        return True
    if len(value) < 16 or any(char.isspace() for char in value):
        return False
    if any(_is_mixed(run) and _is_random(run) for run in _RUN.findall(value)):
        return True
    return bool(_UUID.fullmatch(value)) or (bool(_BASE64.fullmatch(value)) and _is_random(value))


def _is_mixed(run: str) -> bool:
    """Return whether letters and digits are mixed. A string with very few letters, such as 20240501T120000Z, is not mixed."""
    num_digits = sum(char.isdigit() for char in run)
    return num_digits >= 2 and len(run) - num_digits >= 3


def _is_random(text: str) -> bool:
    num_in_words = sum(len(word) for word in _WORD.findall(text) if _UNPRONOUNCEABLE.search(word) is None)
    num_separators = sum(not char.isalnum() for char in text)
    return len(text) - num_in_words - num_separators >= _MIN_RANDOM * len(text)


def has_token(text: str) -> bool:
    """Return whether a string contains a token of a well-known service."""
    return len(text) >= _TOKEN_LENGTH and any(True for _ in _tokens(text))


def _tokens(text: str) -> Iterator[re.Match[str]]:
    return (match for match in _TOKEN.finditer(text) if match["key"] is None or is_like_credential(match["key"]))


def is_path(value: str) -> bool:
    """Return whether a string is the path of a file or folder.

    >>> [is_path(each) for each in ("~/.ssh/id_rsa", "keys/me.json", "/run/x", "hunter2", "/hunter2", "/K7MDENGbPxRfiCY123/abc")]
    [True, True, True, False, False, False]
    """
    if _FILE.fullmatch(value):
        return not has_token(value)
    return bool(_PATH.fullmatch(value)) and not any(is_like_credential(part) for part in re.split(r"[/\\]", value))


def is_harmless(value: str) -> bool:
    """Return whether a value is never a secret, regardless of its name: empty text, a switch such as `true`, a path or a placeholder."""
    return value.lower() in _NEVER_SECRET or _PLACEHOLDER.fullmatch(value) is not None or is_path(value)


class SecretPart(NamedTuple):
    """A secret inside a longer string."""

    secret: str
    start: int
    end: int


def secret_parts(value: str) -> list[SecretPart]:
    """Return the secrets inside a string: tokens, and passwords in URLs and `name=value` pairs."""
    parts = [SecretPart(match[0], *match.span()) for match in _tokens(value)] if len(value) >= _TOKEN_LENGTH else []
    if "://" in value:
        for match in _ADDRESS.finditer(value):
            name = "secret" if match["secret"] else "user"
            if name == "secret" or is_like_credential(match["user"]):
                parts.append(SecretPart(match[name], *match.span(name)))
    if "=" in value:
        parts += [SecretPart(match["secret"], *match.span("secret")) for match in _PAIR.finditer(value)]
    return sorted((part for part in parts if not is_harmless(part.secret)), key=lambda part: part.start)


def masked_value(name: str, value: str) -> str:
    """Mask the secrets in `value`, the value of an option or variable called `name`.

    >>> masked_value("api_key", "abc"), masked_value("pad_token", "<pad>"), masked_value("db", "pg://me:hunter2@host/runs")
    ('***', '<pad>', 'pg://me:***@host/runs')
    """
    if is_secret(name, value):
        return MASK
    result, end = "", 0
    for part in secret_parts(value):
        if part.start >= end:
            result, end = f"{result}{value[end : part.start]}{MASK}", part.end
    return result + value[end:]


def masked_by_name(tree: Any, name: str = "") -> Any:
    """Mask the secrets in nested dicts and lists. All text below a key that is named like a secret is masked.

    >>> masked_by_name({"lr": 0.1, "hub": {"api_key": "abc"}})
    {'lr': 0.1, 'hub': {'api_key': '***'}}
    """
    kind = type(tree)
    if kind is str:
        return masked_value(name, tree)
    if kind is dict:
        is_secret_group = _SECRET_NAME.search(_words(name)) is not None
        return {key: masked_by_name(each, name if is_secret_group else str(key)) for key, each in tree.items()}
    return kind(masked_by_name(each, name) for each in tree) if kind is list or kind is tuple else tree


def mask_texts(value: Any) -> Any:
    """Replace each string in a declared secret with `***`. None and empty strings do not change.

    >>> mask_texts({"user": "me", "tokens": ["a", ""], "proxy": None})
    {'user': '***', 'tokens': ['***', ''], 'proxy': None}
    """
    return map_leaves(value, lambda leaf: leaf if leaf is None or leaf == "" else MASK)


def forms_to_find(value: str) -> Iterator[str]:
    """Yield the forms of a secret to look for in text: the value, the percent-decoded value, and each long line of the value."""
    value = value.strip()
    for text in (value, unquote(value), *(line.strip() for line in value.splitlines() if len(line.strip()) >= 16)):
        if len(text) >= MIN_LENGTH and text.lower() not in _NEVER_SECRET:
            yield text


def secret_keys(config: Any) -> frozenset[str]:
    """Return the dotted keys that a free-form config declares as secrets. (In a typed config, the class declares its secrets.)"""
    return getattr(config, "_secrets", frozenset())


def environment_variable(path: Path) -> str:
    """Return the name of the environment variable for a secret: `API_KEY` for `hub.apiKey`, `API_KEYS_0` for the element `api_keys.0`."""
    end = len(path) - 1
    while end > 0 and isinstance(path[end], int):
        end -= 1
    return _SEPARATORS.sub("_", "_".join(_CAMEL.sub("_", str(part)) for part in path[end:])).strip("_").upper()
