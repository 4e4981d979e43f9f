"""The mean training loss counts every sample once, also across a resume."""

from __future__ import annotations

import torch

from trainmaster.loop.train_loss import LossMean


def test_a_restored_mean_counts_skipped_samples_too() -> None:
    mean = LossMean()
    mean.reset()
    mean.add(torch.tensor(2.0), 4)
    mean.skip(4)
    restored = LossMean()
    restored.load_state_dict(mean.state_dict())
    restored.add(torch.tensor(4.0), 4)
    assert (restored.mean, restored.num_batches, restored.num_samples) == (3.0, 3, 12)
