"""The declared secrets of a config: fields marked `Secret[...]`, or the secret keys of a free-form config.

Secrets are not part of the identity, and a store contains `***` in their place. If a config contains text that is almost
certainly a secret, `refuse_undeclared` raises an error until you declare that text as a secret or as public. This check
never changes the key of a config.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from trainmaster.config.any_config import AnyConfig
from trainmaster.config.fields import SECRET
from trainmaster.config.paths import Path, dotted, get_child, leaves
from trainmaster.config.secret_patterns import (
    MASK,
    forms_to_find,
    has_token,
    has_unmistakable_name,
    is_harmless,
    mask_texts,
    secret_keys,
    secret_parts,
)
from trainmaster.config.to_plain import to_plain
from trainmaster.config.values import MASKED, WHOLE, configs_in, fields_in, tree_of
from trainmaster.errors import ConfigError, Problem


def declared_secrets(config: Any) -> dict[str, Any]:
    """Return the values of the declared secrets of a config, by dotted key."""
    found = {}
    for key in sorted(secret_keys(config)):
        owner, last = _owner(config, key)
        if owner is not None:
            found[key] = owner[last]
    for path, typed in [("", config)] if isinstance(config, AnyConfig) else configs_in(config, ""):
        fields = fields_in(typed, f"{path[1:]}." if path else "")
        found.update((key, vars(owner)[field.name]) for key, owner, field in fields if field.state is SECRET)
    return found


def masked_config(config: Any) -> dict[str, Any]:
    """Return all values of a config as nested plain values, with `***` instead of each secret."""
    if isinstance(config, AnyConfig):
        return tree_of(config, MASKED)
    tree = to_plain(config)
    for key in secret_keys(config):
        owner, last = _owner(tree, key)
        if owner is not None:
            owner[last] = mask_texts(owner[last])
    return tree


def _owner(tree: Any, key: str) -> tuple[dict[str, Any] | None, str]:
    """Return the dict that directly contains the value of a dotted key (None if the key is missing), and the last part of the key."""
    *groups, last = key.split(".")
    for part in groups:
        tree = get_child(tree, part)
    return (tree if isinstance(tree, dict) and dict.__contains__(tree, last) else None), last


def secret_texts(config: Any) -> list[str]:
    """Return the secrets of a config that should be masked in a log. Very short secrets are left out."""
    texts = (text for value in declared_secrets(config).values() for _, text in _texts(value))
    return list(dict.fromkeys(form for text in texts for form in forms_to_find(text)))


def masked_secret_paths(config: Any) -> list[Path]:
    """Return the paths at which a config from a store has `***` instead of a secret."""
    return [(*key.split("."), *rest) for key, value in declared_secrets(config).items() for rest, text in _texts(value) if text == MASK]


def refuse_undeclared(config: Any, public: Collection[str] = (), masked: dict[str, Any] | None = None) -> None:
    """Raise an error if a config has undeclared text that is almost certainly a secret. The dotted keys in `public` are not checked.

    `masked` is the result of `masked_config`, if the caller has already computed it. It saves time for a free-form config.
    """
    secrets = declared_secrets(config)
    known = (*secrets, *public)
    found: dict[str, Problem] = {}
    tree = tree_of(config, WHOLE) if isinstance(config, AnyConfig) else masked or to_plain(config)
    for path, text in _texts(tree):
        why = _reason(path, text)
        if why and not any(_is_within(path, key) for key in known):
            while isinstance(path[-1], int):  # a list can only be declared as a whole
                path = path[:-1]
            name = dotted(path)
            found.setdefault(name, Problem(name, why))
    wrong = [
        Problem(key, "is declared a secret, but is not text")
        for key, value in secrets.items()
        if not all(isinstance(leaf, str | dict | list | tuple | None) for _, leaf in leaves([value], into_lists=True))
    ]
    if not found:
        if wrong:
            raise ConfigError.of("the config", wrong, hint="write it as text")
        return
    names = ", ".join(f'"{name}"' for name in found) + ("," if len(found) == 1 else "")
    declare = "annotate it `Secret[str]`" if isinstance(config, AnyConfig) else f"pass the manager `secrets=({names})`"
    raise ConfigError.of(
        "the config",
        [*found.values(), *wrong],
        why="configs are stored in plain text",
        hint=f"{declare} to store `***` instead, or `public=({names})` if it is not a secret",
    )


def _reason(path: Path, text: str) -> str:
    """Return why a string in a config looks like a secret, or an empty string if it does not."""
    if any(isinstance(part, str) and has_unmistakable_name(part) for part in path):
        why = "looks like a secret, judging by its name"
    elif has_token(text):
        why = "looks like a secret: it has the form of a token"
    elif secret_parts(text):
        why = "looks like a secret: it has a password in it"
    else:
        return ""
    return "" if is_harmless(text) else why  # this takes longest, and few strings get here


def _is_within(path: Path, key: str) -> bool:
    name = dotted(path)
    return name == key or name.startswith(f"{key}.")


def _texts(node: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield each string in a tree, with its path."""
    if isinstance(node, str):
        yield path, node
    elif isinstance(node, dict):
        for key, each in node.items():
            yield from _texts(each, (*path, key))
    elif isinstance(node, list | tuple):
        for number, each in enumerate(node):
            yield from _texts(each, (*path, number))
