"""Records where the values of a typed config came from: a default, a position in a file, an override, or the program.

Each config keeps the origins of its own fields by name. A field without an entry has its default value.
"""

from __future__ import annotations

from collections.abc import Container

from trainmaster.config.any_config import AnyConfig
from trainmaster.config.parsed_file import ParsedFile
from trainmaster.config.value_table import IN_CODE
from trainmaster.config.values import configs_in


def origin_of(config: AnyConfig, name: str) -> str:
    return config._origins.get(name, f"default of {type(config).__name__}")


def set_origin(config: AnyConfig, origin: str) -> None:
    """Record `origin` as the origin of all values in this config and its nested configs, except for defaults."""
    config._origins.update(dict.fromkeys(config._origins, origin))
    for _, nested in config._nested():
        set_origin(nested, origin)


def locate(config: AnyConfig, parsed: ParsedFile, at: str = "") -> None:
    """Record the file position of each value that came from the file."""
    for field in config._schema().fields.values():
        name = field.name_in(parsed.positions, at)
        if config._origins.get(field.name) == IN_CODE:
            config._origins[field.name] = parsed.where(at + name)
        for path, nested in configs_in(vars(config)[field.name], at + name):
            locate(nested, parsed, f"{path}.")


def inherit_origins(config: AnyConfig, source: AnyConfig, changed: Container[str], at: str = "") -> None:
    """Copy the origins from `source` to its changed copy `config`. Nested configs whose keys are in `changed` are skipped."""
    config._origins.clear()
    config._origins.update(source._origins)
    before = dict(source._nested())
    for path, nested in config._nested():
        if at + path not in changed and path in before and type(nested) is type(before[path]):
            inherit_origins(nested, before[path], changed, f"{at}{path}.")
