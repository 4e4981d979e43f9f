"""trainmaster works in a real Jupyter kernel: progress, interrupted cells, and the tutorial notebook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernel import Kernel, started_kernel, text_of

NOTEBOOK = Path(__file__).parent.parent / "docs" / "tutorial" / "notebook.ipynb"
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")]

SET_UP = """
import threading, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainmaster import Extension, Manager, Supervised

class Slow(Extension):
    def post_train_step_batch(self):
        time.sleep(0.02)

def make(epochs=3, **settings):
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    loader = DataLoader(TensorDataset(x, x**2), 8, shuffle=True)
    return Supervised(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)), nn.MSELoss(), epochs, loader, loader, **settings)

def weights(loop):
    return [each.tolist() for each in loop.model.parameters()]
"""


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Make kernels compute with one thread, because several threads would wait for each other on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def kernel(_one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with started_kernel(tmp_path_factory.mktemp("kernel")) as started:
        assert not [message for message in started.run(SET_UP) if message["type"] == "error"]
        yield started


def is_bar(message: dict[str, Any]) -> bool:
    return message["type"] == "update_display_data" and "<progress" in message["data"].get("text/html", "")


def is_in_second_epoch(message: dict[str, Any]) -> bool:
    return is_bar(message) and "epoch 2" in message["data"]["text/html"]


def test_progress_is_one_output_that_is_updated_also_when_the_cell_runs_again(kernel: Kernel) -> None:
    for _ in range(2):
        messages = kernel.run("make().train()\nprint(threading.active_count())")
        (shown,) = [message for message in messages if message["type"] == "display_data"]
        updates = [message for message in messages if message["type"] == "update_display_data"]
        assert {message["transient"]["display_id"] for message in updates} == {shown["transient"]["display_id"]}
        assert any(map(is_bar, updates))
        last = updates[-1]["data"]
        assert "<progress" not in last["text/html"]
        assert "epoch 3/3  valid loss" in last["text/plain"]
        num_threads = text_of(messages)
    assert num_threads == text_of(kernel.run("print(threading.active_count())"))


def test_an_interrupted_cell_of_a_loop_saves_and_says_how_to_continue(kernel: Kernel) -> None:
    messages = kernel.run('make(extensions=[Slow()], train_dir="loop").train()', interrupt_after=is_in_second_epoch)
    assert "Ctrl-C: finishing the batch and saving" in text_of(messages)
    assert "call train() again, or run the program again, to continue" in text_of(messages)
    assert messages[-1]["ename"] == "KeyboardInterrupt"
    resumed = kernel.run(
        """
loop = make(extensions=[Slow()], train_dir="loop", evaluate_first=False)
class Start(Extension):
    def pre_train_step_epoch(self, loop):
        print("at", loop.epoch_num, loop.moment.batch)
loop.add_extension("start", Start())
loop.train()
whole = make(extensions=[Slow()])
whole.train()
print(weights(loop) == weights(whole))
"""
    )
    lines = text_of(resumed).splitlines()
    assert lines[0] in {f"at 1 {batch}" for batch in range(1, 8)}  # in the middle of the epoch
    assert lines[-1] == "True"


def test_an_interrupted_cell_of_a_manager_saves_and_says_how_to_continue(kernel: Kernel) -> None:
    kernel.run(
        """
class Small(Manager):
    def make_loop(self, config):
        return make(extensions=[Slow()])
manager = Small("store")
"""
    )
    messages = kernel.run('manager.process({"lr": 0.1})', interrupt_after=is_in_second_epoch)
    assert "is saved at epoch" in text_of(messages)
    assert 'resume it with: manager.process(manager.configs["' in text_of(messages)
    assert messages[-1]["ename"] == "KeyboardInterrupt"
    resumed = kernel.run('manager.process({"lr": 0.1})\nprint(manager.epoch)')
    assert "resumes from epoch 1" in text_of(resumed)
    assert text_of(resumed).splitlines()[-1] == "3"


def test_a_figure_is_shown_as_an_image_without_a_magic_command(kernel: Kernel) -> None:
    messages = kernel.run(
        """
from trainmaster.figures.drawing import Drawing
from trainmaster.figures.panels import Line, Lines
Drawing([Lines("loss", "epoch", "loss", [Line("train", [1, 2], [2.0, 1.0])])]).figure()
"""
    )
    (result,) = [message for message in messages if message["type"] == "execute_result"]
    assert "image/png" in result["data"]


def test_the_tutorial_notebook_runs_and_shows_tables_and_figures(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output["data"] for output in outputs if output["output_type"] == "execute_result"]
    assert sum("<table>" in data.get("text/html", "") for data in shown) >= 4  # loop, config, sweep, groups
    assert sum("image/png" in data for data in shown) == 1
    printed = "".join(output["text"] for output in outputs if output["output_type"] == "stream")
    assert printed.count(" is done: epoch 5") == 1
    assert printed.count("] done ") == 11  # one line for each run of the sweep


def test_the_tutorial_notebook_is_stored_without_outputs() -> None:
    import nbformat

    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)
