# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Training with rewards by exact likelihoods, or by the approximations that are used for encoders.

    python eval/studies/rewards/likelihoods.py CONFIG.yaml --likelihood exact|mean_field|coupled [--key value ...]
    python eval/studies/rewards/likelihoods.py CONFIG.yaml --num_gradients 8 [--key value ...]

This is training/grpo.py with the setting `likelihood`. Only the log-probabilities in the objective differ. Samples,
advantages and the measured KL divergence are those of training/grpo.py. With `num_gradients`, the command does not
train: it compares the gradients of the likelihoods for the same samples, and writes gradients.json.
"""

import sys
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F

from common.commands import option
from common.files import write_json
from common.hardware import versions
from eval.studies.rewards.compare import CompareArguments, measure
from modeling_aogpt.orders import group_orders
from training.grpo import GRPOArguments, PolicyObjective, PolicyTraining
from training.objectives import OBJECTIVES
from training.pretrain import main

LIKELIHOODS = ("exact", "mean_field", "coupled")
MASK_RATIOS = (0.2, 0.8)  # as in the code of coupled GRPO


@dataclass
class LikelihoodArguments(GRPOArguments):
    """Settings of a run."""

    likelihood: Literal["exact", "mean_field", "coupled"] = option("exact", "Log-probabilities in the objective.")
    num_gradients: int = option(
        0, "Number of batches whose gradients are compared. By default, train instead.", least=0
    )


class LikelihoodObjective(PolicyObjective):
    """Clipped objective with one of three log-probabilities of the generated tokens.

    * Exact: see `trajectory_log_probs`.
    * Mean field (d1, arXiv 2504.12216): each token given only the prompt.
    * Coupled (DiffuCoder, arXiv 2506.20639): the generated tokens are split at random into two halves. Each half
      is predicted given the prompt and the other half. The result is the mean of the mean field and of the
      log-probability of the token in its half, times `weights`.
    """

    def log_probs(
        self,
        sequences: torch.LongTensor,
        orders: torch.LongTensor,
        unmasking_steps: torch.LongTensor,
        likelihood: str = "exact",
        is_first: torch.BoolTensor | None = None,
        weights: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the log-probabilities (batch, n). `is_first` is True in the first half (see `split`)."""
        score, masks = self.model.trajectory_log_probs, {"attention_mask": attention_mask}
        if likelihood == "exact":
            return score(sequences, orders, unmasking_steps, **masks)
        total = score(sequences, orders, unmasking_steps.clamp(max=0), **masks)
        if likelihood == "mean_field":
            return total
        for is_half in (is_first, ~is_first):
            is_half = is_half & (unmasking_steps >= 0)
            orders_of_half, steps = group_orders(orders, is_half.long()), is_half.long() - 1
            total = total + weights * score(sequences, orders_of_half, steps, **masks)
        return total / 2


def split(shape: torch.Size, seed: int) -> dict[str, torch.Tensor]:
    """Return random halves (batch, n), and their weights.

    The first half has each token with probability t, which is uniform in `MASK_RATIOS`. The weight is 1 / t for its
    tokens, and 1 / (1 - t) for the others.
    """
    generator = torch.Generator().manual_seed(seed)
    low, high = MASK_RATIOS
    ratios = low + (high - low) * torch.rand(shape[0], 1, generator=generator)
    is_first = torch.rand(shape, generator=generator) < ratios
    return {"is_first": is_first, "weights": 1 / torch.where(is_first, ratios, 1 - ratios)}


class LikelihoodTraining(PolicyTraining):
    """A run of GRPO with one of the likelihoods."""

    arguments = LikelihoodArguments
    objectives = dict.fromkeys(OBJECTIVES, LikelihoodObjective)

    def roll_out(self, samples: list[int]) -> tuple[dict[str, Any], torch.Tensor, str]:
        """Replace the log-probabilities of the completions by those of the setting `likelihood`."""
        arguments, measures, text = super().roll_out(samples)
        if self.training.likelihood != "exact":
            arguments = self.replace_likelihood(arguments, self.training.likelihood, samples[0])
        return arguments, measures, text

    def replace_likelihood(self, arguments: dict[str, Any], likelihood: str, sample: int) -> dict[str, Any]:
        """Return the arguments of the objective with another likelihood. `sample` is the number of the first sample."""
        parts = split(arguments["sequences"].shape, 1_000_003 * self.training.seed + sample)
        arguments = arguments | {"likelihood": likelihood, **parts}
        names = ("sequences", "orders", "unmasking_steps", "attention_mask", "likelihood", *parts)
        with torch.no_grad():
            log_probs = self.objective.log_probs(**{name: arguments[name] for name in names})
        return arguments | {"log_probs": log_probs}

    def train(self) -> int:
        """Train, or compare gradients."""
        if not self.training.num_gradients:
            return super().train()
        gradients: dict[str, list[torch.Tensor]] = {name: [] for name in LIKELIHOODS}
        size, rewards = self.training.batch_size, []
        for number in range(self.training.num_gradients):
            samples = list(range(number * size, (number + 1) * size))
            arguments, measures, _ = self.roll_out(samples)
            rewards.append(measures[0].item())
            for name, parts in gradients.items():
                self.model.zero_grad()
                self.objective(**self.replace_likelihood(arguments, name, samples[0])).backward()
                grads = (weight.grad for weight in self.model.parameters() if weight.grad is not None)
                parts.append(torch.cat([grad.flatten() for grad in grads]))
        results = {
            name: compare_gradients(*map(torch.stack, (parts, gradients["exact"]))) for name, parts in gradients.items()
        }
        facts = {"seed": self.training.seed, "batch_size": size, "rewards": rewards, "versions": versions()}
        write_json(self.training.output_dir / "gradients.json", {**facts, "gradients": results})
        return 0

    def publish(self) -> None:
        """Write the model, and measure it as compare.py does, unless gradients were compared."""
        if not self.training.num_gradients:
            super().publish()
            if self.accelerator.is_main_process:
                measure(self.training.output_dir, CompareArguments().num_puzzles)


def compare_gradients(gradients: torch.Tensor, exact: torch.Tensor) -> dict[str, float]:
    """Compare the gradients (batches, weights) of a likelihood with the exact ones of the same batches.

    Inner products of mean gradients are estimated without bias, from pairs of different batches.
    """

    def inner(one: torch.Tensor, other: torch.Tensor) -> float:
        products = one @ other.T
        return ((products.sum() - products.trace()) / (len(one) * (len(one) - 1))).item()

    norms = inner(gradients, gradients), inner(exact, exact)
    return {
        "norm": gradients.norm(dim=1).mean().item(),
        "cosine with exact, same batch": F.cosine_similarity(gradients, exact, dim=1).mean().item(),
        "cosine of means with exact": inner(gradients, exact) / abs(norms[0] * norms[1]) ** 0.5,
        "signal in a batch": norms[0] / gradients.square().sum(dim=1).mean().item(),
    }


if __name__ == "__main__":
    main(sys.argv[1:], LikelihoodTraining)
