# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Training with rewards by exact likelihoods, or by the approximations that are used for encoders.

    python eval/studies/rewards/likelihoods.py CONFIG.yaml --likelihood exact|mean_field|coupled [--key value ...]
    python eval/studies/rewards/likelihoods.py CONFIG.yaml --likelihood joint --tau 0.1 [--key value ...]
    python eval/studies/rewards/likelihoods.py CONFIG.yaml --num_gradients 8 [--key value ...]

This is training/grpo.py with the setting `likelihood`. Only the log-probabilities in the objective differ. Samples,
advantages and the measured KL divergence are those of training/grpo.py. With `num_gradients`, the command does not
train: it compares the gradients of the likelihoods for the same samples, and writes gradients.json. With `tau`, the
cells are drawn (see order_policy.py). With `num_candidates`, only hard puzzles are used, and updates leave out groups
of completions with equal rewards.
"""

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from datasets import Dataset

from common.commands import option
from common.data import evenly_spaced
from common.files import write_json
from common.hardware import versions
from eval.studies.rewards.compare import CompareArguments, measure
from eval.studies.rewards.order_policy import drawn_order, joint_log_probs
from modeling_aogpt.orders import group_orders
from training.grpo import GRPOArguments, PolicyObjective, PolicyTraining
from training.objectives import OBJECTIVES
from training.pretrain import logger, main

LIKELIHOODS = ("exact", "mean_field", "coupled")
MASK_RATIOS = (0.2, 0.8)  # as in the code of coupled GRPO


@dataclass
class LikelihoodArguments(GRPOArguments):
    """Settings of a run."""

    likelihood: Literal["exact", "mean_field", "coupled", "joint"] = option(
        "exact", "Log-probabilities in the objective. `joint` is that of the cell and the token, and needs `tau`."
    )
    tau: float = option(
        0.0,
        "Temperature at which cells are drawn by their certainty. By default, the most certain one is taken.",
        least=0,
    )
    num_candidates: int = option(
        0,
        "Number of prompts to try. Only those that the initial model fails to solve by threshold 0.9 are used. 0: all.",
        least=0,
    )
    num_gradients: int = option(
        0, "Number of batches whose gradients are compared. By default, train instead.", least=0
    )


class LikelihoodObjective(PolicyObjective):
    """Clipped objective with one of four log-probabilities of the generated tokens.

    * Exact: see `trajectory_log_probs`.
    * Mean field (d1, arXiv 2504.12216): each token given only the prompt.
    * Coupled (DiffuCoder, arXiv 2506.20639): the generated tokens are split at random into two halves. Each half
      is predicted given the prompt and the other half. The result is the mean of the mean field and of the
      log-probability of the token in its half, times `weights`.
    * Joint: that of the cell and the token of each step (see `joint_log_probs`).
    """

    def forward(
        self, log_probs: torch.Tensor | None, advantages: torch.Tensor, clip_range: float, **trajectory: Any
    ) -> torch.Tensor:
        """Return the loss. Without `log_probs`, those of the model are used, so that all ratios are 1."""
        if log_probs is not None:
            return super().forward(log_probs, advantages, clip_range, **trajectory)
        log_probs = self.log_probs(**trajectory).masked_fill(trajectory["unmasking_steps"] < 0, 0.0)
        return -((log_probs - log_probs.detach()).exp() * advantages[:, None]).sum(dim=1).mean()

    def log_probs(
        self,
        sequences: torch.LongTensor,
        orders: torch.LongTensor,
        unmasking_steps: torch.LongTensor,
        likelihood: str = "exact",
        is_first: torch.BoolTensor | None = None,
        weights: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        tau: float = 0.0,
    ) -> torch.Tensor:
        """Return the log-probabilities (batch, n). `is_first` is True in the first half (see `split`)."""
        if likelihood == "joint":
            return joint_log_probs(self.model, sequences, orders, unmasking_steps, tau)
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

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self.training.likelihood == "joint" and not self.training.tau:
            raise ValueError("`likelihood` is 'joint', but `tau` is 0. Set it to the temperature of the order, as 0.1.")
        if self.training.num_candidates:
            self.data.train = self.choose_hard(evenly_spaced(len(self.data.train), self.training.num_candidates))

    def choose_hard(self, rows: list[int]) -> Dataset:
        """Return those training prompts that the initial model does not solve by threshold 0.9."""
        hard, tokenizer, size = [], self.data.tokenizer, self.training.eval_batch_size
        options = {"unmasking": "threshold", "threshold": 0.9, "do_sample": False}
        for part in (self.data.train.select(rows[first : first + size]) for first in range(0, len(rows), size)):
            with self.objective.initial_model() as model:
                sequences = model.generate(torch.tensor(part["input_ids"][:]).to(model.device), **options)
            rewards = self.reward(prompts=part["text"][:], completions=tokenizer.batch_decode(sequences))
            hard += [reward < 1 for reward in rewards]
        logger.info("%d of %d prompts are hard.", sum(hard), len(rows))
        return self.data.train.select([row for row, is_hard in zip(rows, hard, strict=True) if is_hard])

    def sample(self, *arguments: Any) -> tuple[dict[str, torch.Tensor], list[str], torch.Tensor]:
        """Keep the rewards of the completions."""
        result = super().sample(*arguments)
        self.rewards = result[2]
        return result

    def roll_out(self, samples: list[int]) -> tuple[dict[str, Any], torch.Tensor, str]:
        """Draw the cells with `tau`, and replace the log-probabilities by those of the setting `likelihood`."""
        training, seed = self.training, 1_000_003 * self.training.seed + samples[0]
        with drawn_order(training.tau, seed) if training.tau else nullcontext():
            arguments, measures, text = super().roll_out(samples)
        if training.num_candidates:
            arguments = self.keep_signal(arguments)
        if training.likelihood != "exact":
            arguments = self.replace_likelihood(arguments, training.likelihood, samples[0])
        if training.num_updates == 1:
            arguments["log_probs"] = None
        return arguments, measures, text

    def keep_signal(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Leave out groups of completions with equal rewards. Their advantages are only KL penalties."""
        groups = self.rewards.view(-1, self.training.group_size)
        differs = groups.amax(dim=1) > groups.amin(dim=1)
        differs[0] |= not differs.any()  # an update needs a completion
        index = differs.repeat_interleave(self.training.group_size).nonzero()[:, 0].to(arguments["advantages"].device)
        kept = {name: values[index] if torch.is_tensor(values) else values for name, values in arguments.items()}
        return kept | {"advantages": kept["advantages"] * len(index) / len(self.rewards)}

    def replace_likelihood(self, arguments: dict[str, Any], likelihood: str, sample: int) -> dict[str, Any]:
        """Return the arguments of the objective with another likelihood. `sample` is the number of the first sample."""
        sequences = arguments["sequences"]
        parts = split(sequences.shape, 1_000_003 * self.training.seed + sample)
        parts = {name: values.to(sequences.device) for name, values in parts.items()}
        arguments = arguments | {"likelihood": likelihood, "tau": self.training.tau, **parts}
        if self.training.num_updates > 1:
            names = ("sequences", "orders", "unmasking_steps", "attention_mask", "likelihood", "tau", *parts)
            with torch.no_grad():
                arguments["log_probs"] = self.objective.log_probs(**{name: arguments[name] for name in names})
        return arguments

    def train(self) -> int:
        """Train, or compare gradients."""
        if not self.training.num_gradients:
            return super().train()
        names = (*LIKELIHOODS, "joint") if self.training.tau else LIKELIHOODS
        gradients: dict[str, list[torch.Tensor]] = {name: [] for name in names}
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
    torch.set_flush_denormal(True)  # with a low `tau`, cells that are almost never drawn have denormal gradients
    main(sys.argv[1:], LikelihoodTraining)
