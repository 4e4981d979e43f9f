"""Random configs and their round trips. `test_round_trip.py` imports this file and also runs it in new processes.

    round_trip_program.py write FOLDER START STOP
    round_trip_program.py read FOLDER START STOP yaml|json

`write` creates the configs with these numbers, and writes each as YAML and JSON. `read` loads each from one of its
two files, compares it, and writes both files again.

Config number n depends only on the random generator with seed n. If its class is generated, the text of its fields
determines the class. `write` leaves files for `read`: the configs, and an index of their keys and of digests of their
values.
"""

import contextlib
import hashlib
import json
import locale
import math
import random
import sys
from enum import Enum, IntEnum, StrEnum
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Optional, Self, Union, get_args, get_origin

from pydantic import Field

from trainmaster.config import Config, ConfigBase, Derived, Replicate, Stateless, configclass, field, group_of, key_of
from trainmaster.config.fields import ABSENT

# The classes use every kind of annotation.


class Color(Enum):
    RED = "red"
    NO = "no"
    ONE = "1"
    GREY = 0.5


class Level(IntEnum):
    LOW = -1
    HIGH = 10


class Mode(StrEnum):
    FAST = "fast"
    IDENTITY = "identity"
    TRUE = "true"


@configclass
class Scalars(ConfigBase):
    whole: int = 0
    number: float = 0.0
    text: str = ""
    flag: bool = False
    path: Path = Path(".")
    anything: Any = None
    positive: Annotated[float, Field(gt=0)] = 1.0


@configclass
class Choice(ConfigBase):
    maybe_whole: Optional[int] = None  # noqa: UP045 - both spellings are to be tested
    maybe_text: str | None = None
    number: int | float = 1
    flag_or_text: bool | str = True
    path_or_more: Path | int | list[str] | None = None
    literal: Literal["no", "1", 1, 2, True, False, None, "nan"] = "no"
    color: Color = Color.RED
    level: Level = Level.LOW
    mode: Mode = Mode.FAST
    color_or_number: Color | int = 1


@configclass
class Containers(ConfigBase):
    wholes: list[int] = []
    numbers: list[float] = []
    texts: list[str] = []
    bare_list: list = []
    bare_tuple: tuple = ()
    bare_dict: dict = {}
    fixed: tuple[int, str, bool] = (0, "", False)
    variadic: tuple[float, ...] = ()
    by_name: dict[str, int] = {}
    options: dict[str, Any] = {}
    grid: dict[str, list[float]] = {}
    deep: dict[str, dict[str, str]] = {}
    pairs: list[tuple[int, float]] = []
    colors: list[Color] = []
    paths: dict[str, Path] = {}
    holes: list[float | None] | None = None


@configclass
class Layer(ConfigBase):
    width: int = 1
    note: Stateless[str] = ""


@configclass
class Dense(Layer):
    bias: bool = True


@configclass
class Conv(Layer):
    kernel: tuple[int, int] = (3, 3)
    bias: bool = True


@configclass
class Nested(ConfigBase):
    scalars: Scalars = Scalars()
    choice: Choice | None = None
    layer: Layer = Layer()
    layers: list[Layer] = []
    by_name: dict[str, Layer] = {}
    pair: tuple[Layer, Scalars] = (Dense(), Scalars())
    one_of: Scalars | Layer = Layer()
    many: dict[str, list[Layer | None]] = {}


@configclass
class Tree(ConfigBase):
    value: Any = None
    left: Optional[Self] = None  # noqa: UP045
    right: Self | None = None


@configclass
class Marked(ConfigBase):
    lr: float = 0.1
    epochs: int = 1
    out: Stateless[Path] = Path("out")
    tags: Stateless[list[str]] = []
    inner: Stateless[Layer] = Layer()
    num_classes: Derived[int] = None
    mean: Derived[list[float]] = None
    replicate: Replicate[int] = 0
    seed: int = 0
    layer: Layer = Layer()


@configclass
class History(ConfigBase):
    learning_rate: float = field(default=0.1, was="lr")
    size: int | None = field(default=None, was=("width", "num_units"))
    momentum: float = field(default=0.0, added=True)
    layer: Layer = field(default=Conv(width=3), was="net", added=True)
    options: dict[str, Any] = field(default={"a.b": [1, 2.0]}, added=True)
    place: Stateless[str] = field(default="here", was="folder")
    round: Replicate[int] = field(default=0, was="repeat", added=True)


WRITTEN = (Scalars, Choice, Containers, Nested, Tree, Marked, History)


def made_up(fields):
    """Return a config class with these fields, each given by its name and the text of its annotation."""
    annotations = {name: eval(text) for name, text in fields}
    return configclass(type("MadeUp", (ConfigBase,), {"__annotations__": annotations, "__module__": __name__}))


# Random values.

TEXTS = (
    *(
        "",
        " ",
        "\n",
        "\t",
        "\r\n",
        "\0",
        "~",
        "null",
        "Null",
        "no",
        "NO",
        "y",
        "on",
        "true",
        "True",
        "1",
        "1.0",
        "-0",
        "0x1f",
        "0o17",
        "1e3",
    ),
    *("1_000", "12:30:45", "2024-01-01", ".inf", "-.INF", ".nan", "nan", "Infinity", "<<", "=", "-", "--- a", "...", "- a", "? a", "a: b"),
    *(
        "a:",
        "# a",
        "a #b",
        "&a",
        "*a",
        "!tag",
        "%x",
        "@a",
        "`a`",
        "'",
        '"',
        "\\",
        "\\n",
        "{",
        "{}",
        "[",
        "[]",
        "a,b",
        "|",
        ">",
        " a",
        "a ",
        "a\n",
    ),
    *(
        "\n\na",
        "a\u0085b",
        "a\u2028b",
        "\u2029",
        "\ufeff",
        "\ufeffa",
        "a\ufeff",
        "\x7f",
        "\x1b[0m",
        "\u202e",
        "\u200b",
        "\xa0",
        "é",
        "e\u0301",
    ),
    *(
        "ß",
        "İ",
        "\u0131",
        "中文",
        "😀",
        "👩‍👩‍👧",
        "\ud7ff",
        "\ue000",
        "\ufffd",
        "\ufffe",
        "\uffff",
        "\U0001fffe",
        "\U0010ffff",
        "C:\\a",
        "a/../b",
        "con",
    ),
    *(".float", '{".float": "nan"}', "a" * 130, "k" * 1100, "word " * 30, "class", "identity", "seed", "epochs"),
)
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.1,
    1e-3,
    1e16,
    1e22,
    1e100,
    1.7976931348623157e308,
    5e-324,
    2.2250738585072014e-308,
    1 / 3,
    1e-5,
    123456789.123,
)
FLOATS += (math.nan, math.inf, -math.inf)
WHOLES = (0, 1, -1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**400, -(10**400), 10**4300 - 1)
RANGES = ((0, 0x7F), (0, 0x2FF), (0, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF))


def a_text(rng):
    if rng.random() < 0.5:
        return rng.choice(TEXTS)
    first, last = rng.choice(RANGES)
    return "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(0, 8)))


def a_key(rng):
    key = a_text(rng).replace(".", "") if rng.random() < 0.5 else rng.choice("abcdefgh")
    return "a" if not key or hasattr(Config, key) else key


def a_whole(rng):
    return rng.choice(WHOLES) if rng.random() < 0.2 else rng.randint(-100, 1000)


def a_float(rng):
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(FLOATS)
    return rng.uniform(-10, 10) if kind < 0.7 else rng.random() * 10.0 ** rng.randint(-320, 308)


def a_scalar(rng):
    return rng.choice((a_text, a_whole, a_float, lambda rng: rng.random() < 0.5, lambda rng: None))(rng)


def a_plain(rng, depth=0):
    """Return a random value that a config may have."""
    kind = rng.random() if depth < 4 else 1.0
    if kind < 0.15:
        return [a_plain(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if kind < 0.25:
        return tuple(a_plain(rng, depth + 1) for _ in range(rng.randint(0, 3)))
    return a_group(rng, depth + 1) if kind < 0.45 else a_scalar(rng)


def a_group(rng, depth=0):
    return {a_key(rng): a_plain(rng, depth) for _ in range(rng.randint(0, 4 if depth else 8))}


def a_value(rng, annotation, owner, depth):
    """Return a value that `annotation` allows."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = a_value(rng, args[0], owner, depth)
        return inner if not args[1:] or inner is None or not isinstance(inner, float) or inner > 0 else 0.25
    if annotation in (None, NoneType):
        return None
    if annotation is Any:
        return a_plain(rng, 2)
    if origin is Union or origin is UnionType:
        return a_value(rng, rng.choice(args), owner, depth)
    if origin is Literal:
        return rng.choice(args)
    if list in (annotation, origin):
        return [a_value(rng, args[0] if args else Any, owner, depth + 1) for _ in range(rng.randint(0, 3))]
    if tuple in (annotation, origin):
        inner = args if args and args[-1] is not Ellipsis else (args[0] if args else Any,) * rng.randint(0, 3)
        return tuple(a_value(rng, each, owner, depth + 1) for each in inner)
    if dict in (annotation, origin):
        return a_dict(rng, lambda: a_value(rng, args[1] if args else Any, owner, depth + 1))
    if annotation is Self or issubclass(annotation, ConfigBase):
        return a_typed(rng, rng.choice(fitting(owner if annotation is Self else annotation)), depth + 1)
    if issubclass(annotation, Enum):
        return rng.choice(list(annotation))
    if issubclass(annotation, PurePath):
        return Path(a_text(rng))
    return {int: a_whole, float: a_float, str: a_text, bool: lambda rng: rng.random() < 0.5}[annotation](rng)


def fitting(kind):
    return [kind, *kind.__subclasses__()]


def a_dict(rng, value):
    """Return a dict whose keys may have dots. No key is a group that contains another key."""
    result = {}
    for _ in range(rng.randint(0, 3)):
        key = ".".join(a_key(rng) for _ in range(rng.choice((1, 1, 2, 3))))
        if not any(f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.") for other in result):
            result[key] = value()
    return result


def a_typed(rng, kind, depth=0):
    values = {}
    for each in kind._schema().fields.values():
        is_too_deep = depth > 2 and each.configs
        if each.default is ABSENT or (rng.random() < (0.7 if depth == 0 else 0.4) and not is_too_deep):
            values[each.name] = a_value(rng, each.written, kind, depth)
    return kind(**values)


SIMPLE = ("int", "float", "str", "bool", "Path", "Any", "Color", "Level", "Mode", "Literal['a', 1, None]", "Layer", "Choice", "None")
AROUND = ("list[{}]", "tuple[{}, ...]", "tuple[{}, int]", "dict[str, {}]", "Optional[{}]", "Annotated[{}, 'a note']")
STATES = ("{}", "{}", "{}", "Stateless[{}]", "Derived[{}]", "Replicate[{}]")


def a_class(rng):
    """Return the fields of a class: valid names, and randomly nested annotations."""
    fields = {}
    for number in range(rng.randint(0, 6)):
        text = rng.choice(SIMPLE)
        for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
            text = rng.choice(AROUND).format(text)
        name = rng.choice(("lr", "größe", "变量", "seed", "epochs", "a", "x_1", "key_1", "Klasse")) + str(number) * rng.randint(0, 1)
        fields[name] = rng.choice(STATES).format(text)
    return list(fields.items())


def a_config(rng):
    """Return a config, and how to find its class again: None, the name of a class, or the fields of a class."""
    kind = rng.random()
    if kind < 0.5:
        return Config(a_group(rng)), None
    if kind < 0.9:
        written = rng.choice(WRITTEN)
        return a_typed(rng, written), written.__name__
    fields = a_class(rng)
    return a_typed(rng, made_up(fields)), fields


def class_of(known):
    return Config if known is None else globals()[known] if isinstance(known, str) else made_up(known)


# Comparisons.


def shown(value):
    """Return every value with its type as text.

    Lists and tuples are treated alike, and floats are exact except for NaN payloads.
    """
    if isinstance(value, ConfigBase):
        return f"{type(value).__name__}({', '.join(f'{name}={shown(each)}' for name, each in value.__dict__.items())})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!a}: {shown(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    return f"{type(value).__name__} {value.hex() if isinstance(value, float) else value.name if isinstance(value, Enum) else ascii(value)}"


def facts(config):
    digest = hashlib.sha256(shown(config).encode()).hexdigest()
    return {"key": key_of(config, 64), "group": group_of(config, 64), "value": digest}


# The two programs.


def write(folder, start, stop):
    index = {}
    for number in range(start, stop):
        config, known = a_config(random.Random(number))
        config.write(folder / f"{number}.yaml")
        config.write(folder / f"{number}.json")
        index[number] = {**facts(config), "class": known}
    (folder / f"index_{start}").write_text(json.dumps(index), encoding="utf-8")


def read(folder, start, stop, ending):
    """Return the differences by config number, and the number of configs that were compared."""
    index = json.loads((folder / f"index_{start}").read_text(encoding="utf-8"))
    found, count = {}, 0
    for number in range(start, stop):
        expected = index[str(number)]
        config = class_of(expected.pop("class")).load(folder / f"{number}.{ending}")
        wrong = [name for name, value in facts(config).items() if value != expected[name]]
        for each in ("yaml", "json"):
            again = folder / f"again_{ending}_{start}.{each}"
            config.write(again)
            wrong += [f"{each} bytes"] if again.read_bytes() != (folder / f"{number}.{each}").read_bytes() else []
        if wrong:
            found[number] = wrong
        count += 1
    (folder / f"report_{ending}_{start}").write_text(json.dumps({"count": count, "found": found}), encoding="utf-8")


if __name__ == "__main__":
    with contextlib.suppress(locale.Error):  # not every machine has every locale
        locale.setlocale(locale.LC_ALL, "")
    action, where, first, end, *more = sys.argv[1:]
    {"write": write, "read": read}[action](Path(where), int(first), int(end), *more)
