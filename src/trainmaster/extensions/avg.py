"""Averages a fixture over each evaluation set."""

from __future__ import annotations

from typing import Any

from trainmaster.arguments import check_choice
from trainmaster.errors import FixtureExistsError, SettingError
from trainmaster.extensions.curves import Curves, scalar
from trainmaster.extensions.figure_writer import FigureObserver
from trainmaster.figures.panels import Lines
from trainmaster.loop.eval_state import as_sum
from trainmaster.loop.writer import Writer, record
from trainmaster.stages import Fixtures


class Avg(FigureObserver):
    """Averages a scalar fixture over each evaluation set and logs the mean against `epoch_num`.

    `counter="num_batches"` gives every batch the same weight; `"num_samples"` weights each batch by its size. The mean
    is logged as `<set>/<target>`, or under the name `fig`. This name may contain placeholders: `{target}`, `{accum}`, or
    any fixture in braces, as in `"{datasource_name}/{accum}"`. `accum` is the name of the fixture that holds the
    running sum; the default is `accum_<target>`. If the loop has a `train_dir`, the curves of all sets are drawn as
    `plots/avg_<target>`. A subclass can compute the target itself:

    ```python
    class Accuracy(Avg):
        def __init__(self):
            super().__init__("accuracy", counter="num_samples")

        def post_eval_step_batch(self, fixtures, batch, prediction):
            fixtures["accuracy"] = (prediction.argmax(1) == batch[1]).float().mean()
            fixtures(super().post_eval_step_batch)
    ```
    """

    is_guarded = True
    needs_whole_batches = True

    def __init__(
        self,
        target: str,
        accum: str | None = None,
        visualize: bool = True,
        fig: str | None = None,
        counter: str = "num_batches",
    ) -> None:
        if not isinstance(target, str) or not target.isidentifier():
            raise SettingError(f"`target` must be the name of a fixture, not {target!r}", hint='Avg("accuracy")')
        check_choice("counter", counter, ("num_batches", "num_samples"), hint='Avg("accuracy", counter="num_samples")')
        self.target = target
        self.accum = accum or f"accum_{target}"
        self.visualize = visualize
        # The loop logs the mean over samples as `<set>/loss`, so the mean over batches needs a different name.
        suffix = "_per_batch" if target == "loss" and counter == "num_batches" else ""
        self.fig = fig if fig is not None else f"{{datasource_name}}/{{target}}{suffix}"
        self.counter = counter
        self.name = f"avg_{target}"
        self._set_of: dict[str, str] = {}
        """Maps each logged name to its evaluation set."""
        self._curves = Curves()
        super().__init__(self.name, None)
        creates_target = type(self).post_eval_step_batch is not Avg.post_eval_step_batch
        self.creates = {self.accum: "eval_step_epoch", **({target: "eval_step_batch"} if creates_target else {})}

    def pre_eval_step_epoch(self, fixtures: Fixtures) -> None:
        if self.accum in fixtures:
            raise FixtureExistsError(
                f"the accumulator `{self.accum}` of Avg({self.target!r}) already exists", hint=f'Avg("{self.target}", accum="another_name")'
            )
        fixtures[self.accum] = 0.0

    def post_eval_step_batch(self, fixtures: Fixtures, true_batch_size: int) -> None:
        weight = true_batch_size if self.counter == "num_samples" else 1
        fixtures.modify(self.accum, fixtures[self.accum] + as_sum(scalar(self.target, fixtures[self.target], "Avg")) * weight)

    def post_eval_step_epoch(self, fixtures: Fixtures, writer: Writer, epoch_num: int, stopped: str | None) -> None:
        if self.visualize and stopped is None:
            mean = float(fixtures[self.accum]) / fixtures[self.counter]
            record(writer, self._metric_name(fixtures), mean, epoch_num, "epoch")
            if not fixtures["standalone_eval"]:
                self._curves.add(fixtures["datasource_name"], epoch_num, mean)

    def post_eval(self) -> None:
        self._figure_writer.draw_if_due()

    def panels(self) -> list[Lines]:
        return [Lines(f"Mean of {self.target}", "epoch", self.target, self._curves.lines())] if self._curves else []

    def state_dict(self) -> dict[str, Any]:
        return self._curves.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._curves.load_state_dict(state)

    def _metric_name(self, fixtures: Fixtures) -> str:
        try:
            name = self.fig.format_map({**fixtures, "target": self.target, "accum": self.accum})
        except (KeyError, IndexError, ValueError) as error:
            raise SettingError(
                f"fig={self.fig!r} of Avg({self.target!r}) uses {error}, which no open stage provides",
                open=", ".join(sorted({*fixtures, "target", "accum"})),
                hint='fig="{datasource_name}/{target}"',
            ) from None
        eval_set = fixtures["datasource_name"]
        if self._set_of.setdefault(name, eval_set) != eval_set:
            raise SettingError(
                f"Avg({self.target!r}) logs the means of {self._set_of[name]!r} and {eval_set!r} under one name, {name!r}",
                hint='fig="{datasource_name}/' + self.fig + '"',
            )
        return name
