"""Builds configs, choices for sweeps, and search spaces from `key=value` arguments and config files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.config import Config
    from trainmaster.errors import ConfigError
    from trainmaster.manager import Manager


def build_config(manager: Manager, file: str | None, overrides: Sequence[str]) -> Any:
    """Apply a config file and `key=value` arguments to a manager's defaults."""
    from trainmaster.config import Config
    from trainmaster.errors import ConfigError

    values = Config.load(file) if file is not None else Config()
    try:
        config = manager.get_config(values)
    except ConfigError:
        if not isinstance(manager.defaults, type):
            raise
        # The arguments may set required fields of a typed config that the file does not set.
        return manager.complete_config(_overridden(values, overrides, manager.defaults.__name__))
    if isinstance(config, Config) and not config:  # without defaults, any key is accepted
        return manager.complete_config(_overridden(Config(), overrides, "the config"))
    return manager.complete_config(config.override(*overrides))


def _overridden(values: Config, overrides: Sequence[str], name: str) -> Config:
    """Return a free-form config with the overrides applied. Overrides may add keys. All values keep their origins."""
    from trainmaster.config.config import with_origins
    from trainmaster.config.overrides import apply_overrides
    from trainmaster.config.paths import dotted

    tree, applied = apply_overrides(values.asdict(), overrides, name, takes_any=True)
    origins = {key: values.origin(key) for key in values.flatten()}
    return with_origins(tree, {**origins, **{dotted(each.path): each.origin for each in applied}})


def warn_about_any_key(manager: Manager, words: Sequence[str]) -> None:
    """Print a warning if there are no defaults, because misspelled keys cannot be detected without them."""
    from trainmaster.config import Config

    if words and isinstance(manager.defaults, Config) and not manager.defaults:
        print("no defaults: any key is accepted, even a misspelled one")


def build_choices(manager: Manager, words: Sequence[str], file: str | None = None) -> Any:
    """Return the choices of a sweep from a file or from arguments such as `lr=0.1,0.01`.

    Other keys have their default values, or the values in the config file.
    """
    from trainmaster.config import Config, Grid
    from trainmaster.config.config import with_origins
    from trainmaster.config.overrides import apply_overrides
    from trainmaster.errors import ConfigError, SettingError

    seed = int.from_bytes(os.urandom(6))
    values = Config.load(file) if file is not None else Config()
    if len(words) == 1 and "=" not in words[0]:
        if not os.path.exists(words[0]):
            raise SettingError(f"there is no file `{words[0]}`", hint="write choices as `lr=0.1,0.01`, or name a YAML or JSON file")
        chosen = Config.load(words[0])
    else:
        lists = [_to_list(word) for word in words]
        if isinstance(manager.defaults, Config) and (manager.defaults or values):
            apply_overrides(manager.get_config(values).asdict(), lists, "the choices")  # raises an error for unknown keys
        manager.completer.allow_keys(each[1:].partition("=")[0] for each in lists if each.startswith("+"))
        chosen = Config(apply_overrides({}, [each.removeprefix("+") for each in lists], "the choices", takes_any=True)[0])
        chosen = with_origins(chosen, {each.partition("=")[0].removeprefix("+").strip(): f"override {each}" for each in words})
    # a list in the config file is one value, not a list of choices
    flat = values.flatten()
    fixed = with_origins({key: [value] for key, value in flat.items()}, {key: values.origin(key) for key in flat})
    fixed.update(chosen)
    choices = Grid(fixed, seed)
    try:
        manager.get_config(choices[0])  # reports mistakes before anything is trained
    except ConfigError as error:
        raise _suggest_groups(error, manager, values) from None
    return choices


def _suggest_groups(error: ConfigError, manager: Manager, values: Config) -> ConfigError:
    """Suggest `optim.lr` for an unknown key `lr` of a typed config."""
    from trainmaster.config import ConfigBase
    from trainmaster.config.overrides import suggest_full_keys
    from trainmaster.errors import ConfigError

    try:
        config = manager.get_config(values)
    except ConfigError:
        return error
    if not isinstance(config, ConfigBase):
        return error
    return ConfigError.of(type(config).__name__, suggest_full_keys(error.problems, config.to_dict()))


def _to_list(word: str) -> str:
    """Rewrite an argument so that its value is a list of choices.

    >>> _to_list("lr=0.1,0.01"), _to_list("depth=3"), _to_list("sizes=[[1, 2], [3]]")
    ('lr=[0.1,0.01]', 'depth=[3]', 'sizes=[[1, 2], [3]]')
    """
    key, equals, value = word.partition("=")
    return word if value.lstrip().startswith("[") or not value.strip() else f"{key}{equals}[{value}]"


def build_search(manager: Manager, words: Sequence[str], file: str | None = None) -> tuple[Any, dict[str, Any]]:
    """Return the search space from a file or from arguments such as `lr=log(1e-5,1e-1)`, and the fixed values."""
    from trainmaster.config import Config
    from trainmaster.config.overrides import apply_overrides
    from trainmaster.config.search_space import is_search_space
    from trainmaster.errors import ConfigError, Problem, SettingError
    from trainmaster.sweep.space import Space, is_range, parse_space

    values = Config.load(file) if file is not None else Config()
    if len(words) == 1 and "=" not in words[0]:
        given = dict(Config.load(words[0]))
        searched = {
            key: each
            for key, each in given.items()
            if is_search_space(each) or isinstance(each, list) or (isinstance(each, str) and is_range(each))
        }
        values.update({key: each for key, each in given.items() if key not in searched})
        return Space.of(searched), values.flatten()
    for word in words:
        if "=" not in word:
            raise SettingError(f"`{word}` is not a key with a value", hint="write lr='log(1e-5,1e-1)', or name one file and nothing else")
    space, fixed = parse_space(words)
    if space is None:
        raise ConfigError.of("the search space", [Problem("", "has no keys: every key has one value")], hint="lr='log(1e-5,1e-1)'")
    manager.completer.allow_keys(word[1:].partition("=")[0] for word in fixed if word.startswith("+"))
    tree, _ = apply_overrides(values.asdict(), [word.removeprefix("+") for word in fixed], "the config", takes_any=True)
    return space, Config(tree).flatten()
