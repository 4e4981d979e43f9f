"""Damage to any file in a store is detected before training. A run never restarts silently or loads wrong values."""

import hashlib
import json
import os
import random
import re
import shutil
import warnings

import pytest
import sample_store
from campaign import IS_FULL, SEED
from sample_store import CONFIG, LAST, OTHER

from trainmaster.config import Config
from trainmaster.errors import StoreDamagedError, StoreError, StoreFormatError, TrainmasterError
from trainmaster.store import Store
from trainmaster.store.checksummed_json import parse_record, record_bytes
from trainmaster.store.events import EventLog, read_events
from trainmaster.store.files import LocalFiles


@pytest.fixture(scope="module", autouse=True)
def _no_syncs():
    """Skip syncs, which would take longer than everything else and only matter after a power failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture(scope="module")
def folder():
    with sample_store.fast_folder() as place:
        yield place


@pytest.fixture(scope="module")
def sample(folder):
    return sample_store.build(folder / "sample")


@pytest.fixture
def root(sample, folder):
    """Return a fresh copy of the store."""
    place = folder / "store"
    shutil.rmtree(place, ignore_errors=True)
    return sample.write(place)


@pytest.fixture(scope="module")
def _standing(sample, folder):
    return sample.write(folder / "standing")


@pytest.fixture
def standing(sample, _standing):
    """Return a shared copy of the store for tests that only damage its files, which are restored afterwards."""
    yield _standing
    for path in list(_standing.rglob("*")):  # folders come before their content
        relative = str(path.relative_to(_standing))
        if not os.path.lexists(path) or (path.is_dir() and not path.is_symlink() and relative not in sample.files):
            continue
        if relative not in sample.files or path.is_symlink() or not path.is_file():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for relative, data in sample.files.items():
        path = _standing / relative
        if not path.exists() or path.read_bytes() != data:
            path.write_bytes(data)


# ---- files of a store

RECORDS = ("attempt.json", "lease", "resume.json", "status.json", "outcome.json", "events.jsonl", "preview.json")
CHECKPOINT = ("manifest.json", "tree.json", "tensors.safetensors")
ROLES = (
    "store.json",
    "config",
    "index",
    *(f"{name} of attempt 1" for name in (RECORDS if IS_FULL else ("attempt.json", "resume.json", "events.jsonl"))),
    *(f"{name} of attempt 2" for name in RECORDS),
    *(f"{name} of step {step}" for step in (2, 4) for name in CHECKPOINT),
)
"""Every kind of file, from the newest attempt and checkpoint and from older ones."""
SPARE = re.compile(r"lease|index|outcome\.json|attempt\.json|preview\.json|status\.json|of step 2$")
"""Replaceable files. If a run starts despite damage to one, it resumes from its newest checkpoint with all events."""
NEVER_STOPS = re.compile(r"lease|index|outcome\.json|attempt\.json|preview\.json|of step 2$")
"""Files whose damage never prevents a run from starting."""


def path_of(sample, role, key=None):
    if role in ("store.json", "index", "config"):
        return {"store.json": "store.json", "index": "index/runs.jsonl", "config": sample.config(key)}[role]
    name, _, kind, number = role.split()
    return sample.stats(name, int(number), key) if kind == "attempt" else sample.ckpt(name, int(number), key)


# ---- kinds of damage


def delete(path, sample, role):
    path.unlink()


def empty(path, sample, role):
    path.write_bytes(b"")


def halve(path, sample, role):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def append_bytes(path, sample, role):
    path.write_bytes(path.read_bytes() + b"\n{}")


def fill_with_garbage(path, sample, role):
    path.write_bytes(bytes(range(256)) * 4)


def fill_with_zeros(path, sample, role):
    path.write_bytes(bytes(len(path.read_bytes())))


def nest_deep(path, sample, role):
    path.write_bytes(b'{"format":' * 100_000)


def put_a_folder(path, sample, role):
    path.unlink()
    path.mkdir()
    (path / "file").write_bytes(b"")


def put_a_pipe(path, sample, role):
    path.unlink()
    os.mkfifo(path)


def link_to_a_copy(path, sample, role):
    outside = path.parents[len(path_of(sample, role).split("/"))] / "outside"
    outside.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(outside)


def link_to_nothing(path, sample, role):
    path.unlink()
    path.symlink_to("nothing")


def take_another_runs(path, sample, role):
    path.write_bytes(sample.files[path_of(sample, role, sample.other)])


def take_another_attempts(path, sample, role):
    """Replace a file with the one from another attempt or from the previous step."""
    name, _, kind, number = role.split()
    other = f"{name} of attempt {3 - int(number)}" if kind == "attempt" else f"{name} of step {3 if number == '4' else 4}"
    path.write_bytes(sample.files[path_of(sample, other)])


def take_an_older_one(path, sample, role):
    path.write_bytes(sample.older[path_of(sample, role)])


def write_an_empty_record(path, sample, role):
    path.write_bytes(record_bytes({"nothing": None}))


CLASSES = (
    delete,
    empty,
    halve,
    append_bytes,
    fill_with_garbage,
    fill_with_zeros,
    nest_deep,
    put_a_folder,
    put_a_pipe,
    link_to_a_copy,
    link_to_nothing,
    take_another_runs,
    take_another_attempts,
    take_an_older_one,
    write_an_empty_record,
)
WRITTEN_AGAIN = re.compile(r"index|status\.json|events\.jsonl|preview\.json|lease")
"""Files that are written more than once, so that they have older versions."""
HAS_PEERS = re.compile("attempt|step")
SELDOM = () if IS_FULL else (halve, fill_with_zeros, link_to_nothing)
"""Kinds of damage that only the full campaign tests, because they are similar to others."""
CASES = [
    (role, damage)
    for role in ROLES
    for damage in CLASSES
    if (damage is not take_an_older_one or WRITTEN_AGAIN.match(role))
    and damage not in SELDOM
    and (damage is not take_another_attempts or HAS_PEERS.search(role))
    and (damage is not take_another_runs or role not in ("store.json", "index"))
]
EACH = pytest.mark.parametrize(("role", "damage"), CASES, ids=[f"{damage.__name__}-{role}" for role, damage in CASES])


def is_harmless(role, path, original):
    """Return whether the changed file has the same meaning as before."""
    if role == "store.json":
        if not path.is_file() or path.is_symlink():
            return False
        try:
            return json.loads(path.read_bytes())["format"] == json.loads(original)["format"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return False
    if role.startswith("events"):  # a kill can also leave this after the last line
        return not path.is_symlink() and path.is_file() and path.read_bytes().startswith(original)
    return role == "config" and not os.path.lexists(path)  # starting the run stores the config again


def names_it(text, relative):
    """Return whether a text mentions the file or, for a manifest, its checkpoint."""
    if relative.endswith("manifest.json") and re.search(r"missing|no checkpoint", text):
        return "/".join(relative.split("/")[:3]) in text
    return relative in text


def check_start(found, sample, role, is_same):
    """Check that a damaged run is either refused or resumes correctly."""
    relative = path_of(sample, role)
    if found.error is not None:
        assert isinstance(found.error, StoreDamagedError | StoreFormatError), f"{type(found.error).__name__}: {found.error}"
        assert names_it(str(found.error), relative), found.error
        assert not NEVER_STOPS.search(role), f"the start was refused: {found.error}"
        return
    assert found.step is not None, "a silent restart from zero"
    assert sample_store.is_value(found.value, CONFIG, found.step), "wrong values"
    if found.events is not None:
        assert found.events == sample_store.events_at(CONFIG, found.step), "events are lost, or belong to another run"
    if found.status is not None and not (role.startswith("status") and found.step == LAST):
        assert found.status == sample_store.status_at(found.step), "the status belongs to another step or run"
    if found.step < LAST:
        assert names_it(found.warned, relative), f"resumed from step {found.step}, and no warning names the file: {found.warned!r}"
    else:
        assert SPARE.search(role) or is_same, "resumed without noticing the damage"


def is_silent(role, damage):
    """Return whether a kill could leave the same files, in which case the damage cannot be detected."""
    return (
        role in ("lease", "index", "store.json")
        or role.startswith("lease")
        or (damage is delete and re.match(r"outcome|status|manifest.json of step 2", role) is not None)
        or (damage is take_an_older_one and re.match(r"status|preview", role) is not None)
        or (damage is append_bytes and role.startswith("events"))
    )


def started_text(role, damage, found):
    shown = f"{type(found.error).__name__}: {found.error}" if found.error else f"step {found.step}, warned: {found.warned!r}"
    return f"{damage} of {role} (seed {SEED}): {shown}"


# ---- one damaged file, one attempt to start


@EACH
@pytest.mark.integration
def test_a_start_after_damage_is_refused_or_resumes_from_a_valid_checkpoint(sample, root, role, damage):
    path = root / path_of(sample, role)
    damage(path, sample, role)
    is_same = is_harmless(role, path, sample.files[path_of(sample, role)])
    found = sample_store.start(root, CONFIG)
    check_start(found, sample, role, is_same)
    if found.error is None and (
        IS_FULL or damage in (delete, empty, take_another_runs)
    ):  # the next start resumes from the checkpoint that this start saved
        again = sample_store.start(root, CONFIG)
        assert (again.error, again.step) == (None, found.step + 1)
        assert again.events == sample_store.events_at(CONFIG, found.step)


@EACH
@pytest.mark.integration
def test_verify_lists_the_damaged_file_and_no_valid_run(sample, standing, role, damage):
    path = standing / path_of(sample, role)
    damage(path, sample, role)
    try:
        store = Store(standing)
    except (StoreDamagedError, StoreFormatError):
        assert role == "store.json"
        return
    found = store.verify()
    assert all(sample.other not in each.path for each in found), found
    if not is_silent(role, damage):
        assert any(names_it(str(each), path_of(sample, role)) for each in found), found


def test_verify_finds_no_damage_in_a_valid_store(standing):
    assert Store(standing).verify() == []


@pytest.mark.parametrize("role", [role for role in ROLES if role != "store.json"])
@pytest.mark.parametrize("damage", [empty, delete, put_a_folder, take_another_runs, write_an_empty_record], ids=lambda each: each.__name__)
def test_damage_to_one_run_does_not_affect_the_others(sample, standing, role, damage):
    if role == "index" and damage is take_another_runs:
        damage = fill_with_garbage
    damage(standing / path_of(sample, role), sample, role)
    store = Store(standing)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.configs[sample.other] == Config(OTHER)
        assert store.stats[sample.other] == sample_store.status_at(LAST)
        assert store.previews[sample.other] == sample_store.preview_at(OTHER, LAST)
        assert sample_store.is_value(store.ckpts[sample.other], OTHER, LAST)
        assert store.run(sample.other).events() == sample_store.events_at(OTHER, LAST)


@pytest.mark.parametrize("damage", [empty, halve, fill_with_garbage, put_a_folder, put_a_pipe, link_to_a_copy, take_another_runs])
def test_the_index_leaves_out_a_damaged_config_with_a_warning(sample, standing, damage):
    (standing / path_of(sample, "index")).unlink()
    damage(standing / path_of(sample, "config"), sample, "config")
    with pytest.warns(UserWarning, match=rf"run {sample.key} is skipped") as caught:
        assert dict(Store(standing).index) == {sample.other: OTHER}
    assert path_of(sample, "config") in str(caught[0].message)


@pytest.mark.parametrize("damage", [each for each in CLASSES if each not in (take_another_runs, take_another_attempts)])
def test_a_damaged_index_is_rebuilt_from_the_configs(sample, root, damage):
    damage(root / path_of(sample, "index"), sample, "index")
    assert dict(Store(root).index) == {sample.key: CONFIG, sample.other: OTHER}
    assert dict(Store(root).index) == {sample.key: CONFIG, sample.other: OTHER}


@pytest.mark.parametrize(
    ("archive", "role", "wanted"),
    [
        ("configs", "config", Config(CONFIG)),
        ("stats", "status.json of attempt 2", sample_store.status_at(LAST)),
        ("stats", "resume.json of attempt 2", sample_store.status_at(LAST)),
        ("previews", "preview.json of attempt 2", sample_store.preview_at(CONFIG, LAST)),
    ],
)
@pytest.mark.parametrize("damage", [empty, fill_with_garbage, put_a_pipe, link_to_a_copy, write_an_empty_record])
def test_iterating_over_an_archive_gives_correct_values_or_reports_the_damage(sample, standing, archive, role, wanted, damage):
    damage(standing / path_of(sample, role), sample, role)
    found, told = {}, ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = dict(getattr(Store(standing), archive).items())
        except StoreError as error:
            told = str(error)
    told += "".join(str(each.message) for each in caught)
    assert found.get(sample.key) == wanted or path_of(sample, role) in told, told


def test_the_removal_record_of_another_run_does_not_restart_this_one(sample, root):
    store = Store(root)
    store.pop(sample.other)
    removal = sorted(root.glob(f"stats/{sample.other[:2]}/{sample.other}/attempt-*/resume.json"))[-1]
    shutil.copyfile(removal, root / sample.stats("resume.json", 2))
    found = sample_store.start(root, CONFIG)
    assert isinstance(found.error, StoreDamagedError), found
    assert sample.stats("resume.json", 2) in str(found.error)


def test_verify_reports_a_missing_config_and_the_next_start_stores_it_again(sample, root):
    (root / path_of(sample, "config")).unlink()
    assert [(each.path, each.why) for each in Store(root).verify()] == [
        (path_of(sample, "config"), "it is missing, though the run has records")
    ]
    assert sample_store.start(root, CONFIG).step == LAST
    assert Store(root).verify() == []


@pytest.mark.parametrize("archive", ["stats", "ckpts"])
def test_a_run_whose_folder_was_removed_from_an_archive_does_not_start_over(sample, root, archive):
    shutil.rmtree(root / archive / sample.key[:2] / sample.key)
    found = sample_store.start(root, CONFIG)
    assert isinstance(found.error, StoreDamagedError), found
    assert f"{archive}/{sample.key[:2]}/{sample.key}" in str(found.error)


@pytest.mark.parametrize("archive", ["stats", "ckpts"])
def test_a_removed_folder_of_an_attempt_is_reported(sample, root, archive):
    shutil.rmtree(root / archive / sample.key[:2] / sample.key / "attempt-0002")
    found = sample_store.start(root, CONFIG)
    told = str(found.error) if found.error is not None else found.warned
    assert found.error is None or isinstance(found.error, StoreDamagedError)
    assert f"{archive}/{sample.key[:2]}/{sample.key}" in told or "attempt-0002" in told, found
    assert found.error is not None or found.step == 2


def test_a_start_is_refused_if_every_checkpoint_is_damaged_and_all_are_listed(sample, root):
    for step in range(1, LAST + 1):
        halve(root / sample.ckpt("tensors.safetensors", step), sample, "")
    found = sample_store.start(root, CONFIG)
    assert isinstance(found.error, StoreDamagedError)
    assert found.error.fact == f"run {sample.key} has no good checkpoint left"
    assert all(sample.ckpt("tensors.safetensors", step) in str(found.error) for step in range(1, LAST + 1))
    assert "resume=False" in str(found.error)


def test_a_start_is_refused_if_every_manifest_is_missing(sample, root):
    for step in range(1, LAST + 1):
        (root / sample.ckpt("manifest.json", step)).unlink()
    found = sample_store.start(root, CONFIG)
    assert isinstance(found.error, StoreDamagedError)
    assert f"step {LAST} was saved, and its checkpoint is missing or damaged" in str(found.error)


def test_a_damaged_run_resumes_from_the_next_older_checkpoint(sample, root):
    for step in (4, 3, 2):
        fill_with_garbage(root / sample.ckpt("tree.json", step), sample, "")
        found = sample_store.start(root, CONFIG, is_going_on=False)
        assert (found.step, found.error) == (step - 1, None)
        assert sample.ckpt("tree.json", step) in found.warned
        assert f"run {sample.key} resumes from step {step - 1}" in found.warned


def test_a_missing_manifest_of_the_newer_of_two_checkpoints_of_one_step_is_reported(root, sample):
    store = Store(root)
    store.ckpts[sample.key] = {"second": 2}
    store.ckpts[sample.key] = {"third": 3}
    newest = sorted(root.glob("ckpts/*/*/attempt-*/*/manifest.json"), key=lambda path: path.stat().st_mtime_ns)[-1]
    assert store.ckpts[sample.key] == {"third": 3}
    newest.unlink()
    with pytest.warns(UserWarning, match=f"run {sample.key} resumes from step {LAST}"):
        assert store.ckpts[sample.key] == {"second": 2}


# ---- damage at every byte


def check_bytes(sample, root, role, changed, what):
    path = root / path_of(sample, role)
    original = sample.files[path_of(sample, role)]
    path.write_bytes(changed)
    is_same = is_harmless(role, path, original)
    found = sample_store.start(root, CONFIG, is_going_on=False)
    try:
        check_start(found, sample, role, is_same)
        if not is_same and not is_silent(role, None):
            damages = Store(root).verify()
            assert any(path_of(sample, role) in str(each) for each in damages), damages
    except AssertionError as error:
        raise AssertionError(f"{started_text(role, what, found)}\n{error}") from error
    path.write_bytes(original)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.integration
def test_a_file_that_is_truncated_at_any_byte_is_detected(sample, standing, role):
    size = len(sample.files[path_of(sample, role)])
    chosen = range(size) if IS_FULL else sorted({size - 1, *random.Random(f"{SEED}{role}").sample(range(size), min(size, 5))})
    for end in chosen:
        check_bytes(sample, standing, role, sample.files[path_of(sample, role)][:end], f"a cut at byte {end}")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.integration
def test_a_flipped_bit_in_any_byte_is_detected(sample, standing, role):
    original = sample.files[path_of(sample, role)]
    chance = random.Random(f"{SEED}{role}")
    for place in range(len(original)) if IS_FULL else sorted(chance.sample(range(len(original)), min(len(original), 8))):
        bit = chance.randrange(8)
        changed = bytearray(original)
        changed[place] ^= 1 << bit
        check_bytes(sample, standing, role, bytes(changed), f"bit {bit} of byte {place}")


# ---- wrong content with a correct checksum

WRONG = (
    None,
    True,
    -1,
    1.5,
    10**30,
    10**400,
    float("inf"),
    "text",
    "../../../etc/passwd",
    [],
    [[]],
    {},
    {".tensor": "a"},
    {"epoch": "x"},
    {"tree.json": 7},
)


def wrong_records(record):
    """Yield copies of the record, each with one member that is missing or has a wrong value."""
    for name in record:
        yield f"without `{name}`", {each: value for each, value in record.items() if each != name}
        for value in WRONG:
            if value != record[name] or type(value) is not type(record[name]):
                yield f"{name}={value!r:.40}", {**record, name: value}


def planted(members, deep=b""):
    """Return the bytes of a record that may contain values that are invalid in JSON or that Python cannot serialize."""
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in members.items())
    body = b"{\n" + lines.encode().replace(b'"DEEP"', deep)
    return b'%b,\n "checksum": "%b"\n}\n' % (body, hashlib.sha256(body).hexdigest().encode())


NO_RECORDS = ("store.json", "index", "lease", "events.jsonl", "tree.json", "tensors.safetensors")
MADE = [role for role in ROLES if role.split()[0] not in NO_RECORDS]


@pytest.mark.parametrize("role", MADE)
@pytest.mark.integration
def test_a_record_with_a_wrong_shape_and_a_correct_checksum_has_no_bad_effect(sample, standing, role):
    path = standing / path_of(sample, role)
    record = parse_record(path.read_bytes(), "")
    variants = list(wrong_records(record))
    if not IS_FULL:
        variants = random.Random(f"{SEED}{role}").sample(variants, min(len(variants), 7))
    for what, members in variants:
        path.write_bytes(planted(members))
        found = sample_store.start(standing, CONFIG, is_going_on=False)
        try:
            if found.error is None:
                assert found.step is not None, "a silent restart from zero"
                assert sample_store.is_value(found.value, CONFIG, found.step)
                assert found.events in (None, sample_store.events_at(CONFIG, LAST)), "events are lost"
                named = (path_of(sample, role), *([path_of(sample, "events.jsonl of attempt 2")] if "events" in what else []))
                assert found.step == LAST or any(names_it(found.warned, name) for name in named)
            else:
                assert isinstance(found.error, StoreDamagedError), type(found.error)
                assert names_it(str(found.error), path_of(sample, role))
            assert all(isinstance(str(each), str) for each in Store(standing).verify())
        except Exception as error:
            raise AssertionError(f"{started_text(role, what, found)}\n{type(error).__name__}: {error}") from error


@pytest.mark.parametrize("role", MADE)
@pytest.mark.parametrize("depth", [200, 900, 5000, 100_000] if IS_FULL else [900, 100_000])
@pytest.mark.integration
def test_a_deeply_nested_record_is_reported_as_damage_without_a_recursion_error(sample, root, role, depth):
    path = root / path_of(sample, role)
    record = parse_record(path.read_bytes(), "")
    member = next(name for name in ("config", "status", "preview", "owner", "outcome") if name in record)
    path.write_bytes(planted({**record, member: "DEEP"}, b'{"deep": %b}' % (b"[" * depth + b"]" * depth)))
    for is_going_on in (False, True):
        found = sample_store.start(root, CONFIG, is_going_on)
        assert found.error is None or isinstance(found.error, TrainmasterError), type(found.error)
        assert found.error is not None or sample_store.is_value(found.value, CONFIG, found.step)
    Store(root).verify()


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"null", b"1", b"\xff\xfe", b"{}", b"[" * 100_000),
        *(b'{"format": %b}' % value for value in (b'"1"', b"true", b"1.0", b"null", b"1" * 5000)),
    ],
    ids=lambda content: ascii(content[:20]),
)
def test_a_store_file_without_a_format_is_damaged(sample, standing, content):
    (standing / "store.json").write_bytes(content)
    before = sample_store.listing(standing)
    with pytest.raises(StoreDamagedError, match=r"`store.json` does not describe a store") as caught:
        Store(standing)
    assert f"where   {standing}/store.json" in str(caught.value)
    assert sample_store.listing(standing) == before


# ---- truncated logs


def test_a_log_that_is_torn_at_any_byte_can_be_read_and_continued(tmp_path):
    """If even a single byte of the last line is missing, it is dropped, and everything appended later can be read."""
    files = LocalFiles(str(tmp_path))
    text = 'a "quoted"\nline \u20ac \U0001f600'
    events = [{"epoch": 0, "loss": 0.5}, {"epoch": 1, "text": text}, {"epoch": 2, "values": [1, {"a": None}], "text": text}]
    log = EventLog(files, "events.jsonl")
    for event in events:
        log.append(event)
    log.close()
    whole = (tmp_path / "events.jsonl").read_bytes()
    start_of_last = whole.rindex(b"\n", 0, -1) + 1
    for end in range(start_of_last, len(whole)):
        (tmp_path / "events.jsonl").write_bytes(whole[:end])
        assert read_events(files, "events.jsonl") == events[:2], end
        log = EventLog(files, "events.jsonl")
        log.append({"epoch": "again"})
        log.append({"epoch": "more"})
        log.close()
        assert log.count == 4
        assert read_events(files, "events.jsonl") == [*events[:2], {"epoch": "again"}, {"epoch": "more"}], end
        assert (tmp_path / "events.jsonl").read_bytes().startswith(whole[:start_of_last])


def test_a_log_with_a_torn_end_keeps_its_last_complete_line(tmp_path):
    files = LocalFiles(str(tmp_path))
    log = EventLog(files, "events.jsonl")
    log.append({"epoch": 0})
    log.close()
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(b'{"n":1,"epoch":1,"crc":"0123')
    log = EventLog(files, "events.jsonl")
    log.append({"epoch": 1})
    log.close()
    assert read_events(files, "events.jsonl") == [{"epoch": 0}, {"epoch": 1}]


@pytest.mark.parametrize("tail", [b"\n", b"\0" * 4096, b"\xff" * 100, b'{"n":2,"epoch":2}\n', b"{}\n{}\n", b"[" * 100_000])
def test_the_next_writer_removes_garbage_after_the_last_line_of_a_log(tmp_path, tail):
    files = LocalFiles(str(tmp_path))
    log = EventLog(files, "events.jsonl")
    log.append({"epoch": 0})
    log.append({"epoch": 1})
    log.close()
    whole = (tmp_path / "events.jsonl").read_bytes()
    (tmp_path / "events.jsonl").write_bytes(whole + tail)
    assert read_events(files, "events.jsonl") == [{"epoch": 0}, {"epoch": 1}]
    log = EventLog(files, "events.jsonl")
    log.append({"epoch": 2})
    log.close()
    assert read_events(files, "events.jsonl") == [{"epoch": 0}, {"epoch": 1}, {"epoch": 2}]
    assert (tmp_path / "events.jsonl").read_bytes().startswith(whole)


def test_a_log_with_fewer_events_than_a_checkpoint_counts_is_reported(tmp_path):
    files = LocalFiles(str(tmp_path))
    log = EventLog(files, "events.jsonl")
    log.append({"epoch": 0})
    log.close()
    with pytest.raises(StoreDamagedError, match=r"`events.jsonl` is damaged") as caught:
        read_events(files, "events.jsonl", 2)
    assert "2 events were saved in it, and 1 can be read" in str(caught.value)


def test_events_after_the_last_checkpoint_are_dropped_when_the_run_resumes(sample, root):
    """Events that were logged after the last save are not part of the next attempt's history."""
    log = EventLog(LocalFiles(str(root)), sample.stats("events.jsonl", 2))
    log.append({"epoch": 5, "part": 0})
    log.close()
    for _ in range(2):
        assert sample_store.start(root, CONFIG, is_going_on=False).events == [
            *sample_store.events_at(CONFIG, LAST),
            {"epoch": 5, "part": 0},
        ]
    found = sample_store.start(root, CONFIG)
    assert (found.step, found.error, found.events) == (LAST, None, sample_store.events_at(CONFIG, LAST))
