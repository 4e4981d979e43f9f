"""With a model that `fully_shard` has divided over two ranks, each extension trains as in one process, or raises an error at the start.

Rank 0 must not compute with parts of parameters on its own: this starts an operation that waits for the other ranks, and
they either hang or confuse it with the operation that they are in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import all_program as program
import pytest
import ranks

pytestmark = pytest.mark.integration

DIVIDED = "does not work with a model that fully_shard has divided"
REFUSED = {
    "Avg": "needs whole batches",
    "EMA": f"EMA {DIVIDED}",
    "FailureCapsule": "needs whole batches",
    "GradCoeffRMSVis": f"GradCoeffRMSVis {DIVIDED}",
    "GradNormVis": f"GradNormVis {DIVIDED}",
    "LeakageCheck": f"LeakageCheck {DIVIDED}",
    "NaNGuard": f"NaNGuard {DIVIDED}",
    "SampleLoss": "needs whole batches",
    "SanityCheck": f"the sanity check {DIVIDED}",
    "UpdateRatio": f"UpdateRatio {DIVIDED}",
}
PRECISION = {"MixedPrecision": 1e-2}
"""How much the weights may differ from those of one process, if it is more than the rounding error of 32 bits."""


@pytest.mark.parametrize("name", sorted(program.one_of_each_kind()))
def test_each_extension_works_with_a_sharded_model_or_refuses_it(tmp_path: Path, name: str) -> None:
    options = {"epochs": 2, "rows": 67, "kind": name}
    found = ranks.run(2, tmp_path, {**options, "sharded": True, "train_dir": str(tmp_path / "sharded")})
    if name in REFUSED:
        assert found[0]["error"].startswith("SettingError: ")
        assert all(REFUSED[name] in each["error"] for each in found)
        return
    assert [each["code"] for each in found] == [0, 0], found
    (alone,) = ranks.run(1, tmp_path, {**options, "train_dir": str(tmp_path / "alone")})
    assert alone["code"] == 0, alone
    assert found[0]["step"] == alone["step"]
    assert largest_difference(found[0]["weights"], alone["weights"]) < PRECISION.get(name, 1e-6)


def largest_difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)
