"""An archive that was tampered with is refused with a reason, and nothing is imported, changed or executed."""

import gzip
import hashlib
import io
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import sample_store
from campaign import IS_FULL, SEED
from sample_store import CONFIG, LAST, OTHER, THIRD

from trainmaster.config import Config
from trainmaster.errors import ArchiveError, KeyTextError, StoreAccessError, StoreDamagedError
from trainmaster.store import Store
from trainmaster.store import tar as archives
from trainmaster.store.checksummed_json import parse_record, record_bytes
from trainmaster.store.events import event_line

PROGRAM = Path(sample_store.__file__).with_name("archive_bombs.py")
FURTHER = LAST + 2
"""The last epoch of the archived run whose config is also in the store."""


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
    """Return a store with the runs of two configs."""
    place = folder / "store"
    shutil.rmtree(place, ignore_errors=True)
    return sample.write(place)


class Source:
    """A store with an archive of two runs: the first config, trained further, and a third config."""

    def __init__(self, sample, folder):
        store = Store(sample.write(folder / "source"))
        store.pop(sample.other)
        self.key = sample_store.train(store, CONFIG, range(LAST + 1, FURTHER + 1))
        self.third = sample_store.train(store, THIRD, range(1, 3))
        self.good = folder / "good.tar.gz"
        assert store.export_tar(self.good, keys=[self.key, self.third]) == 2
        with tarfile.open(self.good) as archive:
            self.members = {member.name: archive.extractfile(member).read() for member in archive}


@pytest.fixture(scope="module")
def source(sample, folder):
    return Source(sample, folder)


def packed(members, **options):
    """Return a tar file with these members: bytes by name, or pairs of a `TarInfo` and bytes."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, **options) as archive:
        for each in members.items() if isinstance(members, dict) else members:
            info, data = each
            if isinstance(info, str):
                info = tarfile.TarInfo(info)
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def member(name, kind=tarfile.REGTYPE, link="", size=0):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


def with_more(*more):
    return lambda source: packed([*source.members.items(), *more])


def with_changed(ending, change):
    """Return the archive with one changed member: the last one whose name ends with `ending`."""

    def make(source):
        name = [name for name in source.members if name.endswith(ending)][-1]
        changed = change(source.members[name])
        return packed({**source.members, name: changed} if changed is not None else {n: d for n, d in source.members.items() if n != name})

    return make


def record(**changes):
    return lambda data: record_bytes({**parse_record(data, ""), **changes})


def without(name):
    return lambda data: record_bytes({each: value for each, value in parse_record(data, "").items() if each != name})


def changed_tree(content):
    """Return the archive with a different tree in its newest checkpoint, and with a matching manifest."""

    def make(source):
        name = [name for name in source.members if name.endswith("tree.json")][-1]
        manifest = parse_record(source.members[name.replace("tree", "manifest")], "")
        manifest["files"]["tree.json"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        return packed({**source.members, name: content, name.replace("tree", "manifest"): record_bytes(manifest)})

    return make


def renamed(old, new):
    return lambda source: packed([(name.replace(old(source), new), data) for name, data in source.members.items()])


def run_facts(change):
    return with_changed("run.json", lambda data: record_bytes(change(parse_record(data, ""))))


def raw_size(text):
    """Return a header whose size field is `text`, with a correct checksum."""

    def make(source):
        block = bytearray(member(f"{source.key}/step-000099/tree.json").tobuf(tarfile.USTAR_FORMAT))
        block[124 : 124 + 12] = text
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        return (
            packed(source.members)[: sum(512 + (len(data) + 511) // 512 * 512 for data in source.members.values())]
            + bytes(block)
            + bytes(4096)
        )

    return make


def pax(headers, name="x", data=b""):
    def make(source):
        info = member(name if name != "x" else f"{source.key}/step-000099/tree.json")
        info.pax_headers, info.size = headers, len(data)
        return packed([*source.members.items(), (info, data)])

    return make


BAD = {
    # names
    "dots": (with_more(("../../x", b"evil")), r"'../../x' is not a file of a run"),
    "dots below a run": (lambda s: packed([*s.members.items(), (f"{s.key}/../../x", b"")]), r"is not a file of a run"),
    "dots in the place of a key": (with_more(("../config.json", b"")), r"is not a file of a run"),
    "an absolute path": (with_more(("/tmp/trainmaster-evil", b"evil")), r"is not a file of a run"),
    "a backslash": (with_more(("..\\..\\x", b"evil")), r"is not a file of a run"),
    "a dot": (lambda s: packed([*s.members.items(), (f"./{s.key}/run.json", b"")]), r"is not a file of a run"),
    "two slashes": (lambda s: packed([*s.members.items(), (f"{s.key}//run.json", b"")]), r"is not a file of a run"),
    "an unknown file": (lambda s: packed([*s.members.items(), (f"{s.key}/model.pkl", b"")]), r"is not a file of a run"),
    "an unknown file at the top": (with_more(("setup.py", b"")), r"'setup.py' is not a file of a run"),
    "a lease": (lambda s: packed([*s.members.items(), (f"{s.key}/lease", b"")]), r"is not a file of a run"),
    "a key in upper case": (lambda s: packed([*s.members.items(), ("ABCDEF12/run.json", b"")]), r"is not a file of a run"),
    "a short key": (with_more(("abc/run.json", b"")), r"is not a file of a run"),
    "a newline": (lambda s: packed([*s.members.items(), (f"{s.key}/run.json\n", b"")]), r"is not a file of a run"),
    "a new step of other digits": (
        lambda s: packed([*s.members.items(), (f"{s.key}/step-٠٠٠٠٠٩/tree.json", b"")]),
        r"is not a file of a run",
    ),
    "full-width letters": (lambda s: packed([*s.members.items(), (f"{s.key}/\uff52un.json", b"")]), r"is not a file of a run"),
    "a text that turns around": (lambda s: packed([*s.members.items(), (f"{s.key}/\u202enosj.nur", b"")]), r"is not a file of a run"),
    "an escape": (with_more(("\x1b[2Jx", b"")), r"'\\x1b\[2Jx' is not a file of a run"),
    "a pax name": (pax({"path": "../../x"}), r"is not a file of a run"),
    # kinds
    "a symbolic link": (
        lambda s: packed([*s.members.items(), (member(f"{s.key}/step-000099/tree.json", tarfile.SYMTYPE, "/etc/passwd"), b"")]),
        r"is not a regular file",
    ),
    "a hard link": (
        lambda s: packed([*s.members.items(), (member(f"{s.key}/step-000099/tree.json", tarfile.LNKTYPE, f"{s.key}/run.json"), b"")]),
        r"is not a regular file",
    ),
    "a device": (with_more((member("abcdef12/run.json", tarfile.CHRTYPE), b"")), r"is not a regular file"),
    "a block device": (with_more((member("abcdef12/run.json", tarfile.BLKTYPE), b"")), r"is not a regular file"),
    "a pipe": (with_more((member("abcdef12/run.json", tarfile.FIFOTYPE), b"")), r"is not a regular file"),
    "a folder": (with_more((member("abcdef12", tarfile.DIRTYPE), b"")), r"is not a regular file"),
    "a folder named like a file": (with_more((member("abcdef12/run.json", tarfile.DIRTYPE), b"")), r"is not a regular file"),
    "a contiguous file": (with_more((member("abcdef12/run.json", tarfile.CONTTYPE), b"")), r"is not a regular file"),
    "an unknown kind": (with_more((member("abcdef12/run.json", b"Z"), b"")), r"is not a regular file"),
    "a sparse file": (with_more((member("abcdef12/run.json", tarfile.GNUTYPE_SPARSE), b"")), r"is not a regular file"),
    "a sparse file in pax": (pax({"GNU.sparse.map": "0,1", "GNU.sparse.size": "1000000000000", "GNU.sparse.name": "x"}), r"is no"),
    "a sparse file in pax 1.0": (
        pax({"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "10000000000"}, data=b"1\n0\n1\n".ljust(1024, b"\0")),
        r"is no|cannot be read",
    ),
    # duplicates
    "a member twice": (lambda s: packed([*s.members.items(), (f"{s.key}/run.json", s.members[f"{s.key}/run.json"])]), r"occurs twice"),
    "a config twice": (lambda s: packed([*s.members.items(), (f"{s.third}/config.json", b"{}")]), r"occurs twice"),
    # sizes
    "a member that claims 10 GB": (
        lambda s: packed(s.members)[:-10240] + member(f"{s.key}/step-000099/tensors.safetensors", size=10**10).tobuf(),
        r"unpacks to more than|it is truncated",
    ),
    "a record that claims 100 MB": (
        lambda s: packed(s.members)[:-10240] + member(f"{s.key}/step-000099/tree.json", size=10**8).tobuf(),
        r"is too large: 100,000,000 bytes|unpacks to more|it is truncated",
    ),
    "a negative size": (raw_size(b"\xff" * 11 + b"\0"), r"was not imported|cannot be read"),
    "a size that leads back": (raw_size(b"\xff" * 10 + b"\xfc\0"), r"was not imported|cannot be read"),
    "a size in pax that leads back": (pax({"size": "-2048"}), r"was not imported|cannot be read"),
    "a size in pax of 10 GB": (pax({"size": "10000000000"}), r"was not imported|cannot be read"),
    "a size that is no number": (raw_size(b"zzzzzzzzzzz\0"), r"was not imported|cannot be read"),
    # content of the members
    "no header": (with_changed("trainmaster.json", lambda data: None), r"it has no `trainmaster.json`"),
    "a future format": (with_changed("trainmaster.json", record(format=2)), r"it has another format"),
    "a format of another kind": (with_changed("trainmaster.json", record(format="1")), r"it has another format"),
    "a header that is cut": (with_changed("trainmaster.json", lambda data: data[:-1]), r"`trainmaster.json` is damaged"),
    "no config": (with_changed("config.json", lambda data: None), r"has no config or no record"),
    "no run.json": (with_changed("run.json", lambda data: None), r"has no config or no record"),
    "no manifest": (with_changed("manifest.json", lambda data: None), r"manifest.json` is missing"),
    "no tree": (with_changed("tree.json", lambda data: None), r"tree.json` is damaged: it is missing"),
    "no tensors": (with_changed("tensors.safetensors", lambda data: None), r"tensors.safetensors` is damaged: it is missing"),
    "no events": (with_changed("events.jsonl", lambda data: None), r"impossible checkpoint"),
    "an edited config": (with_changed("config.json", record(config={"lr": 1})), r"config.json` is damaged"),
    "an edited config behind the old identity": (
        with_changed("config.json", lambda data: record(config={"lr": 1}, identity=parse_record(data, "")["config"])(data)),
        r"config.json` is damaged",
    ),
    "a config of another run": (
        lambda s: packed({**s.members, f"{s.third}/config.json": s.members[f"{s.key}/config.json"]}),
        r"config.json` is damaged",
    ),
    "a key that is not the hash": (renamed(lambda s: s.third, "0123456789abcdef"), r"0123456789abcdef/config.json` is damaged"),
    "a config that is cut": (with_changed("config.json", lambda data: data[:-1]), r"config.json` is damaged"),
    "a config that is a pickle": (with_changed("config.json", lambda data: pickle.dumps({})), r"config.json` is damaged"),
    "a run.json that is cut": (with_changed("run.json", lambda data: data[:-9]), r"run.json` is damaged"),
    "a run.json of nothing": (with_changed("run.json", lambda data: record_bytes({"a": 1})), r"run.json` is damaged"),
    "a run without checkpoints": (with_changed("run.json", record(checkpoints=[])), r"run.json` is damaged"),
    "a run without checkpoints that is far": (
        with_changed("run.json", record(checkpoints=[], status={"epoch": 10**6, "toc": 1.0, "t_train": None, "t_eval": None})),
        r"run.json` is damaged",
    ),
    "a status that cannot be": (
        run_facts(lambda facts: {**facts, "status": {**facts["status"], "epoch": 99, "t_train": {".tensor": "x"}}}),
        r"run.json` is damaged|status",
    ),
    "a status without an epoch": (with_changed("run.json", record(status={"toc": 1})), r"run.json` is damaged"),
    "a preview that cannot be": (with_changed("run.json", record(preview={"a": {".call": "os.system"}})), r"run.json` is damaged|preview"),
    "a preview of another kind": (with_changed("run.json", record(preview=[])), r"run.json` is damaged"),
    "a checkpoint outside": (
        run_facts(lambda facts: {**facts, "checkpoints": [{**facts["checkpoints"][0], "name": "../../../x"}]}),
        r"it lists an impossible checkpoint",
    ),
    "a checkpoint twice": (
        run_facts(lambda facts: {**facts, "checkpoints": [*facts["checkpoints"], facts["checkpoints"][-1]]}),
        r"run.json` is damaged",
    ),
    "a checkpoint that is not there": (
        run_facts(lambda facts: {**facts, "checkpoints": [*facts["checkpoints"], {"name": "step-000077", "step": 77, "events": 0}]}),
        r"step-000077/manifest.json` is missing",
    ),
    "a checkpoint of another step": (
        run_facts(lambda facts: {**facts, "checkpoints": [{**each, "step": each["step"] + 1} for each in facts["checkpoints"]]}),
        r"it lists an impossible checkpoint",
    ),
    "events that are not there": (
        run_facts(lambda facts: {**facts, "checkpoints": [{**each, "events": 10**6} for each in facts["checkpoints"]]}),
        r"it lists an impossible checkpoint",
    ),
    "negative events": (
        run_facts(lambda facts: {**facts, "checkpoints": [{**each, "events": -1} for each in facts["checkpoints"]]}),
        r"it lists an impossible checkpoint",
    ),
    "a manifest that is cut": (with_changed("manifest.json", lambda data: data[:-9]), r"manifest.json` is damaged"),
    "a manifest without a tree": (with_changed("manifest.json", record(files={})), r"manifest.json` is damaged"),
    "a manifest with another file": (
        with_changed("manifest.json", record(files={"../x": {"size": 1, "sha256": ""}})),
        r"it lists a file '../x', which no checkpoint has",
    ),
    "a manifest without events": (with_changed("manifest.json", without("events")), r"its `events` is missing"),
    "a tree that was changed": (with_changed("tree.json", lambda data: data[:-1] + b" "), r"tree.json` is damaged"),
    "a tree that is longer": (with_changed("tree.json", lambda data: data + b" "), r"it is larger than its manifest says"),
    "a tree that is shorter": (with_changed("tree.json", lambda data: data[:-1]), r"it does not match its manifest"),
    "tensors that were changed": (
        with_changed("tensors.safetensors", lambda data: data[:-1] + b"\x77"),
        r"tensors.safetensors` is damaged",
    ),
    "a tree that is no JSON": (changed_tree(b"\x80\x04."), r"tree.json` is damaged"),
    "a tree of another value": (changed_tree(b'{".call": 1}'), r"tree.json` is damaged"),
    "a tree with a tensor that is not there": (changed_tree(b'{"value": {".tensor": "x"}, "context": null}'), r"is damaged"),
    "events that were changed": (with_changed("events.jsonl", lambda data: data.replace(b"arch", b"xxxx")), r"a line in it is damaged"),
    "events with a tail": (with_changed("events.jsonl", lambda data: data + b"{"), r"a line in it is damaged"),
    "events that are none": (
        with_changed("events.jsonl", lambda data: b"".join(event_line(n, {"a": {".call": 1}}) for n in range(data.count(b"\n")))),
        r"events.jsonl` is damaged",
    ),
    # files
    "nothing": (lambda s: b"", r"cannot be read"),
    "zeros": (lambda s: bytes(10240), r"it has no `trainmaster.json`"),
    "no tar": (lambda s: b"lr: 0.1\n" * 1000, r"cannot be read"),
    "a pickle": (lambda s: pickle.dumps({"a": 1}), r"cannot be read"),
    "a zip": (lambda s: b"PK\3\4" + bytes(2000), r"cannot be read"),
    "bz2": (lambda s: __import__("bz2").compress(packed(s.members)), r"cannot be read"),
    "xz": (lambda s: __import__("lzma").compress(packed(s.members)), r"cannot be read"),
    "gzip in gzip": (lambda s: gzip.compress(gzip.compress(packed(s.members))), r"cannot be read"),
    "an empty gzip": (lambda s: gzip.compress(b""), r"cannot be read"),
    "a gzip header alone": (lambda s: b"\x1f\x8b", r"cannot be read"),
    "a gzip of nonsense": (lambda s: b"\x1f\x8b\x08" + b"\xff" * 1000, r"cannot be read"),
    "a tar that is cut in a member": (lambda s: packed(s.members)[: 512 * 9 + 100], r"cannot be read|was not imported"),
    "a tar that is cut in a header": (lambda s: packed(s.members)[: 512 * 9], r"cannot be read|was not imported"),
    "a gzip that is cut": (lambda s: s.good.read_bytes()[: s.good.stat().st_size // 2], r"cannot be read"),
    "pax headers in pax headers": (
        lambda s: packed(s.members)[:-10240] + (member("x", tarfile.XHDTYPE, size=0).tobuf()) * 3000 + bytes(1024),
        r"was not imported|cannot be read",
    ),
    "long names of long names": (
        lambda s: packed(s.members)[:-10240] + (member("x", tarfile.GNUTYPE_LONGNAME, size=0).tobuf()) * 3000 + bytes(1024),
        r"was not imported|cannot be read",
    ),
}


THEN_GOOD = (
    "dots",
    "a symbolic link",
    "an edited config",
    "a checkpoint twice",
    "a tree that was changed",
    "no tensors",
    "a gzip that is cut",
)
"""Cases after which the test imports a valid archive; the full campaign does so after every case."""


def check_nothing_was_imported(sample, root, before, beside):
    for name, data in sample.files.items():
        assert (root / name).read_bytes() == data, name
    new = sample_store.listing(root).keys() - before.keys()
    assert not [
        name for name in new if name.startswith(("configs", "previews", "index")) or name.endswith(("manifest.json", "resume.json"))
    ]
    store = Store(root)
    assert sorted(store.configs) == sorted(store.stats) == sorted(store.ckpts) == sorted([sample.key, sample.other])
    for key, config in ((sample.key, CONFIG), (sample.other, OTHER)):
        assert sample_store.is_value(store.ckpts[key], config, LAST)
        assert store.stats[key] == sample_store.status_at(LAST)
        assert store.run(key).events() == sample_store.events_at(config, LAST)
    assert store.verify() == []
    assert sorted(os.listdir(root.parent)) == beside


def check_good_import(source, root):
    store = Store(root)
    assert sorted(store.load_tar(source.good)) == sorted([source.key, source.third])
    assert store.verify() == []
    for key, config, step in ((source.key, CONFIG, FURTHER), (source.third, THIRD, 2)):
        assert store.configs[key] == Config(config)
        assert sample_store.is_value(store.ckpts[key], config, step)
        assert store.stats[key] == sample_store.status_at(step)
        assert store.previews[key] == sample_store.preview_at(config, step)
        assert store.run(key).events() == sample_store.events_at(config, step)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.integration
def test_a_bad_archive_is_refused_and_nothing_is_imported(sample, source, root, folder, bad):
    make, says = BAD[bad]
    path = folder / "bad.tar"
    path.write_bytes(make(source))
    before, beside = sample_store.listing(root), sorted(os.listdir(folder))
    with pytest.raises((ArchiveError, StoreDamagedError), match=says) as caught:
        Store(root).load_tar(path)
    text = str(caught.value)
    assert "\x1b" not in text
    assert len(text) < 2000
    check_nothing_was_imported(sample, root, before, beside)
    if IS_FULL or bad in THEN_GOOD:
        check_good_import(source, root)


@pytest.mark.parametrize("bad", ["dots", "a tree that was changed", "an edited config", "a negative size"])
def test_a_bad_archive_is_refused_with_overwrite_and_with_compression(sample, source, root, folder, bad):
    path = folder / "bad.tar"
    path.write_bytes(gzip.compress(BAD[bad][0](source), 1))
    before, beside = sample_store.listing(root), sorted(os.listdir(folder))
    with pytest.raises((ArchiveError, StoreDamagedError), match=BAD[bad][1]):
        Store(root).load_tar(path, newer_only=False)
    check_nothing_was_imported(sample, root, before, beside)


def test_the_error_names_the_archive_and_says_that_nothing_was_imported(source, root, folder):
    path = folder / "bad.tar"
    path.write_bytes(BAD["dots"][0](source))
    with pytest.raises(ArchiveError, match=r"`bad.tar` was not imported") as caught:
        Store(root).load_tar(path)
    assert caught.value.rows == {"where": str(path), "why": "'../../x' is not a file of a run", "hint": "nothing was imported from it"}


@pytest.mark.parametrize("kind", ["a missing file", "a folder", "a file without rights"])
def test_an_archive_that_cannot_be_opened_is_an_error(root, tmp_path, kind):
    path = tmp_path / "archive.tar"
    if kind == "a folder":
        path.mkdir()
    elif kind == "a file without rights":
        path.touch(mode=0)
        if os.access(path, os.R_OK):
            pytest.skip("root can read it")
    with pytest.raises((ArchiveError, StoreAccessError), match=str(path)):
        Store(root).load_tar(path)


def test_an_archive_that_is_a_pipe_does_not_block(root, tmp_path):
    os.mkfifo(tmp_path / "archive.tar")
    program = "import sys\nfrom trainmaster.store import Store\nStore(None).load_tar(sys.argv[1])"
    try:
        result = subprocess.run(
            [sys.executable, "-c", program, tmp_path / "archive.tar"], capture_output=True, text=True, timeout=100, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.fail("it waits for a process to write to the pipe")
    assert "Error: `" in result.stderr


def test_an_archive_that_is_truncated_at_any_block_is_refused(sample, source, root, folder):
    """A tar file that is truncated after a complete member only lacks the two blocks of zeros at its end."""
    whole = packed(source.members)
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    path = folder / "bad.tar"
    before, beside = sample_store.listing(root), sorted({*os.listdir(folder), "bad.tar"})
    imported = []
    for cut in range(0, end, 512 if IS_FULL else 512 * 11):
        path.write_bytes(whole[:cut])
        try:
            imported += [(cut, Store(root).load_tar(path))]
        except (ArchiveError, StoreDamagedError):
            continue
    assert not imported
    check_nothing_was_imported(sample, root, before, beside)


def test_a_compressed_archive_with_any_changed_byte_is_refused_or_read_correctly(sample, source, root, folder):
    """The content has its own checksums, so runs that are imported are correct and complete."""
    whole = source.good.read_bytes()
    path = folder / "bad.tar"
    chance = random.Random(SEED)
    places = range(len(whole)) if IS_FULL else sorted({*chance.sample(range(len(whole)), 40), len(whole) - 8, len(whole) - 1})
    wrong = {}
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        store = Store(None)
        try:
            keys = store.load_tar(path)
        except (ArchiveError, StoreDamagedError):
            if list(store.configs) or list(store.ckpts):
                wrong[place] = "refused, and something is here"
        except Exception as error:
            wrong[place] = f"{type(error).__name__}: {error}"
        else:
            if sorted(keys) != sorted([source.key, source.third]):
                wrong[place] = f"only {keys} were imported"
    assert not wrong, f"seed {SEED}"
    path.unlink()


def test_an_archive_with_too_many_members_is_refused(sample, source, root, folder, monkeypatch):
    monkeypatch.setattr(archives, "MAX_MEMBERS", 50)
    path = folder / "bad.tar"
    path.write_bytes(packed([*source.members.items(), *((f"{source.key}/step-{number:06}/tree.json", b"") for number in range(100, 151))]))
    before, beside = sample_store.listing(root), sorted(os.listdir(folder))
    with pytest.raises(ArchiveError, match=r"it has more than 50 members"):
        Store(root).load_tar(path)
    check_nothing_was_imported(sample, root, before, beside)


def test_an_archive_that_does_not_fit_on_the_disk_is_refused_before_anything_is_written(sample, source, root, folder, monkeypatch):
    usage = shutil.disk_usage(root)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    before, beside = sample_store.listing(root), sorted(os.listdir(folder))
    with pytest.raises(ArchiveError, match=r"it unpacks to more than 1,000 bytes"):
        Store(root).load_tar(source.good)
    check_nothing_was_imported(sample, root, before, beside)


def test_an_archive_with_one_bad_and_one_good_run_imports_neither(sample, source, root, folder):
    """It does not matter which of the runs comes first."""
    before = sample_store.listing(root)
    for bad in (source.key, source.third):
        members = {**source.members, f"{bad}/events.jsonl": b"{}\n"}
        for names in (list(members), ["trainmaster.json", *reversed(list(members)[1:])]):
            path = folder / "bad.tar"
            path.write_bytes(packed({name: members[name] for name in names}))
            beside = sorted(os.listdir(folder))
            with pytest.raises((ArchiveError, StoreDamagedError), match=r"events.jsonl"):
                Store(root).load_tar(path)
            check_nothing_was_imported(sample, root, before, beside)


def test_the_order_of_the_members_does_not_matter(source, root, folder):
    names = ["trainmaster.json", *reversed(list(source.members)[1:])]
    path = folder / "reversed.tar"
    path.write_bytes(gzip.compress(packed({name: source.members[name] for name in names}), 1))
    store = Store(root)
    assert sorted(store.load_tar(path)) == sorted([source.key, source.third])
    assert sample_store.is_value(store.ckpts[source.key], CONFIG, FURTHER)
    path.unlink()


# ---- bombs


@pytest.fixture(scope="module")
def exploded(source, folder):
    """Import each archive bomb in a separate process with little memory, and return the results."""
    place = folder / "bombs"
    place.mkdir()
    result = subprocess.run([sys.executable, PROGRAM, source.good, place], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout)


BOMBS = (
    "10 GB of zeros",
    "a member of 10 GB of zeros",
    "a record of 10 GB of zeros",
    "many members of 2 GB in all",
    "a pax header of 1 GB",
    "a global pax header of 1 GB",
    "a long name of 1 GB",
    "a long link of 1 GB",
    "2,000 nested pax headers",
    "400 global pax headers of 1 MB",
    "a sparse map of 10^9 parts",
    "a chain of sparse headers",
    "a sparse file of 10 TB",
    "a million blocks between members",
)


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.integration
def test_an_archive_bomb_is_refused_with_little_memory_and_time(exploded, bomb):
    found = exploded[bomb]
    assert found["said"].startswith(("ArchiveError: ", "StoreDamagedError: ")), found
    assert found["grown_mb"] < 300, found
    assert found["seconds"] < 10, found
    assert found["files"] == ["ckpts", "configs", "previews", "stats", "store.json"], found  # the files of an empty store


@pytest.mark.integration
def test_every_archive_bomb_is_reported(exploded):
    assert set(exploded) == set(BOMBS)


# ---- export and import


def test_exported_runs_are_imported_unchanged(source, tmp_path):
    store = Store(tmp_path / "new")
    check_good_import(source, tmp_path / "new")
    assert store.load_tar(source.good) == []
    key = source.key
    assert sample_store.start(tmp_path / "new", CONFIG).step == FURTHER
    assert store.stats[key]["epoch"] == FURTHER + 1


def test_torch_tensors_and_nested_values_are_imported_unchanged(tmp_path):
    import torch

    store, other = Store(tmp_path / "one"), Store(None)
    key = store.configs.add({"lr": 0.1})
    shared = torch.arange(6.0).reshape(2, 3)
    value = {
        "weights": shared,
        "same": shared,
        "column": shared[:, 1],
        "half": torch.ones(3, dtype=torch.bfloat16),
        "array": np.arange(4, dtype=np.int16),
        "empty": torch.zeros(0, 3),
        7: (1, {2, 3}, b"bytes", float("inf"), 10**50, None),
    }
    store.ckpts[key] = value
    store.export_tar(tmp_path / "one.tar.gz")
    assert other.load_tar(tmp_path / "one.tar.gz") == [key]
    found = other.ckpts[key]
    assert list(found) == list(value)
    assert torch.equal(found["weights"], shared)
    assert found["weights"].untyped_storage().data_ptr() == found["same"].untyped_storage().data_ptr()
    assert torch.equal(found["column"], shared[:, 1])
    assert found["half"].dtype == torch.bfloat16
    assert found["array"].dtype == np.int16
    assert found["empty"].shape == (0, 3)
    assert found[7] == value[7]


@pytest.mark.parametrize("compresslevel", [0, 1, 9])
def test_an_archive_can_be_read_with_any_compression(source, tmp_path, folder, compresslevel):
    store = Store(folder / "source")
    store.export_tar(tmp_path / "out.tar", compresslevel=compresslevel)
    assert sorted(Store(None).load_tar(tmp_path / "out.tar")) == sorted([source.key, source.third])


def test_a_run_that_is_trained_as_far_here_is_skipped_unless_overwrite_is_set(sample, source, root):
    store = Store(root)
    assert sorted(store.load_tar(source.good)) == sorted([source.key, source.third])
    before = sample_store.contents(root)
    assert store.load_tar(source.good) == []
    assert sample_store.contents(root) == before
    sample_store.train(store, CONFIG, range(FURTHER + 1, FURTHER + 2))
    assert store.load_tar(source.good) == []
    assert store.stats[source.key]["epoch"] == FURTHER + 1
    assert sorted(store.load_tar(source.good, newer_only=False)) == sorted([source.key, source.third])
    assert store.stats[source.key]["epoch"] == FURTHER
    assert sample_store.is_value(store.ckpts[source.key], CONFIG, FURTHER)


def test_a_run_with_other_content_stays_byte_for_byte_when_a_newer_one_is_imported(sample, source, root):
    Store(root).load_tar(source.good)
    after = sample_store.contents(root)
    assert {name: after[name] for name in sample.files} == sample.files


def test_only_the_requested_runs_are_exported(source, folder, tmp_path):
    store = Store(folder / "source")
    assert store.export_tar(tmp_path / "one.tar.gz", keys=[source.third]) == 1
    assert Store(None).load_tar(tmp_path / "one.tar.gz") == [source.third]
    assert store.export_tar(tmp_path / "none.tar.gz", keys=[]) == 0
    assert Store(None).load_tar(tmp_path / "none.tar.gz") == []


def test_a_failed_export_keeps_the_existing_file(source, folder, tmp_path):
    (tmp_path / "out.tar.gz").write_bytes(b"older")
    with pytest.raises(KeyTextError):
        Store(folder / "source").export_tar(tmp_path / "out.tar.gz", keys=[source.third, "../../x"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"out.tar.gz": b"older"}


def test_a_damaged_checkpoint_is_not_exported_as_a_valid_one(sample, root, tmp_path):
    """The checkpoint stays in the store, and the export warns about it."""
    path = root / sample.ckpt("tensors.safetensors", LAST)
    path.write_bytes(path.read_bytes()[:-1] + b"\x77")
    target = Store(tmp_path / "target")
    with pytest.warns(UserWarning, match=rf"is copied without step {LAST}: .*tensors.safetensors` is damaged"):
        Store(root).export_tar(tmp_path / "out.tar.gz")
    target.load_tar(tmp_path / "out.tar.gz")
    assert target.run(sample.key).checkpoints()[0].step < LAST


def test_migrating_copies_the_same_runs_to_the_other_store(sample, source, root, folder):
    target = Store(root)
    assert sorted(Store(folder / "source").migrate(target)) == sorted([source.key, source.third])
    assert sample_store.is_value(target.ckpts[source.key], CONFIG, FURTHER)
    assert target.run(source.key).events() == sample_store.events_at(CONFIG, FURTHER)
    assert Store(folder / "source").migrate(target) == []
    assert Store(folder / "source").migrate(Store(None), keys=[source.third]) == [source.third]
