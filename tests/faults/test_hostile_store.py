"""A store that was tampered with cannot execute code or make readers follow links, and is reported as damaged."""

import hashlib
import io
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import pytest
import sample_store
import warm
from campaign import IS_FULL, SEED
from sample_store import CONFIG, LAST, OTHER, THIRD

from trainmaster.config import Config
from trainmaster.errors import KeyTextError, LeaseLostError, StoreDamagedError, StoreError, StoreFormatError, TrainmasterError
from trainmaster.store import Store
from trainmaster.store import configs as config_archive
from trainmaster.store.checksummed_json import parse_record, record_bytes

PROGRAM = Path(sample_store.__file__).with_name("hostile_tensors.py")


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


@pytest.fixture(scope="module")
def archive(sample, folder):
    """Return a valid archive with a third run."""
    store = Store(folder / "third")
    sample_store.train(store, THIRD, range(1, 3))
    store.export_tar(folder / "third.tar.gz")
    return folder / "third.tar.gz"


@pytest.fixture
def root(sample, folder):
    place = folder / "store"
    shutil.rmtree(place, ignore_errors=True)
    return sample.write(place)


@pytest.fixture
def outside(folder):
    """Return a folder outside the store."""
    place = folder / "outside"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "victim").write_bytes(b"precious\n" * 100)
    return place


READING = (
    "list configs",
    "list stats",
    "list previews",
    "list index",
    "read ckpt",
    "read events",
    "verify",
    "export",
    "add",
    "go on",
    "prune",
)
WRITING = ("add", "go on", "set ckpt", "set preview", "import", "prune", "verify again", "pop")


def everything(root, key, archive, beside, chosen=None):
    """Perform every operation on a store, and return the errors by operation name."""
    target = beside / "exported.tar.gz"

    def go_on(store):
        with store.attempt(key, "process") as attempt:
            attempt.start(store.run(key).latest())
            attempt.log.append({"epoch": 9})
            attempt.save(9, {"a": 1}, sample_store.status_at(9), {"loss": 1})
            attempt.publish_preview({"loss": 2})
            attempt._heartbeat.renew()

    def migrate(store):
        shutil.rmtree(beside / "copy", ignore_errors=True)
        store.migrate(Store(beside / "copy"))

    acts = {
        "list configs": lambda store: dict(store.configs.items()),
        "list stats": lambda store: dict(store.stats.items()),
        "list ckpts": lambda store: dict(store.ckpts.items()),
        "list previews": lambda store: dict(store.previews.items()),
        "list index": lambda store: dict(store.index),
        "read config": lambda store: store.configs[key],
        "read stats": lambda store: store.stats[key],
        "read ckpt": lambda store: store.ckpts[key],
        "read preview": lambda store: store.previews[key],
        "read events": lambda store: store.run(key).events(),
        "verify": lambda store: store.verify(),
        "export": lambda store: store.export_tar(target),
        "migrate": migrate,
        "add": lambda store: store.configs.add(CONFIG),
        "add many": lambda store: store.configs.add_many([CONFIG, OTHER, {"lr": 77}]),
        "go on": go_on,
        "set ckpt": lambda store: store.ckpts.__setitem__(key, {"b": 2}),
        "set preview": lambda store: store.previews.__setitem__(key, {"loss": 3}),
        "import": lambda store: store.load_tar(archive),
        "prune": lambda store: store.prune(1),
        "verify again": lambda store: store.verify(),
        "pop": lambda store: store.pop(key),
    }
    said = {}
    for name, act in acts.items() if chosen is None else ((name, acts[name]) for name in chosen):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)  # an earlier test may have caused it
            try:
                result = act(Store(root, lease_time=0.02))
                text = "\n".join(map(str, result)) if name.startswith("verify") else ""
            except TrainmasterError as error:
                text = f"{type(error).__name__}: {error}"
                assert not name.startswith("verify") or "format" in text or "store.json" in text, f"verify raised {text}"
        said[name] = text + "".join(str(each.message) for each in caught)
    return said


def test_every_operation_works_on_a_valid_store(sample, root, archive, folder):
    said = everything(root, sample.key, archive, folder)
    assert not any(said.values()), said


# ---- pickles


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return open, (self.canary, "w")


def torch_zip(canary):
    """Return a file like one written by `torch.save`, with a pickle that writes a file when it is loaded."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb(canary), 2))
        archive.writestr("archive/version", "3\n")
    return file.getvalue()


def numpy_file(canary):
    data = pickle.dumps(Bomb(canary))
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


PICKLES = {"pickle": lambda canary: pickle.dumps(Bomb(canary)), "torch": torch_zip, "numpy": numpy_file}


def test_the_planted_pickle_runs_code_when_it_is_unpickled(tmp_path):
    pickle.loads(PICKLES["pickle"](tmp_path / "canary")).close()
    assert (tmp_path / "canary").exists()


@pytest.mark.parametrize("kind", PICKLES)
def test_a_pickle_in_place_of_any_file_is_not_executed(sample, root, archive, folder, kind):
    canary = folder / f"canary-{kind}"
    names = {name.rpartition("/")[2]: name for name in sample.files if sample.other not in name}
    if not IS_FULL and kind != "pickle":
        names = {name: names[name] for name in ("tree.json", "tensors.safetensors", "status.json")}
    for relative in names.values():
        shutil.rmtree(root)
        sample.write(root)
        (root / relative).write_bytes(PICKLES[kind](canary))
        said = everything(root, sample.key, archive, folder, READING)
        assert not canary.exists(), relative
        assert any(relative in text for text in said.values()) or relative.endswith(("lease", "runs.jsonl")), (relative, said)


def test_a_pickle_with_correct_checksums_in_place_of_any_checkpoint_file_is_not_executed(sample, root, archive, folder):
    for kind, make in PICKLES.items():
        for file in ("tree.json", "tensors.safetensors"):
            canary = folder / f"canary-{kind}-{file}"
            shutil.rmtree(root)
            sample.write(root)
            put_in_checkpoint(root, sample, file, make(canary))
            with pytest.warns(UserWarning, match="resumes from step 3") as caught:
                assert sample_store.is_value(Store(root).ckpts[sample.key], CONFIG, 3)
            assert sample.ckpt(file, LAST) in str(caught[0].message)
            everything(root, sample.key, archive, folder, READING)
            assert not canary.exists()


def test_pickles_with_other_names_next_to_the_files_are_never_read(sample, root, archive, folder):
    canary = folder / "canary-beside"
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    for place in folders:
        for name, make in (("model.pt", torch_zip), ("value.pkl", PICKLES["pickle"]), ("data.npy", numpy_file), ("conftest.py", None)):
            (place / name).write_bytes(make(canary) if make else f"open({str(canary)!r}, 'w')".encode())
    said = everything(root, sample.key, archive, folder)
    assert not canary.exists()
    assert not said["read ckpt"]
    assert not said["go on"]
    assert f"configs/{sample.key[:2]}/model.pt: this is not a file of a store; trainmaster never reads it" in said["verify"]


def test_the_class_named_in_a_config_is_not_imported(sample, root, folder, monkeypatch):
    canary = folder / "canary-class"
    (folder / "hostile_module.py").write_text(f"open({str(canary)!r}, 'w')\nclass Hostile: ...\n")
    monkeypatch.syspath_prepend(str(folder))
    record = parse_record(sample.files[sample.config()], "")
    (root / sample.config()).write_bytes(record_bytes({**record, "class": "hostile_module.Hostile"}))
    store = Store(root)
    assert store.configs[sample.key] == Config(CONFIG)
    assert store.configs.add(CONFIG) == sample.key
    dict(store.index)
    assert not canary.exists()
    assert "hostile_module" not in sys.modules


# ---- links


def pytest_generate_tests(metafunc):
    """Create one test for each folder and file in the sample store, whose keys are the same in every process."""
    key = config_archive._identity(CONFIG)[1][:8]
    run = f"{key[:2]}/{key}"
    if "place" in metafunc.fixturenames:
        places = ["configs", f"configs/{key[:2]}", "index"]
        for archive in ("stats", "ckpts", "previews"):
            places += [
                archive,
                f"{archive}/{key[:2]}",
                f"{archive}/{run}",
                f"{archive}/{run}/attempt-0001",
                f"{archive}/{run}/attempt-0002",
            ]
        metafunc.parametrize("place", [*places, f"ckpts/{run}/attempt-0002/step-000004"], ids=lambda text: text.replace(key, "KEY"))
    if "file" in metafunc.fixturenames:
        stats = ("attempt.json", "lease", "resume.json", "status.json", "outcome.json", "events.jsonl")
        files = ["store.json", "index/runs.jsonl", f"configs/{key[:2]}/{key}.json"]
        files += [f"stats/{run}/attempt-000{number}/{name}" for number in ((1, 2) if IS_FULL else (2,)) for name in stats]
        files += [f"previews/{run}/attempt-0002/preview.json"]
        files += [f"ckpts/{run}/attempt-0002/step-000004/{name}" for name in ("manifest.json", "tree.json", "tensors.safetensors")]
        metafunc.parametrize("file", files, ids=lambda text: text.replace(key, "KEY"))


@pytest.mark.integration
def test_a_link_in_place_of_any_folder_is_not_followed_and_is_reported(sample, root, archive, outside, folder, place):
    """The link leads to a folder with the same content as the one it replaces."""
    shutil.move(root / place, outside / "moved")
    (root / place).symlink_to(outside / "moved")
    before = sample_store.listing(outside)
    said = everything(root, sample.key, archive, folder)
    assert sample_store.listing(outside) == before
    assert any(place in text for text in said.values()) or place == "index", said
    assert place in said["verify"] or place == "index", said["verify"]
    if place != "index":
        assert said["go on"] or place.startswith(("configs", "previews", f"ckpts/{sample.key[:2]}/{sample.key}/attempt-0001")), said


@pytest.mark.parametrize("kind", ["file", "pipe", "dangling link"] if IS_FULL else ["file"])
def test_any_other_file_type_in_place_of_a_folder_is_reported(sample, root, archive, folder, place, kind):
    shutil.rmtree(root / place)
    {"file": Path.touch, "pipe": os.mkfifo, "dangling link": lambda path: path.symlink_to("nowhere")}[kind](root / place)
    said = everything(root, sample.key, archive, folder, READING)
    assert any(place in text for text in said.values()) or place == "index", said
    if not place.startswith("index"):
        assert place in said["verify"], said["verify"]


@pytest.mark.integration
def test_a_link_in_place_of_any_file_is_not_followed(sample, root, archive, outside, folder, file):
    shutil.move(root / file, outside / "moved")
    (root / file).symlink_to(outside / "moved")
    before = sample_store.listing(outside)
    said = everything(root, sample.key, archive, folder)
    assert sample_store.listing(outside) == before
    if not file.endswith(("lease", "runs.jsonl")):
        assert any(file in text for text in said.values()), said
        assert "symbolic link" in "".join(said.values())


@pytest.mark.integration
def test_a_pipe_in_place_of_any_file_does_not_block(sample, root, archive, folder, file):
    (root / file).unlink()
    os.mkfifo(root / file)
    said = everything(root, sample.key, archive, folder, READING)
    assert any(file in text for text in said.values()) or file.endswith(("lease", "runs.jsonl")), said


@pytest.mark.skipif(not hasattr(os, "mknod") or os.geteuid() != 0, reason="only root can create devices")
@pytest.mark.parametrize("number", [3, 5, 7], ids=["null", "zero", "full"])
@pytest.mark.integration
def test_a_device_in_place_of_a_file_is_not_read(sample, root, archive, folder, number):
    for name in ("events.jsonl", "status.json", "resume.json", "lease") if IS_FULL else ("events.jsonl", "resume.json"):
        shutil.rmtree(root)
        sample.write(root)
        path = root / sample.stats(name, 2)
        path.unlink()
        try:
            os.mknod(path, 0o20666, os.makedev(1, number))
        except PermissionError:
            pytest.skip("devices cannot be created here")
        said = everything(root, sample.key, archive, folder)
        assert name == "lease" or any(sample.stats(name, 2) in text and "not a regular file" in text for text in said.values()), said


@pytest.mark.integration
def test_only_a_part_of_a_huge_sparse_file_is_read(sample, root, archive, folder, file):
    if file.endswith(("tensors.safetensors", "tree.json", "lease", "runs.jsonl")) or "attempt-0001" in file:
        pytest.skip("its size is checked against the manifest, or it is never read into memory")
    with open(root / file, "ab") as sparse:
        sparse.truncate(2**36)
    if file == "store.json":
        with pytest.raises(StoreDamagedError, match=r"`store.json` is too large"):
            Store(root)
        return
    found = sample_store.start(root, CONFIG, is_going_on=False)
    assert found.error is None or isinstance(found.error, StoreDamagedError)
    assert found.error is None or file in str(found.error)
    assert found.error is not None or found.step is not None


# ---- files planted in the folder of the next attempt

NEXT = ("attempt.json", "lease", "events.jsonl", "resume.json", "outcome.json", "status.json", "preview.json")


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder", "dangling link"] if IS_FULL else ["link", "hard link", "pipe"])
@pytest.mark.parametrize("name", NEXT)
@pytest.mark.integration
def test_files_planted_in_the_folder_of_the_next_attempt_cannot_reach_outside(sample, root, archive, outside, folder, name, kind):
    path = root / sample.stats(name, 3)
    path.parent.mkdir(parents=True)
    victim = outside / "victim"
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "hard link":
        path.hardlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(outside / "new")
    content, about = victim.read_bytes(), victim.stat()
    everything(root, sample.key, archive, folder, WRITING)
    assert victim.read_bytes() == content, "the victim was written to"
    assert victim.stat().st_mode == about.st_mode
    assert os.listdir(outside) == ["victim"]


@pytest.mark.parametrize("level", ["stats", "ckpts", "previews"])
def test_a_link_planted_as_the_folder_of_the_next_attempt_is_not_followed(sample, root, archive, outside, folder, level):
    run = root / level / sample.key[:2] / sample.key
    (run / "attempt-0003").symlink_to(outside)
    before = sample_store.listing(outside)
    said = everything(root, sample.key, archive, folder)
    assert sample_store.listing(outside) == before
    assert any("attempt-0003" in text for text in said.values()), said


TAKE = """
import sys
from trainmaster.errors import StoreError
from trainmaster.store import Store

store = Store(sys.argv[1], lease_time=0.1)
try:
    with store.attempt(sys.argv[2], "process") as attempt:
        attempt.start(store.run(sys.argv[2]).latest())
        print("took", attempt.number)
except StoreError as error:
    print("refused", error)
"""


def take(root, key):
    """Claim a run in another process, and return its output. If the process waits forever, the test fails."""
    try:
        result = warm.run([sys.executable, "-c", TAKE, root, key], capture_output=True, text=True, timeout=100, check=False)
    except subprocess.TimeoutExpired:
        pytest.fail("the process waits for the run forever")
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_planted_attempt_with_the_highest_number_is_reported_and_does_not_block_forever(sample, root):
    path = root / sample.stats("attempt.json", 999_999_999)
    path.parent.mkdir()
    path.write_bytes(record_bytes({"key": sample.key, "attempt": 999_999_999}))
    assert any("attempt-999999999/attempt.json" in str(each) for each in Store(root).verify())
    assert sample_store.is_value(Store(root).ckpts[sample.key], CONFIG, LAST)
    assert take(root, sample.key).startswith(("took", "refused"))


@pytest.mark.parametrize("heartbeat", [1e308, 10**400, math.nan], ids=["1e308", "10^400", "nan"])
@pytest.mark.integration
def test_an_absurd_heartbeat_in_a_claim_of_another_machine_does_not_hold_a_run_forever(sample, root, heartbeat):
    owner = {"host": "elsewhere", "boot": "another", "pid": 1, "start": "1"}
    members = {"key": sample.key, "attempt": 3, "by": "process", "token": "0" * 32, "owner": owner, "heartbeat": heartbeat}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in members.items())
    body = b"{\n" + lines.encode()
    path = root / sample.stats("attempt.json", 3)
    path.parent.mkdir()
    path.write_bytes(b'%b,\n "checksum": "%b"\n}\n' % (body, hashlib.sha256(body).hexdigest().encode()))
    assert take(root, sample.key).startswith(("took 4", "refused"))


# ---- keys

BAD_KEYS = {
    "dots": "../../x",
    "dots of eight": "../../..",
    "absolute": "/etc/passwd",
    "empty": "",
    "none": None,
    "bytes": b"12345678",
    "a float": 1234e567,
    "a small float": 1.5,
    "an int": 12345678,
    "true": True,
    "upper case": "ABCDEF12",
    "short": "abcdef1",
    "too long": "a" * 65,
    "a newline": "12345678\n",
    "a newline within": "1234\n5678",
    "nul": "1234567\0",
    "a slash": "12345678/",
    "no hex": "1234567g",
    "spaces": " 12345678 ",
    "other digits": "١٢٣٤٥٦٧٨",
    "full width": "".join(chr(0xFF10 + digit) for digit in range(1, 9)),
    "a list": ["12345678"],
    "a tuple": (),
    "a dict": {},
    "a surrogate": "1234567\udc80",
    "an ending": "12345678.json",
    "very long": "a" * 10_000_000,
}
ENTRANCES = {
    "configs[key]": lambda store, key: store.configs[key],
    "configs.pop(key)": lambda store, key: store.configs.pop(key),
    "configs[key] = config": lambda store, key: store.configs.__setitem__(key, CONFIG),
    "stats[key]": lambda store, key: store.stats[key],
    "stats.pop(key)": lambda store, key: store.stats.pop(key),
    "stats[key] = value": lambda store, key: store.stats.__setitem__(key, {"epoch": 1}),
    "ckpts[key]": lambda store, key: store.ckpts[key],
    "ckpts.pop(key)": lambda store, key: store.ckpts.pop(key),
    "ckpts[key] = value": lambda store, key: store.ckpts.__setitem__(key, {"a": 1}),
    "previews[key]": lambda store, key: store.previews[key],
    "previews.pop(key)": lambda store, key: store.previews.pop(key),
    "previews[key] = value": lambda store, key: store.previews.__setitem__(key, {"a": 1}),
    "run(key)": lambda store, key: store.run(key),
    "attempt(key)": lambda store, key: store.attempt(key, "process").__enter__(),
    "pop(key)": lambda store, key: store.pop(key),
    "export_tar(keys=[key])": lambda store, key: store.export_tar(os.path.join(store.root, "..", "keys.tar"), keys=[key]),
    "migrate(keys=[key])": lambda store, key: store.migrate(Store(None), keys=[key]),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_an_invalid_key_is_refused_everywhere_and_creates_nothing(sample, root, entrance):
    before, beside = sample_store.listing(root), os.listdir(root.parent)
    store = Store(root)
    for name, key in BAD_KEYS.items():
        with pytest.raises(KeyTextError, match=r"is not a key") as caught:
            ENTRANCES[entrance](store, key)
        assert len(str(caught.value)) < 400, name
    assert sample_store.listing(root) == before
    assert os.listdir(root.parent) == beside


@pytest.mark.parametrize("archive_name", ["configs", "stats", "ckpts", "previews"])
def test_an_invalid_key_is_in_no_archive(sample, root, archive_name):
    archive_of = getattr(Store(root), archive_name)
    for name, key in BAD_KEYS.items():
        assert (key in archive_of) is False, name
        assert archive_of.get(key, 5) == archive_of.pop(key, 5) == 5, name
    assert sample.key in archive_of


def test_a_number_that_looks_like_a_key_is_an_error_that_suggests_quotes(root):
    with pytest.raises(KeyTextError, match=r"12345678 is not a key") as caught:
        Store(root).run(12345678)
    assert "write it with quotes" in str(caught.value)
    with pytest.raises(KeyTextError, match=r"inf is not a key") as caught:
        Store(root).run(1234e567)
    assert "write it with quotes" in str(caught.value)


# ---- collisions and edited configs


@pytest.fixture
def colliding(monkeypatch):
    """Make all hashes start with the same 12 digits, so that keys of 8 digits collide and keys of 16 digits do not."""
    real = config_archive.hash_of
    monkeypatch.setattr(config_archive, "hash_of", lambda text: "0123456789ab" + real(text)[12:])


def test_two_configs_with_the_same_short_key_are_both_stored_and_found(colliding, tmp_path):
    store = Store(tmp_path)
    first, second = store.configs.add(CONFIG), store.configs.add(OTHER)
    assert (len(first), len(second), second[:8]) == (8, 16, first)
    for _ in range(2):
        assert (store.configs.add(CONFIG), store.configs.add(OTHER)) == (first, second)
        assert (store.configs[first], store.configs[second]) == (Config(CONFIG), Config(OTHER))
        assert sorted(store.configs) == [first, second]
        assert dict(store.index) == {first: CONFIG, second: OTHER}
        store = Store(tmp_path)


def test_the_second_of_two_colliding_configs_is_found_after_the_first_was_popped(colliding, tmp_path):
    store = Store(tmp_path)
    first, second = sample_store.train(store, CONFIG, range(1, 2)), sample_store.train(store, OTHER, range(1, 3))
    assert store.pop(first).config == Config(CONFIG)
    assert store.configs.add(OTHER) == second
    assert sample_store.is_value(store.ckpts[second], OTHER, 2)
    assert store.configs.get_key(CONFIG) is None
    assert first not in store.configs
    again = store.configs.add(CONFIG)
    assert store.configs[again] == Config(CONFIG)
    assert again not in store.ckpts
    assert store.configs[second] == Config(OTHER)


def test_many_configs_with_the_same_short_key_can_be_added_at_once(colliding, tmp_path):
    store = Store(tmp_path)
    first = store.configs.add(CONFIG)
    keys = store.configs.add_many([OTHER, CONFIG, THIRD, OTHER])
    assert keys[1] == first
    assert keys[0] == keys[3]
    assert [store.configs[key] for key in keys] == [Config(OTHER), Config(CONFIG), Config(THIRD), Config(OTHER)]
    assert keys == [store.configs.add(config) for config in (OTHER, CONFIG, THIRD, OTHER)]


def test_the_runs_of_colliding_configs_are_kept_apart(colliding, tmp_path):
    store = Store(tmp_path)
    first, second = sample_store.train(store, CONFIG, range(1, 3)), sample_store.train(store, OTHER, range(1, 4))
    assert (store.stats[first]["epoch"], store.stats[second]["epoch"]) == (2, 3)
    assert sample_store.is_value(store.ckpts[first], CONFIG, 2)
    assert sample_store.is_value(store.ckpts[second], OTHER, 3)
    assert store.verify() == []


def test_a_record_of_another_config_under_a_key_is_damage_and_is_not_changed(tmp_path):
    store = Store(tmp_path)
    full = config_archive._identity(CONFIG)[1]
    path = tmp_path / "configs" / full[:2] / f"{full[:8]}.json"
    path.parent.mkdir(parents=True)
    other = Store(None)
    planted = other.files.read(f"configs/{(key := other.configs.add(OTHER))[:2]}/{key}.json")
    path.write_bytes(planted)
    for act in (store.configs.add, store.configs.get_key, lambda config: store.configs.add_many([config])):
        with pytest.raises(StoreDamagedError, match=rf"`configs/{full[:2]}/{full[:8]}.json` is damaged") as caught:
            act(CONFIG)
        assert "one of them was edited" in str(caught.value)
    assert path.read_bytes() == planted
    assert [each.path for each in store.verify()] == [f"configs/{full[:2]}/{full[:8]}.json"]


EDITS = {
    "a value": lambda record: {**record, "config": {**record["config"], "lr": 0.2}},
    "a type": lambda record: {**record, "config": {**record["config"], "lr": "0.1"}},
    "a key more": lambda record: {**record, "config": {**record["config"], "momentum": 0.9}},
    "a key less": lambda record: {**record, "config": {"lr": 0.1}},
    "the hash": lambda record: {**record, "hash": "0" * 64},
    "the hash, in upper case": lambda record: {**record, "hash": record["hash"].upper()},
    "a value, with the hash": lambda record: {
        "hash": config_archive._identity({**record["config"], "lr": 0.2})[1],
        "config": {**record["config"], "lr": 0.2},
    },
    "a value, behind the old identity": lambda record: {
        **record,
        "config": {**record["config"], "lr": 0.2},
        "identity": record.get("identity", record["config"]),
    },
    "all, behind the old identity": lambda record: {**record, "config": {}, "identity": record.get("identity", record["config"])},
    "an identity of another kind": lambda record: {**record, "identity": [1, 2]},
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("config", [CONFIG, {**CONFIG, "num_epochs": 5}], ids=["plain", "with num_epochs"])
def test_an_edited_config_with_a_correct_checksum_is_reported(tmp_path, edit, config):
    store = Store(tmp_path)
    key = store.configs.add(config)
    path = tmp_path / "configs" / key[:2] / f"{key}.json"
    planted = record_bytes(EDITS[edit](parse_record(path.read_bytes(), "")))
    path.write_bytes(planted)
    for act in (lambda: store.configs[key], lambda: store.configs.add(config), lambda: store.configs.get_key(config)):
        with pytest.raises(StoreDamagedError, match=rf"`configs/{key[:2]}/{key}.json` is damaged"):
            act()
    assert [each.path for each in store.verify()] == [f"configs/{key[:2]}/{key}.json"]
    assert path.read_bytes() == planted


def test_a_forged_index_with_a_correct_checksum_does_not_crash(sample, root):
    lines = {
        "no JSON": b"{\n",
        "no pair": b"[1]\n",
        "three": b"[1, 2, 3]\n",
        "a list as a key": b"[[], {}]\n",
        "a number": b"7\n",
        "bytes": b"\xff\xfe\n",
        "deep": b"[" * 100_000 + b"\n",
        "no config": json.dumps([sample.key, 7]).encode() + b"\n",
    }
    failed = {}
    for name, line in lines.items():
        (root / "index/runs.jsonl").write_bytes(hashlib.sha256(line).hexdigest().encode() + b"\n" + line)
        try:
            if dict(Store(root).index) != {sample.key: CONFIG, sample.other: OTHER}:
                failed[name] = "wrong values"
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"[:100]
    assert not failed


def test_a_forged_index_with_a_correct_checksum_does_not_give_wrong_results(sample, root):
    line = json.dumps([sample.key, {"lr": 666}]).encode() + b"\n"
    (root / "index/runs.jsonl").write_bytes(hashlib.sha256(line).hexdigest().encode() + b"\n" + line)
    assert dict(Store(root).index) == {sample.key: CONFIG, sample.other: OTHER}


# ---- other folders, other formats


@pytest.mark.parametrize("form", [0, 2, 99, -1, 10**30])
def test_a_store_with_another_format_is_refused_and_not_changed(sample, root, form):
    about = json.loads((root / "store.json").read_bytes())
    (root / "store.json").write_text(json.dumps({**about, "format": form}))
    before = sample_store.listing(root)
    with pytest.raises(StoreFormatError, match=f"the store has format {form}; this version of trainmaster supports format 1") as caught:
        Store(root)
    hint = "use a newer version of trainmaster" if form > 1 else "use the version of trainmaster that wrote it"
    assert hint in str(caught.value)
    assert f"where   {root}/store.json" in str(caught.value)
    assert sample_store.listing(root) == before


@pytest.mark.parametrize("name", ["configs", "stats", "ckpts", "previews"])
def test_the_folder_of_another_tool_is_refused_and_not_changed(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "file.yaml").write_text("lr: 1")
    before = sample_store.listing(tmp_path)
    with pytest.raises(StoreFormatError, match=f"has files in `{name}`, but no `store.json`") as caught:
        Store(tmp_path)
    assert "choose another folder" in str(caught.value)
    assert sample_store.listing(tmp_path) == before


@pytest.mark.parametrize("kind", ["file", "pipe", "dangling link", "link to a file"])
def test_a_root_that_is_not_a_folder_is_an_error(tmp_path, kind):
    root = tmp_path / "root"
    (tmp_path / "file").write_text("text")
    {
        "file": lambda: root.write_text("text"),
        "pipe": lambda: os.mkfifo(root),
        "dangling link": lambda: root.symlink_to(tmp_path / "no" / "where"),
        "link to a file": lambda: root.symlink_to(tmp_path / "file"),
    }[kind]()
    before = sample_store.listing(tmp_path)
    with pytest.raises(StoreError) as caught:
        Store(root)
    assert str(root) in str(caught.value)
    assert sample_store.listing(tmp_path) == before


def test_a_copied_or_moved_store_is_the_same_store(sample, root, folder):
    """The store stays valid even if its file times are lost."""
    for place in (folder / "copied", folder / "moved"):
        shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(root, folder / "copied", copy_function=shutil.copyfile)
    shutil.move(root, folder / "moved")
    for place in (folder / "copied", folder / "moved"):
        assert Store(place).verify() == []
        assert sample_store.start(place, CONFIG).step == LAST


def test_a_run_that_was_copied_to_another_key_is_reported(sample, root):
    """The folder of one run replaces the folder of another run."""
    for archive_name in ("stats", "ckpts"):
        target = root / archive_name / sample.key[:2] / sample.key
        shutil.rmtree(target)
        shutil.copytree(root / archive_name / sample.other[:2] / sample.other, target)
    found = sample_store.start(root, CONFIG)
    assert isinstance(found.error, StoreDamagedError), found
    assert f"{sample.key[:2]}/{sample.key}" in str(found.error)
    assert any(sample.key in str(each) for each in Store(root).verify())


def test_a_root_that_is_removed_in_the_meantime_is_not_created_again(sample, root):
    store = Store(root)
    with store.attempt(sample.key, "process") as attempt:
        attempt.start(store.run(sample.key).latest())
        shutil.move(root, root.with_name("gone"))
        with pytest.raises((StoreError, LeaseLostError)):
            attempt.save(9, {"a": 1}, sample_store.status_at(9), {})
        assert not root.exists()
        shutil.rmtree(root, ignore_errors=True)
        shutil.move(root.with_name("gone"), root)


# ---- hostile checkpoints with a matching manifest


def put_in_checkpoint(root, sample, file, data, step=LAST):
    """Replace a file in a checkpoint, and correct the manifest."""
    path = root / sample.ckpt(file, step)
    path.write_bytes(data)
    manifest_path = root / sample.ckpt("manifest.json", step)
    manifest = parse_record(manifest_path.read_bytes(), "")
    manifest["files"][file] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest_path.write_bytes(record_bytes(manifest))


TREES = {
    "no object": b"7",
    "a list": b"[]",
    "a text": b'"value"',
    "null": b"null",
    "no value": b'{"context": null}',
    "no context": b'{"value": 1}',
    "a tensor that is not there": b'{"value": {".tensor": "zzz"}, "context": null}',
    "a tensor for all": b'{".tensor": "value.weights"}',
    "an array for all": b'{".array": "value.weights"}',
    "an array and a tensor": b'{"value": {".array": "value.weights"}, "context": {".tensor": "value.weights"}}',
    "an unknown tag": b'{"value": {".call": ["os.system", "true"]}, "context": null}',
    "a tag of another kind": b'{"value": {".tuple": 7}, "context": null}',
    "keys that cannot be": b'{"value": {".dict": [[[1], 2]]}, "context": null}',
    "keys twice": b'{"value": {".dict": [[1, 2], [1, 3]]}, "context": null}',
    "an object array": b'{"value": {".array": "value.weights", "dtype": "|O", "shape": [6]}, "context": null}',
    "a shape too large": b'{"value": {".array": "value.weights", "dtype": "<f8", "shape": [1000000000000]}, "context": null}',
    "a negative shape": b'{"value": {".array": "value.weights", "dtype": "<f8", "shape": [-6]}, "context": null}',
    "a text array of petabytes": b'{"value": {".array": "value.weights", "dtype": "<U999999999", "shape": [0]}, "context": null}',
    "nested deep": b'{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b', "context": null}',
    "nested 900 deep": b'{"value": ' + b"[" * 900 + b"]" * 900 + b', "context": null}',
    "a long number": b'{"value": ' + b"9" * 100_000 + b', "context": null}',
    "bytes that are none": b'{"value": {".bytes": "%%%"}, "context": null}',
    "no UTF-8": b'{"value": "\xff", "context": null}',
    "NaN": b'{"value": NaN, "context": null}',
}


@pytest.mark.parametrize("tree", TREES)
def test_a_forged_tree_is_damage_and_the_file_is_named(sample, root, tree):
    put_in_checkpoint(root, sample, "tree.json", TREES[tree])
    with pytest.warns(UserWarning, match=f"run {sample.key} resumes from step 3") as caught:
        found = Store(root).ckpts[sample.key]
    assert sample_store.is_value(found, CONFIG, 3)
    assert sample.ckpt("tree.json", LAST).rpartition("/")[0] in str(caught[0].message)


@pytest.fixture(scope="module")
def tensors_read(sample, folder):
    """Read each hostile tensor file in a process with little memory, and return the results."""
    place = sample.write(folder / "tensors")
    count = "10000" if IS_FULL else "60"
    result = subprocess.run(
        [sys.executable, PROGRAM, place, sample.key, sample.ckpt("", LAST), str(SEED), count], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"seed {SEED}: ended by {result.returncode}: {result.stderr[-3000:]}"
    return json.loads(result.stdout)


@pytest.mark.integration
def test_hostile_tensors_are_damage_and_crash_no_process(tensors_read):
    wrong = {name: said for name, said in tensors_read["named"].items() if not said.startswith("StoreDamagedError: run")}
    assert not wrong


@pytest.mark.integration
def test_hostile_tensors_are_reported_with_their_file(tensors_read):
    for name, said in tensors_read["named"].items():
        assert "step-000004/tensors.safetensors` is damaged" in said, name


@pytest.mark.integration
def test_randomly_changed_tensors_are_damage_or_other_numbers_but_never_a_crash(tensors_read):
    assert not tensors_read["crashes"], f"seed {SEED}"
    assert sum(tensors_read["counts"].values()) == tensors_read["wanted"]
    assert tensors_read["counts"].get("StoreDamagedError", 0) > tensors_read["wanted"] / 20


@pytest.mark.integration
def test_hostile_tensors_need_at_most_a_few_times_their_size_in_memory(tensors_read):
    """The largest file is 100 MB, and a header that claims a larger size is not trusted."""
    large = {name: mb for name, mb in tensors_read["grown_mb"].items() if mb > (400 if "MB of" in name else 60)}
    assert not large
