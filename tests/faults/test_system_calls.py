"""A program is killed or gets an error at every system call that changes its store, and the next start recovers.

By default, a sample of the calls is tested; with `TRAINMASTER_FAULTS=full`, every call. `TRAINMASTER_FAULTS_SEED`
repeats a sample.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import store_driver as driver
import strace
from campaign import IS_FULL, REPEAT, SEED

PYTHON = os.path.realpath(sys.executable) if sys.prefix == sys.base_prefix else sys.executable
COMMAND = [PYTHON, "-W", "error", "-W", "default:an old checkpoint of run", driver.__file__]
SAME_EACH_TIME = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
REASONS = {"EIO": "Input/output error", "ENOSPC": "No space left on device"}
NEXT_STEPS = {"EIO": "the disk or network reports an error", "ENOSPC": "the disk is full: free some space and start again"}
TEMPORARY = re.compile(r"/\.\w{8,16}\.tmp(?=/|$)")
UNPACKED = re.compile(r"/imported/\.\w{8}\.tmp")  # the temporary store that an archive is unpacked to, with its own index
TOLD = re.compile(r"UserWarning: an old checkpoint of run \w+ could not be deleted; the next save tries again: ")
FAULTS = ("KILL", "EIO", "ENOSPC")

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600 if IS_FULL else 900)]


@pytest.fixture(scope="module", autouse=True)
def _needs_strace():
    why = strace.missing()
    if why is not None and os.environ.get("CI"):
        pytest.fail(f"these tests need strace, and {why}")
    if why is not None:
        pytest.skip(why)


@contextlib.contextmanager
def new_folder():
    """Create a folder in memory if possible: nothing here depends on the disk, and thousands of syncs take time."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as made:
        yield Path(made).resolve()


@pytest.fixture
def folder():
    with new_folder() as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(_needs_strace):
    """Return the system calls of an undisturbed program, with paths relative to its folder."""
    with new_folder() as home:
        ran = run_traced(home)
        assert (ran.returncode, ran.err) == (0, "")
        driver.assert_ended_right(home)
        return [_moved(each, home) for each in ran.calls]


def _moved(call, home):
    return call if isinstance(call, str) else call._replace(paths=tuple(path.removeprefix(str(home)) or "/" for path in call.paths))


def run_traced(folder, *inject):
    return strace.trace([*COMMAND, str(folder)], folder, folder.with_name(f"{folder.name}-logs"), *inject, environment=SAME_EACH_TIME)


def run_plain(folder):
    environment = {**os.environ, **SAME_EACH_TIME}
    return subprocess.run([*COMMAND, str(folder)], capture_output=True, text=True, check=False, env=environment)


def restart(folder):
    """Run the same program again, and check that it succeeds."""
    ran = run_plain(folder)
    assert ran.returncode == 0, f"the restart ended with {ran.returncode}: {ran.stderr}"
    assert ran.stderr == "", f"the restart complained: {ran.stderr}"
    driver.assert_ended_right(folder)


def shape(paths):
    return [TEMPORARY.sub("/*.tmp", path) for path in paths]


def temporary_files(folder):
    """Return the files and folders with temporary names."""
    found = [path for path in folder.rglob(".*.tmp") if TEMPORARY.search(str(path))]
    return [path for path in found if not TEMPORARY.search(str(path.parent))]


# ---- one fault


def try_fault(folder, call, fault):
    """Check that a fault at `call` is reported, loses no committed data, and is repaired by the next start."""
    how = "signal=KILL" if fault == "KILL" else f"error={fault}"
    ran = run_traced(folder, f"{call.name}:{how}:when={call.nth}")
    hit = [shape(_moved(each, folder).paths) for each in ran.tampered]
    assert hit == [shape(call.paths)], f"the program is not the same each time: {hit} was hit"
    if fault == "KILL":
        assert ran.returncode == -signal.SIGKILL
        assert len(temporary_files(folder)) <= len(driver.OTHERS)
    elif ran.returncode == 0:
        is_old = is_of_old_checkpoint(call, ran)
        assert is_old or may_be_ignored(call, fault), "the error was ignored"
        assert ran.err == "" or (is_old and TOLD.search(ran.err) and REASONS[fault] in ran.err), ran.err
        assert ran.err or not is_old, "the error was not reported"
        driver.assert_ended_right(folder)
    else:
        assert_refused(ran, call, fault)
        assert is_removal(call) or temporary_files(folder) == []
    driver.assert_kept(folder, ran.out.splitlines())
    restart(folder)


def may_be_ignored(call, fault):
    """Return whether a fault may go unreported.

    File modes and temporary files do not affect the content of the store, the index is a cache, and the next heartbeat
    repeats a failed renewal of the lease.
    """
    path = call.paths[-1]
    is_clean_up = is_removal(call) and TEMPORARY.search(path) is not None
    is_index = call.act == "index" or "/index" in path or (call.name == "fsync" and UNPACKED.fullmatch(path) is not None)
    is_beat = path.endswith("/lease")
    return call.name == "fchmod" or is_clean_up or is_index or is_beat


def is_of_old_checkpoint(call, ran):
    """Return whether the call removes an old checkpoint after a save, or syncs its removal.

    If such a call fails, there is a warning, the removal is retried later, and training continues.
    """
    hit = ran.tampered[0]
    before = [each for each in ran.calls[: ran.calls.index(hit)] if not isinstance(each, str)]
    is_removing = is_removal(call) or (call.name == "fsync" and is_removal(before[-1]) and not TEMPORARY.search(before[-1].paths[-1]))
    return call.act == "save" and "/ckpts/" in call.paths[-1] and is_removing and TEMPORARY.search(call.paths[-1]) is None


def assert_refused(ran, call, fault):
    assert ran.returncode == driver.ACCESS, ran.err
    assert ran.err.startswith("StoreAccessError: "), ran.err
    assert REASONS[fault] in ran.err
    assert f"\n  try     {NEXT_STEPS[fault]}" in ran.err, ran.err
    assert "Traceback" not in ran.err
    # A file that could not be synced is not trusted later: it never gets its final name.
    after = ran.calls[ran.calls.index(ran.tampered[0]) + 1 :]
    believed = [each.line for each in after if not isinstance(each, str) and is_naming(each) and each.paths[0] in ran.tampered[0].paths]
    assert not believed or call.name not in ("fsync", "write", "syncfs"), believed


def is_naming(call):
    return call.name.startswith(("link", "rename"))


def is_removal(call):
    return call.name.startswith(("unlink", "rmdir"))


def problems_of(faults, folder):
    """Try all faults, and return a line for each one that caused a problem."""
    found = []
    for number, (call, fault) in enumerate(faults):
        here = folder / str(number)
        here.mkdir()
        try:
            try_fault(here, call, fault)
        except Exception as error:  # collect all problems, not only the first
            found.append(f"{fault} at {call.act}, {call.name} {call.nth} {' '.join(shape(call.paths))}: {type(error).__name__}: {error}")
        shutil.rmtree(here)
    return found


@pytest.mark.parametrize("fault", FAULTS if IS_FULL else ["any of them"])
@pytest.mark.parametrize("act", driver.ACTS)
def test_a_fault_at_any_system_call_is_reported_and_the_next_start_recovers(act, fault, undisturbed, folder):
    calls = [call for call in undisturbed if not isinstance(call, str) and call.act == act]
    chance = random.Random(f"{SEED} {act}")
    tried = [(call, fault) for call in calls]
    if not IS_FULL:
        tried = [(call, chance.choice(FAULTS)) for call in chance.sample(calls, 1 + len(calls) // 80)]
    found = problems_of(tried, folder)
    assert not found, "\n".join([f"{len(found)} of {len(tried)} went wrong; {REPEAT}", *found])


def test_kills_during_the_recovery_from_a_kill_are_survived(undisturbed, folder):
    chosen = random.Random(SEED)
    calls = [call for call in undisturbed if not isinstance(call, str)]
    for number in range(60 if IS_FULL else 1):
        here = folder / str(number)
        here.mkdir()
        kills = chosen.sample(calls, 3)
        for call in kills:
            ran = run_traced(here, f"{call.name}:signal=KILL:when={call.nth}")
            assert ran.returncode in (-signal.SIGKILL, 0), f"{ran.err}\n{kills}\n{REPEAT}"  # less work is left each time, so it may finish
            driver.assert_kept(here, ran.out.splitlines())
        restart(here)


def test_system_calls_that_a_signal_interrupts_are_repeated(folder):
    ran = run_traced(folder, "write:error=EINTR:when=3+2", "fsync:error=EINTR:when=1+2")
    assert len(ran.tampered) > 100  # every second call
    assert (ran.returncode, ran.err) == (0, "")
    driver.assert_ended_right(folder)


# ---- loss of power


@pytest.mark.smoke
def test_files_are_synced_before_they_get_their_final_name(undisturbed):
    """A manifest guarantees that the files next to it and the events are complete, so these are synced first."""
    dirty, unsynced = set(), []
    for call in undisturbed:
        if isinstance(call, str):
            continue
        if call.name == "write" or call.name.startswith("open"):
            dirty.add(call.paths[0])
        elif call.name == "fsync":
            dirty.discard(call.paths[0])
        elif call.name == "syncfs":
            dirty.clear()
        elif is_naming(call):
            source, target = call.paths
            is_manifest = target.endswith("/manifest.json")
            beside = [path for path in dirty if path.startswith(f"{os.path.dirname(target)}/") or path.endswith("/events.jsonl")]
            unsynced += [f"{path} before {target}" for path in ({source} & dirty) | set(beside if is_manifest else [])]
    assert not unsynced


@pytest.mark.smoke
def test_folders_are_synced_before_a_save_returns(undisturbed):
    """After a file is renamed, created or removed, its folder is synced before the program reports success."""
    waiting, late = set(), []
    for call in undisturbed:
        if isinstance(call, str):
            late += [f"{path} before {call!r}" for path in sorted(waiting)] if not call.startswith("@") else []
            continue
        path = call.paths[-1]
        if call.name == "fsync":
            waiting = {each for each in waiting if os.path.dirname(each) != path}
        elif TEMPORARY.search(path):  # there are no guarantees for temporary files
            continue
        elif is_naming(call) or call.name.startswith("mkdir"):
            waiting.add(path)
        elif is_removal(call):
            waiting = {each for each in waiting if os.path.dirname(each) != path} | {path}
    assert not late


@pytest.mark.smoke
def test_the_program_performs_every_operation_of_a_store(undisturbed):
    assert {call.act for call in undisturbed if not isinstance(call, str)} == set(driver.ACTS)
