"""Figures are written as complete files or not at all."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import warm
from matplotlib.image import imread

from trainmaster.errors import SettingError
from trainmaster.figures.panels import Line, Lines
from trainmaster.figures.save import save

LOSS = Lines("loss", "epoch", "loss", [Line("train <b>", [1, 2, 3], [3.0, 2.0, 1.0]), Line("valid", [1, 2], [3.5, 2.5])])
FILES = ["loss.html", "loss.png", "plotly.min.js"]

FULL_DISK = """
import pathlib, resource, sys
from trainmaster.figures.panels import Line, Lines
from trainmaster.figures.save import save
folder, room = pathlib.Path(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
try:
    save(folder, "loss", [Lines("other", "", "", [Line("a", list(range(1000)), list(range(1000)))])])
except OSError as error:
    print(type(error).__name__, error.errno)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_image_a_page_and_its_script_are_written(tmp_path: Path) -> None:
    save(tmp_path, "loss", [LOSS], "run ab12")
    assert names(tmp_path) == FILES
    assert imread(io.BytesIO((tmp_path / "loss.png").read_bytes())).ndim == 3
    page = (tmp_path / "loss.html").read_text()
    assert "<title>run ab12</title>" in page
    assert page.rstrip().endswith("</html>")


def test_missing_folders_are_created(tmp_path: Path) -> None:
    save(str(tmp_path / "train" / "plots"), "loss", [LOSS])
    assert names(tmp_path / "train" / "plots") == FILES


def test_the_script_is_copied_from_plotly_once(tmp_path: Path) -> None:
    plotly = pytest.importorskip("plotly")
    save(tmp_path, "loss", [LOSS])
    before = (tmp_path / "plotly.min.js").stat()
    save(tmp_path, "other", [LOSS])
    after = (tmp_path / "plotly.min.js").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    package = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    assert (tmp_path / "plotly.min.js").read_bytes() == package.read_bytes()


def test_the_script_of_another_version_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "plotly.min.js").write_text("old")
    save(tmp_path, "loss", [LOSS])
    assert (tmp_path / "plotly.min.js").stat().st_size > 1_000_000


def test_files_are_readable_by_other_users(tmp_path: Path) -> None:
    save(tmp_path, "loss", [LOSS])
    (tmp_path / "plain").write_text("")
    assert {(tmp_path / name).stat().st_mode for name in FILES} == {(tmp_path / "plain").stat().st_mode}


def test_without_plotly_only_the_png_is_written_and_nothing_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    save(tmp_path, "loss", [LOSS])
    assert names(tmp_path) == ["loss.png"]


def test_writing_a_page_does_not_import_plotly(tmp_path: Path) -> None:
    text = "import sys; from trainmaster.figures.save import save; save(sys.argv[1], 'loss', []); print({'plotly'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", text, str(tmp_path)], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"
    assert names(tmp_path) == FILES


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    save(tmp_path, "loss", [LOSS])
    halves, is_over = [], threading.Event()

    def read() -> None:
        while not is_over.is_set():
            if not (tmp_path / "loss.png").read_bytes().endswith(b"IEND\xaeB`\x82"):
                halves.append("png")
            if not (tmp_path / "loss.html").read_text().endswith("</html>\n"):
                halves.append("html")

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(5):
        save(tmp_path, "loss", [LOSS])
    is_over.set()
    reader.join()
    assert halves == []
    assert names(tmp_path) == FILES


@pytest.mark.parametrize(("room", "left"), [(1000, []), (10_000_000, FILES), (1_000_000, ["loss.png"])])
def test_a_full_disk_leaves_no_partial_files(tmp_path: Path, room: int, left: list[str]) -> None:
    """With 1 MB, only the image fits on the disk; with 10 MB, everything fits and there is no error."""
    done = warm.run([sys.executable, "-c", FULL_DISK, str(tmp_path), str(room)], check=True, capture_output=True, text=True)
    assert names(tmp_path) == left
    assert done.stdout == ("" if left == FILES else "OSError 27\n")


def test_a_full_disk_leaves_the_old_files_unchanged(tmp_path: Path) -> None:
    save(tmp_path, "loss", [LOSS])
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    warm.run([sys.executable, "-c", FULL_DISK, str(tmp_path), "1000"], check=True, capture_output=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_page_that_cannot_be_replaced_is_an_error_and_leaves_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "loss.html").mkdir()
    with pytest.raises(OSError):
        save(tmp_path, "loss", [LOSS])
    assert names(tmp_path) == FILES


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        save(tmp_path / "file" / "plots", "loss", [LOSS])
    assert names(tmp_path) == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write to any folder")
def test_a_folder_that_is_read_only_is_an_error_and_stays_empty(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        save(tmp_path, "loss", [LOSS])
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "../a", "a\0b"])
def test_a_name_that_is_a_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingError, match="cannot be the name of a figure"):
        save(tmp_path, name, [LOSS])
    assert names(tmp_path) == []


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_page_is_drawn_by_a_real_browser_without_a_network(tmp_path: Path) -> None:
    save(tmp_path, "loss", [LOSS], "run ab12")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=20000"]
    options += [f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom"]
    page = (tmp_path / "loss.html").as_uri()
    shown = subprocess.run(["chromium", *options, page], check=True, capture_output=True, text=True, timeout=500).stdout
    assert 'class="main-svg"' in shown
    assert 'class="legendtext"' in shown
    assert "train &lt;b&gt;" in shown
