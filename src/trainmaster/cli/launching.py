"""Starting a manager from the command line: its config from words, and how its work is taken up again."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.cli.target import Target
from trainmaster.store.printable import printable

if TYPE_CHECKING:
    from trainmaster.config import Config
    from trainmaster.manager import Manager


def program() -> tuple[str, ...]:
    """How this program was called, so that a command can be pasted: by its name, if that leads to the same file."""
    is_script = os.path.basename(sys.argv[0] or "").startswith("trainmaster")
    path = sys.argv[0] if is_script else sys.executable
    name = os.path.basename(path)
    found = shutil.which(name)
    words = name if found is not None and os.path.abspath(found) == os.path.abspath(path) else os.path.abspath(path)
    return (words,) if is_script else (words, "-m", "trainmaster")


def launched(target: Target, store_dir: str | None, is_quiet: bool = False) -> Manager:
    """The manager of a target, which is named before its code is imported."""
    from trainmaster.manager.launch import Launch

    if not is_quiet:
        print(f"target {printable(target.text)}", flush=True)
    manager = target.manager(store_dir, is_quiet)
    manager.launched(Launch(target.text, program()))
    return manager


def config_from(manager: Manager, file: str | None, overrides: Sequence[str]) -> Any:
    """The config that a file and `key=value` words make of a manager's defaults."""
    from trainmaster.config import Config
    from trainmaster.config.overrides import apply_all

    given = Config.load(file) if file is not None else Config()
    if isinstance(manager.defaults, type):
        tree, _ = apply_all(given.asdict(), overrides, manager.defaults.__name__, is_new=True)
        return manager.get_config(tree)
    config = manager.get_config(given)
    if isinstance(config, Config):
        tree, _ = apply_all(config.asdict(), overrides, "the config", is_new=not config)  # a manager without defaults takes any name
        return manager.get_config(tree)
    return manager.get_config(config.override(*overrides))


def plan_of(manager: Manager, config: Any, num_epochs: int | None, store_dir: str) -> list[str]:
    """What would be trained, for `--dry-run`."""
    from trainmaster.config import key_of
    from trainmaster.config.difference import Missing, diff

    free = _shown(config)
    lines = [f"key     {key_of(config)}", f"store   {os.path.abspath(store_dir)}"]
    lines += [f"epochs  {num_epochs}"] if num_epochs is not None else []
    lines += ["config", *(f"  {key}  {value!r}" for key, value in free.flatten().items())]
    defaults = manager.defaults
    before = {} if isinstance(defaults, type) else _shown(defaults).flatten()
    changes = diff(before, free.flatten())
    lines += ["changed from the defaults"] if changes else ["nothing is changed from the defaults"]
    for key, old, new in changes:
        was = "not there" if old[0] is Missing else repr(old[1])
        lines.append(f"  {key}  {was} -> {'not there' if new[0] is Missing else repr(new[1])}")
    return [printable(line) for line in lines]


def _shown(config: Any) -> Config:
    """A config as it would be stored: with `***` for its secrets."""
    from trainmaster.config import Config
    from trainmaster.config.secret_fields import masked_config

    return Config(masked_config(config.asdict() if isinstance(config, Config) else config.to_dict()))


def choices_from(manager: Manager, words: Sequence[str]) -> Any:
    """The choices of a file, or of words such as `lr=0.1,0.01`, over a manager's defaults."""
    from trainmaster.config import Choices, Config
    from trainmaster.config.overrides import apply_all

    seed = int.from_bytes(os.urandom(6))
    if len(words) == 1 and "=" not in words[0]:
        found = Choices(words[0], seed)
    else:
        lists = [_as_list(word) for word in words]
        if isinstance(manager.defaults, Config) and manager.defaults:
            apply_all(manager.get_config().asdict(), lists, "the choices")  # tells of names that the defaults do not have
        tree, _ = apply_all({}, [each.removeprefix("+") for each in lists], "the choices", is_new=True)
        found = Choices(tree, seed)
    manager.get_config(found[0])  # what is wrong with one is told before any is trained
    return found


def _as_list(word: str) -> str:
    """
    >>> _as_list("lr=0.1,0.01"), _as_list("depth=3"), _as_list("sizes=[[1, 2], [3]]")
    ('lr=[0.1,0.01]', 'depth=[3]', 'sizes=[[1, 2], [3]]')
    """
    key, equals, value = word.partition("=")
    return word if value.lstrip().startswith("[") or not value.strip() else f"{key}{equals}[{value}]"


def sweep_plan(choices: Any, num_epochs: int | None, workers: int, store_dir: str, shows_keys: bool, manager: Manager) -> list[str]:
    """What a sweep will train, in a few lines; with the keys of the first runs, if asked."""
    from trainmaster.config import key_of

    lines = [
        f"runs    {choices.count:,}",
        f"store   {os.path.abspath(store_dir)}",
        f"workers {workers or 'none: one after the other, here'}",
    ]
    lines += [f"epochs  {num_epochs}"] if num_epochs is not None else []
    if shows_keys:
        for number in range(min(choices.count, 20)):
            config = manager.get_config(choices[number])
            lines.append(f"  {key_of(config)}  {', '.join(f'{key}={value!r}' for key, value in _shown(choices[number]).flatten().items())}")
        lines += [f"  ... and {choices.count - 20:,} more"] if choices.count > 20 else []
    return [printable(line) for line in lines]


def next_steps(manager: Manager) -> list[str]:
    """What to type next, after a run."""
    words = shlex.join(program())
    store = (
        f" --store {shlex.quote(str(manager.store.root))}"
        if manager.store.root != os.path.abspath(os.environ.get("TRAINMASTER_STORE") or "runs")
        else ""
    )
    return [f"next: {words} show {manager.key}{store}", f"      {words} ls{store}"]
