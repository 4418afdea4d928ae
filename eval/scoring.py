# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Scores of many sequences, shared among processes, and the figures that are made of them."""

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import PartialState
from tqdm import tqdm
from transformers import PreTrainedModel

from eval.journal import Journal
from eval.scorers import MEASURES, RANDOM_MEASURES, Batch, Scorer, make_scorer
from modeling_aogpt import DataCollatorForAnyOrderLM


class Pass(NamedTuple):
    """Every row by one measure, in one order of each; `key` names it in the journal."""

    key: str
    measure: str
    number: int


def score(
    model: PreTrainedModel | Scorer,
    rows: list[dict[str, Any]],
    num_orders: int,
    seed: int,
    batch_size: int,
    measures: Sequence[str] = MEASURES[:2],
    precisions: dict[str, str] | None = None,
    journal: Journal | None = None,
    name: str = "",
) -> dict[str, np.ndarray]:
    """Negative log-likelihood of each row in nats by each measure, those in random orders averaged over `num_orders`.

    The orders of a row depend on `seed`, the row's number and `num_orders` alone, not on the batch. (Other random
    numbers, of ensembles and of an encoder's maskings, depend on which rows are in the batch as well.) Processes share
    the batches.

    Args:
        rows: with `input_ids`.
        batch_size: rows of a forward pass.
        precisions: `"bf16"` for measures that are to be computed under autocast.
        journal, name: where finished batches are kept, under the name of the text.
    """
    scorer = make_scorer(model) if isinstance(model, PreTrainedModel) else model
    journal = Journal() if journal is None else journal
    state = PartialState()
    passes = {
        measure: [
            Pass(f"{name}/{measure}/{number}", measure, number)
            for number in range(num_orders if measure in RANDOM_MEASURES else 1)
        ]
        for measure in measures
    }
    work = [
        (one, chosen)
        for of_measure in passes.values()
        for one in of_measure
        for chosen in batches_of([row for row in range(len(rows)) if row not in journal.done[one.key]], batch_size)
    ]
    collator = DataCollatorForAnyOrderLM(pad_token_id=0, left_to_right_fraction=0.0, seed=seed)
    device = scorer.model.device
    with tqdm(
        work[state.process_index :: state.num_processes],
        desc=name or None,
        unit="pass",
        mininterval=progress_interval(),
        disable=not state.is_local_main_process,
    ) as bar:
        for one, chosen in bar:
            features = [
                {"input_ids": rows[row]["input_ids"], "order_seed": row * num_orders + one.number} for row in chosen
            ]
            batch: Batch = {part: values.to(device) for part, values in collator(features).items()}
            seeds = np.random.SeedSequence([seed, one.number, *chosen])
            generator = torch.Generator().manual_seed(int(seeds.generate_state(1)[0]))
            is_bf16 = (precisions or {}).get(one.measure) == "bf16"
            with torch.autocast(device.type, torch.bfloat16, enabled=is_bf16):
                nats = scorer.nats(one.measure, batch, generator)
            journal.add(one.key, chosen, nats.tolist())
    return {
        measure: np.mean([journal.gather(one.key, len(rows)) for one in of_measure], axis=0)
        for measure, of_measure in passes.items()
    }


def batches_of(rows: list[Any], batch_size: int) -> list[list[Any]]:
    return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]


def progress_interval() -> float:
    """Seconds between updates of a progress bar: few where it goes into a file."""
    return 0.5 if sys.stderr.isatty() else 30


def figures(nats: np.ndarray, num_tokens: np.ndarray, num_bytes: np.ndarray) -> dict[str, float | None]:
    """Perplexity per token and bits per byte of all rows together, each with its standard error (None for one row)."""
    per_token, token_error = ratio(nats, num_tokens)
    per_byte, byte_error = ratio(nats, num_bytes)
    perplexity = math.exp(per_token)
    return {
        "perplexity": perplexity,
        "perplexity_standard_error": token_error and perplexity * token_error,
        "bits_per_byte": per_byte / math.log(2),
        "bits_per_byte_standard_error": byte_error and byte_error / math.log(2),
    }


def ratio(values: np.ndarray, sizes: np.ndarray) -> tuple[float, float | None]:
    """sum(values) / sum(sizes), and its standard error over rows (to first order; rows taken as independent)."""
    quotient = values.sum() / sizes.sum()
    if len(values) == 1:
        return float(quotient), None
    spread = ((values - quotient * sizes) ** 2).sum() * len(values) / (len(values) - 1)
    return float(quotient), float(spread**0.5 / sizes.sum())
