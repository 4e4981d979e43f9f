"""Finds keys that are most likely misspelled, such as `lrr` for `lr`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainmaster.errors import ask_about, nearest

_LONG = 6
"""The minimum length of a word in which two typos are accepted."""


def find_near_misses(given: Mapping[str, Any], known: Mapping[str, Any], same_in: str = "", at: str = "") -> Iterator[tuple[str, str]]:
    """Yield each dotted key in `given` that is probably misspelled, with the known key that was probably meant.

    Groups are compared recursively. `same_in` is the name of a key, such as `_target_`. If two groups have different values
    for it, they are skipped, because their keys are expected to differ.
    """
    missing = [name for name in known if name not in given]
    for name, value in given.items():
        if name in known:
            other = known[name]
            if isinstance(value, Mapping) and isinstance(other, Mapping) and value.get(same_in) == other.get(same_in):
                yield from find_near_misses(value, other, same_in, f"{at}{name}.")
        else:
            meant = next((each for each in missing if is_near_miss(name, each)), None)
            if meant is not None:
                yield f"{at}{name}", f"{at}{meant}"


def suggestions(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that the user probably meant by `name`."""
    known = list(known)
    return [each for each in known if is_near_miss(name, each)] or nearest(name, known)


def unknown_key_message(meant: list[str], otherwise: str = "") -> str:
    """Return the message for an unknown key."""
    return f"no such key; {ask_about(meant) or otherwise}"


def is_near_miss(name: str, known: str) -> bool:
    """Return whether `name` is most likely a misspelling of `known`, with one or two typos.

    The words of the two names are compared one by one. Two names are never a near miss if their digits or short words
    differ (`lr_d`, `lr_g`), or if one name contains all words of the other name and additional ones.

    >>> [is_near_miss(name, "weight_decay") for name in ("wieght_decay", "weightdecay", "weight_decya", "weight", "weight_decay2")]
    [True, True, True, False, False]
    """
    if name == known or abs(len(name) - len(known)) > 2 or _digits(name) != _digits(known):
        return False
    if name.lower() == known.lower():
        return len(name) > 1
    words, others = (list(filter(None, each.split("_"))) for each in (name, known))
    if len(words) == len(others):
        counts = [_num_typos(word, other) for word, other in zip(words, others, strict=True)]
    elif _is_within(words, others) or _is_within(others, words):
        return False
    else:  # one of the names has an extra `_`
        counts = [_num_typos(name, known)]
    return sum(counts) <= 2


def _num_typos(word: str, other: str) -> int:
    """Return the number of typos by which two words differ, or 3 if they are probably different words.

    Words with different first letters are rarely treated as typos of each other, because people seldom mistype the first letter,
    and many different words, such as `cnn` and `rnn` or `height` and `weight`, differ only there.
    """
    num, longest = _distance(word, other), max(len(word), len(other))
    if num == 0:
        return 0
    is_same_start = word[:1].lower() == other[:1].lower()
    if num == 2:
        return 2 if longest >= _LONG and is_same_start else 3
    if num > 2:
        return 3
    if len(word) != len(other):
        return 1 if longest >= 3 and (is_same_start or longest >= _LONG) else 3
    if sorted(word) == sorted(other):  # two letters are swapped
        return 1 if longest >= 3 else 3
    return 1 if longest >= 4 and is_same_start else 3


def _distance(one: str, other: str, limit: int = 3) -> int:
    """Return the edit distance between two words, but at most `limit`. Swapping two adjacent letters is one edit."""
    start = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    one, other = one[start:], other[start:]
    if not one or not other or not limit:
        return min(limit, len(one) + len(other))
    ends = [(one[1:], other), (one, other[1:]), (one[1:], other[1:])]
    if one[:2] == other[1::-1] and len(one) > 1:
        ends.append((one[2:], other[2:]))
    return 1 + min(_distance(*each, limit - 1) for each in ends)


def _digits(name: str) -> str:
    return "".join(filter(str.isdigit, name))


def _is_within(few: list[str], many: list[str]) -> bool:
    """Return whether the list `many` contains all words of the list `few`, in the same order."""
    rest = iter(many)
    return all(word in rest for word in few)
