"""Checks of the model: leakage between samples, parameters that are not trained, chance in eval mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from trainmaster.extensions.leakage import NotApplicable, find_leak
from trainmaster.extensions.sanity.report import Finding, counted, failed, listed, not_applicable, passed
from trainmaster.extensions.sanity.scene import Scene, cloned
from trainmaster.loop.batches import tensors_in
from trainmaster.loop.guard import mode
from trainmaster.loop.state import stateful_attributes

_NUM_PASSES: Final = 3


def check_leakage(scene: Scene) -> Finding:
    """Does information pass between samples of a batch?"""
    loop = scene.loop
    with scene.training():
        leak = find_leak(
            loop.train_model_forward, cloned(scene.batches[0]), model=loop.model, loss=loop.train_loss_forward, allow=scene.allow
        )
    if leak is None:
        return passed("no sample depends on another")
    if isinstance(leak, NotApplicable):
        return not_applicable(leak.reason)
    error = leak.error()
    place = ": ".join(filter(None, [error.rows.get("where"), error.rows.get("code")]))
    return failed("\n".join(filter(None, [error.fact, place, error.rows.get("why")])), error.rows.get("hint", "see LeakageCheck"))


def check_parameters(scene: Scene) -> Finding:
    """Does every parameter get a gradient, and is each the optimizer's?

    A parameter may have none in the first step on purpose, behind a layer that starts at zero: so there are a few steps.
    """
    names = {id(each): name for name, each in scene.loop.model.named_parameters()}
    trained = {name: each for name, each in scene.loop.model.named_parameters() if each.requires_grad}
    used, alive, broken, num_passes = _looks_at_gradients(scene, trained)
    unused = [name for name in trained if name not in used]
    dead = [name for name in trained if name in used and name not in alive and name not in broken]
    problems, advices = _ownership(scene, names)
    passes = counted(num_passes, "batch")
    if unused:
        problems.append(f"never used: {listed(unused)}")
        advices.append("use them in the forward pass, freeze them (requires_grad=False), or remove them")
    if dead:
        problems.append(f"gradient exactly 0 in {passes}: {listed(dead)}")
        advices.append("look for .detach(), no_grad, argmax, dead ReLUs or a factor of 0 behind them")
    if broken:
        problems.append(f"gradient not finite: {listed(broken)}")
        advices.append("NonFinite() finds the first module whose output is not finite")
    if problems:
        return failed("\n".join(problems), "; ".join(advices))
    owned = [name for key, name in names.items() if key in _owned(scene) and name not in trained]
    rest = f"; the optimizer holds {counted(len(owned), 'frozen one')}, and leaves them as they are" if owned else ""
    return passed(f"{counted(len(trained), 'parameter')} to train, all with a gradient{rest}")


def _looks_at_gradients(scene: Scene, trained: dict[str, nn.Parameter]) -> tuple[set[str], set[str], list[str], int]:
    """The names of parameters that had a gradient, one that is not 0, one that is not finite; and the number of passes."""
    optimizer = scene.optimizer() if scene.why_no_optimizer is None else None
    batches = (scene.batches * _NUM_PASSES)[:_NUM_PASSES]
    used: set[str] = set()
    alive: set[str] = set()
    broken: list[str] = []
    num_passes = 0
    with scene.training():
        for batch in batches:
            for parameter in trained.values():
                parameter.grad = None
            scene.loop.backward(scene.loss_of(batch)[1])
            num_passes += 1
            grads = {name: _dense(each.grad) for name, each in trained.items() if each.grad is not None}
            used |= grads.keys()
            alive |= {name for name, grad in grads.items() if bool((grad != 0).any())}
            broken = [name for name, grad in grads.items() if not bool(torch.isfinite(grad).all())]
            if broken or len(alive) == len(trained):
                break
            if optimizer is not None:
                optimizer.step()
    return used, alive, broken, num_passes


def _dense(grad: torch.Tensor) -> torch.Tensor:
    return grad.coalesce().values() if grad.layout is torch.sparse_coo else grad


def _optimizers(scene: Scene) -> list[Optimizer]:
    return [each for each in stateful_attributes(scene.loop).values() if isinstance(each, Optimizer)]


def _owned(scene: Scene) -> dict[int, nn.Parameter]:
    return {id(each): each for optimizer in _optimizers(scene) for group in optimizer.param_groups for each in group["params"]}


def _ownership(scene: Scene, names: dict[int, str]) -> tuple[list[str], list[str]]:
    """What is wrong between the optimizers and the model."""
    owned = _owned(scene)
    if not owned:
        return [], []
    problems, advices = [], []
    forgotten = [name for name, each in scene.loop.model.named_parameters() if each.requires_grad and id(each) not in owned]
    known = {id(each) for value in stateful_attributes(scene.loop).values() if isinstance(value, nn.Module) for each in value.parameters()}
    foreign = [each for key, each in owned.items() if key not in names and key not in known]
    if forgotten:
        problems.append(f"not in the optimizer: {listed(forgotten)}")
        advices.append("give the optimizer all of model.parameters(), after the model is complete, or freeze them")
    if foreign:
        shapes = listed([str(tuple(each.shape)) for each in foreign])
        problems.append(f"in the optimizer, but not the model's: {counted(len(foreign), 'parameter')} of shape {shapes}")
        advices.append("make the optimizer after the last change of the model: layers were replaced, or the model was copied")
    return problems, advices


def check_determinism(scene: Scene) -> Finding:
    """Does the same batch give the same bits twice, in eval mode?"""
    batch, loop = (scene.eval_batches or scene.batches)[0], scene.loop
    with mode(loop.model, is_training=False):
        one, two = (tensors_in(loop.eval_model_forward(cloned(batch))) for _ in range(2))
        if _same(one, two):
            return passed("two passes in eval mode gave the same bits")
        first = _first_difference(loop.model, lambda: loop.eval_model_forward(cloned(batch)))
    place = f"; {first}" if first is not None else ""
    greatest = max(
        (float((a.double() - b.double()).abs().max()) for a, b in zip(one, two, strict=False) if a.shape == b.shape), default=0.0
    )
    return failed(
        f"two passes of one batch in eval mode differ by up to {greatest:.2g}{place}",
        "look for dropout that ignores self.training (F.dropout needs training=self.training), noise, or a state kept from pass to pass",
    )


def _same(one: Sequence[torch.Tensor], two: Sequence[torch.Tensor]) -> bool:
    return len(one) == len(two) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(one, two, strict=True)
    )


def _first_difference(model: nn.Module, forward: Callable[[], Any]) -> str | None:
    """The first module, in the order in which they end, whose output differs between two passes, in words."""
    calls: list[tuple[str, str, list[torch.Tensor], list[torch.Tensor]]] = []

    def look(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            given, made = ([each.detach().clone() for each in tensors_in(nest)] for nest in ((args, kwargs), output))
            calls.append((name, type(module).__name__, given, made))

        return hook

    handles = [module.register_forward_hook(look(name), with_kwargs=True) for name, module in model.named_modules() if name]
    try:
        forward()
        before, calls = calls, []
        forward()
    finally:
        for handle in handles:
            handle.remove()
    for (name, kind, given, made), (other, _, given_now, made_now) in zip(before, calls, strict=False):
        if name != other or not _same(made, made_now):
            is_before = name == other and not _same(given, given_now)
            return f"what goes into `{name}` ({kind}) is the first to differ" if is_before else f"`{name}` ({kind}) is the first to differ"
    return None
