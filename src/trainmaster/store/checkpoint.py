"""One checkpoint: a folder of files, and a manifest that is written last. Without a valid manifest there is no checkpoint.

```text
step-000012/
  tensors.safetensors    arrays and tensors, by their dotted paths
  tree.json              everything else, and how it all hangs together
  manifest.json          sizes and checksums of the two, and what the checkpoint is of
```
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

from trainmaster.config.secrets import Mask
from trainmaster.errors import CodecError, StoreDamagedError
from trainmaster.store import tensors
from trainmaster.store.codec import decode, encode, encode_plain, kinds
from trainmaster.store.files import MAX_RECORD, Files
from trainmaster.store.keys import attempt_folder
from trainmaster.store.record import Members, Record, check_members, damaged, read_record, record_bytes

MANIFEST, TREE, TENSORS = "manifest.json", "tree.json", "tensors.safetensors"
_MEMBERS: Members = {"key": str, "attempt": int, "token": str, "step": int, "events": int, "status": dict, "preview": dict, "files": dict}
_NAME = re.compile(r"step-(\d{6,18})(?:-([1-9]\d{0,8}))?")
_BLOCK = 4 * 2**20


class CheckpointName(NamedTuple):
    """Where a checkpoint lies; they are ordered as they were saved."""

    attempt: int
    step: int
    repeat: int
    """Which one of the same step it is, from 1 on."""

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
    """A checkpoint as it was read."""

    name: CheckpointName
    manifest: Record
    value: Any
    """What was saved."""
    context: Any
    """What was saved beside it, plain values only: the random numbers, say."""


def write_checkpoint(
    files: Files, folder: str, value: Any, context: Any, facts: Mapping[str, Any], check: Callable[[], None], mask: Mask | None = None
) -> Record:
    """Save `value` in a new folder, and at last the manifest with `facts`, if `check` does not object by raising.

    Its texts are stored without the secrets of `mask`, by default those of the environment, as far as these occur nowhere by accident.
    """
    encoded = encode(value)
    text = _tree_text(encoded.tree, context)
    strong = (Mask.of() if mask is None else mask).of_strong()
    if strong.is_in(text):
        warnings.warn("the state of this training holds a secret: `***` is stored in its place, and is there when it goes on", stacklevel=2)
        encoded = encode(strong.tree(value))
        text = _tree_text(encoded.tree, strong.tree(context))
    tree = text.encode()
    if len(tree) > MAX_RECORD:
        raise CodecError(
            f"a checkpoint has {len(tree):,} bytes of plain values, and {MAX_RECORD:,} can be stored",
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


def manifest_in(files: Files, folder: str) -> Record:
    """The manifest of the checkpoint in a folder."""
    path = f"{folder}/{MANIFEST}"
    return check_manifest(read_record(files, path), path)


def read_manifest(files: Files, key: str, name: CheckpointName) -> Record:
    """The manifest, if it is that of this checkpoint."""
    path = f"{name.folder(key)}/{MANIFEST}"
    manifest = manifest_in(files, name.folder(key))
    if (manifest["key"], manifest["attempt"], manifest["step"]) != (key, name.attempt, name.step):
        raise damaged(path, "it belongs to another checkpoint")
    return manifest


def check_manifest(manifest: Record, path: str) -> Record:
    """A manifest, if it says all that one says, and names the files of a checkpoint only."""
    check_members(manifest, path, _MEMBERS)
    for file, facts in manifest["files"].items():
        if (
            file not in (TREE, TENSORS)
            or not isinstance(facts, dict)
            or type(facts.get("size")) is not int
            or not isinstance(facts.get("sha256"), str)
        ):
            raise damaged(path, f"it names a file {file!r:.40}, which no checkpoint has")
    if TREE not in manifest["files"]:
        raise damaged(path, f"it does not name `{TREE}`")
    return manifest


def check_checkpoint(files: Files, key: str, name: CheckpointName) -> Record:
    """The manifest, once all files are shown to be what was written."""
    manifest = read_manifest(files, key, name)
    for file in manifest["files"]:
        _checked(files, f"{name.folder(key)}/{file}", manifest["files"][file]).close()
    return manifest


def read_checkpoint(files: Files, key: str, name: CheckpointName) -> Checkpoint:
    """The checkpoint with its values; `StoreDamagedError` if a single byte is not what was written."""
    manifest = read_manifest(files, key, name)
    return Checkpoint(name, manifest, *read_values(files, name.folder(key), manifest))


def read_values(files: Files, folder: str, manifest: Record) -> tuple[Any, Any]:
    """What was saved in a folder, and what beside it."""
    with _checked(files, f"{folder}/{TREE}", manifest["files"][TREE]) as file:
        try:
            tree = json.loads(file.read(MAX_RECORD))
        except (ValueError, RecursionError):
            raise damaged(f"{folder}/{TREE}", "it is no JSON") from None
        if not isinstance(tree, dict) or tree.keys() != {"value", "context"}:
            raise damaged(f"{folder}/{TREE}", "it does not say what it should")
    found: dict[str, Any] = {}
    arrays, torch_tensors = kinds(tree["value"])
    if TENSORS in manifest["files"]:
        with _checked(files, f"{folder}/{TENSORS}", manifest["files"][TENSORS]) as file:
            try:
                # The very file that was checked, whatever its name leads to by now.
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
    """The file at `path`, open at its start, once its size and hash are those of the manifest."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        raise damaged(path, "it is missing, and the manifest names it") from None
    try:
        digest, size = hashlib.sha256(), 0
        while size <= facts["size"] and (block := file.read(_BLOCK)):
            digest.update(block)
            size += len(block)
        if size != facts["size"]:
            raise damaged(path, f"it has {'more' if size > facts['size'] else f'{size:,} of its'} {facts['size']:,} bytes")
        if digest.hexdigest() != facts["sha256"]:
            raise damaged(path, "its checksum does not fit: it was changed after it was written")
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file
