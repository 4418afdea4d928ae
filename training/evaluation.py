# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Bits per byte on held-out text, left to right and in random orders."""

import math
import time
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from datasets import Dataset

from modeling_aogpt import AOGPTForAnyOrderLM, DataCollatorForAnyOrderLM
from training.arguments import TrainingArguments

ORDER_SEED = 20250624  # every run, step and process scores a row in the same random order


@torch.no_grad()
def evaluate(
    model: AOGPTForAnyOrderLM, rows: Dataset, training: TrainingArguments, accelerator: Accelerator
) -> dict[str, Any]:
    """
    Scores `eval_sequences` rows (all unless given), spread evenly over the set and shared among the processes.

    Returns `left_to_right` and `any_order` in bits per byte, all nats of the rows over all their bytes and ln 2, so
    that a row weighs as much as its `num_bytes`; and what was scored.
    """
    started = time.perf_counter()
    collator = DataCollatorForAnyOrderLM(left_to_right_fraction=0.0, seed=ORDER_SEED)
    num_rows = min(training.eval_sequences or len(rows), len(rows))
    chosen = [row * len(rows) // num_rows for row in range(num_rows)]
    mine = chosen[accelerator.process_index :: accelerator.num_processes]
    totals = torch.zeros(3, dtype=torch.float64)  # nats left to right, nats in random orders, bytes
    for first in range(0, len(mine), training.eval_batch_size):
        numbers = mine[first : first + training.eval_batch_size]
        batch = rows[numbers]
        features = [
            {"input_ids": ids, "order_seed": number} for ids, number in zip(batch["input_ids"], numbers, strict=True)
        ]
        collated = collator(features)
        input_ids = collated["input_ids"].to(accelerator.device)
        for column, orders in enumerate(("left_to_right", collated["orders"].to(accelerator.device))):
            totals[column] -= model.log_likelihood(input_ids, orders=orders).log_likelihood.cpu().double().sum()
        totals[2] += sum(batch["num_bytes"])
    of_processes = torch.tensor(gather_object([totals.tolist()]), dtype=torch.float64)
    left_to_right, any_order, num_bytes = of_processes.sum(dim=0).tolist()
    return {
        "left_to_right": left_to_right / num_bytes / math.log(2),
        "any_order": any_order / num_bytes / math.log(2),
        "sequences": num_rows,
        "bytes": int(num_bytes),
        "seconds": round(time.perf_counter() - started, 2),
    }
