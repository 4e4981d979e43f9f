"""Where: expressions that say which runs, such as `lr<0.01 and arch=ResNet18`. They have a parser of their own; nothing is run as code.

```text
either  = both ("or" both)*
both    = one ("and" one)*
one     = "not" one | "(" either ")" | name test
test    = ("=" | "==" | "!=" | "<" | "<=" | ">" | ">=" | "~") value | "in" "(" value ("," value)* ")"
```

Names are dotted keys of the config, numbers of the preview, and `state`, `epoch`, `tag` and `key`, which come first. Values are numbers,
`true`, `false`, `none`, words, and texts in quotes. `~` means *contains*, in capitals or not. A run that does not have a name meets no test
of it; a text is neither equal to a number nor before or after one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, NoReturn

from trainmaster.errors import StoreError, did_you_mean
from trainmaster.store.printable import printable, width

MAX_LENGTH = 4000
MAX_DEPTH = 50
OWN = ("state", "epoch", "tag", "key")
"""The names that every run has, whatever its config."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<sign>==|!=|<=|>=|[=<>~(),])|(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<word>[^\s=<>~(),!"']+)|(?P<end>\Z))""",
    re.S,
)
_NUMBER = re.compile(r"(?a)[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_WORDS = ("and", "or", "not", "in")
_CONSTANTS = {"true": True, "false": False, "none": None, "null": None, "nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_TESTS = ("=", "==", "!=", "<", "<=", ">", ">=", "~")
_AROUND = 60


class Nothing(Enum):
    """What a run may have in place of a value."""

    MISSING = "the run does not have the name"
    UNKNOWN = "it was not looked for yet"


Look = Callable[[str], Any]
"""The value of a name for one run, or `Nothing`."""


class Value(NamedTuple):
    """What a name is compared with: as a value, and as it was written."""

    value: Any
    text: str


@dataclass(frozen=True)
class Comparison:
    name: str
    sign: str
    values: tuple[Value, ...]
    at: int
    """Where the name stands in the expression."""

    def verdict(self, look: Look) -> bool | None:
        found = look(self.name)
        if found is Nothing.UNKNOWN:
            return None
        if found is Nothing.MISSING:
            return False
        if isinstance(found, frozenset):  # labels
            sign = "=" if self.sign == "!=" else self.sign
            is_met = any(_holds(each, sign, Value(value.text, value.text)) for each in found for value in self.values)
            return is_met if self.sign != "!=" else not is_met
        if self.name == "key":
            return any(_holds(found, self.sign, Value(value.text, value.text)) for value in self.values)
        return any(_holds(found, self.sign, value) for value in self.values)


@dataclass(frozen=True)
class Negation:
    part: Node

    def verdict(self, look: Look) -> bool | None:
        found = self.part.verdict(look)
        return None if found is None else not found


@dataclass(frozen=True)
class Join:
    """Several parts, all of which are to be met, or any."""

    parts: tuple[Node, ...]
    is_all: bool

    def verdict(self, look: Look) -> bool | None:
        is_open = False
        for part in self.parts:
            found = part.verdict(look)
            if found is None:
                is_open = True
            elif found is not self.is_all:
                return found
        return None if is_open else self.is_all


Node = Comparison | Negation | Join


@dataclass(frozen=True)
class Where:
    """A parsed expression."""

    text: str
    node: Node

    def verdict(self, look: Look) -> bool | None:
        """Whether a run meets it; None if that depends on names that `look` does not know yet."""
        return self.node.verdict(look)

    def comparisons(self) -> list[Comparison]:
        """Every comparison in it, in order."""
        todo, found = [self.node], []
        while todo:
            node = todo.pop()
            if isinstance(node, Comparison):
                found.append(node)
            else:
                todo += reversed(node.parts) if isinstance(node, Join) else [node.part]
        return found

    def refuse(self, comparison: Comparison, fact: str, hint: str = "") -> NoReturn:
        """Refuse the name of a comparison, with the place where it stands."""
        raise _error(self.text, comparison.at, fact, hint)


def parse_where(text: str) -> Where:
    """The meaning of an expression; a `StoreError` that shows the place if it has none.

    >>> where = parse_where("lr < 0.01 and not arch in (ViT, MLP)")
    >>> where.verdict({"lr": 0.001, "arch": "ResNet18"}.get)
    True
    """
    if len(text) > MAX_LENGTH:
        raise StoreError(
            f"the condition has {len(text):,} characters, and {MAX_LENGTH:,} are the most", hint="choose runs by tags: `--tag`"
        )
    return Where(text, _Parser(text).all())


def metric_named(name: str, known: Iterable[str]) -> str | None:
    """The metric that is called `name`, or the only one whose last part is; None if there is none, a `StoreError` if there are several.

    One of training gives way to the one of an evaluation.

    >>> metric_named("loss", ["losses/train/loss", "losses/valid/loss", "accuracy"])
    'losses/valid/loss'
    """
    names = {*known}
    found = sorted([name] if name in names else endings(name, names))
    if len(found) > 1:
        found = [each for each in found if "/train/" not in each] or found
    if len(found) > 1:
        raise StoreError(f"`{printable(name)}` may be one of several", known="\n".join(map(printable, found[:20])), hint="write it in full")
    return found[0] if found else None


def endings(name: str, known: Iterable[str]) -> set[str]:
    """The known names whose last part is `name`."""
    return {each for each in known if each.endswith((f"/{name}", f"_{name}", f".{name}"))}


def at_path(tree: Mapping[str, Any], name: str) -> Any:
    """The value of a stored config at a dotted key; `Nothing.MISSING` where there is none, or a whole group."""
    node: Any = tree
    for part in name.split("."):
        if type(node) is not dict or part not in node:
            return Nothing.MISSING
        node = node[part]
    return Nothing.MISSING if type(node) is dict and node and node.keys() != {".float"} else node


# ---- comparing


def _holds(found: Any, sign: str, wanted: Value) -> bool:
    if sign in ("=", "==", "in"):
        return _equal(found, wanted.value)
    if sign == "!=":
        return not _equal(found, wanted.value)
    if sign == "~":
        return any(wanted.text.lower() in str(each).lower() for each in (found if isinstance(found, list | tuple) else [found]))
    if not (_is_number(found) and _is_number(wanted.value)) and not (isinstance(found, str) and isinstance(wanted.value, str)):
        return False
    value = wanted.value
    return bool({"<": found < value, "<=": found <= value, ">": found > value, ">=": found >= value}[sign])


def _equal(found: Any, wanted: Any) -> bool:
    if _is_number(found) and _is_number(wanted):
        return bool(found == wanted) or (found != found and wanted != wanted)
    return type(found) is type(wanted) and bool(found == wanted)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# ---- parsing


class _Token(NamedTuple):
    kind: str
    text: str
    at: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words

    def is_sign(self, *signs: str) -> bool:
        return self.kind == "sign" and self.text in signs


class _Parser:
    """One walk over an expression. Its calls are as deep as its parentheses, and those are counted."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0

    @property
    def _now(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._now
        self._next += token.kind != "end"
        return token

    def all(self) -> Node:
        node = self._either()
        if self._now.kind != "end":
            self._fail("`and`, `or` or the end")
        return node

    def _either(self) -> Node:
        return self._joined("or", lambda: self._joined("and", self._one, is_all=True), is_all=False)

    def _joined(self, word: str, part: Callable[[], Node], is_all: bool) -> Node:
        parts = [part()]
        while self._now.is_word(word):
            self._take()
            parts.append(part())
        return Join(tuple(parts), is_all) if len(parts) > 1 else parts[0]

    def _one(self) -> Node:
        if self._now.is_word("not"):
            above = self._deeper()
            node: Node = Negation(self._one())
        elif self._now.is_sign("("):
            above = self._deeper()
            node = self._either()
            self._expect(")", "`)`, or `and` or `or`")
        else:
            return self._comparison()
        self._depth = above
        return node

    def _deeper(self) -> int:
        """Go one level down; the level above."""
        above = self._depth
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _error(self._text, self._now.at, f"the condition is nested more than {MAX_DEPTH} deep")
        self._take()
        return above

    def _comparison(self) -> Comparison:
        name = self._now
        if name.kind not in ("word", "quoted") or name.is_word(*_WORDS):
            self._fail("a name, `not` or `(`")
        self._take()
        sign = self._now
        if sign.is_sign(*_TESTS):
            self._take()
            return Comparison(_unquoted(name), sign.text, (self._value(),), name.at)
        if not sign.is_word("in"):
            self._fail(f"one of {' '.join(_TESTS)} or `in` after `{printable(name.text)}`")
        self._take()
        self._expect("(", "`(` and values")
        values = [self._value()]
        while self._now.is_sign(","):
            self._take()
            values.append(self._value())
        self._expect(")", "`,` or `)`")
        return Comparison(_unquoted(name), "in", tuple(values), name.at)

    def _value(self) -> Value:
        token = self._now
        if token.kind not in ("word", "quoted") or token.is_word("and", "or", "in"):
            self._fail("a value: a number, a word, or a text in quotes")
        self._take()
        text = _unquoted(token)
        if token.kind == "quoted":
            return Value(text, text)
        if text.lower() in _CONSTANTS:
            return Value(_CONSTANTS[text.lower()], text)
        if _NUMBER.fullmatch(text):
            return Value(float(text) if set(text) & set(".eE") else int(text), text)
        return Value(text, text)

    def _expect(self, sign: str, wanted: str) -> None:
        if not self._now.is_sign(sign):
            self._fail(wanted)
        self._take()

    def _fail(self, wanted: str) -> NoReturn:
        raise _error(self._text, self._now.at, f"the condition cannot be read: wanted {wanted}")


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    place = 0
    while not found or found[-1].kind != "end":
        match = _TOKEN.match(text, place)
        if match is None:
            at = len(text) - len(text[place:].lstrip())
            why = (
                "this quote is never closed" if text[at] in "\"'" else "wanted `!=` or `not`" if text[at] == "!" else "this cannot be here"
            )
            raise _error(text, at, f"the condition cannot be read: {why}")
        kind = match.lastgroup or "end"
        found.append(_Token(kind, match[kind], match.start(kind)))
        place = match.end()
    return found


def _unquoted(token: _Token) -> str:
    return re.sub(r"(?s)\\(.)", r"\1", token.text[1:-1]) if token.kind == "quoted" else token.text


def _error(text: str, at: int, fact: str, hint: str = "") -> StoreError:
    """An error that shows the expression, and below it the place."""
    start = max(0, at - _AROUND)
    before = ("..." if start else "") + printable(text[start:at])
    after = printable(text[at : at + _AROUND]) + ("..." if at + _AROUND < len(text) else "")
    return StoreError(fact, where=f"{before}{after}\n{' ' * width(before)}^", hint=hint or "for instance: lr<0.01 and arch=ResNet18")


def suggestion(name: str, known: Iterable[str]) -> str:
    """What to write in place of a name that no run has."""
    names = sorted(set(known))
    last = {each.replace("/", ".").rpartition(".")[2]: each for each in names}
    close = did_you_mean(name, [*names, *last])
    shown = ", ".join(map(printable, names[:12])) + (", ..." if len(names) > 12 else "")
    return printable(close) or f"known are {shown}"
