"""A run consists of a chain of attempts, and readers see only the valid part of each (C03, C13, I03, L03, L13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trainmaster.errors import StoreAccessError, StoreDamagedError
from trainmaster.store import Attempt, Store
from trainmaster.store.attempt import claim
from trainmaster.store.attempt_records import ATTEMPT, EVENTS, IMPORT, OUTCOME, PREVIEW, RESUME, STATUS
from trainmaster.store.checkpoint import MANIFEST, TREE, CheckpointName, read_checkpoint
from trainmaster.store.checksummed_json import record_bytes
from trainmaster.store.configs import ConfigArchive
from trainmaster.store.run import Link, Run

Take = Callable[..., Attempt]
Save = Callable[..., None]


@pytest.fixture
def key(store: Store) -> str:
    return store.configs.add({"lr": 0.1})


def trained(attempt: Attempt, save: Save, *steps: int, keep: int = 3) -> Attempt:
    """Log an event and save a checkpoint for each step."""
    for step in steps:
        attempt.log.append({"epoch": step, "by": attempt.number})
        save(attempt, step, keep=keep)
    return attempt


def rows(run: Run) -> list[tuple[int, int]]:
    return [(event["by"], event["epoch"]) for event in run.events()]


def steps(run: Run) -> list[tuple[int, int]]:
    return [(name.attempt, name.step) for name in run.checkpoints()]


def damage(store: Store, path: str) -> None:
    data = bytearray(store.files.read(path))
    data[len(data) // 2] ^= 1
    store.files.replace(path, bytes(data))


class LateFile:
    """The files of a store, one of which another process writes just after the first attempt to read it."""

    def __init__(self, store: Store, path: str) -> None:
        self._files, self._path, self._is_there = store.files, path, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def read(self, path: str, *args: Any, **options: Any) -> bytes:
        if path == self._path and not self._is_there:
            self._is_there = True
            raise FileNotFoundError(path)
        return self._files.read(path, *args, **options)


# ---- a run that never started


def test_a_run_without_attempts_has_nothing(store: Store, key: str) -> None:
    run = store.run(key)
    assert (run.attempts(), run.newest(), run.chain(), run.checkpoints(), run.events()) == ([], 0, [], [], [])
    assert (run.status(), run.preview(), run.latest()) == (None, None, None)


def test_a_run_that_was_claimed_but_did_not_start_has_only_a_status_without_an_epoch(store: Store, key: str) -> None:  # J11
    attempt = claim(store.run(key), "test", 60)
    status = store.run(key).status()
    assert status is not None
    assert status["epoch"] == -1
    assert (store.run(key).chain(), store.run(key).preview(), store.run(key).latest()) == ([], None, None)
    attempt.release("failed")


def test_a_run_that_started_has_a_status_without_an_epoch(store: Store, key: str, take: Take) -> None:  # J11
    take(store.files, key)
    status = store.run(key).status()
    assert status is not None
    assert status["epoch"] == -1
    assert status["toc"] > 0
    assert store.run(key).preview() == {}


# ---- the chain


def test_a_chain_contains_the_attempts_that_were_resumed_from(store: Store, key: str, take: Take, save: Save) -> None:
    trained(take(store.files, key), save, 1, 2)
    trained(take(store.files, key), save, 3)
    take(store.files, key)
    links = [Link(3, None, None), Link(2, CheckpointName(2, 3, 1), 1), Link(1, CheckpointName(1, 2, 1), 2)]
    assert store.run(key).chain() == links


def test_events_of_all_attempts_are_one_history(store: Store, key: str, take: Take, save: Save) -> None:
    trained(take(store.files, key), save, 1, 2)
    trained(take(store.files, key), save, 3)
    assert rows(store.run(key)) == [(1, 1), (1, 2), (2, 3)]


def test_events_after_the_checkpoint_that_was_resumed_from_are_ignored(store: Store, key: str, take: Take, save: Save) -> None:  # C03
    first = trained(take(store.files, key), save, 1)
    first.log.append({"epoch": 2, "by": 1})
    assert rows(store.run(key)) == [(1, 1), (1, 2)]
    trained(take(store.files, key), save, 2)
    assert rows(store.run(key)) == [(1, 1), (2, 2)]


def test_checkpoints_after_the_one_that_was_resumed_from_are_ignored(store: Store, key: str, take: Take, save: Save) -> None:
    first = trained(take(store.files, key), save, 1, 2)
    older = CheckpointName(1, 1, 1)
    second = claim_over(store, key)
    second.start(read_checkpoint(store.files, key, older))
    assert steps(store.run(key)) == [(1, 1)]
    assert store.run(key).status() == {"epoch": 1, "toc": 0.0, "t_train": None, "t_eval": None}
    assert store.run(key).preview() == {"loss": 1 / 2}
    trained(second, save, 2)
    assert steps(store.run(key)) == [(2, 2), (1, 1)]
    for attempt in (first, second):
        attempt.release("saved")


def claim_over(store: Store, key: str) -> Attempt:
    """Create a new attempt while another one is held, as if its lease had expired."""
    return Attempt(store.run(key), store.run(key).newest() + 1, "test", 10.0)


def test_an_attempt_from_scratch_begins_a_new_chain_with_its_first_checkpoint(store: Store, key: str, take: Take, save: Save) -> None:
    trained(take(store.files, key), save, 1, 2)
    second = claim_over(store, key)
    second.start(None)
    assert steps(store.run(key)) == [(1, 2), (1, 1)]
    assert len(rows(store.run(key))) == 2
    save(second, 0)
    assert steps(store.run(key)) == [(2, 0)]
    assert rows(store.run(key)) == []
    second.release("saved")


def test_a_new_start_that_failed_before_its_first_checkpoint_does_not_replace_the_old_run(
    store: Store, key: str, take: Take, save: Save
) -> None:
    trained(take(store.files, key), save, 1, 2)
    second = claim_over(store, key)
    second.start(None)
    second.release("failed")
    assert store.prune(keep=1) == [CheckpointName(1, 1, 1).folder(key)]
    latest = store.run(key).latest()
    assert latest is not None
    assert latest.name == CheckpointName(1, 2, 1)


def test_an_attempt_that_has_not_started_changes_nothing(store: Store, key: str, take: Take, save: Save) -> None:
    trained(take(store.files, key), save, 1)
    second = claim_over(store, key)
    assert store.run(key).chain() == [Link(1, None, None)]
    assert rows(store.run(key)) == [(1, 1)]
    second.release("failed")


def test_an_attempt_that_starts_and_saves_while_it_is_read_is_not_damaged(store: Store, key: str, take: Take, save: Save) -> None:
    attempt = trained(take(store.files, key), save, 1)
    files: Any = LateFile(store, store.run(key).path(attempt.number, RESUME))
    assert Run(files, key).head() == attempt.number
    assert Run(files, key).resume_of(attempt.number) is not None


def test_numbers_above_9999_are_newer(store: Store, key: str, claimed_by: Callable[..., str]) -> None:
    for number in (9_999, 10_000, 2):
        claimed_by(store, key, number)
    assert store.run(key).attempts() == [10_000, 9_999, 2]


def test_an_empty_folder_is_not_an_attempt(store: Store, key: str, take: Take) -> None:
    take(store.files, key)
    store.files.replace(store.run(key).path(7, EVENTS), b"")
    store.files.delete(store.run(key).path(7, EVENTS))
    assert store.run(key).newest() == 1


def test_attempts_are_read_again_each_time(store: Store, key: str, take: Take, save: Save) -> None:
    run = store.run(key)
    attempt = take(store.files, key)
    for step in (1, 2, 3):
        trained(attempt, save, step)
        status, latest = run.status(), run.latest()
        assert status is not None
        assert latest is not None
        assert (status["epoch"], latest.value) == (step, {"step": step})


def test_the_preview_of_the_last_save_is_kept_after_resuming(store: Store, key: str, take: Take, save: Save) -> None:
    first = trained(take(store.files, key), save, 1)
    first.publish_preview({"plot": "new"})
    take(store.files, key)
    assert store.run(key).preview() == {"plot": "new"}


def test_after_a_kill_between_checkpoint_and_status_both_come_from_the_manifest(
    store: Store, key: str, take: Take, save: Save, before: Callable[..., Any]
) -> None:  # C03
    def kill() -> None:
        raise KeyboardInterrupt

    for file in (PREVIEW, STATUS):
        attempt = trained(take(store.files, key), save, 1)
        attempt._files = before(store.files, "replace", file, kill)
        with pytest.raises(KeyboardInterrupt):
            trained(attempt, save, 2)
        take(store.files, key)
        status, latest = store.run(key).status(), store.run(key).latest()
        assert status is not None
        assert latest is not None
        assert (status["epoch"], latest.value, store.run(key).preview()) == (2, {"step": 2}, {"loss": 1 / 3})


# ---- the same step more than once


def test_if_a_step_was_saved_twice_the_later_checkpoint_is_the_latest(store: Store, key: str, take: Take, save: Save) -> None:  # C14
    attempt = take(store.files, key)
    for value in range(12):
        save(attempt, 1, value)
    latest = store.run(key).latest()
    assert latest is not None
    assert latest.value == 11
    assert [name.repeat for name in store.run(key).checkpoints()] == [12, 11, 10]


@pytest.mark.parametrize("text", ["step-1", "step-000001-1", "step-0000001", "step-000001-0", "step-000001-02", "step--00001", "tmp"])
def test_a_checkpoint_has_one_name(text: str) -> None:
    assert CheckpointName.parse(1, text) is None


@pytest.mark.parametrize(("step", "repeat"), [(0, 1), (999_999, 2), (1_000_000, 1), (10**15, 30)])
def test_the_name_of_a_checkpoint_is_read_as_it_was_written(step: int, repeat: int) -> None:
    name = CheckpointName(3, step, repeat)
    assert CheckpointName.parse(3, name.text) == name


def test_a_folder_without_a_manifest_is_not_a_checkpoint(store: Store, key: str, take: Take, save: Save) -> None:
    attempt = trained(take(store.files, key), save, 1)
    store.files.write(f"{CheckpointName(attempt.number, 2, 1).folder(key)}/{TREE}", [b"{}"])
    assert steps(store.run(key)) == [(1, 1)]


# ---- damage


def test_a_damaged_checkpoint_is_skipped_with_a_warning_that_names_the_file(store: Store, key: str, take: Take, save: Save) -> None:
    trained(take(store.files, key), save, 1, 2)
    path = f"{CheckpointName(1, 2, 1).folder(key)}/{TREE}"
    damage(store, path)
    with pytest.warns(UserWarning, match=f"run {key} resumes from step 1: `{path}` is damaged: its checksum does not match"):
        latest = store.run(key).latest()
    assert latest is not None
    assert latest.value == {"step": 1}


@pytest.mark.parametrize("file", [MANIFEST, TREE])
def test_a_checkpoint_with_a_missing_file_is_skipped(store: Store, key: str, take: Take, save: Save, file: str) -> None:
    trained(take(store.files, key), save, 1, 2)
    store.files.delete(f"{CheckpointName(1, 2, 1).folder(key)}/{file}")
    with pytest.warns(UserWarning, match="resumes from step 1"):
        latest = store.run(key).latest()
    assert latest is not None
    assert latest.value == {"step": 1}


def test_a_run_with_only_damaged_checkpoints_raises_an_error_with_all_reasons(store: Store, key: str, take: Take, save: Save) -> None:
    trained(take(store.files, key), save, 1, 2)
    for step in (1, 2):
        damage(store, f"{CheckpointName(1, step, 1).folder(key)}/{MANIFEST}")
    with pytest.raises(StoreDamagedError, match=f"run {key} has no good checkpoint left") as caught:
        store.run(key).latest()
    assert len(caught.value.rows["why"].split("\n")) == 2
    assert "resume=False" in caught.value.rows["hint"]


def test_a_run_without_its_checkpoints_raises_an_error_instead_of_starting_again(store: Store, key: str, take: Take, save: Save) -> None:
    trained(take(store.files, key), save, 1)
    store.files.delete_folder("ckpts")
    with pytest.raises(StoreDamagedError, match="no good checkpoint left"):
        store.run(key).latest()


def test_checkpoints_without_their_attempts_raise_an_error_instead_of_starting_again(
    store: Store, key: str, take: Take, save: Save
) -> None:
    trained(take(store.files, key), save, 1).release("saved")
    store.files.delete_folder("stats")
    with pytest.raises(StoreDamagedError, match="the records of its attempts are missing, though there are checkpoints"):
        store.run(key).latest()


def test_a_checkpoint_whose_events_are_lost_is_skipped(store: Store, key: str, take: Take, save: Save) -> None:
    trained(take(store.files, key), save, 1, 2)
    store.files.truncate(store.run(key).path(1, EVENTS), store.files.read(store.run(key).path(1, EVENTS)).index(b"\n") + 1)
    with pytest.warns(UserWarning, match=r"resumes from step 1(.|\n)*2 events were saved in it, and 1 can be read"):
        latest = store.run(key).latest()
    assert latest is not None
    assert latest.value == {"step": 1}


def test_a_missing_start_record_is_damage_and_does_not_select_an_older_history(store: Store, key: str, take: Take, save: Save) -> None:
    trained(take(store.files, key), save, 1)
    trained(take(store.files, key), save, 2)
    store.files.delete(store.run(key).path(2, RESUME))
    for read in (store.run(key).status, store.run(key).latest, store.run(key).events):
        with pytest.raises(StoreDamagedError, match=r"attempt-0002/resume\.json"):
            read()


def test_a_missing_parent_is_damage(store: Store, key: str, take: Take, save: Save) -> None:
    trained(take(store.files, key), save, 1)
    trained(take(store.files, key), save, 2)
    store.files.delete_folder(f"stats/{key[:2]}/{key}/attempt-0001")
    with pytest.raises(StoreDamagedError, match=r"attempt-0001"):
        store.run(key).events()


@pytest.mark.parametrize("parent", [0, 1, 2, -1])
def test_an_invalid_parent_is_damage(store: Store, key: str, claimed_by: Callable[..., str], parent: int) -> None:
    claimed_by(store, key)
    resume = {"key": key, "attempt": 1, "parent": parent, "checkpoint": "step-000001", "step": 1, "events": 0, "status": {}, "preview": {}}
    store.files.create(store.run(key).path(1, RESUME), record_bytes(resume))
    with pytest.raises(StoreDamagedError, match="is damaged") as caught:
        store.run(key).chain()
    assert caught.value.rows["why"] == "it names an impossible parent"


def test_a_claim_of_another_run_is_damage(store: Store, key: str, take: Take) -> None:
    take(store.files, key)
    other = store.configs.add({"lr": 0.2})
    store.files.create(store.run(other).path(1, ATTEMPT), store.files.read(store.run(key).path(1, ATTEMPT)))
    with pytest.raises(StoreDamagedError, match="is damaged") as caught:
        store.run(other).claim_of(1)
    assert caught.value.rows["why"] == "it belongs to another run or attempt"


# ---- reading while another process writes (L13)


@pytest.mark.parametrize(("method", "file"), [("read", MANIFEST), ("open", TREE)])
def test_if_a_checkpoint_is_deleted_while_it_is_read_its_successor_is_used(
    store: Store, key: str, take: Take, save: Save, before: Callable[..., Any], method: str, file: str
) -> None:
    attempt = trained(take(store.files, key), save, 1, keep=1)
    files = before(store.files, method, f"step-000001/{file}", lambda: trained(attempt, save, 2, keep=1))
    latest = Run(files, key).latest()
    assert latest is not None
    assert latest.value in ({"step": 1}, {"step": 2})


# ---- removal and import


def test_a_removed_run_has_nothing(store: Store, key: str, take: Take, save: Save) -> None:  # J21
    trained(take(store.files, key), save, 1).release("saved")
    removal = claim(store.run(key), "test", 60)
    removal.remove()
    assert (store.run(key).chain(), store.run(key).status(), store.run(key).latest(), store.run(key).events()) == ([], None, None, [])
    assert store.run(key).is_removed(2)
    removal.release("removed")


def test_a_removal_that_was_killed_before_its_record_changes_nothing(
    store: Store, key: str, take: Take, save: Save, crash: Callable[..., None]
) -> None:
    trained(take(store.files, key), save, 1).release("saved")
    crash(claim(store.run(key), "pop", 60))
    assert steps(store.run(key)) == [(1, 1)]
    assert rows(store.run(key)) == [(1, 1)]


@pytest.mark.parametrize("archive", ["ckpts", "previews", "stats"])
def test_a_removal_that_was_killed_halfway_is_completed_by_the_next_claim(
    store: Store, key: str, take: Take, save: Save, before: Callable[..., Any], archive: str, crash: Callable[..., None]
) -> None:
    trained(take(store.files, key), save, 1).release("saved")
    trained(take(store.files, key), save, 2).release("saved")

    def kill() -> None:
        raise KeyboardInterrupt

    folder = f"{archive}/{key[:2]}/{key}/attempt-0001"
    removal = claim(Run(before(store.files, "delete_folder", folder, kill), key), "pop", 60)
    with pytest.raises(KeyboardInterrupt):
        removal.remove()
    crash(removal)
    assert (store.run(key).status(), store.run(key).latest()) == (None, None)
    trained(take(store.files, key), save, 5)
    assert steps(store.run(key)) == [(4, 5)]
    assert store.run(key).attempts() == [4, 3]
    assert store.verify() == []


def test_after_a_removal_the_next_attempt_has_the_next_number(store: Store, key: str, take: Take, save: Save) -> None:
    trained(take(store.files, key), save, 1).release("saved")
    removal = claim(store.run(key), "test", 60)
    removal.remove()
    removal.release("removed")
    attempt = trained(take(store.files, key), save, 5)
    assert attempt.number == 3
    assert steps(store.run(key)) == [(3, 5)]


def test_an_import_that_was_killed_before_its_end_changes_nothing(store: Store, key: str, take: Take, save: Save) -> None:  # J22
    trained(take(store.files, key), save, 1).release("saved")
    half = claim(store.run(key), IMPORT, 60)
    half.log.append({"epoch": 9, "by": 9})
    half._publish(CheckpointName(2, 9, 1), {"epoch": 9}, {})
    half._heartbeat.stop()
    half.log.close()
    assert steps(store.run(key)) == [(1, 1)]
    assert rows(store.run(key)) == [(1, 1)]


def test_an_import_that_failed_at_its_end_changes_nothing(
    store: Store, key: str, take: Take, save: Save, before: Callable[..., Any]
) -> None:
    trained(take(store.files, key), save, 1).release("saved")

    def refuse() -> None:
        raise StoreAccessError("the disk is full")

    failing = before(store.files, "create", f"attempt-0002/{RESUME}", refuse)
    source = Store(None)
    source_key = source.configs.add({"lr": 0.1})
    trained(take(source.files, source_key), save, 5).release("saved")
    target = Store(None)
    target.files = failing
    target.configs = ConfigArchive(failing, pytest.fail)
    with pytest.raises(StoreAccessError):
        source.migrate(target)
    assert steps(store.run(key)) == [(1, 1)]
    assert store.run(key).outcome_of(2) is not None
    assert store.verify() == []


def test_the_outcome_of_an_attempt_is_none_until_it_ends(store: Store, key: str, take: Take) -> None:
    attempt = take(store.files, key)
    assert store.run(key).outcome_of(1) is None
    attempt.release("finished")
    found = store.run(key).outcome_of(1)
    assert found is not None
    assert found["outcome"] == "finished"
    assert store.files.has(store.run(key).path(1, OUTCOME))
