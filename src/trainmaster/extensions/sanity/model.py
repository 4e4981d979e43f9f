"""Checks the model for leakage between samples, parameters that are not trained, and randomness in eval mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from trainmaster.extensions.leakage_check import NotApplicable, find_leak
from trainmaster.extensions.sanity.loop_probe import LoopProbe, clone_batch
from trainmaster.extensions.sanity.report import Finding, failed, join_names, passed, skipped
from trainmaster.loop.batches import tensors_in
from trainmaster.loop.observer_guard import mode
from trainmaster.loop.state import stateful_attributes
from trainmaster.loop.unregistered import REMEDY, find_unregistered, list_unregistered, modules_of

_NUM_PASSES: Final = 3


def check_leakage(probe: LoopProbe) -> Finding:
    """Check that no information passes between the samples of a batch."""
    loop = probe.loop
    with probe.train_mode():
        leak = find_leak(
            loop.train_model_forward, clone_batch(probe.batches[0]), model=loop.model, loss=loop.train_loss_forward, allow=probe.allow
        )
    if leak is None:
        return passed("no sample depends on another")
    if isinstance(leak, NotApplicable):
        return skipped(leak.reason)
    error = leak.error()
    location = ": ".join(filter(None, [error.rows.get("where"), error.rows.get("code")]))
    return failed("\n".join(filter(None, [error.fact, location, error.rows.get("why")])), error.rows.get("hint", "see LeakageCheck"))


def check_parameters(probe: LoopProbe) -> Finding:
    """Check that every parameter gets a gradient and is in the optimizer, and that no layers are hidden in lists or dicts.

    Frozen parameters are listed, but are not a problem. The check takes a few optimizer steps, because a layer that is
    initialized to zero blocks the gradients of earlier layers in the first step.
    """
    parameters = dict(probe.loop.model.named_parameters())
    trainable = {name: each for name, each in parameters.items() if each.requires_grad}
    hidden = find_unregistered(probe.loop.model, modules_of(probe.loop))
    used, nonzero, broken = _observe_gradients(probe, trainable)
    unused = [name for name in trainable if name not in used]
    dead = [name for name in trainable if name in used and name not in nonzero and name not in broken]
    problems = _optimizer_problems(probe)
    if hidden:
        problems.insert(0, (f"not in model.parameters(), so neither trained nor saved: {list_unregistered(hidden)}", REMEDY))
    if unused:
        advice = "use them without .detach(), freeze them (requires_grad=False), or remove them"
        problems.append((f"no gradient (not used, or the output is detached): {join_names(unused)}", advice))
    if dead:
        advice = "look for .detach(), no_grad, argmax, dead ReLUs or a factor of 0 after them"
        problems.append((f"gradient exactly 0 in {_NUM_PASSES} batches: {join_names(dead)}", advice))
    if broken:
        problems.append((f"gradient not finite: {join_names(broken)}", "use NaNGuard() to find the first module with a non-finite output"))
    frozen = [name for name in parameters if name not in trainable]
    facts = [f"{len(frozen)} of {len(parameters)} parameters are frozen: {join_names(frozen)}"] if frozen else []
    if problems:
        return failed("\n".join([*(problem for problem, _ in problems), *facts]), "; ".join(advice for _, advice in problems))
    return passed("\n".join([f"all {len(trainable)} trainable parameters have a gradient", *facts]))


def _observe_gradients(probe: LoopProbe, trainable: dict[str, nn.Parameter]) -> tuple[set[str], set[str], list[str]]:
    """Return three groups of parameter names: with any gradient, with a nonzero gradient, and with a non-finite gradient."""
    optimizer = probe.copy_optimizer() if probe.optimizer_problem is None else None
    used: set[str] = set()
    nonzero: set[str] = set()
    broken: list[str] = []
    with probe.train_mode():
        for batch in (probe.batches * _NUM_PASSES)[:_NUM_PASSES]:
            for parameter in trainable.values():
                parameter.grad = None
            probe.loop.backward(probe.compute_loss(batch)[1])
            grads = {name: each.grad.to_dense() for name, each in trainable.items() if each.grad is not None}
            used |= grads.keys()
            nonzero |= {name for name, grad in grads.items() if bool((grad != 0).any())}
            broken = [name for name, grad in grads.items() if not bool(torch.isfinite(grad).all())]
            if broken or len(nonzero) == len(trainable):
                break
            if optimizer is not None:
                optimizer.step()
    return used, nonzero, broken


def _optimizer_problems(probe: LoopProbe) -> list[tuple[str, str]]:
    """Find parameters that are in the model but not in the optimizer, or vice versa. Each problem comes with advice."""
    optimizers = [each for each in stateful_attributes(probe.loop).values() if isinstance(each, Optimizer)]
    optimized = {id(each): each for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]}
    if not optimized:
        return []
    problems = []
    missing = [name for name, each in probe.loop.model.named_parameters() if each.requires_grad and id(each) not in optimized]
    held = {id(each) for module in modules_of(probe.loop) for each in module.parameters()}
    foreign = [each for key, each in optimized.items() if key not in held]
    if missing:
        advice = "pass all of model.parameters() to the optimizer after the model is complete, or freeze them"
        problems.append((f"not in the optimizer: {join_names(missing)}", advice))
    if foreign:
        shapes = join_names([str(tuple(each.shape)) for each in foreign])
        advice = "create the optimizer after the last change to the model: layers were replaced, or the model was copied"
        problems.append((f"in the optimizer but not in the model: {len(foreign)} parameters of shape {shapes}", advice))
    return problems


def check_determinism(probe: LoopProbe) -> Finding:
    """Check that two forward passes with the same batch in eval mode are bit-for-bit identical."""
    batch, loop = (probe.eval_batches or probe.batches)[0], probe.loop

    def forward() -> Any:
        return loop.eval_model_forward(clone_batch(batch))

    with mode(loop.model, is_training=False):
        one, two = tensors_in(forward()), tensors_in(forward())
        if _is_equal(one, two):
            return passed("two passes in eval mode gave the same bits")
        first = _first_difference(loop.model, forward)
    pairs = [(a.double(), b.double()) for a, b in zip(one, two, strict=False) if a.shape == b.shape]
    difference = max((float((a - b).abs().max()) for a, b in pairs), default=0.0)
    return failed(
        f"two passes of one batch in eval mode differ by up to {difference:.2g}{first}",
        "look for dropout that ignores self.training (F.dropout needs training=self.training), noise, or state kept between passes",
    )


def _is_equal(one: Sequence[torch.Tensor], two: Sequence[torch.Tensor]) -> bool:
    return len(one) == len(two) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(one, two, strict=True)
    )


def _first_difference(model: nn.Module, forward: Callable[[], Any]) -> str:
    """Describe the first module call whose input or output differs between two passes."""
    calls: list[tuple[str, list[torch.Tensor], list[torch.Tensor]]] = []

    def make_hook(name: str) -> Callable[..., None]:
        def record(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            inputs, outputs = ([each.detach().clone() for each in tensors_in(nest)] for nest in ((args, kwargs), output))
            calls.append((f"`{name}` ({type(module).__name__})", inputs, outputs))

        return record

    handles = [module.register_forward_hook(make_hook(name), with_kwargs=True) for name, module in model.named_modules() if name]
    try:
        forward()
        before, calls = calls, []
        forward()
    finally:
        for handle in handles:
            handle.remove()
    for (name, inputs, outputs), (other_name, other_inputs, other_outputs) in zip(before, calls, strict=False):
        if name == other_name and not _is_equal(inputs, other_inputs):
            return f"; the input of {name} is the first to differ"
        if name != other_name or not _is_equal(outputs, other_outputs):
            return f"; {name} is the first to differ"
    return ""
