"""What is printed of an error in the user's own code: their lines first, and nothing of ours."""

from __future__ import annotations

import os
import sysconfig
import traceback

import trainmaster

_OURS = os.path.dirname(os.path.abspath(trainmaster.__file__))
_OTHERS = tuple(os.path.abspath(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))


def failure(error: BaseException) -> str:
    """The user's frames, the error, what hooks and loops noted of it, and how to see the rest."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not os.path.abspath(frame.filename).startswith((_OURS, *_OTHERS)) and frame.filename[:1] != "<"]
    lines = []
    for frame in theirs or frames[-2:]:
        lines.append(f"  {_short(frame.filename)}:{frame.lineno}, in {frame.name}")
        lines += [f"    {frame.line}"] if frame.line else []
    told = "".join(traceback.format_exception_only(error)).rstrip("\n")
    return "\n".join([*lines, told, "  try     `--debug` shows every frame"])


def _short(path: str) -> str:
    inside = os.path.relpath(path)
    return path if inside.startswith("..") else inside
