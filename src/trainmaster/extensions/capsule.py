"""A capsule: all that is needed to raise an error of a training once more, in a folder of safe formats.

```text
1.capsule/
  manifest.json          the error, its place and its versions, to be read by a person; sizes and checksums of the rest
  tree.json              everything else that is no tensor, and how it all hangs together
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
from trainmaster.config.secret_fields import masked_config
from trainmaster.config.secrets import Mask
from trainmaster.errors import CodecError, StoreError, StoreFormatError
from trainmaster.store.checkpoint import MANIFEST, manifest_in, read_values, write_checkpoint
from trainmaster.store.codec import encode
from trainmaster.store.files import LocalFiles

FORMAT: Final = 1
SUFFIX: Final = ".capsule"
_NAME = re.compile(r"([1-9]\d{0,8})\.capsule")
_CLASS: Final = (".class",)
"""The key that stands for the class of a packed value; no batch has it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Capsule:
    """An error, and the state of the training before the batch that it came from."""

    error: dict[str, str]
    """`type`, `message` and `traceback`."""
    place: dict[str, Any]
    """`stage` (the path), `routine` ("train" or "eval"), and the numbers of epoch, batch and step."""
    work: dict[str, Any]
    """What the loop is built from: `target`, `folder`, `config` and `key`, each None where nobody knows it."""
    versions: dict[str, str]
    batch: Any
    """The batch, packed; None where there is none."""
    fixtures: dict[str, Any]
    """What was open at the failure and could be stored."""
    before: dict[str, Any]
    """The fixtures of plain values as they were before the batch."""
    rng: dict[str, Any]
    """The random numbers from before the batch; those of the failure where these are not known."""
    epoch_start: dict[str, Any] | None
    """The random numbers and the state of the data at the start of the epoch, from which a batch can be read again."""
    objects: dict[str, Any]
    kinds: dict[str, str]
    buffers: dict[str, Any]
    grads: dict[str, Any]
    extensions: dict[str, Any]
    are_grads_spent: bool
    keeper: str
    """The name of the extension that made it: a replay puts everything back at its place among the hooks."""
    missing: dict[str, str]
    """What could not be stored, and why."""

    @property
    def has_batch(self) -> bool:
        return "batch" not in self.missing

    def without_secrets(self, mask: Mask) -> Capsule:
        """The same with `***` for the secrets in its texts, and for what is named like one.

        Of what a replay reads, only values are hidden that stand nowhere by accident.
        """
        strong = mask.of_strong()
        parts = {field.name: strong.tree(getattr(self, field.name)) for field in dataclasses.fields(self)}
        parts |= {name: masked_config(parts[name]) for name in ("work", "fixtures", "before")}
        parts["error"] = {name: text if name == "type" else mask(text) for name, text in self.error.items()}
        parts["missing"] = mask.tree(self.missing, has_names=False)
        return Capsule(**parts)

    def save(self, root: str, max_capsules: int, mask: Mask | None = None) -> str:
        """Write it as the newest capsule below `root`, and remove the oldest of more than `max_capsules`; its path."""
        files = LocalFiles(os.path.abspath(root))
        files.make_root()
        taken = numbers_in(files)
        number = taken[-1] + 1 if taken else 1
        name = f"{number}{SUFFIX}"
        about = {"format": FORMAT, "error": self.error, "place": self.place, "versions": self.versions, "missing": self.missing}
        record = {"key": self.work.get("key") or "", "attempt": 0, "token": "", "step": number, "events": 0, "preview": {}, "status": about}
        value = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        try:
            write_checkpoint(files, name, value, None, record, lambda: None, mask)
        except BaseException:
            if not files.has(f"{name}/{MANIFEST}"):
                files.delete_folder(name)
            raise
        for old in taken[: max(0, len(taken) + 1 - max_capsules)]:
            files.delete(f"{old}{SUFFIX}/{MANIFEST}")  # first: half a capsule is none
            files.delete_folder(f"{old}{SUFFIX}")
        return os.path.join(root, name)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Capsule:
        """The capsule at `path`; whatever is wrong with it is told in one line."""
        whole = os.path.abspath(os.fspath(path))
        folder, name = os.path.split(whole)
        if not os.path.isdir(whole):
            raise StoreFormatError(f"`{path}` is no capsule: {'it is a file' if os.path.exists(whole) else 'there is no such folder'}")
        try:
            files = LocalFiles(folder)
            manifest = manifest_in(files, name)
            if manifest["status"].get("format") != FORMAT:
                raise StoreFormatError(f"its format is {manifest['status'].get('format')!r:.20}, and this version reads {FORMAT}")
            value, _ = read_values(files, name, manifest)
        except FileNotFoundError:
            raise StoreFormatError(f"`{path}` is no capsule: it has no `{MANIFEST}`") from None
        except StoreError as error:
            raise StoreFormatError(f"`{path}` is no capsule: {' '.join(str(error).split())}") from None
        wrong = _wrong_member(value)
        if wrong:
            raise StoreFormatError(f"`{path}` is no capsule: {wrong}")
        return cls(**value)


_TYPES: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys(("error", "place", "work", "versions", "fixtures", "before", "objects", "kinds"), (dict,)),
    **dict.fromkeys(("buffers", "grads", "extensions", "missing"), (dict,)),
    "rng": (dict,),
    "epoch_start": (dict, type(None)),
    "are_grads_spent": (bool,),
    "keeper": (str,),
    "batch": (object,),
}
_TEXTS: Final = {"error": ("type", "message", "traceback"), "place": ("stage", "routine")}


def _wrong_member(value: Any) -> str:
    """What is wrong with a value that was read; empty if nothing is."""
    if not isinstance(value, dict) or value.keys() != _TYPES.keys():
        return "it does not say what a capsule says"
    for name, kinds in _TYPES.items():
        if not isinstance(value[name], kinds):
            return f"its `{name}` is a {type(value[name]).__name__}"
    for name, keys in _TEXTS.items():
        for key in keys:
            if not isinstance(value[name].get(key), str):
                return f"its `{name}` has no `{key}`"
    return ""


def numbers_in(files: LocalFiles) -> list[int]:
    """The numbers of the capsules in a folder, whole or not."""
    found = (_NAME.fullmatch(name) for name in files.names(""))
    return sorted(int(match[1]) for match in found if match)


def storable(values: Mapping[str, Any], missing: dict[str, str], prefix: str = "") -> dict[str, Any]:
    """Those of `values` that can be stored; the others are named in `missing`."""
    kept = {}
    for name, value in values.items():
        try:
            encode(value)
        except CodecError as error:
            missing[f"{prefix}{name}"] = " ".join(error.rows.get("wrong", str(error)).split())[:300]
        else:
            kept[name] = value
    return kept


def versions() -> dict[str, str]:
    import numpy
    import torch

    found = {each.__name__: str(each.__version__) for each in (trainmaster, torch, numpy)}
    return {"python": platform.python_version(), **found, "platform": platform.platform()}


def text_of(error: BaseException) -> str:
    """The message of an error, also of one that cannot say it."""
    try:
        return str(error)
    except Exception as problem:  # in the `__str__` of somebody else's error
        return f"<no message: {type(problem).__name__}>"


def type_of(error: BaseException) -> str:
    """The type of an error, alike in a program and where that is imported as a module: `train.BadSampleError`, `RuntimeError`."""
    kind = type(error)
    module = module_name(kind.__module__).rpartition(".")[2]
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def pack(value: Any) -> Any:
    """A batch with its dataclasses and named tuples as dicts, which can be stored."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {_CLASS: _name_of(type(value)), **{name: pack(getattr(value, name)) for name in value._fields}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: pack(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {_CLASS: _name_of(type(value)), **fields}
    if type(value) is dict:
        return {key: pack(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(pack(each) for each in value)
    return value


def unpack(value: Any) -> Any:
    """The batch that was packed. Its classes are looked up among the modules that are loaded; nothing is imported for it."""
    if type(value) is dict and _CLASS in value:
        fields = {name: unpack(each) for name, each in value.items() if name != _CLASS}
        return _class_of(value[_CLASS])(**fields)
    if type(value) is dict:
        return {key: unpack(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(unpack(each) for each in value)
    return value


def _name_of(kind: type) -> str:
    return f"{module_name(kind.__module__)}:{kind.__qualname__}"


def _class_of(name: Any) -> Any:
    module, _, path = str(name).partition(":")
    found: Any = sys.modules.get(module)
    if found is None and module == module_name("__main__"):
        found = sys.modules["__main__"]
    for part in path.split("."):
        found = getattr(found, part, None)
    is_record = isinstance(found, type) and (dataclasses.is_dataclass(found) or (issubclass(found, tuple) and hasattr(found, "_fields")))
    if not is_record:
        raise StoreFormatError(f"the batch is a {name!s:.120}, and no loaded module has such a dataclass or named tuple")
    return found
