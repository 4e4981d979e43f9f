"""The query language of `ls --where`, such as `lr<0.01 and arch=ResNet18`. Expressions are never run as code.

```text
any     = all ("or" all)*
all     = term ("and" term)*
term    = "not" term | "(" any ")" | name test
test    = ("=" | "==" | "!=" | "<" | "<=" | ">" | ">=" | "~") value | "in" "(" value ("," value)* ")"
value   = "[" [value ("," value)*] "]" | scalar
```

A name is `state`, `epoch`, `tag` or `key`, a dotted key of the config, or a metric. A scalar is a number, `true`,
`false`, `none`, a word, or text in quotes. `~` means *contains*, ignoring case. If a run has no value for a name, every
test of that name is false. Text is never equal to, less than or greater than a number. A list equals a list with equal
members in the same order.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from trainmaster.arguments import is_number
from trainmaster.errors import StoreError
from trainmaster.store.dict_filter import Nothing
from trainmaster.text import printable, width

MAX_LENGTH = 12_000
"""The maximum length of an expression in characters. It is high enough for the keys of a thousand runs."""
MAX_DEPTH = 50
OWN = ("state", "epoch", "tag", "key")
"""The names that every run has."""

_QUOTED = r"""(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_TOKEN = re.compile(rf"""\s*(?:(?P<sign>==|!=|<=|>=|[=<>~(),\[])|{_QUOTED}|(?P<word>[^\s=<>~(),!"']+)|(?P<end>\Z))""", re.S)
_TOKEN_IN_LIST = re.compile(rf"""\s*(?:(?P<sign>[,\[\]])|{_QUOTED}|(?P<word>[^\s=<>~(),!"'\[\]]+)|(?P<end>\Z))""", re.S)
"""Inside a list, a word cannot contain brackets. Outside a list, it can: the name of a metric may be `accuracy[0]`."""
_NUMBER = re.compile(r"(?a)[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_WORDS = ("and", "or", "not", "in")
_CONSTANTS = {"true": True, "false": False, "none": None, "null": None, "nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_TESTS = ("=", "==", "!=", "<", "<=", ">", ">=", "~")
_ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_NUM_SHOWN = 60
"""The number of characters that an error message shows before and after a mistake."""


Lookup = Callable[[str], Any]
"""A function that returns a run's value for a name, or a member of `Nothing`."""


class Value(NamedTuple):
    """The right-hand side of a comparison, both parsed and as the original text."""

    value: Any
    text: str


@dataclass(frozen=True)
class Comparison:
    name: str
    sign: str
    values: tuple[Value, ...]
    at: int
    """The position of the name in the expression."""

    def verdict(self, lookup: Lookup) -> bool | None:
        actual = lookup(self.name)
        if actual is Nothing.UNKNOWN:
            return None
        if actual is Nothing.MISSING:
            return False
        if isinstance(actual, frozenset):  # labels
            sign = "=" if self.sign == "!=" else self.sign
            is_met = any(_holds(each, sign, Value(value.text, value.text)) for each in actual for value in self.values)
            return is_met if self.sign != "!=" else not is_met
        if self.name == "key":
            return any(_holds(actual, self.sign, Value(value.text, value.text)) for value in self.values)
        return any(_holds(actual, self.sign, value) for value in self.values)


@dataclass(frozen=True)
class Negation:
    part: Node

    def verdict(self, lookup: Lookup) -> bool | None:
        verdict = self.part.verdict(lookup)
        return None if verdict is None else not verdict


@dataclass(frozen=True)
class Join:
    """Several conditions joined by `and` or by `or`."""

    parts: tuple[Node, ...]
    is_all: bool

    def verdict(self, lookup: Lookup) -> bool | None:
        is_undecided = False
        for part in self.parts:
            verdict = part.verdict(lookup)
            if verdict is None:
                is_undecided = True
            elif verdict is not self.is_all:
                return verdict
        return None if is_undecided else self.is_all


Node = Comparison | Negation | Join


@dataclass(frozen=True)
class Where:
    """A parsed `--where` expression."""

    text: str
    node: Node

    def verdict(self, lookup: Lookup) -> bool | None:
        """Return whether a run matches the expression, or None if that depends on values that `lookup` does not know yet."""
        return self.node.verdict(lookup)

    def comparisons(self) -> list[Comparison]:
        """Return all comparisons in the expression, in order."""
        todo, comparisons = [self.node], []
        while todo:
            node = todo.pop()
            if isinstance(node, Comparison):
                comparisons.append(node)
            else:
                todo += reversed(node.parts) if isinstance(node, Join) else [node.part]
        return comparisons

    def refuse(self, comparison: Comparison, fact: str, hint: str = "") -> NoReturn:
        """Raise an error about the name in a comparison. The message shows the position of the name in the expression."""
        raise _error(self.text, comparison.at, fact, hint)


def parse_where(text: str) -> Where:
    """Parse an expression. If it is invalid, raise a `StoreError` that shows the position of the mistake.

    >>> where = parse_where("lr < 0.01 and not arch in (ViT, MLP)")
    >>> where.verdict({"lr": 0.001, "arch": "ResNet18"}.get)
    True
    """
    if len(text) > MAX_LENGTH:
        raise StoreError(f"the condition has {len(text):,} characters; the limit is {MAX_LENGTH:,}", hint="select runs by tags: `--tag`")
    return Where(text, _Parser(text).parse())


def condition_of(values: Mapping[str, Any]) -> str | None:
    """Return an expression that selects exactly those runs that have these config values, or None if no expression can do this.

    `MISSING` stands for a key that the runs do not have. An expression cannot contain a mapping. It also cannot contain a config key
    that is listed in `OWN`, because these names have a special meaning in expressions.

    >>> condition_of({"lr": 1 / 3, "arch": "ResNet 18", "hidden": [16, 16]})
    'lr=0.3333333333333333 and arch="ResNet 18" and hidden=[16, 16]'
    """
    parts = []
    for name, value in values.items():
        written, text = _quoted(name), _literal(value)
        if name in OWN or (text is None and value is not Nothing.MISSING):
            return None
        parts.append(f"not ({written}=0 or {written}!=0)" if text is None else f"{written}={text}")
    return " and ".join(parts) or None


def _literal(value: Any) -> str | None:
    """Return a config value as it is written in an expression, or None if that is not possible."""
    if isinstance(value, list | tuple):
        members = [_literal(each) for each in value]
        return None if None in members else f"[{', '.join(map(str, members))}]"
    if isinstance(value, str):
        return _quoted(value)
    return "none" if value is None else str(value).lower() if isinstance(value, int | float) else None


def _quoted(text: str) -> str:
    """Return a name or a string as one token of an expression. It is quoted unless it is a word without a special meaning."""
    is_word = re.fullmatch(r"[A-Za-z_][\w./-]*", text) and text.lower() not in (*_WORDS, *_CONSTANTS)
    return text if is_word else '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


# ---- comparing


def _holds(actual: Any, sign: str, wanted: Value) -> bool:
    if sign in ("=", "==", "in"):
        return _equal(actual, wanted.value)
    if sign == "!=":
        return not _equal(actual, wanted.value)
    if sign == "~":
        return any(wanted.text.lower() in str(each).lower() for each in (actual if isinstance(actual, list | tuple) else [actual]))
    value = wanted.value
    if not (is_number(actual) and is_number(value)) and not (isinstance(actual, str) and isinstance(value, str)):
        return False
    return bool(_ORDER[sign](actual, value))


def _equal(actual: Any, wanted: Any) -> bool:
    if is_number(actual) and is_number(wanted):
        return bool(actual == wanted) or (actual != actual and wanted != wanted)
    if isinstance(actual, list | tuple) and isinstance(wanted, tuple):
        return len(actual) == len(wanted) and all(map(_equal, actual, wanted))
    return type(actual) is type(wanted) and bool(actual == wanted)


# ---- parsing


class _Token(NamedTuple):
    kind: str
    """`sign`, `word`, `quoted` or `end`."""
    text: str
    at: int


class _Parser:
    """A recursive-descent parser. It limits the nesting depth, so that it cannot overflow the stack."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)[::-1]
        self._depth = 0

    def parse(self) -> Node:
        node = self._any()
        if self._tokens[-1].kind != "end":
            hint = "join conditions with `and`: lr=0.1 and arch=ViT" if self._tokens[-1].text == "," else ""
            self._fail("`and`, `or` or the end", hint)
        return node

    def _any(self) -> Node:
        return self._joined("or", lambda: self._joined("and", self._term, is_all=True), is_all=False)

    def _joined(self, word: str, part: Callable[[], Node], is_all: bool) -> Node:
        parts = [part()]
        while self._accept(word):
            parts.append(part())
        return Join(tuple(parts), is_all) if len(parts) > 1 else parts[0]

    def _term(self) -> Node:
        self._check_depth()
        self._depth += 1
        if self._accept("not"):
            node: Node = Negation(self._term())
        elif self._accept("("):
            node = self._any()
            self._expect(")", "`)`, or `and` or `or`")
        else:
            node = self._comparison()
        self._depth -= 1
        return node

    def _comparison(self) -> Comparison:
        name = self._take("a name, `not` or `(`", _WORDS)
        if sign := self._accept(*_TESTS):
            values = [self._value()]
        else:
            self._expect("in", f"one of {' '.join(_TESTS)} or `in` after `{printable(name.text)}`")
            self._expect("(", "`(` and values")
            values, sign = [self._value()], "in"
            while self._accept(","):
                values.append(self._value())
            self._expect(")", "`,` or `)`")
        comparison = Comparison(_unquoted(name), sign, tuple(values), name.at)
        if any(isinstance(each.value, tuple) for each in values):
            self._check_list(comparison)
        return comparison

    def _check_list(self, comparison: Comparison) -> None:
        """Raise an error if a comparison with a list could never be true."""
        name = printable(comparison.name)
        if comparison.name in OWN:
            raise _error(self._text, comparison.at, f"`{name}` is never a list", f"several values: {name} in (a, b)")
        if comparison.sign not in ("=", "==", "!=", "in"):
            why = f"a list can be compared with =, != and `in`, not with {comparison.sign}"
            raise _error(self._text, comparison.at, why, f"one member: {name}~16; the whole list: {name}=[16, 16]")

    def _value(self) -> Value:
        if self._tokens[-1].text == "[" and self._tokens[-1].kind == "sign":
            return self._list()
        token = self._take("a value: a number, a word, a text in quotes, or a list such as [16, 16]", ("and", "or", "in"))
        text = _unquoted(token)
        if token.kind == "quoted":
            return Value(text, text)
        if text.lower() in _CONSTANTS:
            return Value(_CONSTANTS[text.lower()], text)
        if _NUMBER.fullmatch(text):
            return Value(float(text) if set(text) & set(".eE") else int(text), text)
        return Value(text, text)

    def _list(self) -> Value:
        self._check_depth()
        self._depth += 1
        self._expect("[", "`[`")
        members: list[Value] = []
        while not self._accept("]"):
            if members:
                self._expect(",", "`,` or `]`")
            members.append(self._value())
        self._depth -= 1
        return Value(tuple(each.value for each in members), f"[{', '.join(each.text for each in members)}]")

    def _check_depth(self) -> None:
        if self._depth > MAX_DEPTH:
            raise _error(self._text, self._tokens[-1].at, f"the condition is nested more than {MAX_DEPTH} deep")

    def _accept(self, *texts: str) -> str:
        """Consume the next token if it is one of these signs or words, and return its text. Otherwise return an empty string."""
        token = self._tokens[-1]
        if token.kind not in ("sign", "word") or token.text.lower() not in texts:
            return ""
        return self._tokens.pop().text

    def _expect(self, text: str, wanted: str) -> None:
        if not self._accept(text):
            self._fail(wanted)

    def _take(self, wanted: str, keywords: tuple[str, ...]) -> _Token:
        """Consume a word that is not one of the keywords, or a quoted string."""
        token = self._tokens[-1]
        if token.kind not in ("word", "quoted") or (token.kind == "word" and token.text.lower() in keywords):
            self._fail(wanted)
        return self._tokens.pop()

    def _fail(self, wanted: str, hint: str = "") -> NoReturn:
        raise _error(self._text, self._tokens[-1].at, f"the condition is invalid: expected {wanted}", hint)


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    start = num_open = 0
    while not tokens or tokens[-1].kind != "end":
        match = (_TOKEN_IN_LIST if num_open else _TOKEN).match(text, start)
        if match is None:
            at = len(text) - len(text[start:].lstrip())
            whys = {"'": "this quote is not closed", '"': "this quote is not closed", "!": "expected `!=` or `not`"}
            why = whys.get(text[at], "this is not allowed here")
            raise _error(text, at, f"the condition is invalid: {why}")
        kind = match.lastgroup or "end"
        tokens.append(_Token(kind, match[kind], match.start(kind)))
        num_open += (match["sign"] == "[") - (match["sign"] == "]")
        start = match.end()
    return tokens


def _unquoted(token: _Token) -> str:
    return re.sub(r"(?s)\\(.)", r"\1", token.text[1:-1]) if token.kind == "quoted" else token.text


def _error(text: str, at: int, fact: str, hint: str = "") -> StoreError:
    """Return an error that shows the expression and points at position `at`."""
    start = max(0, at - _NUM_SHOWN)
    before = ("..." if start else "") + printable(text[start:at])
    after = printable(text[at : at + _NUM_SHOWN]) + ("..." if at + _NUM_SHOWN < len(text) else "")
    return StoreError(fact, where=f"{before}{after}\n{' ' * width(before)}^", hint=hint or "an example: lr<0.01 and arch=ResNet18")
