"""`Tracker` sends every row to wandb (offline), Trackio (local) and MLflow (SQLite), and survives their failures."""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import sqlite3
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm
from tracked_training import LogBatch, make

from trainmaster import Extension, Manager, TrainTestLoop
from trainmaster.errors import MissingExtraError, SettingError, UnknownHookError
from trainmaster.extensions import tracker as tracker_module
from trainmaster.extensions.tracker import Tracker
from trainmaster.testing import ExtensionContract

PROGRAM = Path(__file__).parent.parent / "programs" / "tracked_training.py"
Rows = dict[str, list[tuple[int, float]]]
NO_LOGIN = r'Tracker\("wandb"\) has stopped after 0 rows: UsageError: No API key configured'


@pytest.fixture(autouse=True)
def _services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the services write to the test's folder, without a login."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tracker_module, "PATIENCE", 120.0)
    for name, value in {
        "TRACKIO_DIR": tmp_path / "trackio",
        "HOME": tmp_path,
        "WANDB_DIR": tmp_path,
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }.items():
        monkeypatch.setenv(name, str(value))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "HF_TOKEN", "MLFLOW_TRACKING_URI", "NETRC"):
        monkeypatch.delenv(name, raising=False)


def trackio_rows(tmp_path: Path, run: str | None = None) -> Rows:
    rows: Rows = {}
    with contextlib.closing(sqlite3.connect(tmp_path / "trackio" / "sine.db")) as database:
        for name, step, text in database.execute("select run_name, step, metrics from metrics order by id"):
            for tag, value in json.loads(text).items():
                if not tag.startswith("outcome") and run in (None, name):
                    rows.setdefault(tag, []).append((step, value))
    return rows


def trackio_outcomes(tmp_path: Path) -> list[tuple[int, str]]:
    with contextlib.closing(sqlite3.connect(tmp_path / "trackio" / "sine.db")) as database:
        logged = [
            (step, json.loads(text).get("outcome")) for step, text in database.execute("select step, metrics from metrics order by id")
        ]
    return [(step, outcome) for step, outcome in logged if outcome is not None]


def mlflow_rows(tmp_path: Path) -> Rows:
    rows: Rows = {}
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        for tag, step, value in database.execute("select key, step, value from metrics order by key, step"):
            rows.setdefault(tag, []).append((step, value))
    return rows


def wandb_records(folder: Path) -> Iterator[Any]:
    """Yield the records of an offline run.

    The log has blocks of 32 KB. Each record has one or more parts, each with a header of 7 bytes.
    """
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("*.wandb")
    content, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def wandb_rows(folder: Path) -> Rows:
    rows: Rows = {}
    for record in wandb_records(folder):
        items = {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for tag, value in items.items():
            if f"{tag}/step" in items:
                rows.setdefault(tag, []).append((items[f"{tag}/step"], value))
    return rows


# ---- without a service


def test_an_unknown_service_is_answered_with_the_nearest() -> None:
    with pytest.raises(SettingError, match=r"there is no tracker 'wandbb'(.|\n)*wandb, trackio, mlflow(.|\n)*did you mean `wandb`"):
        Tracker("wandbb", "sine")


def test_a_missing_package_is_reported_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(MissingExtraError, match=r'^Tracker\("trackio"\) needs: pip install trackio\n'):
        make(Tracker("trackio", "sine")).train()


def test_an_option_that_cannot_be_sent_is_named() -> None:
    with pytest.raises(SettingError, match=r"Tracker\(settings=<object"):
        Tracker("wandb", "sine", settings=object())


def test_a_loop_without_a_writer_is_refused() -> None:
    with pytest.raises(UnknownHookError, match="there is no stage `run`"):
        TrainTestLoop(make().model, [Tracker("trackio", "sine")], [1], [1]).train(1)


def test_it_is_pickled_into_workers() -> None:
    tracker = pickle.loads(pickle.dumps(Tracker("trackio", "sine", auto_log_cpu=False)))
    assert (tracker.service, tracker.project, tracker.options) == ("trackio", "sine", {"auto_log_cpu": False})


# ---- with the real services


@pytest.mark.integration
class TestContract(ExtensionContract):
    def make(self) -> object:
        return Tracker("trackio", "sine", auto_log_cpu=False)


@pytest.mark.integration
def test_trackio_has_every_number_at_its_step_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import socket, sys\n"
        "def audit(event, values):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo', 'socket.sendto'):\n"
        f"        open({str(tmp_path / 'requests')!r}, 'a').write(f'{{event}} {{values}}\\n')\n"
        "sys.addaudithook(audit)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    tracker = Tracker("trackio", "sine", config={"lr": 0.1, "api_key": "not-for-others"})
    loop = make(LogBatch(), tracker)
    loop.train()
    assert trackio_rows(tmp_path) == loop.history
    assert tracker.num_sent == sum(map(len, loop.history.values())) == 18 + 3 + 4
    with contextlib.closing(sqlite3.connect(tmp_path / "trackio" / "sine.db")) as database:
        ((text,),) = database.execute("select config from configs")
    assert (json.loads(text)["lr"], json.loads(text)["api_key"]) == (0.1, "***")
    assert not (tmp_path / "requests").exists()


class Sine(Manager):
    extensions = [Tracker("wandb", "sine", mode="offline")]

    def make_loop(self, config: Any) -> Any:
        return make(LogBatch())


@pytest.mark.integration
def test_a_run_of_a_manager_is_sent_with_key_config_tags_and_outcome_to_wandb(tmp_path: Path) -> None:
    manager = Sine(tmp_path / "store", verbose=False, secrets=("password",))
    config = {"lr": 0.5, "nested": {"depth": 2}, "password": "hunter2-hunter2"}
    for epochs in (1, 3):
        manager.process(config, epochs)
        manager.store.tags.add(manager.key, ["paper"])
    first, second = sorted(tmp_path.glob("wandb/offline-run-*"))
    assert wandb_rows(first)["valid/loss"] + wandb_rows(second)["valid/loss"] == manager.history["valid/loss"]
    assert wandb_rows(first)["batch/loss"] + wandb_rows(second)["batch/loss"] == manager.history["batch/loss"]
    records = list(wandb_records(second))
    run = next(record.run for record in records if record.HasField("run"))
    sent = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (run.run_id, run.project, list(run.tags)) == (manager.key, "sine", ["paper"])
    assert (sent["lr"], sent["nested"], sent["password"]) == (0.5, {"depth": 2}, "***")
    axes = {record.metric.name: record.metric.step_metric for record in records if record.metric.step_metric}
    assert axes["batch/loss"] == "batch/loss/step"
    summary = {item.key: json.loads(item.value_json) for record in records for item in record.summary.update if item.key}
    assert summary["outcome"] == "finished"
    assert b"hunter2" not in b"".join(file.read_bytes() for file in tmp_path.glob("wandb/**/*") if file.is_file())


@pytest.mark.integration
def test_the_error_of_a_training_is_its_outcome(tmp_path: Path) -> None:
    class Fail(Extension):
        def post_train_step_epoch(self, epoch_num: int) -> None:
            if epoch_num == 2:
                raise ArithmeticError("the loss is NaN")

    with pytest.raises(ArithmeticError):
        make(Fail(), Tracker("wandb", "sine", mode="offline")).train()
    (folder,) = tmp_path.glob("wandb/offline-run-*")
    records = list(wandb_records(folder))
    summary = {item.key: json.loads(item.value_json) for record in records for item in record.summary.update if item.key}
    assert (summary["outcome"], summary["outcome_reason"]) == ("failed", "ArithmeticError: the loss is NaN")
    assert next(record.exit.exit_code for record in records if record.HasField("exit")) == 1


@pytest.mark.integration
@pytest.mark.parametrize("service", ["trackio", "mlflow"])
def test_after_a_kill_the_service_has_every_row_once(service: str, tmp_path: Path) -> None:
    """The process is killed 3 batches after the last checkpoint; the service has received the rows of these batches.

    The batches are trained again, but their rows are not sent again.
    """
    if service == "mlflow":
        pytest.importorskip("sqlalchemy")
    options = json.dumps({"trackio": {"auto_log_cpu": False}, "mlflow": {"tracking_uri": f"sqlite:///{tmp_path / 'mlflow.db'}"}}[service])
    killed = warm.run([sys.executable, PROGRAM, service, tmp_path / "train", options, "15"], capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    resumed = warm.run([sys.executable, PROGRAM, service, tmp_path / "train", options], capture_output=True, text=True)
    assert (resumed.returncode, resumed.stdout) == (0, "5\n"), resumed.stderr
    whole = make(LogBatch())
    whole.train()
    rows = {"trackio": trackio_rows, "mlflow": mlflow_rows}[service](tmp_path)
    assert rows == whole.history
    if service == "trackio":
        assert trackio_outcomes(tmp_path) == [(15, "interrupted"), (18, "finished")]


@pytest.mark.integration
def test_offline_wandb_has_rows_twice_only_after_the_last_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, PROGRAM, "wandb", tmp_path / "train", json.dumps({"mode": "offline"})]
    assert warm.run([*command, "15"], capture_output=True).returncode == -9
    warm.run(command, check=True, capture_output=True)
    first, second = (wandb_rows(folder) for folder in sorted(tmp_path.glob("wandb/offline-run-*")))
    assert [step for step, _ in first["batch/loss"]] == [*range(1, 16)]
    assert [step for step, _ in second["batch/loss"]] == [*range(13, 19)]
    assert first["batch/loss"][12:] == second["batch/loss"][:3]
    assert ([step for step, _ in first["valid/loss"]], [step for step, _ in second["valid/loss"]]) == ([0, 1, 2], [3])


# ---- services that fail


@pytest.mark.integration
def test_without_a_login_nobody_is_asked_and_training_goes_on() -> None:
    loop = make(Tracker("wandb", "sine"))
    with pytest.warns(UserWarning, match=rf"{NO_LOGIN}.*run `wandb login`, or set WANDB_MODE=offline") as warned:
        loop.train()
    assert (loop.epoch_num, len(warned)) == (3, 1)


@pytest.mark.integration
def test_if_warnings_are_errors_training_goes_on_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    loop = make(Tracker("wandb", "sine"))
    loop.train()  # pytest turns warnings into errors
    assert loop.epoch_num == 3
    assert 'Tracker("wandb") has stopped' in capsys.readouterr().err


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """Serve an address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.integration
def test_a_service_that_hangs_costs_a_few_seconds_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_module, "PATIENCE", 1.0)
    num_threads = threading.active_count()
    with silent_server() as address:
        loop = make(Tracker("mlflow", "sine", tracking_uri=address))
        start = time.monotonic()
        with pytest.warns(
            UserWarning, match=r'Tracker\("mlflow"\) has stopped after 0 rows: the service did not answer for 1 seconds'
        ) as warned:
            loop.train()
    assert (loop.epoch_num, len(warned)) == (3, 1)
    assert time.monotonic() - start < 60
    while threading.active_count() > num_threads:
        time.sleep(0.01)


@pytest.mark.integration
def test_a_full_queue_ends_the_copy_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_module, "MAX_QUEUED", 5)
    with silent_server() as address:
        loop = make(LogBatch(), Tracker("mlflow", "sine", tracking_uri=address), epochs=100)
        with pytest.warns(UserWarning, match="5 rows are waiting, because the service is slower") as warned:
            loop.train()
    assert (loop.epoch_num, len(warned)) == (100, 1)
    assert len(loop.history["batch/loss"]) == 600


@pytest.mark.integration
def test_a_secret_in_an_error_of_the_service_is_masked() -> None:
    tracker = Tracker("mlflow", "sine", tracking_uri="nowhere://me:hunter2-hunter2@host")
    with pytest.warns(UserWarning, match=r"has stopped after 0 rows") as warned:
        make(tracker).train()
    assert "hunter2" not in str(warned[0].message)
