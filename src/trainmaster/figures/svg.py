"""Draws figures as SVG text for HTML pages: curves with bands, and intervals and bars for the rows of a table.

The figures contain no colors. Each shape has a CSS class, and the style sheet of the page sets the colors for light mode, dark mode and
print. All text is escaped, so names may contain any characters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple, TypeVar

from trainmaster.text import printable

NUM_COLORS = 7
"""The number of colors in the style sheet: s0 to s6. Further curves reuse these colors with dashed lines."""
_WIDTH, _HEIGHT = 480, 250
_TOP, _RIGHT, _BOTTOM = 10, 12, 34
_WHISKER_WIDTH = 12
_STRIP_WIDTH, _STRIP_HEIGHT = 240, 20
_MAX_BUCKETS = 120
_LOG_RATIO = 50.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class Curve:
    """A line with an optional band. Both have gaps at values that are not finite."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    color: int = 0
    """The index of the color. Curves that belong together have the same index in all figures of a page."""


class Whisker(NamedTuple):
    """A forecast of the last value of a curve, drawn to the right of all curves. `x` is the x value for which the forecast is made."""

    x: float
    y: float
    low: float
    high: float
    label: str
    color: int = 0


class Scale(NamedTuple):
    """Maps values to pixels."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log10(each) if self.is_log else each for each in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        if not self.is_log:
            ticks = linear_ticks(self.low, self.high, count)
            return ticks if len(ticks) > 1 else linear_ticks(self.low, self.high, 2 * count)
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        step = max(1, math.ceil((last - first + 1) / (count + 1)))
        ticks = [10.0**power for power in range(first, last + 1, step)]
        return ticks if len(ticks) > 1 else [self.low, *ticks, self.high]


def svg_text(text: object) -> str:
    """Escape text for HTML and SVG, and write invisible characters as escape sequences."""
    return escape(printable(text))


def make_scale(values: Iterable[float], start: float, end: float, may_be_log: bool = False) -> Scale:
    """Return a scale that covers all finite values, with a margin. With `may_be_log`, positive values over a wide range get a log scale."""
    finite = [float(value) for value in values if math.isfinite(value) and abs(value) < 1e300]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    # Outside these limits, the ratio or the margin could overflow.
    if may_be_log and low > 1e-150 and high < 1e150 and high / low >= _LOG_RATIO:
        return Scale(low / (high / low) ** 0.03, high * (high / low) ** 0.03, start, end, is_log=True)
    margin = 0.04 * (high - low) or 0.5 * abs(high) or 0.5
    return Scale(low - margin, high + margin, start, end)


def linear_ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers between `low` and `high`.

    >>> linear_ticks(0.0, 1.03, 5)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each for each in (power, 2 * power, 2.5 * power, 5 * power, 10 * power) if each >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def format_ticks(ticks: Sequence[float]) -> list[str]:
    """Return short labels for ticks, with as many digits as needed to tell them apart.

    >>> format_ticks([0.0, 0.5, 1.0]), format_ticks([10_000.0, 20_000.0]), format_ticks([0.00001, 0.1])
    (['0', '0.5', '1'], ['10k', '20k'], ['1e-05', '0.1'])
    """
    if ticks and all(tick % 1000 == 0 for tick in ticks) and max(map(abs, ticks)) < 1e6:
        return [f"{tick / 1000:g}k" if tick else "0" for tick in ticks]
    for digits in range(2, 12):
        texts = [f"{tick:.{digits}g}" for tick in ticks]
        if len({*texts}) == len({*ticks}) and all(
            abs(float(text) - tick) <= 1e-3 * abs(tick) for text, tick in zip(texts, ticks, strict=True)
        ):
            break
    return texts if ticks else []


def draw_curves(curves: Sequence[Curve], x_label: str, label: str, whiskers: Sequence[Whisker] = ()) -> str:
    """Draw lines with bands over one x axis. `label` describes the figure to a screen reader."""
    ys = [value for curve in curves for value in (*curve.y, *curve.low, *curve.high)] + [each for mark in whiskers for each in mark[1:4]]
    y = make_scale(ys, _HEIGHT - _BOTTOM, _TOP, may_be_log=True)
    ticks = y.ticks()
    texts = format_ticks(ticks)
    left = 14 + 6.4 * max(map(len, texts), default=1)
    xs = [value for curve in curves for value in curve.x] + [mark.x for mark in whiskers]
    low, high = (min(xs), max(xs)) if xs else (0.0, 1.0)
    right = _WIDTH - _RIGHT - _WHISKER_WIDTH * len(whiskers)
    x = Scale(low, high if high > low else low + 1, left, right)
    parts = [f'<svg class="fig" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{svg_text(label)}</title>']
    for tick, text in zip(ticks, texts, strict=True):
        at = f"{y(tick):.1f}"
        parts.append(f'<path class="grid" d="M{left:.1f} {at}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text class="end" x="{left - 6:.1f}" y="{at}" dy=".33em">{svg_text(text)}</text>')
    x_ticks = linear_ticks(x.low, x.high, 6)
    if all(float(value).is_integer() for value in xs):
        x_ticks = [tick for tick in x_ticks if tick.is_integer()]
    for tick, text in zip(x_ticks, format_ticks(x_ticks), strict=True):
        parts.append(f'<text class="mid" x="{x(tick):.1f}" y="{_HEIGHT - _BOTTOM + 16}">{svg_text(text)}</text>')
    parts.append(f'<text class="end" x="{right:.1f}" y="{_HEIGHT - 3}">{svg_text(x_label)}</text>')
    if y.is_log:
        parts.append(f'<text x="{left:.1f}" y="{_HEIGHT - 3}">log scale</text>')
    parts += [_draw_band(curve, x, y) for curve in curves if curve.low]
    parts += [_draw_line(curve, x, y) for curve in reversed(curves)]  # reversed, so that the first curve is drawn on top
    parts += [_draw_whisker(mark, right + _WHISKER_WIDTH * (number + 0.8), y) for number, mark in enumerate(whiskers)]
    return "".join([*parts, "</svg>"])


def draw_interval(scale: Scale, value: float, low: float, high: float, references: Sequence[float] = (), color: int = 0) -> str:
    """Draw a point with its interval, for a row of a table. All rows of a table share a scale. `references` are drawn as vertical lines."""
    middle = _STRIP_HEIGHT / 2
    parts = [f'<path class="ref" d="M{scale(each):.1f} 0V{_STRIP_HEIGHT}"/>' for each in references if scale.low <= each <= scale.high]
    if math.isfinite(low) and math.isfinite(high):
        start, end = (min(max(scale(each), 0.0), _STRIP_WIDTH) for each in (low, high))
        parts.append(f'<path class="whisker s{color}" d="M{start:.1f} {middle}H{end:.1f}M{start:.1f} 6V14M{end:.1f} 6V14"/>')
    if math.isfinite(value):
        parts.append(f'<circle class="point s{color}" cx="{scale(value):.1f}" cy="{middle}" r="3.6"/>')
    return _strip(parts)


def draw_interval_axis(scale: Scale) -> str:
    """Draw the ticks below a column of intervals."""
    ticks = scale.ticks(3)
    pairs = zip(ticks, format_ticks(ticks), strict=True)
    return _strip([f'<text class="mid" x="{scale(tick):.1f}" y="14">{svg_text(text)}</text>' for tick, text in pairs])


def interval_scale(values: Iterable[float]) -> Scale:
    return make_scale(values, 8, _STRIP_WIDTH - 8)


def draw_bar(share: float, kind: str = "bar", mark: float | None = None) -> str:
    """Draw a bar for a row of a table. `share` (its length) and `mark` (the position of a vertical line) are fractions of the width."""
    width = min(max(share, 0.0), 1.0) * _STRIP_WIDTH
    parts = [f'<rect class="{kind}" x="0" y="4" width="{width:.1f}" height="12" rx="2"/>']
    if mark is not None:
        parts.append(f'<path class="ref" d="M{mark * _STRIP_WIDTH:.1f} 0V{_STRIP_HEIGHT}"/>')
    return _strip(parts)


def _strip(parts: Sequence[str]) -> str:
    return f'<svg class="strip" viewBox="0 0 {_STRIP_WIDTH} {_STRIP_HEIGHT}" aria-hidden="true">{"".join(parts)}</svg>'


def _draw_line(curve: Curve, x: Scale, y: Scale) -> str:
    points = thin_out([*zip(map(float, curve.x), map(float, curve.y), strict=True)])
    title = f"<title>{svg_text(curve.label)}</title>"
    classes = f"line {color_class(curve.color)}"
    if len(points) == 1 and _is_drawable(points[0][1], y):
        return (
            f'<circle class="point {color_class(curve.color)}" cx="{x(points[0][0]):.1f}" cy="{y(points[0][1]):.1f}" r="3">{title}</circle>'
        )
    return f'<path class="{classes}" d="{_path(points, x, y)}">{title}</path>'


def _draw_band(curve: Curve, x: Scale, y: Scale) -> str:
    step = math.ceil(len(curve.x) / _MAX_BUCKETS)
    starts = range(0, len(curve.x), step)
    edges = [(curve.x[min(at + step, len(curve.x)) - 1], min(curve.low[at : at + step]), max(curve.high[at : at + step])) for at in starts]
    path = []
    for piece in _pieces(edges, lambda edge: _is_drawable(edge[1], y) and _is_drawable(edge[2], y)):
        upper = "L".join(f"{x(at):.1f} {y(high):.1f}" for at, _, high in piece)
        lower = "L".join(f"{x(at):.1f} {y(low):.1f}" for at, low, _ in reversed(piece))
        path.append(f"M{upper}L{lower}Z")
    return f'<path class="band {color_class(curve.color)}" d="{"".join(path)}"/>'


def _draw_whisker(mark: Whisker, at: float, y: Scale) -> str:
    top, middle, bottom = (y(max(each, y.low)) for each in (mark.high, mark.y, mark.low))  # on a log scale, the low end may be negative
    shape = f"M{at:.1f} {top:.1f}V{bottom:.1f}M{at - 3:.1f} {top:.1f}H{at + 3:.1f}M{at - 3:.1f} {bottom:.1f}H{at + 3:.1f}"
    color = color_class(mark.color)
    return (
        f'<path class="whisker {color}" d="{shape}"><title>{svg_text(mark.label)}</title></path>'
        f'<circle class="point {color}" cx="{at:.1f}" cy="{middle:.1f}" r="3"/>'
    )


def color_class(number: int) -> str:
    """Return the CSS classes for the color and the dashes of a curve.

    >>> color_class(2), color_class(9)
    ('s2', 's2 d1')
    """
    dash = number // NUM_COLORS % 4
    return f"s{number % NUM_COLORS}" + (f" d{dash}" if dash else "")


def thin_out(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep at most 480 points: the first, lowest, highest and last of each of 120 buckets, so that peaks stay visible."""
    if len(points) <= 4 * _MAX_BUCKETS:
        return list(points)
    kept: set[int] = set()
    step = len(points) / _MAX_BUCKETS
    for number in range(_MAX_BUCKETS):
        bucket = range(round(number * step), round((number + 1) * step))
        order = [at for at in bucket if not math.isnan(points[at][1])]
        kept |= {bucket[0], bucket[-1]}
        kept |= {min(order, key=lambda at: points[at][1]), max(order, key=lambda at: points[at][1])} if order else set()
    return [points[at] for at in sorted(kept)]


def _path(points: Sequence[tuple[float, float]], x: Scale, y: Scale) -> str:
    lines = _pieces(points, lambda point: _is_drawable(point[1], y))
    return "".join("M" + "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value in line) for line in lines)


def _pieces(items: Sequence[_T], is_in: Callable[[_T], bool]) -> list[list[_T]]:
    """Drop the items for which `is_in` is False, and return the unbroken sequences of items that remain."""
    found: list[list[_T]] = [[]]
    for item in items:
        if is_in(item):
            found[-1].append(item)
        elif found[-1]:
            found.append([])
    return [piece for piece in found if piece]


def _is_drawable(value: float, y: Scale) -> bool:
    return math.isfinite(value) and abs(value) < 1e300 and (value > 0 or not y.is_log)
