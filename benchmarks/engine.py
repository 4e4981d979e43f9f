"""Measures the overhead of stages, hooks and fixtures alone, in a tight loop without torch.

    python benchmarks/engine.py

Prints the minimum CPU time per round over many repeats and, for comparison, the time for the same calls written by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from trainmaster import Extensible, Extension

ROUNDS = 10_000
REPEATS = 40


class First(Extension):
    def pre_a(self, x: int) -> None: ...
    def post_a(self, x: int, y: int) -> None: ...
    def pre_b(self, x: int) -> None: ...
    def post_b(self, x: int) -> None: ...
    def pre_c(self, z: int) -> None: ...


class Second(Extension):
    def post_a(self, y: int) -> None: ...
    def pre_c(self, y: int) -> None: ...
    def post_c(self, y: int) -> None: ...
    def pre_d(self, z: int) -> None: ...
    def post_e(self, x: int) -> None: ...


class Routine(Extensible):
    """An object with five nested stages and three fixtures, and ten hooks when `First` and `Second` are attached."""

    def run(self, rounds: int) -> None:
        staged, fixtures = self.staged, self.fixtures
        for _ in range(rounds):
            with staged("a", {"x": 1}):
                fixtures["y"] = 2
                with staged("b"):
                    with staged("c", {"z": 3}):
                        with staged("d"):
                            with staged("e"):
                                pass


class OneStage(Extensible):
    def run(self, rounds: int) -> None:
        staged = self.staged
        with staged("all"):
            for _ in range(rounds):
                with staged("quiet"):
                    pass


def by_hand(rounds: int) -> None:
    first, second = First(), Second()
    for _ in range(rounds):
        x, y, z = 1, 2, 3
        first.pre_a(x), first.pre_b(x), first.pre_c(z), second.pre_c(y), second.pre_d(z)
        second.post_e(x), second.post_c(y), first.post_b(x), first.post_a(x, y), second.post_a(y)


def least(run: Callable[[int], None]) -> float:
    """Return the minimum CPU time per round, in microseconds."""
    best = float("inf")
    for _ in range(REPEATS):
        started = time.process_time()
        run(ROUNDS)
        best = min(best, time.process_time() - started)
    return best / ROUNDS * 1e6


def main() -> None:
    hooked, bare = Routine(), Routine()
    hooked.extensions = [First(), Second()]
    rows = {
        "5 nested stages, 10 hooks, 3 fixtures": hooked.run,
        "the same without hooks": bare.run,
        "one stage without hooks": OneStage().run,
        "10 calls by hand": by_hand,
    }
    print(f"{'engine alone':<42}{'us per round':>12}")
    for name, run in rows.items():
        print(f"{name:<42}{least(run):>12.2f}")


if __name__ == "__main__":
    main()
