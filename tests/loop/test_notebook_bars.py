"""Progress bars in a notebook are shown as HTML or as text. `tests/test_notebooks.py` tests them in a real kernel."""

from __future__ import annotations

from trainmaster.loop.notebook_bars import NotebookBars, is_in_notebook


def test_outside_a_notebook_there_are_none() -> None:
    assert not is_in_notebook()


def test_a_task_shows_its_share_and_its_texts() -> None:
    bars = NotebookBars()
    task = bars.add_task("run", total=4.0, of="", eta="", shown="")
    bars.update(task, completed=1.0, of="1/4", shown="loss 0.5")
    assert 'max="4" value="1"' in bars._repr_html_()
    assert repr(bars) == "run  1/4  loss 0.5"


def test_a_task_of_unknown_length_has_no_bar() -> None:
    bars = NotebookBars()
    bars.add_task("epoch", total=None, of="3")
    assert "<progress" not in bars._repr_html_()


def test_texts_of_a_run_cannot_become_html_or_escape_sequences() -> None:
    bars = NotebookBars()
    bars.add_task("<script>", total=1.0, shown="<img onerror=x>\x1b[2J")
    bars.print("<b>line</b>")
    shown = bars._repr_html_() + repr(bars)
    assert "<script>" not in bars._repr_html_()
    assert "<img" not in bars._repr_html_()
    assert "<b>" not in bars._repr_html_()
    assert "\x1b" not in shown


def test_only_the_last_lines_stay_and_the_bars_go_at_the_end() -> None:
    bars = NotebookBars()
    bars.add_task("run", total=1.0)
    for number in range(100):
        bars.print(f"epoch {number}")
    bars.stop()
    assert repr(bars).splitlines() == [f"epoch {number}" for number in range(90, 100)]
