"""Stores for testing and timing reports and forecasts: runs in all states with curves, written without training."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from trainmaster.store import Store

EPOCHS = 12
HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</svg><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<img src=http://example.invalid/x>",
    "<svg onload=alert(1)>",
    "<iframe src=javascript:alert(1)>",
    "<link rel=stylesheet href=http://example.invalid/x.css>",
    "<base href=http://example.invalid/>",
    "<meta http-equiv=refresh content=0;url=http://example.invalid>",
    "<style>*{display:none}</style>",
    "<a href=javascript:alert(1)>x</a>",
    "<!--",
    "-->",
    "<![CDATA[",
    "]]>",
    "<?xml version='1.0'?>",
    "<template><script>alert(1)</script></template>",
    '" onmouseover=alert(1) x="',
    "' onmouseover=alert(1) x='",
    "`onmouseover=alert(1)`",
    '"><script>alert(1)</script>',
    "'><script>alert(1)</script>",
    "javascript:alert(1)",
    "${alert(1)}",
    "{{alert(1)}}",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;",
    "\\u003cscript\\u003e",
    "%3Cscript%3E",
    "\u202eevil\u202c",
    "\u2028\u2029line",
    "\x00\x07\x1b[2Jbell",
    '=HYPERLINK("http://example.invalid")',
    "=cmd|'/C calc'!A0",
    "a\nb\tc\rd",
    "😀é漢字ﷺ",
    "x" * 150,
    "</textarea></noscript><script>alert(1)</script>",
    "__proto__",
]
"""Strings that an HTML page must show unchanged."""


def add_run(
    store: Store,
    config: Mapping[str, Any],
    curves: Mapping[str, Mapping[int, float]],
    outcome: str = "finished",
    target: int | None = EPOCHS,
    monitor: str | None = None,
    mode: str = "min",
    **facts: Any,
) -> str:
    """Add a run. Each curve maps epochs to values, and `facts` are additional fields of the run's outcome."""
    key = store.configs.add(dict(config))
    epochs = sorted({epoch for curve in curves.values() for epoch in curve})
    with store.attempt(key, "process", facts={"num_epochs": target}) as attempt:
        attempt.start(None)
        for epoch in epochs:
            for name, curve in curves.items():
                if epoch in curve:
                    attempt.log.append({"tag": name, "value": curve[epoch], "step": epoch, "over": "epoch", "time": 0.0})
        if epochs:
            last = {name: curve[max(curve)] for name, curve in curves.items() if curve}
            best = {"metric": monitor, "value": last.get(monitor), "step": epochs[-1], "checkpoint": "", "mode": mode} if monitor else None
            attempt.save(epochs[-1], {"x": 1}, {"epoch": epochs[-1], "toc": time.time(), "best": best}, last)
        attempt.release(outcome, **facts)
    return key


def draw_curves(rng: np.random.Generator, lr: float, width: int, activation: str, epochs: int = EPOCHS) -> dict[str, dict[int, float]]:
    """Return curves of a simulated training run, in which a good learning rate, a wide model and gelu help."""
    floor = 0.05 + 0.04 * abs(math.log10(lr / 0.01)) + 0.6 / math.sqrt(width) + (0.03 if activation == "relu" else 0.0)
    floor *= math.exp(0.08 * rng.standard_normal())
    rate = 0.5 + 2.5 * min(lr, 0.05) / 0.05
    curves: dict[str, dict[int, float]] = {"valid/accuracy": {}, "valid/loss": {}, "train/loss": {}}
    for epoch in range(epochs + 1):
        loss = (floor + 2.2 * math.exp(-rate * epoch / 4)) * math.exp(0.02 * rng.standard_normal())
        curves["valid/accuracy"][epoch] = round(1 - min(0.9, 0.4 * loss), 4)
        curves["valid/loss"][epoch] = loss
        curves["train/loss"][epoch] = loss * (0.95 - 0.3 * epoch / epochs)
    return curves


def settings() -> Iterator[dict[str, Any]]:
    for lr in (0.001, 0.01, 0.1):
        for width in (16, 64):
            for activation in ("relu", "gelu"):
                yield {"lr": lr, "model": {"width": width, "activation": activation}, "data": "digits", "epochs": EPOCHS}


def fill(store: Store, num_seeds: int = 4, has_problems: bool = True) -> list[str]:
    """Add 12 settings with several seeds, and runs that failed, stopped early, diverged, or were never started."""
    rng = np.random.default_rng(0)
    keys = []
    for config in settings():
        for seed in range(num_seeds):
            curves = draw_curves(rng, config["lr"], **config["model"])
            keys.append(add_run(store, {**config, "seed": seed}, curves, monitor="valid/accuracy", mode="max"))
    if has_problems:
        for seed, config in enumerate(settings()):
            curves = {
                name: {x: y for x, y in curve.items() if x <= 3 + seed % 4}
                for name, curve in draw_curves(rng, config["lr"], **config["model"]).items()
            }
            if seed < 5:
                add_run(
                    store,
                    {**config, "seed": 100 + seed},
                    curves,
                    "stopped",
                    monitor="valid/accuracy",
                    mode="max",
                    reason="pruned by the search",
                )
            elif seed < 8:
                error = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB" if seed < 7 else "KeyError: 'label'"
                add_run(store, {**config, "seed": 100 + seed}, curves, "failed", monitor="valid/accuracy", mode="max", error=error)
            elif seed == 8:
                bad = {name: {**curve, EPOCHS: math.nan} for name, curve in curves.items()}
                add_run(store, {**config, "seed": 100 + seed}, bad, monitor="valid/accuracy", mode="max")
            else:
                store.configs.add({**config, "seed": 100 + seed})
    return keys
