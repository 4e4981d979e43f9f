"""The process that `Tracker` starts: it reads rows from its standard input and sends them to a tracking service.

The client of a service runs in its own process, so that it cannot affect training. A client may draw random numbers
when it retries a request, compete for Python's global interpreter lock (GIL), print, ask for a login, or wait for the
network forever.

Messages are lines of JSON. The first message opens the run, the following ones contain rows (tag, number of the row,
value, step), and the last one contains the outcome. The process answers each message. Errors are reported as
answers, too.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TextIO


class Row(NamedTuple):
    """One logged value of the metric `tag`. `number` counts the rows of this metric from 0."""

    tag: str
    number: int
    value: float
    step: float


class Service(Protocol):
    """An open run in a tracking service."""

    address: str | None
    """The web page of the run, if the service has one."""

    def has(self, row: Row) -> bool | None:
        """Return whether the service received a row before this process was started, or None if that is unknown."""

    def log(self, rows: list[Row]) -> None: ...

    def finish(self, outcome: str, reason: str) -> None: ...


class Wandb:
    """A Weights & Biases run.

    Each metric has its own x axis, `<metric>/step`, because W&B's own steps must not decrease.
    """

    def __init__(self, project: str, run: str, config: dict[str, Any], tags: list[str], program: str, **options: Any) -> None:
        import wandb

        settings = {"console": "off", "x_stats_pid": os.getppid(), "program": program, **options.pop("settings", {})}
        defaults = {"id": run, "name": run, "resume": "allow", "tags": tags or None}
        self._run: Any = wandb.init(project=project, config=config, settings=settings, **{**defaults, **options})
        self._tags: set[str] = set()
        self._last: dict[str, Any] | None = None if self._run.offline else dict(self._run.summary)
        self.address = None if self._run.offline else self._run.url

    def has(self, row: Row) -> bool | None:
        return None if self._last is None else row.step <= self._last.get(f"{row.tag}/step", -math.inf)

    def log(self, rows: list[Row]) -> None:
        for group in _rows_by_step(rows):
            for row in group:
                if row.tag not in self._tags:
                    self._tags.add(row.tag)
                    self._run.define_metric(f"{row.tag}/step", hidden=True)
                    self._run.define_metric(row.tag, step_metric=f"{row.tag}/step")
            self._run.log({row.tag: row.value for row in group} | {f"{row.tag}/step": row.step for row in group})

    def finish(self, outcome: str, reason: str) -> None:
        self._run.summary.update({"outcome": outcome, **({"outcome_reason": reason} if reason else {})})
        self._run.finish(exit_code=int(outcome in ("failed", "interrupted")))


class Trackio:
    """A Trackio run. Trackio has the same functions as wandb, but identifies a run by its name."""

    def __init__(self, project: str, run: str, config: dict[str, Any], tags: list[str], program: str, **options: Any) -> None:
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        about = {"key": run, "tags": tags, **config}
        about = {f"config{name}" if name.startswith("_") else name: value for name, value in about.items()}
        options = {"name": run, "resume": "allow", "embed": False, **options}
        self._run: Any = trackio.init(project=project, config=about, **options)
        is_local = options.get("space_id") is None and options.get("server_url") is None
        logs = SQLiteStorage.get_logs(project, options["name"], run_id=self._run.id) if is_local else []
        self._num_sent: Counter[str] | None = Counter(tag for each in logs for tag in each) if is_local else None
        self.address: str | None = None
        self._last_step: float = max((each.get("step") or 0 for each in logs), default=0)

    def has(self, row: Row) -> bool | None:
        return None if self._num_sent is None else row.number < self._num_sent[row.tag]

    def log(self, rows: list[Row]) -> None:
        for group in _rows_by_step(rows):
            self._last_step = max(self._last_step, group[0].step)
            self._run.log({row.tag: row.value for row in group}, step=group[0].step)

    def finish(self, outcome: str, reason: str) -> None:
        # Logged at the last step of all attempts, so that the outcome with the highest step belongs to the last attempt.
        self._run.log({"outcome": outcome, **({"outcome_reason": reason} if reason else {})}, step=self._last_step)
        self._run.finish()


class MLflow:
    """An MLflow run, on a server or in a database. The tag `trainmaster.run` identifies it."""

    def __init__(
        self,
        project: str,
        run: str,
        config: dict[str, Any],
        tags: list[str],
        program: str,
        tracking_uri: str | None = None,
        id: str | None = None,
    ) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        run = id or run
        self._client = client = MlflowClient(tracking_uri)
        experiment = client.get_experiment_by_name(project)
        number = client.create_experiment(project) if experiment is None else experiment.experiment_id
        found = client.search_runs([number], f"tags.`trainmaster.run` = {json.dumps(run)}", max_results=1)
        if found:
            client.update_run(found[0].info.run_id, status="RUNNING")
        started = found[0] if found else client.create_run(number, run_name=run, tags={"trainmaster.run": run})
        self._run: str = started.info.run_id
        self._num_sent = {tag: len(client.get_metric_history(self._run, tag)) for tag in started.data.metrics}
        values = {_mlflow_name(name): str(value)[:6000] for name, value in _flat(config)}
        params = [Param(name, value) for name, value in values.items() if name not in started.data.params]
        for start in range(0, len(params), 100):  # the limit per request
            client.log_batch(self._run, params=params[start : start + 100])
        for tag in tags:
            client.set_tag(self._run, f"trainmaster.tag.{tag}", "true")
        self.address: str | None = None

    def has(self, row: Row) -> bool | None:
        return row.number < self._num_sent.get(_mlflow_name(row.tag), 0)

    def log(self, rows: list[Row]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_mlflow_name(row.tag), row.value, now, int(row.step)) for row in rows]
        for start in range(0, len(metrics), 1000):  # the limit per request
            self._client.log_batch(self._run, metrics=metrics[start : start + 1000])

    def finish(self, outcome: str, reason: str) -> None:
        self._client.set_tag(self._run, "trainmaster.outcome", f"{outcome}: {reason}" if reason else outcome)
        self._client.set_terminated(self._run, {"failed": "FAILED", "interrupted": "KILLED"}.get(outcome, "FINISHED"))


SERVICES: Mapping[str, Callable[..., Service]] = {"wandb": Wandb, "trackio": Trackio, "mlflow": MLflow}


def _rows_by_step(rows: list[Row]) -> Iterator[list[Row]]:
    """Group adjacent rows that have the same step and different tags."""
    group: list[Row] = []
    for row in rows:
        if group and (row.step != group[0].step or row.tag in [each.tag for each in group]):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _flat(tree: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{at}{name}.")
        else:
            yield f"{at}{name}", value


def _mlflow_name(name: str) -> str:
    """Replace the characters that MLflow does not accept in names: all except letters, digits and `_-.: /`."""
    return re.sub(r"[^\w\-.: /]", "_", name)


def serve(lines: TextIO, answer: Callable[[dict[str, Any]], None]) -> None:
    """Send the messages in `lines` to the service, and answer each of them."""
    opening = json.loads(lines.readline())
    num_recorded = opening["num_recorded"]
    importlib.import_module(opening["service"])
    answer({})  # an extra answer, because the import may have taken seconds
    service = SERVICES[opening["service"]](**opening["run"], **opening["options"])
    answer({"address": service.address})

    def is_sent(row: Row) -> bool:
        held = service.has(row)
        return row.number < num_recorded.get(row.tag, 0) if held is None else held

    num_sent = 0
    for line in lines:
        message = json.loads(line)
        if "outcome" in message:
            service.finish(message["outcome"], message["reason"])
            answer({"is_finished": True})
            return
        rows = [row for row in (Row(*each) for each in message["rows"]) if not is_sent(row)]
        service.log(rows)
        num_sent += len(rows)
        answer({"num_sent": num_sent})
    service.finish("interrupted", "the training process was killed")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # text that the service prints must not be mistaken for answers

    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers)

    try:
        serve(sys.stdin, answer)
    except BaseException as error:  # reported to the training process, which warns
        answer({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
