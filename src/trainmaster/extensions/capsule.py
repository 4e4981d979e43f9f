"""A capsule is a folder with everything that is needed to reproduce an error in training, in safe file formats.

```text
1.capsule/
  manifest.json          the error, its location and the library versions, as readable text; sizes and checksums of the other files
  tree.json              all other values, and the structure of the tensors
  tensors.safetensors    weights, optimizer state, the batch
```
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

import trainmaster
from trainmaster.config.import_path import module_name
from trainmaster.config.masking import Mask
from trainmaster.config.secret_patterns import masked_by_name
from trainmaster.errors import CodecError, StoreError, StoreFormatError
from trainmaster.store.checkpoint import MANIFEST, delete_checkpoint, manifest_in, read_values, write_checkpoint
from trainmaster.store.codec import encode
from trainmaster.store.files import Files, LocalFiles

FORMAT: Final = 1
SUFFIX: Final = ".capsule"
NO_BATCH: Final = "there was none"
"""The reason that is stored for a missing batch if the error occurred outside of a batch or while a batch was being read."""
_NAME = re.compile(r"([1-9]\d{0,8})\.capsule")
_CLASS: Final = (".class",)
"""The key under which a packed value stores the name of its class. No batch contains this key."""


@dataclasses.dataclass(frozen=True, eq=False)
class Capsule:
    """An error, and the state of training before the batch that caused it."""

    error: dict[str, str]
    """The `type`, the `message` and the `traceback` of the error."""
    location: dict[str, Any]
    """The `stage` (its full path), the `routine` ("train" or "eval"), and the numbers of the epoch, the batch and the step."""
    origin: dict[str, Any]
    """How to build the loop: `target`, `digest` of the target's file, `folder`, `config`, `key`, and the `program` with
    digests of the project's loaded files. Unknown values are None."""
    versions: dict[str, str]
    batch: Any
    """The packed batch, or None if there was no batch."""
    fixtures: dict[str, Any]
    """The storable fixtures that were available when the error occurred."""
    fixtures_before: dict[str, Any]
    """The fixtures that are numbers, text or None, with their values before the batch."""
    rng: dict[str, Any]
    """The random state before the batch or, if that is unknown, the state when the error occurred."""
    epoch_start: dict[str, Any] | None
    """The random state and the data state at the start of the epoch, from which a replay can read the batch again."""
    objects: dict[str, Any]
    kinds: dict[str, str]
    buffers: dict[str, Any]
    grads: dict[str, Any]
    extensions: dict[str, Any]
    are_grads_spent: bool
    extension_name: str
    """The name of the extension that saved the capsule. A replay restores the state at the point where this extension's hooks would run."""
    missing: dict[str, str]
    """The names of the values that could not be stored, with the reasons."""

    def __repr__(self) -> str:
        message = self.error["message"].partition("\n")[0]
        return f"<Capsule: {self.error['type']}: {message:.100}, stage {self.location['stage']}>"

    @property
    def has_batch(self) -> bool:
        return "batch" not in self.missing

    @property
    def is_in_batch(self) -> bool:
        """Whether the error occurred while a batch was being read or processed."""
        return self.missing.get("batch") != NO_BATCH or bool(self.location.get("is_reading"))

    @property
    def is_replayable(self) -> bool:
        """Whether a replay can run the batch, because it is in the capsule or can be read from the data again."""
        return self.has_batch or (self.is_in_batch and self.epoch_start is not None)

    def without_secrets(self, mask: Mask) -> Capsule:
        """Return a copy of the capsule in which secrets are replaced with `***`.

        A secret that is a plain word may occur by chance, and masking it in the values that a replay reads could break
        the replay. Such secrets are masked only in messages.
        """
        strong = mask.only_strong()
        parts = {field.name: strong.tree(getattr(self, field.name)) for field in dataclasses.fields(self)}
        parts |= {name: masked_by_name(parts[name]) for name in ("fixtures", "fixtures_before")}
        parts["error"] = {name: text if name == "type" else mask(text) for name, text in self.error.items()}
        parts["missing"] = mask.tree(self.missing, has_names=False)
        return Capsule(**parts)

    def save(self, root: str, max_capsules: int, mask: Mask | None = None) -> str:
        """Write the capsule to a new folder in `root`, and return the path of this folder.

        If `root` then contains more than `max_capsules` capsules, delete the oldest ones.
        """
        files = LocalFiles(os.path.abspath(root))
        files.make_root()
        numbers = _numbers(files, "")
        number = numbers[-1] + 1 if numbers else 1
        name = f"{number}{SUFFIX}"
        about = {
            "format": FORMAT,
            "error": self.error,
            "location": self.location,
            "versions": self.versions,
            "missing": self.missing,
            "is_replayable": self.is_replayable,
        }
        record = {
            "key": self.origin.get("key") or "",
            "attempt": 0,
            "token": "",
            "step": number,
            "events": 0,
            "preview": {},
            "status": about,
        }
        value = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        write_checkpoint(files, name, value, None, record, lambda: None, mask)
        for old in numbers[: max(0, len(numbers) + 1 - max_capsules)]:
            delete_checkpoint(files, f"{old}{SUFFIX}")
        return os.path.join(root, name)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Capsule:
        """Read the capsule at `path`.

        Raises a `StoreFormatError` with a one-line message if it is not a capsule or is damaged.
        """
        full_path = os.path.abspath(os.fspath(path))
        folder, name = os.path.split(full_path)
        if not os.path.isdir(full_path):
            reason = "it is a file" if os.path.exists(full_path) else "there is no such folder"
            raise StoreFormatError(f"`{path}` is not a capsule: {reason}")
        try:
            files = LocalFiles(folder)
            manifest = manifest_in(files, name)
            if manifest["status"].get("format") != FORMAT:
                raise StoreFormatError(f"its format is {manifest['status'].get('format')!r:.20}, but this version reads {FORMAT}")
            value, _ = read_values(files, name, manifest)
            _check_parts(value)
        except FileNotFoundError:
            raise StoreFormatError(f"`{path}` is not a capsule: it has no `{MANIFEST}`") from None
        except StoreError as error:
            raise StoreFormatError(f"`{path}` is not a capsule: {' '.join(str(error).split())}") from None
        return cls(**value)


def newest_replayable(files: Files, folder: str) -> str | None:
    """Return the name of the newest capsule in a folder, or None if the folder has no capsule or the newest one cannot be replayed."""
    try:
        name = f"{_numbers(files, folder)[-1]}{SUFFIX}"
        return name if manifest_in(files, f"{folder}/{name}")["status"].get("is_replayable") is True else None
    except (StoreError, FileNotFoundError, IndexError):
        return None


def _numbers(files: Files, folder: str) -> list[int]:
    """Return the numbers of the capsules in a folder, in order."""
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, files.names(folder)) if match)


_OTHER_TYPES: Final[dict[str, Any]] = {"batch": object, "epoch_start": dict | None, "are_grads_spent": bool, "extension_name": str}
"""The types of the fields that are not dicts."""
_TEXTS: Final = (("error", "type"), ("error", "message"), ("error", "traceback"), ("location", "stage"), ("location", "routine"))


def _check_parts(value: Any) -> None:
    """Raise an error if a field is missing or has the wrong type. A capsule may come from an untrusted source."""
    types = {field.name: _OTHER_TYPES.get(field.name, dict) for field in dataclasses.fields(Capsule)}
    has_fields = isinstance(value, dict) and value.keys() == types.keys() and all(isinstance(value[name], types[name]) for name in types)
    if not has_fields or not all(isinstance(value[name].get(key), str) for name, key in _TEXTS):
        raise StoreFormatError("it does not have the parts of a capsule")


def storable(values: Mapping[str, Any], missing: dict[str, str], prefix: str = "") -> dict[str, Any]:
    """Return the values that can be stored. Add the names of the other values to `missing`, each with the reason."""
    stored = {}
    for name, value in values.items():
        try:
            encode(value)
        except CodecError as error:
            missing[f"{prefix}{name}"] = " ".join(error.rows.get("wrong", str(error)).split())[:300]
        else:
            stored[name] = value
    return stored


def current_versions() -> dict[str, str]:
    import numpy
    import torch

    libraries = {each.__name__: str(each.__version__) for each in (trainmaster, torch, numpy)}
    return {"python": platform.python_version(), **libraries, "platform": platform.platform()}


def error_message(error: BaseException) -> str:
    try:
        return str(as_plain(str(error)))  # the message of a DataLoader worker's KeyError is an instance of a subclass of str
    except Exception as problem:  # raised by the `__str__` of a user's error
        return f"<no message: {type(problem).__name__}>"


def as_plain(value: Any) -> Any:
    """Convert instances of subclasses of `str`, `int` and `float`, such as enums, to the base type, because they cannot be stored."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value) if isinstance(value, int) else float(value)
    return value


def error_type(error: BaseException) -> str:
    """Return the name of an error's type, such as `train.BadSampleError`. It is the same whether `train.py` is run or imported."""
    kind = type(error)
    module = module_name(kind.__module__).rpartition(".")[2]
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def pack(value: Any) -> Any:
    """Replace dataclasses and named tuples in a batch with dicts, so that it can be stored."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {_CLASS: _class_name(type(value)), **{name: pack(getattr(value, name)) for name in value._fields}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: pack(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {_CLASS: _class_name(type(value)), **fields}
    if type(value) is dict:
        return {key: pack(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(pack(each) for each in value)
    return value


def unpack(value: Any) -> Any:
    """Restore a packed batch. Its classes must be in modules that are already loaded, because this function imports nothing."""
    if type(value) is dict:
        fields = {key: unpack(each) for key, each in value.items() if key != _CLASS}
        return _find_class(value[_CLASS])(**fields) if _CLASS in value else fields
    if type(value) in (list, tuple):
        return type(value)(unpack(each) for each in value)
    return value


def _class_name(kind: type) -> str:
    return f"{module_name(kind.__module__)}:{kind.__qualname__}"


def _find_class(name: Any) -> Any:
    module, _, path = str(name).partition(":")
    value: Any = sys.modules.get(module)
    if value is None and module == module_name("__main__"):
        value = sys.modules["__main__"]
    for part in path.split("."):
        value = getattr(value, part, None)
    is_record = isinstance(value, type) and (dataclasses.is_dataclass(value) or (issubclass(value, tuple) and hasattr(value, "_fields")))
    if not is_record:
        raise StoreFormatError(f"the batch is a {name!s:.120}, but no loaded module has such a dataclass or named tuple")
    return value
