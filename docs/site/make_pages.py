"""Write the pages of the documentation site to build/docs, from docs/, the files at the root, and the code.

The pages in docs/ work on GitHub as they are. Here, links to files outside of docs/ become links to pages of the site.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from command_page import command_page
from config_page import config_page
from python_pages import index_page, python_pages
from stage_pages import hook_page, stage_page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PROJECT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "ROADMAP.md": "project/roadmap.md",
    "SECURITY.md": "project/security.md",
    "tests/README.md": "project/tests.md",
    "LICENSE": "project/license.md",
}
"""Where a file outside of docs/ is on the site."""
FRONT_MATTER = {"index.md": "---\nhide: [navigation, toc]\n---\n\n"}
"""Settings of a page that GitHub would show as a table."""
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#:\s]+)(#[^)]*)?\)")
MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EDGE = re.compile(r"^  (\w+)(?:\[\"(.*?)\"\])?(?: --> (\w+))?$", re.MULTILINE)
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".md": "markdown", ".ts": "typescript", ".toml": "toml", ".json": "json", "": "sh"}


class Pages:
    """The pages of the site, by their paths below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources: set[Path] = set()
        """Files outside of docs/ that pages link to."""

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def add_docs(self) -> None:
        for file in sorted(each for each in DOCS.rglob("*") if each.is_file() and each.suffix not in (".py", ".pyc")):
            path = file.relative_to(DOCS).as_posix()
            if file.suffix == ".md":
                self.write(path, FRONT_MATTER.get(path, "") + self.with_links(file, path))
            else:
                (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, self.folder / path)

    def add_project_pages(self) -> None:
        for name, path in PROJECT_PAGES.items():
            if path != "index.md":
                text = self.with_links(ROOT / name, path)
                self.write(path, text if name.endswith(".md") else f"# License\n\n```text\n{text.strip()}\n```\n")

    def add_sources(self) -> None:
        """Add a page for each file of the repository that a page links to."""
        for file in sorted(self.sources):
            name = file.relative_to(ROOT).as_posix()
            fence = f"````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text().rstrip()}\n````"
            self.write(f"source/{name}.md", f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n{fence}\n")

    def with_links(self, file: Path, path: str) -> str:
        """Return the text of a page that will be at `path`, with links that work there."""
        parts = FENCE.split(MERMAID.sub(_as_table, file.read_text()))
        parts[::2] = [LINK.sub(lambda link: self._link(link, file, path), part) for part in parts[::2]]
        return "".join(parts)

    def _link(self, link: re.Match[str], file: Path, path: str) -> str:
        text, written, anchor = link[1], link[2], link[3] or ""
        target = (file.parent / written).resolve()
        if target.is_relative_to(DOCS):
            page = target.relative_to(DOCS).as_posix()
        elif not target.is_relative_to(ROOT) or not target.exists():
            return link[0]  # the build reports it
        elif (name := target.relative_to(ROOT).as_posix()) in PROJECT_PAGES:
            page = PROJECT_PAGES[name]
        elif target.is_dir():
            return text
        else:
            self.sources.add(target)
            page = f"source/{name}.md"
        return f"[{text}]({os.path.relpath(page, os.path.dirname(path))}{anchor})"


def _as_table(chart: re.Match[str]) -> str:
    """A flowchart of rooms as a table, from the top room to the bottom one: drawing it would load a script from another host."""
    about: dict[str, str] = {}
    below: dict[str, list[str]] = {}
    for source, label, target in EDGE.findall(chart[1]):
        about[source] = label or about[source]
        below.setdefault(source, []).extend([target] if target else [])
    rows = [f"| `{name}` | {about[name].removeprefix(f'{name}: ')} | {', '.join(f'`{each}`' for each in below[name])} |" for name in about]
    return "\n".join(["| room | contents | rooms directly below |", "|---|---|---|", *reversed(rows)])


def make_pages(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    pages = Pages(folder)
    pages.add_docs()
    pages.add_project_pages()
    for name, text in python_pages().items():
        pages.write(f"reference/{name}.md", text)
    pages.write("reference/index.md", index_page())
    pages.write("reference/commands.md", command_page())
    pages.write("reference/stage_tree.md", stage_page())
    pages.write("reference/hooks.md", hook_page())
    pages.write("reference/config_fields.md", config_page())
    pages.add_sources()


if __name__ == "__main__":
    make_pages(ROOT / "build" / "docs")
    if "torch" in sys.modules:
        raise SystemExit("the reference must be written without torch: it would take seconds")
