"""Averages of anything over an evaluation set."""

from __future__ import annotations

from typing import Any

from trainmaster.errors import FixtureExistsError, SettingError
from trainmaster.extensions.curves import Curves, scalar
from trainmaster.extensions.drawing import Drawing
from trainmaster.figures.panels import Lines
from trainmaster.loop.eval_state import as_sum
from trainmaster.loop.writer import Writer
from trainmaster.stages import Fixtures, Observer, always


class Avg(Observer):
    """Averages a scalar fixture over each evaluation set and records it against `epoch_num` (E41).

    `counter="num_batches"` weighs every batch alike, `"num_samples"` by its size. `fig` is the curve's name, and may use any fixture.
    The running sum is the fixture `accum_<target>`, or `accum`. Where there is a `train_dir`, the curves of all sets are drawn as
    `plots/avg_<target>`. A subclass may create the target first:

    ```python
    class Accuracy(Avg):
        def __init__(self):
            super().__init__("accuracy", counter="num_samples")

        def post_eval_step_batch(self, fixtures, batch, prediction):
            fixtures["accuracy"] = (prediction.argmax(1) == batch[1]).float().mean()
            fixtures(super().post_eval_step_batch)
    ```
    """

    def __init__(
        self,
        target: str,
        accum: str | None = None,
        visualize: bool = True,
        fig: str = "{target}/{datasource_name}/avg",
        counter: str = "num_batches",
    ) -> None:
        if not isinstance(target, str) or not target.isidentifier():
            raise SettingError(f"Avg averages a fixture by its name, not {target!r}", hint='Avg("accuracy")')
        if counter not in ("num_batches", "num_samples"):
            raise SettingError(f"Avg counts `num_batches` or `num_samples`, not {counter!r}", hint='Avg("accuracy", counter="num_samples")')
        self.target = target
        self.accum = accum or f"accum_{target}"
        self.visualize = visualize
        self.fig = fig
        self.counter = counter
        self.name = f"avg_{target}"
        self._curves = Curves()
        self._drawing = Drawing(self.name, None, self.panels)
        makes_target = type(self).post_eval_step_batch is not Avg.post_eval_step_batch
        self.creates = {self.accum: "eval_step_epoch", **({target: "eval_step_batch"} if makes_target else {})}

    def pre_train(self, loop: Any) -> None:
        self._drawing.begin(loop)

    def pre_eval_step_epoch(self, fixtures: Fixtures) -> None:
        if self.accum in fixtures:
            raise FixtureExistsError(
                f"the accumulator `{self.accum}` of Avg({self.target!r}) exists already", hint=f'Avg("{self.target}", accum="another_name")'
            )
        fixtures[self.accum] = 0.0

    def post_eval_step_batch(self, fixtures: Fixtures, true_batch_size: int) -> None:
        weight = true_batch_size if self.counter == "num_samples" else 1
        fixtures.modify(self.accum, fixtures[self.accum] + as_sum(scalar(self.target, fixtures[self.target], "Avg averages")) * weight)

    def post_eval_step_epoch(self, fixtures: Fixtures, writer: Writer, epoch_num: int, stopped: str | None) -> None:
        if self.visualize and stopped is None:
            mean = float(fixtures[self.accum]) / fixtures[self.counter]
            writer.add_scalar(self._curve(fixtures), mean, epoch_num)
            if not fixtures["standalone_eval"]:
                self._curves.add(fixtures["datasource_name"], epoch_num, mean)

    def post_eval(self) -> None:
        self._drawing.refresh()

    @always
    def post_train(self) -> None:
        self._drawing.draw()

    def panels(self) -> list[Lines]:
        """The figure as data; nothing before the first mean."""
        lines = self._curves.lines()
        return [Lines(f"Mean of {self.target}", "epoch", self.target, lines)] if lines else []

    def state_dict(self) -> dict[str, Any]:
        return self._curves.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._curves.load_state_dict(state)

    def _curve(self, fixtures: Fixtures) -> str:
        try:
            return self.fig.format_map({**fixtures, "target": self.target})
        except (KeyError, IndexError, ValueError) as error:
            raise SettingError(
                f"the curve's name {self.fig!r} of Avg({self.target!r}) asks for {error}, which no open stage provides",
                open=", ".join(sorted(fixtures)),
                hint='fig="{target}/{datasource_name}/avg"',
            ) from None
