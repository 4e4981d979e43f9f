"""Balance poles with policy gradients. Every step of the loop, even the rollout, is a component of a TrainTestLoop."""

from __future__ import annotations

import torch
from torch import nn

from trainmaster import LoopComponent, TrainTestLoop

MAX_STEPS = 200


class Poles:
    """Many poles at once, each on a cart.

    A state consists of the position and speed of the cart and the angle and angular speed of the pole.
    """

    def __init__(self, count: int) -> None:
        self.state = 0.1 * torch.rand(count, 4) - 0.05
        self.is_up = torch.ones(count, dtype=torch.bool)

    def push(self, to_the_right: torch.Tensor) -> torch.Tensor:
        """Push each cart for 20 ms and return a reward of 1 for each pole that was still up before the push."""
        reward = self.is_up.float()
        speed, angle, turn = self.state[:, 1:].unbind(1)
        force = torch.where(to_the_right.bool(), 10.0, -10.0)
        push = (force + 0.05 * turn**2 * angle.sin()) / 1.1
        turn_change = (9.8 * angle.sin() - angle.cos() * push) / (0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1))
        speed_change = push - 0.05 * turn_change * angle.cos() / 1.1
        changes = torch.stack([speed, speed_change, turn, turn_change], 1)
        self.state = self.state + 0.02 * changes
        self.is_up &= (self.state[:, 0].abs() < 2.4) & (self.state[:, 2].abs() < 0.21)
        return reward


class Rollout(LoopComponent):
    """Plays one episode with each pole. The batch is only the number of poles to simulate."""

    def on_forward_pass(self, loop: TrainTestLoop) -> None:
        poles, log_probs, rewards = Poles(loop.batch), [], []
        while poles.is_up.any() and len(rewards) < MAX_STEPS:
            policy = torch.distributions.Categorical(logits=loop.model(poles.state))
            action = policy.sample() if loop.is_training else policy.logits.argmax(1)
            log_probs.append(policy.log_prob(action))
            rewards.append(poles.push(action))
        loop.log_probs, loop.rewards = torch.stack(log_probs), torch.stack(rewards)
        loop.mean_return = loop.rewards.sum(0).mean().item()


class PolicyGradient(LoopComponent):
    """Trains with REINFORCE: an action becomes more likely if it was followed by more reward than average."""

    def __init__(self, lr: float) -> None:
        self.lr = lr

    def on_train_begin(self, loop: TrainTestLoop) -> None:
        loop.optimizer = torch.optim.Adam(loop.model.parameters(), lr=self.lr)

    def on_grads_reset(self, loop: TrainTestLoop) -> None:
        loop.optimizer.zero_grad()

    def on_loss_compute(self, loop: TrainTestLoop) -> None:
        is_up = loop.rewards > 0
        future = loop.rewards.flip(0).cumsum(0).flip(0)
        advantage = future - future.mean(1, keepdim=True)
        advantage = advantage / (advantage[is_up].std() + 1e-6)
        loop.loss = -(loop.log_probs * advantage)[is_up].mean()

    def on_backward_pass(self, loop: TrainTestLoop) -> None:
        loop.loss.backward()

    def on_optim_step(self, loop: TrainTestLoop) -> None:
        loop.optimizer.step()


class StopWhenSolved(LoopComponent):
    """Prints the mean return of the greedy policy after each epoch, and stops training when it is high enough."""

    def __init__(self, target: float) -> None:
        self.target = target
        self.returns: list[float] = []

    def on_epoch_end(self, loop: TrainTestLoop) -> None:
        if loop.is_validating:
            self.returns.append(loop.mean_return)
            print(f"epoch {loop.epoch_num + 1}: the poles stay up for {loop.mean_return:.0f} of {MAX_STEPS} steps")
            if loop.mean_return >= self.target:
                loop.stop()


def main(epochs: int = 20, updates: int = 5, target: float = 0.97 * MAX_STEPS) -> float:
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    stop = StopWhenSolved(target)
    loop = TrainTestLoop(policy, [Rollout(), PolicyGradient(lr=0.01), stop], train_data=[64] * updates, valid_data=[256])
    loop.train(n_epochs=epochs)
    loop.test([1000])
    print(f"1,000 new poles stay up for {loop.mean_return:.0f} steps on average")
    return loop.mean_return


if __name__ == "__main__":
    main()
