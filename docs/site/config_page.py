"""The fields of the included config classes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import trainmaster.config
from trainmaster.config import ConfigBase
from trainmaster.config.annotations import describe_annotation
from trainmaster.config.fields import DERIVED, REPLICATE, SECRET, STATELESS, Field

HEAD = """# Config fields

The fields of the config classes that `ModelWrapper`, `ProtoTrainer` and `ParallelTrainer` use. A field that is part of
the *identity* changes the key of a run ([Identity](../concepts/identity.md)). Your own classes work the same way
([Configs](../configs.md)); `help(YourConfig)` shows their fields.
"""
IDENTITY = {None: "yes", REPLICATE: "yes, the seed of replicates", STATELESS: "no", DERIVED: "no, set later", SECRET: "no, never stored"}
ORDER = ["RunConfig", "TrainConfig", "ModelConfig", "OptimizerConfig", "SchedulerConfig", "ParallelConfig", "SearchSpace"]


def config_page() -> str:
    parts = [HEAD]
    for name in ORDER:
        cls: type[ConfigBase] = getattr(trainmaster.config, name)
        schema = cls._schema()
        notes = dict(re.findall(r"^- (`[^:]+`): (.*(?:\n  .*)*)", _doc(cls), re.MULTILINE))
        about = {each: " ".join(text.split()) for names, text in notes.items() for each in re.findall(r"`(\w+)`", names)}
        parts.append(f"## {name}\n\n{_doc(cls).partition(chr(10))[0]}\n")
        rows = [_row(schema.fields[field], about.get(field, "")) for field in schema.fields if field in schema.own]
        if rows:
            parts.append("| field | type | default | identity |\n|---|---|---|---|\n" + "\n".join(rows) + "\n")
        if inherited := [field for field in schema.fields if field not in schema.own]:
            base = cls.__mro__[1].__name__
            parts.append(f"It also has the {len(inherited)} fields of [`{base}`](#{base.lower()}).\n")
    return "\n".join(parts)


def _doc(cls: type) -> str:
    return re.sub(r"^    ", "", cls.__doc__ or "", flags=re.MULTILINE)


def _row(field: Field, about: str) -> str:
    kind = re.sub(r"([*_<>\[\]|])", r"\\\1", describe_annotation(field.written).replace("typing.Self", "this class"))
    default = f"`{_shown(field.default)}`" if field.has_default else "required"
    about = f"<br>{about[0].upper()}{about[1:]}" if about else ""
    return f"| `{field.name}`{about} | {kind} | {default} | {IDENTITY[field.state]} |"


def _shown(value: Any) -> str:
    return repr(str(value) if isinstance(value, Path) else value)
