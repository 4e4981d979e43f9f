"""`trainmaster tag`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.options import Key, StoreOption


def command(
    key: Key,
    labels: Annotated[list[str] | None, typer.Argument(metavar="LABEL", help="Labels; without any, those it has are shown.")] = None,
    store: StoreOption = None,
    is_removal: Annotated[bool, typer.Option("--remove", help="Take the labels away.")] = False,
) -> None:
    """Give labels to a run, or take them away.

    A label is 1 to 64 letters, digits, `.`, `_` and `-`.

    \b
    Examples:
      trainmaster tag 3fa9 best paper
      trainmaster tag 3fa9 paper --remove
      trainmaster ls --tag best
    """
    from trainmaster.cli.keys import resolve_key
    from trainmaster.cli.opening import needed_store
    from trainmaster.errors import SettingError, did_you_mean

    found = needed_store(store)
    full = resolve_key(found, key)
    if is_removal:
        has = found.tags[full]
        missing = [label for label in labels or [] if label not in has]
        if missing or not labels:
            hint = did_you_mean(missing[0], has) if missing else ""
            fact = f"run {full} has no label `{missing[0][:80]}`" if missing else "which labels are to be taken away?"
            raise SettingError(fact, hint=hint or f"it has {', '.join(has) or 'none'}")
        found.tags.remove(full, labels)
    else:
        found.tags.add(full, labels or [])
    print(f"{full}  {' '.join(found.tags[full]) or 'has no labels'}")
