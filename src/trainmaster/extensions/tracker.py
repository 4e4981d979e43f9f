"""Sends metrics to Weights & Biases, Trackio or MLflow."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

from trainmaster.config.declared_secrets import masked_config, secret_texts
from trainmaster.config.masking import Mask, secret_values
from trainmaster.config.secret_patterns import masked_by_name
from trainmaster.errors import MissingExtraError, SettingError, did_you_mean, shown
from trainmaster.extensions.manager_fixtures import manager_fixtures
from trainmaster.extensions.tracker_services import SERVICES, Row
from trainmaster.extensions.train_dir import mirrored_writer
from trainmaster.loop.loggers import warn_or_print
from trainmaster.loop.writer import Writer
from trainmaster.stages import Observer, always
from trainmaster.text import counted

MAX_QUEUED = 10_000
"""The maximum number of rows that can wait to be sent."""
PATIENCE = 10.0
"""At the end of training, the number of seconds to wait for each answer from the service before giving up."""
_MAX_ROWS = 1000
"""The maximum number of rows in one message."""
_HINTS = {
    "wandb": "run `wandb login`, or set WANDB_MODE=offline and run `wandb sync` later",
    "trackio": "`trackio show` needs no account; check the address of the Space or server if you use one",
    "mlflow": "check `tracking_uri` (or MLFLOW_TRACKING_URI): a server, or a database such as sqlite:///mlflow.db",
}


class Tracker(Observer):
    """Sends training metrics to Weights & Biases, Trackio or MLflow, with the config, the tags and the outcome of the run.

    In the service, the run is named after its key. When training resumes, the tracker continues the same run in the
    service, and no value is sent twice. The exceptions are W&B in offline mode and remote Trackio servers. There, if a
    run is killed and resumed, the values that were logged between the last checkpoint and the kill are sent again.

    A service that fails, hangs or needs a login never stops or slows down training. Instead, the tracker warns once and
    stops sending. The loop's history still contains all values.

    Args:
        service: "wandb", "trackio" or "mlflow".
        project: the name of the project in the service. For MLflow, it is the name of the experiment.
        config: the settings to show. Under a manager, the default is the config of the run. Secrets are masked.
        options: arguments of `wandb.init` or `trackio.init`. For MLflow, you can pass `tracking_uri` and `id`.
    """

    is_guarded = False

    def __init__(self, service: str, project: str, config: Mapping[str, Any] | None = None, **options: Any) -> None:
        if service not in SERVICES:
            hint = did_you_mean(str(service), SERVICES) or "for another service, write a logger"
            raise SettingError(f"there is no tracker {shown(service)}", known=", ".join(SERVICES), hint=hint)
        for name, value in {"project": project, "config": config, **options}.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                raise SettingError(f"Tracker({name}={shown(value)}): {error}", hint="pass text, numbers, lists and dicts") from None
        self.service, self.project, self.config, self.options = service, project, config, options
        self._run: str | None = None
        """The name of the run in the service, for a loop without a manager."""
        self._num_recorded: Counter[str] = Counter()
        self._mask = Mask()
        self._copy: _Copy | None = None
        self._detach: Callable[[], None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_copy": None, "_detach": None}  # the process belongs to the training run that started it

    def pre_train(self, writer: Writer | None = None) -> None:
        mirrored = mirrored_writer(writer, "Tracker")
        if find_spec(self.service) is None:
            raise MissingExtraError(f'Tracker("{self.service}") needs: pip install {self.service}')
        opening = {"service": self.service, "run": self._facts(), "options": self.options, "num_recorded": dict(self._num_recorded)}
        self._num_recorded = Counter()
        self._copy = _Copy(self.service, opening, self._mask)
        self._detach = mirrored.mirror(self._add)
        self._copy.start()

    def _add(self, tag: str, value: float | str, step: float | None) -> None:
        if self._copy is None or isinstance(value, str):
            return
        number = self._num_recorded[tag]
        self._num_recorded[tag] += 1
        self._copy.add(Row(tag, number, value, number if step is None else step))

    @always
    def post_run(self, stopped: str | None = None, exc_value: BaseException | None = None) -> None:
        copy, detach, self._detach = self._copy, self._detach, None
        if copy is None or detach is None:
            return
        detach()
        if exc_value is not None:
            is_failure = isinstance(exc_value, Exception)
            error = f"{type(exc_value).__name__}: {exc_value}".rstrip(": ")
            copy.finish("failed" if is_failure else "interrupted", error)
        else:
            copy.finish("finished" if stopped is None else "stopped", stopped or "")

    @property
    def num_sent(self) -> int:
        """The number of rows that the service has received during the last call to `train()`."""
        return 0 if self._copy is None else self._copy.num_sent

    def state_dict(self) -> dict[str, Any]:
        return {"run": self._run, "num_recorded": dict(self._num_recorded)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._run, self._num_recorded = state["run"], Counter(state["num_recorded"])

    def _facts(self) -> dict[str, Any]:
        """Return the project, name, config and tags of the run, without secrets."""
        fixtures = manager_fixtures()
        key, config = fixtures.get("key"), fixtures.get("config")
        if key is None and self._run is None:
            self._run = uuid.uuid4().hex[:8]
        own = secret_values({name: value for name, value in self.options.items() if isinstance(value, str)})
        self._mask = Mask.of([*own, *(() if key is None else secret_texts(config))])
        about = {} if key is None else masked_config(config)
        if self.config is not None:
            about = masked_by_name(dict(self.config))
        return {
            "project": self.project,
            "run": key or self._run,
            "config": json.loads(json.dumps(self._mask.tree(about), default=str)),
            "tags": [] if key is None else list(fixtures["manager"].store.tags[key]),
            "program": sys.argv[0],
        }


class _Copy:
    """Passes rows to the service's process. It has a bounded queue, a thread that writes rows, and a thread that reads answers."""

    def __init__(self, service: str, opening: Mapping[str, Any], mask: Mask) -> None:
        self._service, self._opening, self._mask = service, opening, mask
        self._queue: queue.SimpleQueue[Row | Outcome | None] = queue.SimpleQueue()
        self._max_queued = MAX_QUEUED
        """`MAX_QUEUED`, plus the number of earlier rows that are still waiting."""
        self._process: subprocess.Popen[str] | None = None
        self._pid = os.getpid()
        self._answered_at = 0.0
        self.num_sent = 0
        self._is_over = threading.Event()
        self._error: str | None = None
        self._has_ended = False

    def start(self) -> None:
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "trainmaster.extensions.tracker_services"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is meant for training only
        )
        for target in (self._write, self._read):
            threading.Thread(target=target, args=(process,), name="trainmaster-tracker", daemon=True).start()

    def add(self, row: Row) -> None:
        """Queue a row without blocking. If the queue is full, stop sending to the service."""
        if self._process is None:
            self._max_queued += 1
        if self._has_ended:
            return
        if self._error is not None:
            self._give_up(self._error)
        elif self._queue.qsize() >= self._max_queued:
            self._give_up(f"{MAX_QUEUED:,} rows are waiting, because the service is slower than training")
        else:
            self._queue.put(row)

    def finish(self, outcome: str, reason: str) -> None:
        """Send the remaining rows and the outcome of the run. Give up if the service stops answering."""
        if self._has_ended or os.getpid() != self._pid:  # a forked process must not end its parent's copy
            return
        try:
            self._queue.put(Outcome(outcome, self._mask(reason)))
            self._answered_at = time.monotonic()
            while not self._is_over.wait(0.05) and time.monotonic() - self._answered_at < PATIENCE:
                pass
        finally:
            if not self._is_over.is_set():
                self._error = f"the service did not answer for {PATIENCE:g} seconds"
            if self._error is not None:
                self._give_up(self._error)
            elif self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):  # W&B completes its files when the process exits
                    self._process.wait(PATIENCE)

    def _give_up(self, error: str) -> None:
        self._has_ended = True
        self._queue.put(None)  # wakes up the thread
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # together with the processes that the service has started
        sent = counted(self.num_sent, "row")
        warn_or_print(
            f'Tracker("{self._service}") has stopped after {sent}: {self._mask(error)}; training continues, and the loop\'s history'
            f" has all rows; {_HINTS[self._service]}"
        )

    # ---- the threads

    def _write(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError), process.stdin as lines:  # if the process has ended, `_read` reports the reason
            print(json.dumps(self._opening), file=lines, flush=True)
            for message in self._messages():
                print(json.dumps(message), file=lines, flush=True)

    def _messages(self) -> Iterator[dict[str, Any]]:
        while True:
            items = [self._queue.get()]
            while len(items) < _MAX_ROWS and not self._queue.empty():
                items.append(self._queue.get())
            if rows := [each for each in items if isinstance(each, Row)]:
                self._max_queued = max(MAX_QUEUED, self._max_queued - len(rows))
                yield {"rows": rows}
            if isinstance(items[-1], Outcome):
                yield items[-1]._asdict()
            if not isinstance(items[-1], Row):
                return

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        error: str | None = "its process has ended"
        with process.stdout as answers:
            for line in answers:
                answer = json.loads(line)
                self._answered_at = time.monotonic()
                self.num_sent = answer.get("num_sent", self.num_sent)
                if answer.get("address"):
                    print(f"trainmaster: {self._service} shows this run at {answer['address']}", file=sys.stderr)
                if "error" in answer or "is_finished" in answer:
                    error = answer.get("error")
                    break
        self._error = error
        self._is_over.set()
        process.wait()


class Outcome(NamedTuple):
    """How training ended."""

    outcome: str
    reason: str
