"""What looks like a secret, by its name or by its form, and how it is kept out of everything that is stored.

Two ways, for two kinds of places. In a config a secret is found by the name of its field and the form of its value, alike in any process,
because the key depends on it: `masked_config`. In texts (a log, a traceback) it is found by its value: `Mask`, of the values that the
environment and the config at hand have.

A false alarm in a config is as bad as a leak, for it takes a value out of the identity. So names that are clear (`password`) hide any text;
names that may mean anything (`token`, `..._key`) hide only what has the form of a credential; and the words that training is full of
(`pad_token`, `image_key`) hide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

from trainmaster.config.paths import Path

MASK = "***"
MIN_LENGTH = 6
"""A shorter value would be found in half of all texts, and is not worth hiding."""

CLEAR, DOUBTFUL, HARMLESS = "clear", "doubtful", "harmless"

_CLEAR = re.compile(
    r"(password|passwd|passphrase|passcode|secret|credential)s?$"
    r"|(^|_)(api_?key|(secret|access|private|signing|encryption|account|master|auth|service)_?(access_)?key)s?$"
    r"|(^|_)(auth|access|api|bearer|refresh|session|oauth|personal_access|secret|security|service|deploy|hub|hf|github|gitlab|wandb)_?tokens?$"
    r"|(^|_)access_?key_?ids?$|[a-z0-9]_pwd$"
)
_DOUBTFUL = re.compile(r"(^|_)(token|key|auth|pwd|dsn)s?$")
_OF_DATA = re.compile(
    r"(^|_)(pad|padding|bos|eos|sos|cls|sep|unk|mask|special|start|stop|end|begin|image|img|video|audio|text|prompt|word|new|next|last|first"
    r"|num|max|min|total|input|inputs|output|outputs|target|source|src|tgt|label|class|query|value|sort|data|dataset|cache|run|parent"
    r"|primary|foreign|group|join|index|config|map|state|metric|monitor|loss|feature|features|batch|column|row|dict|item|random|rng"
    r"|prng|seed|vocab|decoder|encoder|additional|extra|split|model|layer|weight|weights|param|observation|action|reward|experiment"
    r"|checkpoint|ckpt|content|hash|commit|artifact|object|file|blob|lookup|registry|partition|sweep|trial|study|backbone|pretrained"
    r"|sha|checksum|digest|version|build|teacher|student|pred|prediction|logits|embedding|sample|record|trigger|placeholder|modifier|boi|eoi|bot|eot)"
    r"_?(tokens?|keys?)$|(^|_)(id|uuid)_?keys?$"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATORS = re.compile(r"[^A-Za-z0-9]+")

_FORMS = re.compile(
    r"\bhf_[A-Za-z0-9]{30,}|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{30,}|\bglpat-[A-Za-z0-9_-]{18,}"
    r"|\bA(?:KIA|SIA)[0-9A-Z]{16}\b|\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\bAIza[A-Za-z0-9_-]{35}"
    r"|\bsk-(?P<key>[A-Za-z0-9_-]{20,})"
    r"|\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
"""What is a credential whatever its name: no other text looks so, but for `sk-`, of which the rest counts, too."""
_FORM_LENGTH = 15
_IN_ADDRESS = re.compile(
    r"://[^\s/:@]*:(?P<secret>[^\s/@]+)(?=@)(?!@sha256:)"  # that would be the tag of an image
    r"|(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)://(?P<user>[^\s/:@]{16,})(?=@)"  # there, the user is a container
)
_PAIR_NAMES = r"\b(?:password|passwd|pwd|api_?key|access_?token|auth_?token|account_?key|secret_?key|client_?secret)="
_IN_PAIR = re.compile(rf"{_PAIR_NAMES}(?P<secret>[^\s;&'\",]{{6,}})", re.IGNORECASE)
_AT_MASK = re.compile(rf"(://([^\s/@]*:)?|{_PAIR_NAMES})$", re.IGNORECASE)

_RUN = re.compile(r"[A-Za-z0-9]{16,}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_BASE64 = re.compile(r"[A-Za-z0-9+/=_-]{32,}")
_WORD = re.compile(r"[A-Z][a-z]{2,}|[a-z]{5,}")
_NO_WORD = re.compile(r"[bcdfghjklmnpqrstvwxz]{4}", re.IGNORECASE)
_LEAST_RANDOM = 0.4
"""Which part of a credential is no word: `Conv2dBatchNorm2d` and `imagenet2012train` have less."""
_PATH = re.compile(r"(~|\.{1,2}|[A-Za-z]:)([/\\][\w.@ -]+)+[/\\]?|([/\\][\w.@ -]+){2,}[/\\]?")
_FILE = re.compile(r"(~|\.{1,2}|[A-Za-z]:)?[/\\]?([\w.@ =-]+[/\\])+[\w.@ =-]+\.[A-Za-z]\w{0,8}")
_PLACEHOLDER = re.compile(r"\$\{[^{}]+\}|\$[A-Z_][A-Z0-9_]*|\{\w+\}|<[^<>]*>|\[[^\[\]]*\]")
"""What stands for something else: a reference, a field of a template, a special token."""
_NO_SECRETS = frozenset({"", "true", "false", "none", "null", "enabled", "disabled", "default", "required", "optional", MASK})


# ---- names and forms


@lru_cache(maxsize=4096)
def kind_of_name(name: str) -> str:
    """`CLEAR` for the name of a secret, `DOUBTFUL` for one that may be, else `HARMLESS`.

    >>> [kind_of_name(name) for name in ("db.password", "apiKey", "token", "pad_token", "tokenizer")]
    ['clear', 'clear', 'doubtful', 'harmless', 'harmless']
    """
    words = words_of(name)
    if _CLEAR.search(words):
        return CLEAR
    return DOUBTFUL if _DOUBTFUL.search(words) and not _OF_DATA.search(words) else HARMLESS


def is_of_data(name: str) -> bool:
    """Whether a name is one of those that training is full of: `PAD_TOKEN`, `image_key`."""
    return _OF_DATA.search(words_of(name)) is not None


def words_of(name: str) -> str:
    """A name in small letters, its words joined by `_`, without a number at its end: `apiKey2` is `api_key`."""
    return _SEPARATORS.sub("_", _CAMEL.sub("_", name)).strip("_").lower().rstrip("0123456789_")


def is_like_credential(value: str) -> bool:
    """True for what people do not write by hand: 16 or more characters in which letters and digits mix, and that are not mostly words.

    >>> [is_like_credential(each) for each in ("abcd1234efgh5678", "resnet50_layer4_features", "Conv2dBatchNorm2d")]
    [True, False, False]
    """
    if _has_form(value):
        return True
    if len(value) < 16 or any(char.isspace() for char in value):
        return False
    if any(_is_mixed(run) and _is_random(run) for run in _RUN.findall(value)):
        return True
    kinds = (str.isupper, str.islower, str.isdigit)
    has_all = bool(_BASE64.fullmatch(value)) and all(any(kind(char) for char in value) for kind in kinds)
    return bool(_UUID.fullmatch(value)) or (has_all and _is_random(value))


def _is_mixed(run: str) -> bool:
    """Whether letters and digits mix; in a time, such as 20240501T120000Z, they do not."""
    num_digits = sum(char.isdigit() for char in run)
    return num_digits >= 2 and len(run) - num_digits >= 3


def _is_random(text: str) -> bool:
    """Whether much of a text is no word."""
    num_in_words = sum(len(word) for word in _WORD.findall(text) if _NO_WORD.search(word) is None)
    num_between = sum(not char.isalnum() for char in text)
    return len(text) - num_in_words - num_between >= _LEAST_RANDOM * len(text)


def _has_form(text: str) -> bool:
    """Whether a text has in it what can only be a credential."""
    if len(text) < _FORM_LENGTH:
        return False
    return any(found["key"] is None or is_like_credential(found["key"]) for found in _FORMS.finditer(text))


def is_path(value: str) -> bool:
    """True for what can only be the path of a file or folder.

    >>> [is_path(each) for each in ("~/.ssh/id_rsa", "keys/me.json", "/run/x", "hunter2", "/hunter2", "/K7MDENGbPxRfiCY123/abc")]
    [True, True, True, False, False, False]
    """
    if _FILE.fullmatch(value):
        return not _has_form(value)
    return bool(_PATH.fullmatch(value)) and not any(is_like_credential(part) for part in re.split(r"[/\\]", value))


def is_no_secret(value: str) -> bool:
    """Whether a text is none under any name: nothing, a switch, a path, or what stands for something else."""
    return value.lower() in _NO_SECRETS or _PLACEHOLDER.fullmatch(value) is not None or is_path(value)


def masked_value(name: str, value: str) -> str:
    """The text `value` of a field as it may be stored: itself, `***`, or with `***` for the part of it that is secret.

    >>> masked_value("api_key", "abc"), masked_value("pad_token", "<pad>"), masked_value("db", "pg://me:hunter2@host/runs")
    ('***', '<pad>', 'pg://me:***@host/runs')
    """
    kind = kind_of_name(name)
    is_meant = kind == CLEAR or (kind == DOUBTFUL and "://" not in value and is_like_credential(value))
    return MASK if is_meant and not is_no_secret(value) else without_parts(value)


class _Part(NamedTuple):
    """A secret inside a text."""

    secret: str
    start: int
    end: int


def parts_of(value: str) -> list[_Part]:
    """The secrets in an address or in `name=value` pairs."""
    found = []
    if "://" in value:
        for match in _IN_ADDRESS.finditer(value):
            name = "secret" if match["secret"] else "user"
            if name == "secret" or is_like_credential(match["user"]):
                found.append(_Part(match[name], *match.span(name)))
    if "=" in value:
        found += [_Part(match["secret"], *match.span("secret")) for match in _IN_PAIR.finditer(value)]
    return sorted((part for part in found if not is_no_secret(part.secret)), key=lambda part: part.start)


def without_parts(value: str) -> str:
    """A text with `***` for the secrets in its addresses and pairs."""
    result, end = "", 0
    for part in parts_of(value):
        if part.start >= end:
            result, end = f"{result}{value[end : part.start]}{MASK}", part.end
    return result + value[end:] if end else value


def worth_hiding(value: str) -> Iterator[str]:
    """`value` in the forms in which a log line can have it: as it is, without quoting, and each long line of it."""
    value = value.strip()
    for text in (value, unquote(value), *(line.strip() for line in value.splitlines() if len(line.strip()) >= 16)):
        if len(text) >= MIN_LENGTH and text.lower() not in _NO_SECRETS:
            yield text


# ---- configs


def may_hide_secrets(text: str) -> bool:
    """False if a name, or the JSON of a config, has nothing that could be a secret: the quick look that every key is worth."""
    low = text.lower()
    return (
        "key" in low
        or "token" in low
        or "pass" in low
        or "secret" in low
        or "://" in low
        or "auth" in low
        or "pwd" in low
        or "credential" in low
        or "dsn" in low
    )


def masked_config(tree: Any) -> Any:
    """A plain tree with `***` for its secrets; the very same tree if it has none.

    All text below a group or in a list with a clear name counts as named so.

    >>> masked_config({"lr": 0.1, "hub": {"api_key": "abc"}})
    {'lr': 0.1, 'hub': {'api_key': '***'}}
    """
    return _masked(tree, "")


def _masked(node: Any, name: str) -> Any:
    kind = type(node)
    if kind is str:
        return masked_value(name, node)
    if kind is dict:
        is_clear = name != "" and kind_of_name(name) == CLEAR
        changed = {}
        for key, each in node.items():
            of = type(each)
            if of is str or of is dict or of is list or of is tuple:
                after = _masked(each, name if is_clear else key)
                if after is not each:
                    changed[key] = after
        return {**node, **changed} if changed else node
    if kind is list or kind is tuple:
        elements = [_masked(each, name) for each in node]
        return elements if any(after is not each for after, each in zip(elements, node, strict=True)) else node
    return node


def has_credential(node: Any) -> bool:
    """True if some text in a tree has in it what can only be a credential."""
    kind = type(node)
    if kind is str:
        return _has_form(node)
    if kind is dict:
        node, kind = node.values(), list
    if kind is list or kind is tuple:
        for each in node:
            of = type(each)
            if of is not float and of is not int and of is not bool and each is not None and has_credential(each):
                return True
    return False


def credentials_in(tree: Any) -> list[Path]:
    """Where a tree has, under a name that tells nothing, what can only be a credential."""
    return [path for name, value, path in _texts(tree) if kind_of_name(name) != CLEAR and _has_form(value)]


def config_secrets(tree: Any) -> list[str]:
    """The secret values in a plain tree: what `masked_config` takes out of it, if it is long enough to be found in a text."""
    found: dict[str, None] = {}
    for name, value, _ in _texts(tree):
        for text in [value] if masked_value(name, value) == MASK else [part.secret for part in parts_of(value)]:
            found.update(dict.fromkeys(worth_hiding(text)))
    return list(found)


def hidden_fields(tree: Any) -> list[Path]:
    """Where a stored tree has `***` in place of a secret."""
    return [path for name, value, path in _texts(tree) if MASK in value and _is_hidden(name, value)]


def _is_hidden(name: str, value: str) -> bool:
    if value == MASK:
        return kind_of_name(name) != HARMLESS
    return any(_AT_MASK.search(part) for part in value.split(MASK)[:-1])


def variable_of(path: Path) -> str:
    """The environment variable that stands for a field: `hub.apiKey` is `API_KEY`, an element `api_keys.0` is `API_KEYS_0`."""
    end = len(path) - 1
    while end > 0 and isinstance(path[end], int):
        end -= 1
    return _SEPARATORS.sub("_", "_".join(_CAMEL.sub("_", str(part)) for part in path[end:])).strip("_").upper()


def _texts(node: Any, name: str = "", path: Path = ()) -> Iterator[tuple[str, str, Path]]:
    """Each text in a tree, with the name that counts for it, and where it stands."""
    if isinstance(node, str):
        yield name, node, path
    elif isinstance(node, dict):
        is_clear = bool(name) and kind_of_name(name) == CLEAR
        for key, each in node.items():
            yield from _texts(each, name if is_clear else key, (*path, key))
    elif isinstance(node, list | tuple):
        for number, each in enumerate(node):
            yield from _texts(each, name, (*path, number))
