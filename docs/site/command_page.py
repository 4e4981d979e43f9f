"""The reference of the command line, read from the commands themselves."""

from __future__ import annotations

import re
from typing import Any

from trainmaster.cli.app import _make_app, help_text

HEAD = """# Command line

`trainmaster COMMAND -h` prints the same text in a terminal. The guide [The command line](../command_line.md) explains
the commands with their output.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | something failed or is damaged |
| 2 | wrong input |
| 130, 143 | Ctrl-C, SIGTERM; the run was saved |
| 138 | SIGUSR1 (Slurm's warning before a time limit); the run was saved |
| 141 | the pipe was closed |
"""


def command_page() -> str:
    app = _make_app()
    names = app.list_commands(None)
    parts = [HEAD, _table(("command", ""), [(f"[`{name}`](#trainmaster-{name})", _first_line(app, name)) for name in names])]
    parts.append(f"## trainmaster\n\n```text\n{help_text()}```")
    for name in names:
        command = app.get_command(None, name)
        parts.append(f"## trainmaster {name}\n\n" + _body(command, f"trainmaster {name}", command.help))
    return "\n\n".join(parts) + "\n"


def _first_line(app: Any, name: str) -> str:
    return str(app.get_command(None, name).help).partition("\n")[0]


def _body(command: Any, path: str, text: str) -> str:
    context = command.context_class(command, info_name=path)
    usage = command.get_usage(context).removeprefix("Usage: ")
    about, _, examples = re.sub(r"\n?\x08\n?|\\b\n", "\n", text).partition("\nExample")
    parts = [f"```text\n{usage}\n```", _paragraphs(about)]
    if lines := [line.strip() for line in examples.partition("\n")[2].strip().splitlines() if line.strip()]:
        parts.append("```text\n" + "\n".join(lines) + "\n```")
    records = [record for each in command.get_params(context) if (record := each.get_help_record(context))]
    if records:
        parts.append(_table(("option", ""), [(f"`{_argument(names)}`", _cell(_escaped(help_text))) for names, help_text in records]))
    return "\n\n".join(parts)


def _paragraphs(text: str) -> str:
    """Keep indented lines, such as lists of columns, as they are."""
    blocks = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(f"```text\n{block}\n```" if re.search(r"^ {2,}", block, re.MULTILINE) else _escaped(block) for block in blocks)


def _argument(names: str) -> str:
    """An option with its value, or the name of an argument without typer's type: `TARGET <str>`."""
    return " ".join(re.sub(r" <.*>$", "", names).split())


def _escaped(text: str) -> str:
    return re.sub(r"([<>*_\[\]])", r"\\\1", text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    return "\n".join([f"| {head[0]} | {head[1]} |", "|---|---|", *(f"| {left} | {right} |" for left, right in rows)])
