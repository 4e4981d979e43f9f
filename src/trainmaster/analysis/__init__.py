"""Analyzes runs: tables, confidence intervals, comparisons, hypotheses, ablations and reports.

Names are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.analysis.ablation import Ablation as Ablation
    from trainmaster.analysis.contributions import AblationReport as AblationReport
    from trainmaster.analysis.contributions import read_ablation as read_ablation
    from trainmaster.analysis.hypothesis import Hypothesis as Hypothesis
    from trainmaster.analysis.hypothesis_driver import read_verdict as read_verdict
    from trainmaster.analysis.plan_records import plan_names as plan_names
    from trainmaster.analysis.plot_analysis import PlotAnalysis as PlotAnalysis
    from trainmaster.analysis.report import make_report as make_report
    from trainmaster.analysis.report import write_report as write_report
    from trainmaster.analysis.results import Results as Results
    from trainmaster.analysis.statistics import Difference as Difference
    from trainmaster.analysis.statistics import Interval as Interval
    from trainmaster.analysis.statistics import holm as holm
    from trainmaster.analysis.statistics import mean_interval as mean_interval
    from trainmaster.analysis.statistics import paired_difference as paired_difference
    from trainmaster.analysis.statistics import pairs_needed as pairs_needed
    from trainmaster.analysis.statistics import smallest_detectable as smallest_detectable
    from trainmaster.analysis.statistics import smallest_significant as smallest_significant
    from trainmaster.analysis.statistics import welch_difference as welch_difference
    from trainmaster.analysis.verdict import Verdict as Verdict
    from trainmaster.analysis.verify_hypothesis import verify_hypothesis as verify_hypothesis

_HOME_OF = {
    "Ablation": "trainmaster.analysis.ablation",
    "AblationReport": "trainmaster.analysis.contributions",
    "Difference": "trainmaster.analysis.statistics",
    "Hypothesis": "trainmaster.analysis.hypothesis",
    "Interval": "trainmaster.analysis.statistics",
    "PlotAnalysis": "trainmaster.analysis.plot_analysis",
    "Results": "trainmaster.analysis.results",
    "Verdict": "trainmaster.analysis.verdict",
    "holm": "trainmaster.analysis.statistics",
    "make_report": "trainmaster.analysis.report",
    "mean_interval": "trainmaster.analysis.statistics",
    "paired_difference": "trainmaster.analysis.statistics",
    "pairs_needed": "trainmaster.analysis.statistics",
    "plan_names": "trainmaster.analysis.plan_records",
    "read_ablation": "trainmaster.analysis.contributions",
    "read_verdict": "trainmaster.analysis.hypothesis_driver",
    "smallest_detectable": "trainmaster.analysis.statistics",
    "smallest_significant": "trainmaster.analysis.statistics",
    "verify_hypothesis": "trainmaster.analysis.verify_hypothesis",
    "welch_difference": "trainmaster.analysis.statistics",
    "write_report": "trainmaster.analysis.report",
}

__all__ = [*sorted(_HOME_OF)]  # noqa: PLE0604 - all of them are strings


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        from trainmaster.errors import did_you_mean

        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; {did_you_mean(name, _HOME_OF)}".rstrip("; "))
    value = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
