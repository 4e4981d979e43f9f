"""A checkpoint is a folder of files with a manifest, which is written last. A folder without a valid manifest is not a checkpoint.

```text
step-000012/
  tensors.safetensors    arrays and tensors, by their dotted paths
  tree.json              all other values, and the structure
  manifest.json          sizes and checksums of the other files; step, key, attempt, status and preview
```
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

from trainmaster.config.masking import Mask
from trainmaster.errors import CodecError, StoreAccessError, StoreDamagedError
from trainmaster.store import tensors
from trainmaster.store.checksummed_json import Members, Record, check_members, damaged, read_record, record_bytes
from trainmaster.store.codec import decode, encode, encode_plain, kinds
from trainmaster.store.files import MAX_RECORD, Files
from trainmaster.store.keys import attempt_folder

MANIFEST, TREE, TENSORS = "manifest.json", "tree.json", "tensors.safetensors"
_MEMBERS: Members = {"key": str, "attempt": int, "token": str, "step": int, "events": int, "status": dict, "preview": dict, "files": dict}
_NAME = re.compile(r"step-(\d{6,18})(?:-([1-9]\d{0,8}))?")
_BLOCK = 4 * 2**20
Name = TypeVar("Name")
Read = TypeVar("Read")


class CheckpointName(NamedTuple):
    """The name of a checkpoint, including its attempt. Names sort in the order in which the checkpoints were saved."""

    attempt: int
    step: int
    repeat: int
    """1 for the first checkpoint at this step, 2 for the second one, ..."""

    @classmethod
    def parse(cls, attempt: int, text: str) -> CheckpointName | None:
        found = _NAME.fullmatch(text)
        name = cls(attempt, int(found[1]), int(found[2] or 1)) if found else None
        return name if name is not None and name.text == text else None

    @property
    def text(self) -> str:
        return f"step-{self.step:06}" if self.repeat == 1 else f"step-{self.step:06}-{self.repeat}"

    def folder(self, key: str) -> str:
        return f"{attempt_folder('ckpts', key, self.attempt)}/{self.text}"


class Checkpoint(NamedTuple):
    """The contents of a checkpoint, as read from its files."""

    name: CheckpointName
    manifest: Record
    value: Any
    context: Any
    """Plain values that were saved together with `value`, such as the states of random number generators."""


def write_checkpoint(
    files: Files, folder: str, value: Any, context: Any, facts: Mapping[str, Any], check: Callable[[], None], mask: Mask | None = None
) -> Record:
    """Write `value` and `context` to a folder. Then call `check` and, if it raises no error, write the manifest, which includes `facts`.

    A failed write leaves no files behind.

    The secrets in `mask` (by default those in environment variables) are masked in all text. A secret is not masked if it is so short or
    common that it may occur in other text by accident.
    """
    files.delete_folder(folder)  # a killed process may have left it behind
    try:
        return _write_files(files, folder, value, context, facts, check, mask)
    except BaseException:
        with contextlib.suppress(StoreAccessError, StoreDamagedError):
            if not files.has(f"{folder}/{MANIFEST}"):
                files.delete_folder(folder)
        raise


def _write_files(
    files: Files, folder: str, value: Any, context: Any, facts: Mapping[str, Any], check: Callable[[], None], mask: Mask | None
) -> Record:
    encoded = encode(value)
    text = _tree_text(encoded.tree, context)
    strong = (Mask.of() if mask is None else mask).only_strong()
    if strong.is_in(text):
        warnings.warn("the training state contains a secret: `***` is stored instead, and remains after resuming", stacklevel=2)
        encoded = encode(strong.tree(value))
        text = _tree_text(encoded.tree, strong.tree(context))
    tree = text.encode()
    if len(tree) > MAX_RECORD:
        raise CodecError(
            f"a checkpoint has {len(tree):,} bytes of plain values; the limit is {MAX_RECORD:,}",
            hint="keep long lists of numbers in arrays",
        )
    written = {}
    if encoded.tensors:
        written[TENSORS] = files.write(f"{folder}/{TENSORS}", tensors.chunks(encoded.tensors))
    written[TREE] = files.write(f"{folder}/{TREE}", [tree])
    manifest = {**facts, "files": {name: {"size": each.size, "sha256": each.sha256} for name, each in written.items()}}
    data = record_bytes(manifest)
    check()
    files.create(f"{folder}/{MANIFEST}", data)
    return manifest


def _tree_text(tree: Any, context: Any) -> str:
    return json.dumps({"value": tree, "context": encode_plain(context)}, allow_nan=False, separators=(",", ":"))


def delete_checkpoint(files: Files, folder: str) -> None:
    """Delete a checkpoint. The manifest is deleted first, so a partly deleted folder does not count as a checkpoint."""
    files.delete(f"{folder}/{MANIFEST}")
    files.delete_folder(folder)


class Pruner(Generic[Name]):
    """Deletes the old checkpoints of a run. If a deletion fails, `prune` issues a warning, and the next call of `prune` tries again."""

    def __init__(self, folder_of: Callable[[Name], str], owner: str) -> None:
        self._folder_of, self._owner = folder_of, owner
        self._undeleted: list[Name] = []

    def prune(self, files: Files, names: list[Name], keep: int | None, pinned: Collection[Name], replaced: Name | None) -> list[Name]:
        """Keep the first `keep` of `names` (not counting `replaced`) and those in `pinned`. Delete the others. Return the kept names."""
        spared = {*[each for each in names if each != replaced][:keep], *pinned}
        old, self._undeleted = [*self._undeleted, *(each for each in names if each not in spared)], []
        for name in old:
            try:
                delete_checkpoint(files, self._folder_of(name))
            except (StoreAccessError, StoreDamagedError) as error:
                self._undeleted.append(name)
                self.warn(f"{self._folder_of(name).rpartition('/')[2]}: {error.fact}")
        return [each for each in names if each in spared]

    def warn(self, problem: str) -> None:
        warnings.warn(f"an old checkpoint of {self._owner} could not be deleted; the next save tries again: {problem}", stacklevel=4)


def read_newest(names: Iterable[Name], read: Callable[[Name], Read]) -> tuple[Read | None, list[str]]:
    """Return the first checkpoint in `names` that can be read, or None if there is none.

    Also return a list of the problems with the checkpoints before it.
    """
    problems: list[str] = []
    for name in names:
        try:
            return read(name), problems
        except StoreDamagedError as error:
            problems.append(": ".join(filter(None, [error.fact, error.rows.get("why")])))
        except FileNotFoundError as error:
            problems.append(f"`{error.filename}` is missing")
    return None, problems


def manifest_in(files: Files, folder: str) -> Record:
    """Return the manifest of the checkpoint in a folder."""
    path = f"{folder}/{MANIFEST}"
    return check_manifest(read_record(files, path), path)


def read_manifest(files: Files, key: str, name: CheckpointName) -> Record:
    """Return the manifest of a checkpoint. Raise an error if it belongs to a different checkpoint."""
    path = f"{name.folder(key)}/{MANIFEST}"
    manifest = manifest_in(files, name.folder(key))
    if (manifest["key"], manifest["attempt"], manifest["step"]) != (key, name.attempt, name.step):
        raise damaged(path, "it belongs to another checkpoint")
    return manifest


def check_manifest(manifest: Record, path: str) -> Record:
    """Return the manifest. Raise an error if it is incomplete or lists unknown files."""
    check_members(manifest, path, _MEMBERS)
    for file, facts in manifest["files"].items():
        check_members(facts if isinstance(facts, dict) else {}, path, {"size": int, "sha256": str})
        if file not in (TREE, TENSORS):
            raise damaged(path, f"it lists a file {file!r:.40}, which no checkpoint has")
    if TREE not in manifest["files"]:
        raise damaged(path, f"it does not list `{TREE}`")
    return manifest


def check_checkpoint(files: Files, key: str, name: CheckpointName) -> Record:
    """Check the sizes and checksums of all files in a checkpoint, and return its manifest."""
    manifest = read_manifest(files, key, name)
    for file in manifest["files"]:
        _checked(files, f"{name.folder(key)}/{file}", manifest["files"][file]).close()
    return manifest


def read_checkpoint(files: Files, key: str, name: CheckpointName) -> Checkpoint:
    """Read a checkpoint. Raise `StoreDamagedError` if any byte was changed."""
    manifest = read_manifest(files, key, name)
    return Checkpoint(name, manifest, *read_values(files, name.folder(key), manifest))


def read_values(files: Files, folder: str, manifest: Record) -> tuple[Any, Any]:
    """Return the `value` and the `context` that `write_checkpoint` saved in a folder."""
    with _checked(files, f"{folder}/{TREE}", manifest["files"][TREE]) as file:
        try:
            tree = json.loads(file.read(MAX_RECORD))
        except (ValueError, RecursionError):
            raise damaged(f"{folder}/{TREE}", "it is not JSON") from None
        if not isinstance(tree, dict) or tree.keys() != {"value", "context"}:
            raise damaged(f"{folder}/{TREE}", "it must have the members `value` and `context`")
    found: dict[str, Any] = {}
    arrays, torch_tensors = kinds(tree["value"])
    if TENSORS in manifest["files"]:
        with _checked(files, f"{folder}/{TENSORS}", manifest["files"][TENSORS]) as file:
            try:
                # Read the open file that was checked, because another file may have replaced it on disk.
                source: str | bytes = f"/dev/fd/{file.fileno()}"
            except OSError:
                source = file.read()
            try:
                found = tensors.read(source, arrays, torch_tensors)
            except StoreDamagedError as error:
                raise damaged(f"{folder}/{TENSORS}", str(error)) from error
    try:
        return decode(tree["value"], found), decode(tree["context"])
    except StoreDamagedError as error:
        raise damaged(f"{folder}/{TREE}", str(error)) from error


def _checked(files: Files, path: str, facts: Mapping[str, Any]) -> BinaryIO:
    """Open the file at `path`, and check its size and checksum."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        raise damaged(path, "it is missing, though the manifest lists it") from None
    try:
        digest, size = hashlib.sha256(), 0
        while size <= facts["size"] and (block := file.read(_BLOCK)):
            digest.update(block)
            size += len(block)
        if size != facts["size"]:
            raise damaged(path, f"it has {'more than its' if size > facts['size'] else f'{size:,} of its'} {facts['size']:,} bytes")
        if digest.hexdigest() != facts["sha256"]:
            raise damaged(path, "its checksum does not match: it was changed after it was written")
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file
