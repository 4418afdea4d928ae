# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Bits per byte of the final model of a training run, in several kinds of orders, on its held-out text."""

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import IterableDataset

from common.data import Data, evenly_spaced, load_data_of_run
from common.files import read_json, write_json
from common.hardware import default_device
from common.results import ORDER_KINDS, ORDER_SEED, read_finished_run
from eval.journal import split_batches
from modeling_aogpt import DataCollatorForAnyOrderLM
from modeling_aogpt.loading import Model, load_model
from modeling_aogpt.orders import random_orders
from training.arguments import TrainingArguments, order_settings

# Kinds of bits per byte: key in the JSON files, and name in reports.
MEASURES = {**ORDER_KINDS, "infilling": "a random half, given the other", "own_orders": "training orders"}
# Number of sequences per call of `infilling_nats`, which draws the halves. It is the same for all arms, so that they
# predict the same tokens. (`log_likelihood` limits the rows of a forward pass.)
INFILLING_SEQUENCES = 256


def load_scores(folder: Path) -> dict[str, float | None]:
    """Return the scores in scores.json in the folder of a run.

    If this file is missing or older than results.json, the scores are measured and written first (`measure_scores`).
    """
    path = folder / "scores.json"
    if not path.exists() or path.stat().st_mtime < (folder / "results.json").stat().st_mtime:
        write_json(path, measure_scores(folder))
    return read_json(path, (*MEASURES, "unigram"), "eval/studies/runner/study.py")


def measure_scores(folder: Path) -> dict[str, float | None]:
    """Return the bits per byte of the final model of a run, on the held-out sequences on which the run was evaluated.

    All likelihoods are exact. (An encoder takes a forward pass for each token of an order.) The keys are those of
    `MEASURES`, and `unigram` (see `unigram_bits_per_byte`):

    * `any_order`: in one random order for each sequence, which is the same for all models.
    * `infilling`: a random half of each sequence, given the other half (see `infilling_nats`). Models that were trained
      with `orders: gaps_last` predict it from left to right.
    * `own_orders`: in orders like those of the training. With `orders: shared`, this is the order of the training.
      Without blocks, random orders are those of `any_order`. If some training sequences are left to right, the result
      is the weighted mean of both kinds of orders. The weights are those at the end of the training.
    """
    results = read_finished_run(folder)
    training = TrainingArguments.from_settings(results["arguments"])
    rows, model = held_out_rows(folder), load_model(folder / "model").to(default_device())
    input_ids = torch.tensor(rows["input_ids"], device=model.device)

    def score(orders: torch.LongTensor | str) -> float:
        return -model.log_likelihood(input_ids, orders=orders).log_likelihood.sum().item()

    random = draw_orders(rows, ORDER_SEED)
    own_seed = training.seed if training.orders == "shared" else ORDER_SEED
    own = draw_orders(rows, own_seed, **order_settings(training))
    left_to_right, any_order = score("left_to_right"), score(random)
    fraction = training.final_left_to_right_fraction
    fraction = training.left_to_right_fraction if fraction is None else fraction
    other_orders = any_order if torch.equal(own, random) else score(own)
    nats = {
        "left_to_right": left_to_right,
        "any_order": any_order,
        "infilling": sum(
            infilling_nats(model, batch, left_to_right=training.orders == "gaps_last")
            for batch in input_ids.split(INFILLING_SEQUENCES)
        ),
        "own_orders": fraction * left_to_right + (1 - fraction) * other_orders,
    }
    scores = {kind: value / sum(rows["num_bytes"]) / math.log(2) for kind, value in nats.items()}
    return scores | {"unigram": unigram_bits_per_byte(folder, rows)}


def draw_orders(rows: dict[str, list[Any]], seed: int, **settings: Any) -> torch.LongTensor:
    """Draw an order for each of the held-out `rows`. `settings` are arguments of the data collator."""
    collator = DataCollatorForAnyOrderLM(**settings, left_to_right_fraction=0.0, seed=seed)
    return collator([dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)])["orders"]


_data_of_run = lru_cache(maxsize=1)(load_data_of_run)  # several scores of a run need its data


def held_out_rows(folder: Path, count: int | None = None) -> dict[str, list[Any]]:
    """Return evenly spaced held-out sequences of a run.

    The columns are `input_ids`, `num_bytes`, `order_seed` and, with `context_marks`, `labels`. By default, these are
    the sequences on which the run was evaluated. `order_seed` is the index of a sequence in the held-out text, from
    which evaluations draw its order.

    Raises:
        ValueError: If the run is not finished, or if its corpus or tokenizer has changed.
    """
    results = read_finished_run(folder)
    rows = _data_of_run(folder).validation
    numbers = evenly_spaced(len(rows), count or results["evaluations"][-1]["sequences"])
    return rows[numbers] | {"order_seed": numbers}


def unigram_bits_per_byte(folder: Path, rows: dict[str, list[Any]]) -> float | None:
    """Return the bits per byte of held-out `rows` under the frequencies of the tokens in the training text of a run.

    One is added to each count. For a streamed corpus, the result is None, because its frequencies are unknown.
    """
    counts = _count_tokens(_data_of_run(folder))
    if counts is None:
        return None
    bits = -np.log2((counts + 1) / (counts + 1).sum())
    return float(bits[np.array(rows["input_ids"])].sum() / sum(rows["num_bytes"]))


def _count_tokens(data: Data) -> np.ndarray | None:
    """Return how often each id occurs in the training sequences, or None if these are streamed."""
    if isinstance(data.train, IterableDataset):
        return None
    batches = split_batches(list(range(len(data.train))), 1000)
    size = len(data.tokenizer)
    return sum(np.bincount(np.ravel(data.train[batch]["input_ids"]), minlength=size) for batch in batches)


def infilling_nats(model: Model, input_ids: torch.LongTensor, left_to_right: bool = False) -> float:
    """Return the negative log-likelihood, in nats, of two random halves of all sequences, each given the other half.

    The tokens of a half are predicted in random order or, with `left_to_right`, from left to right. A decoder reads the
    other half from left to right. The result is summed over halves and sequences.
    """
    generator = torch.Generator().manual_seed(ORDER_SEED)
    shape = input_ids.shape
    is_first_half = random_orders(*shape, generator=generator) < shape[1] // 2
    orders = "left_to_right" if left_to_right else random_orders(*shape, generator=generator)
    return -sum(
        model.log_likelihood(input_ids, targets=targets.to(model.device), orders=orders).log_likelihood.sum().item()
        for targets in (is_first_half, ~is_first_half)
    )
