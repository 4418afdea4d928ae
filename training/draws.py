# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Data collators that draw orders, diffusion times and masked positions.

Samples, the training sequences of a run, are numbered. All random numbers for a sample depend only on the seed and its
number, so they are the same for any number of processes, workers and passes.
"""

import math
from collections.abc import Mapping, Sequence

import torch

from modeling_aogpt import DataCollatorForAnyOrderLM
from modeling_aogpt.data_collator import draw_integers, make_streams, to_uniform
from modeling_aogpt.unmasking import MAX_MASKED_FRACTION
from training.arguments import TrainingArguments, order_settings

# Indices of independent random streams. `DataCollatorForAnyOrderLM` uses a further stream for the orders.
CHOICES, TIMES, MASKS = -2, -3, -4


def uniform_numbers(seed: int, stream: int, samples: torch.LongTensor, count: int) -> torch.Tensor:
    """Draw uniform float64 numbers in [0, 1), of shape (samples, count)."""
    return to_uniform(draw_integers(make_streams(int(make_streams(seed, torch.tensor(stream))), samples), count))


class OrderDraws:
    """Data collator for the decoder. It draws an order for each sequence.

    With `max_gap_length`, gaps end with `eos_token_id`.

    With `final_left_to_right_fraction`, the fraction of left-to-right sequences changes linearly to this value, during
    the first `left_to_right_steps` steps.
    """

    def __init__(self, training: TrainingArguments, eos_token_id: int | None = None) -> None:
        self.training = training
        self._collator = DataCollatorForAnyOrderLM(
            pad_token_id=0,  # pads shorter examples; any id can be used
            **order_settings(training),
            seed=training.seed,
            left_to_right_fraction=training.left_to_right_fraction,
            eos_token_id=eos_token_id,
        )

    def __call__(self, features: Sequence[Mapping[str, object]]) -> dict[str, torch.Tensor]:
        """Return arguments of `AnyOrderObjective`. Features have `input_ids` and `order_seed`, the sample number."""
        training, final = self.training, self.training.final_left_to_right_fraction
        if "labels" in features[0]:  # they give the context, even if nothing is marked
            features = [{"in_turns": False, **feature} for feature in features]
        if final is not None:
            samples = _sample_numbers(features)
            progress = samples // training.batch_size / training.left_to_right_steps
            is_final = uniform_numbers(training.seed, CHOICES, samples, 1)[:, 0] < progress
            features = [
                {**feature, "left_to_right_fraction": final if last else training.left_to_right_fraction}
                for feature, last in zip(features, is_final.tolist(), strict=True)
            ]
        batch = self._collator(features)
        if training.distillation_weight:
            positions = torch.arange(batch["orders"].shape[1])
            batch["left_to_right_rows"] = (batch["orders"] == positions).all(dim=1).nonzero()[:, 0]
        return batch


class MaskDraws:
    """Data collator for the encoder. It draws a diffusion time t and the masked positions for each sequence.

    The diffusion times of a step are an evenly spaced grid in (0, 1] with a random shift (variational diffusion models,
    arXiv 2107.00630, appendix I.1). Neighbouring sequences get diffusion times that are far apart. The objective
    decides which positions are masked at time t:

    * `"masked_diffusion"` masks every token with probability t.
    * `"score_entropy"` masks every token with probability (1 - eps) t, the log-linear noise of SEDD. Here, 1 - eps is
      `MAX_MASKED_FRACTION`.
    * `"any_order"` masks the last m positions of an order, where m is t n rounded up. The returned time is m / n.
    """

    def __init__(self, training: TrainingArguments) -> None:
        self.seed, self.batch_size, self.objective = training.seed, training.batch_size, training.objective
        self.draw_orders = OrderDraws(training)

    def __call__(self, features: Sequence[Mapping[str, object]]) -> dict[str, torch.Tensor]:
        """Return the arguments of `MaskedDiffusionObjective.forward`. Features are as in [`OrderDraws`].

        `input_ids` and `is_masked` have shape (batch, n), `masked_indices` (num_masked,), and `times` (batch,).
        """
        samples = _sample_numbers(features)
        times = self.draw_times(samples)
        if self.objective == "any_order":
            batch = self.draw_orders(features)
            input_ids, length = batch["input_ids"], batch["input_ids"].shape[1]
            num_masked = (times * length).ceil()
            is_masked = batch["orders"].argsort(dim=-1) >= length - num_masked[:, None]
            times = num_masked / length
        else:
            input_ids = torch.stack([torch.as_tensor(feature["input_ids"]) for feature in features]).long()
            fractions = times * (MAX_MASKED_FRACTION if self.objective == "score_entropy" else 1.0)
            is_masked = uniform_numbers(self.seed, MASKS, samples, input_ids.shape[1]) < fractions[:, None]
        masked_indices = is_masked.flatten().nonzero().squeeze(1)
        return {"input_ids": input_ids, "is_masked": is_masked, "masked_indices": masked_indices, "times": times}

    def draw_times(self, samples: torch.LongTensor) -> torch.DoubleTensor:
        """Return the diffusion time of each sample, in (0, 1]."""
        shifts = uniform_numbers(self.seed, TIMES, samples // self.batch_size, 1)[:, 0]
        size, golden = self.batch_size, round(self.batch_size * (math.sqrt(5) - 1) / 2)
        # The first number from 0.618 `size` (the golden section) upwards that is coprime to `size`.
        factor = next(factor for factor in range(max(golden, 1), size + 2) if math.gcd(factor, size) == 1)
        return 1 - (shifts + samples % size * factor % size / size) % 1


def _sample_numbers(features: Sequence[Mapping[str, object]]) -> torch.LongTensor:
    return torch.tensor([int(feature["order_seed"]) for feature in features])
