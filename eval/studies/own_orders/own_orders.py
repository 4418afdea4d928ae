# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Training on the right tokens of puzzles, in the order in which the model itself or a solver fills them in.

    python eval/studies/own_orders/own_orders.py CONFIG.yaml [--order_source model|solver|recipe] [--key value ...]

This is training/pretrain.py with the settings below. Only the orders of the missing tokens differ. The loss is that of
the right tokens, also where the model filled in others.
"""

import math
import sys
from dataclasses import dataclass
from typing import Literal

import torch
from transformers import PreTrainedTokenizerBase

from common.commands import option
from eval.studies.sudoku.corpus import solving_rounds
from modeling_aogpt.loading import Model
from modeling_aogpt.orders import group_orders
from training.arguments import TrainingArguments
from training.batches import Batches
from training.pretrain import Pretraining, main


@dataclass
class OwnOrderArguments(TrainingArguments):
    """Settings of a run."""

    order_source: Literal["model", "solver", "recipe"] = option(
        "model",
        "`model`: the order in which the current weights fill in the missing tokens, greedily, from the most certain "
        "one on; `solver`: that of the solver of Sudoku, easiest cells first; `recipe`: that of `orders`.",
    )
    threshold: float = option(
        0.95, "A step fills in the most certain token, and all tokens above this probability.", above=0, below=1
    )


def orders_of_model(
    model: Model, input_ids: torch.LongTensor, is_missing: torch.BoolTensor, threshold: float
) -> torch.LongTensor:
    """Return the orders (batch, n) in which a model fills in missing tokens. Given tokens come first.

    `input_ids` and `is_missing` have shape (batch, n).
    """
    masked = input_ids.masked_fill(is_missing, model.config.mask_token_id)
    options = {"order": "confidence", "unmasking": "threshold", "threshold": threshold, "do_sample": False}
    return model.generate(masked, **options, return_dict_in_generate=True).orders


def orders_of_solver(
    input_ids: torch.LongTensor,
    is_missing: torch.BoolTensor,
    orders: torch.LongTensor,
    tokenizer: PreTrainedTokenizerBase,
) -> torch.LongTensor:
    """Return the orders (batch, n) of `solving_rounds`. Cells of a round keep their order in `orders`.

    Given cells come first, and the tokens after the grid last.
    """
    rows = zip(tokenizer.batch_decode(input_ids, skip_special_tokens=True), is_missing.tolist(), strict=True)
    rounds = torch.full_like(input_ids, input_ids.shape[1])
    for row, (text, missing) in enumerate(rows):
        solution = list(map(int, text))
        puzzle = [0 if is_empty else digit for digit, is_empty in zip(solution, missing, strict=False)]
        rounds[row, : len(text)] = torch.tensor(solving_rounds(puzzle, solution, math.isqrt(len(text))))
    return group_orders(orders, rounds)


class OwnOrderTraining(Pretraining):
    """A run with orders of another source."""

    arguments = OwnOrderArguments

    def read_passes(self, batches: Batches) -> list[dict[str, torch.Tensor]]:
        """Replace the orders of the batches by those of `order_source`."""
        passes, training = super().read_passes(batches), self.training
        for batch in passes:
            ids, is_missing = batch["input_ids"], batch["labels"] != -100
            if training.order_source == "model":
                batch["orders"] = orders_of_model(self.model, ids, is_missing, training.threshold)
            elif training.order_source == "solver":
                batch["orders"] = orders_of_solver(ids, is_missing, batch["orders"], self.data.tokenizer)
        return passes


if __name__ == "__main__":
    main(sys.argv[1:], OwnOrderTraining)
