# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Scores of many sequences, shared among processes and kept when a run is stopped, and the figures made of them."""

import json
import math
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import PreTrainedModel

from common.commands import progress_bar
from eval.scorers import RANDOM_MEASURES, Batch, Scorer, make_scorer
from modeling_aogpt import DataCollatorForAnyOrderLM

EXACT = {"left_to_right": "no", "any_order": "no"}


class Journal:
    """
    The scores of rows that are finished, also by runs that were stopped, of all processes: a line on disk for a batch.

    Every process writes a file of its own, a line when a batch is finished, which `kill -9` cannot undo. All of them
    read all files when they begin, so the number of processes may change in between.

    Args:
        folder: Where the lines are kept; None keeps nothing. It must belong to one run, whose settings never change.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.state = PartialState()
        self.folder = folder
        self.done: dict[str, dict[int, float]] = defaultdict(dict)
        self.new: list[tuple[str, int, float]] = []
        self.file = None if folder is None else folder / f"process-{self.state.process_index}.jsonl"
        if folder is not None:
            for path in sorted(folder.glob("*.jsonl")):
                self._read(path)
            self.state.wait_for_everyone()  # before any process adds a line that another would read
            folder.mkdir(parents=True, exist_ok=True)

    def _read(self, path: Path) -> None:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                key, rows, scores = json.loads(line)
            except ValueError:
                continue  # blank, or cut off when the process was killed: these rows are scored again
            self.done[key].update(zip(rows, scores, strict=True))

    def add(self, key: str, rows: Sequence[int], scores: Sequence[float]) -> None:
        self.new += [(key, row, score) for row, score in zip(rows, scores, strict=True)]
        if self.file is not None:
            with self.file.open("a", encoding="utf-8") as file:  # the first break ends a line that was cut off
                file.write("\n" + json.dumps([key, list(rows), list(scores)]) + "\n")

    def gather(self, key: str, num_rows: int) -> list[float]:
        """
        Return the scores of all rows, from all processes.

        Raises:
            RuntimeError: If a row was scored twice or not at all.
        """
        found = gather_object([(row, score) for added, row, score in self.new if added == key])
        self.new = [entry for entry in self.new if entry[0] != key]
        rows = sorted([*self.done[key], *(row for row, _ in found)])
        if rows != list(range(num_rows)):
            raise RuntimeError(f"{key}: {len(rows)} scores ({len(set(rows))} different) of {num_rows} rows.")
        self.done[key].update(found)
        return [self.done[key][row] for row in range(num_rows)]

    def remove(self) -> None:
        """Remove the lines, once their results are written."""
        self.state.wait_for_everyone()
        if self.folder is not None and self.state.is_main_process:
            shutil.rmtree(self.folder)


def score(
    model: PreTrainedModel | Scorer,
    rows: list[dict[str, Any]],
    num_orders: int,
    seed: int,
    batch_size: int,
    precisions: Mapping[str, str] = EXACT,
    journal: Journal | None = None,
    name: str = "",
) -> dict[str, np.ndarray]:
    """
    Return the negative log-likelihood of each row in nats by each measure, averaged over `num_orders` random orders.

    The orders of a row depend on `seed`, the row's number and `num_orders` alone, not on the batch. (Other random
    numbers, of ensembles and of an encoder's maskings, depend on which rows are in the batch as well.) Processes share
    the batches.

    Args:
        model: A model, or its scorer.
        rows: Rows with `input_ids`.
        num_orders: Orders of a row.
        seed: Of the orders.
        batch_size: Rows of a forward pass.
        precisions: `"no"`, or `"bf16"` for autocast, for each measure to compute, some of `MEASURES`.
        journal: Where finished batches are kept.
        name: Of the text, in the journal.
    """
    scorer = make_scorer(model) if isinstance(model, PreTrainedModel) else model
    journal = Journal() if journal is None else journal
    state = PartialState()
    numbers = {measure: range(num_orders if measure in RANDOM_MEASURES else 1) for measure in precisions}
    passes = [(measure, number, f"{name}/{measure}/{number}") for measure in precisions for number in numbers[measure]]
    work = [
        (*one, chosen)
        for one in passes
        for chosen in batches_of([row for row in range(len(rows)) if row not in journal.done[one[-1]]], batch_size)
    ]
    collator = DataCollatorForAnyOrderLM(pad_token_id=0, left_to_right_fraction=0.0, seed=seed)
    device = scorer.model.device
    bar = progress_bar(
        work[state.process_index :: state.num_processes],
        desc=name or None,
        unit="pass",
        disable=not state.is_local_main_process,
    )
    for measure, number, key, chosen in bar:
        features = [{"input_ids": rows[row]["input_ids"], "order_seed": row * num_orders + number} for row in chosen]
        batch: Batch = {part: values.to(device) for part, values in collator(features).items()}
        seeds = np.random.SeedSequence([seed, number, *chosen])
        generator = torch.Generator().manual_seed(int(seeds.generate_state(1)[0]))
        with torch.autocast(device.type, torch.bfloat16, enabled=precisions[measure] == "bf16"):
            nats = scorer.nats(measure, batch, generator)
        journal.add(key, chosen, nats.tolist())
    gathered = {measure: [] for measure in precisions}
    for measure, _, key in passes:
        gathered[measure].append(journal.gather(key, len(rows)))
    return {measure: np.mean(nats, axis=0) for measure, nats in gathered.items()}


def batches_of(rows: list[Any], batch_size: int) -> list[list[Any]]:
    return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]


def figures(nats: np.ndarray, num_tokens: np.ndarray, num_bytes: np.ndarray) -> dict[str, float | None]:
    """Return perplexity per token and bits per byte of all rows, each with its standard error (None for one row)."""
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
    """Return sum(values) / sum(sizes), and its standard error over rows (to first order; rows taken as independent)."""
    quotient = values.sum() / sizes.sum()
    if len(values) == 1:
        return float(quotient), None
    spread = ((values - quotient * sizes) ** 2).sum() * len(values) / (len(values) - 1)
    return float(quotient), float(spread**0.5 / sizes.sum())
