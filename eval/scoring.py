# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Log-likelihoods of many sequences, computed in one or several processes; perplexity and bits per byte.

Scores are negative log-likelihoods in nats. They are stored on disk, so that a stopped run can continue.
"""

import json
import math
import shutil
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object

from common.commands import progress_bar
from common.reports import with_error
from eval.scorers import RANDOM_MEASURES, Batch, Scorer
from modeling_aogpt import DataCollatorForAnyOrderLM

# 97.5 % quantiles of Student's t distribution with 1, 2, ... degrees of freedom. For more degrees of freedom, the last
# one is used, which makes the intervals slightly too wide.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class Journal:
    """
    Scores of finished batches, kept on disk so that a stopped run can continue.

    When a process finishes a batch, it appends a line to its own file, so not even `kill -9` loses finished batches. At
    the start, each process reads all files, so a run can continue with another number of processes.

    Args:
        folder: Folder of the files. Evaluations with other settings need another folder. If None, nothing is kept on
            disk.
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
            self.state.wait_for_everyone()  # no process may append before all have read

    def _read(self, path: Path) -> None:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                key, rows, scores = json.loads(line)
            except ValueError:
                continue  # the line is empty, or was cut off when the process was killed
            self.done[key].update(zip(rows, scores, strict=True))

    def add(self, key: str, rows: Sequence[int], scores: Sequence[float]) -> None:
        """Add the scores of a batch. `key` names what was scored, and `rows` are the indices of the sequences."""
        self.new += [(key, row, score) for row, score in zip(rows, scores, strict=True)]
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as file:  # the first "\n" ends a line that was cut off
                file.write("\n" + json.dumps([key, list(rows), list(scores)]) + "\n")

    def gather(self, key: str, num_rows: int) -> list[float]:
        """Return the scores with this `key` from all processes. Check that each sequence was scored exactly once."""
        gathered = gather_object([(row, score) for added, row, score in self.new if added == key])
        self.new = [entry for entry in self.new if entry[0] != key]
        rows = sorted([*self.done[key], *(row for row, _ in gathered)])
        if rows != list(range(num_rows)):
            folder = "" if self.file is None else f" Remove {self.file.parent}, and start again."
            raise RuntimeError(
                f"Each of the {num_rows} sequences of {key} must have one score, but there are {len(rows)} scores for "
                f"{len(set(rows))} sequences.{folder}"
            )
        self.done[key].update(gathered)
        return [self.done[key][row] for row in range(num_rows)]

    def remove(self) -> None:
        """Remove the files. Every process must call this method after the results are written."""
        self.state.wait_for_everyone()
        if self.folder is not None and self.state.is_main_process and self.folder.exists():
            shutil.rmtree(self.folder)


def score_rows(
    scorer: Scorer,
    rows: list[dict[str, Any]],
    measure: str,
    num_orders: int,
    seed: int,
    batch_size: int,
    precision: str = "no",
    journal: Journal | None = None,
    name: str = "",
) -> np.ndarray:
    """
    Return the negative log-likelihood of each sequence in nats.

    For random orders, it is averaged over `num_orders` orders. The processes divide the batches among themselves. The
    orders of a sequence depend on `seed`, its index and `num_orders`, but not on its batch. Other random numbers (for
    ensembles, and for the masks of an encoder) also depend on the other sequences of the batch.

    Args:
        scorer: Scorer of the model.
        rows: Sequences, as dictionaries with `input_ids`.
        measure: Kind of log-likelihood (see eval/scorers.py).
        num_orders: Number of random orders of each sequence.
        seed: Seed of the orders.
        batch_size: Number of sequences in a forward pass.
        precision: `"no"`, or `"bf16"` for autocast.
        journal: Storage of finished batches.
        name: Name of the text in the journal and of the progress bar.
    """
    journal = Journal() if journal is None else journal
    state = PartialState()
    keys = [f"{name}/{measure}/{number}" for number in range(num_orders if measure in RANDOM_MEASURES else 1)]
    work = [
        (number, batch)
        for number, key in enumerate(keys)
        for batch in split_batches([row for row in range(len(rows)) if row not in journal.done[key]], batch_size)
    ]
    collator = DataCollatorForAnyOrderLM(pad_token_id=0, left_to_right_fraction=0.0, seed=seed)
    device = scorer.model.device
    bar = progress_bar(
        work[state.process_index :: state.num_processes],
        desc=name or None,
        unit="pass",
        leave=False,
        disable=not state.is_local_main_process,
    )
    for number, indices in bar:
        features = [{"input_ids": rows[row]["input_ids"], "order_seed": row * num_orders + number} for row in indices]
        batch: Batch = {part: values.to(device) for part, values in collator(features).items()}
        seeds = np.random.SeedSequence([seed, number, *indices])
        generator = torch.Generator().manual_seed(int(seeds.generate_state(1)[0]))
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            scores = scorer.negative_log_likelihood(measure, batch, generator)
        journal.add(keys[number], indices, scores.tolist())
    return np.mean([journal.gather(key, len(rows)) for key in keys], axis=0)


def split_batches(values: list[Any], batch_size: int) -> list[list[Any]]:
    """Split a list into lists of at most `batch_size` values."""
    return [values[start : start + batch_size] for start in range(0, len(values), batch_size)]


def perplexity_over(nats: np.ndarray, num_tokens: np.ndarray) -> dict[str, float | None]:
    """
    Return the perplexity per token over all sequences, with its standard error.

    Each array has one value per sequence. For a single sequence, the standard error is None.
    """
    per_token, error = ratio_with_error(nats, num_tokens)
    perplexity = math.exp(per_token)
    return {"perplexity": perplexity, "perplexity_standard_error": error and perplexity * error}


def bits_per_byte_over(nats: np.ndarray, num_bytes: np.ndarray) -> dict[str, float | None]:
    """Return the bits per byte over all sequences, with their standard error (see `perplexity_over`)."""
    per_byte, error = ratio_with_error(nats, num_bytes)
    return {
        "bits_per_byte": per_byte / math.log(2),
        "bits_per_byte_standard_error": error and error / math.log(2),
    }


def estimate(values: Sequence[float]) -> dict[str, Any]:
    """
    Return the mean of values, one per seed, and half the width of its 95 % confidence interval (Student's t).

    The half-width of a single value is None.
    """
    half_width = None
    if len(values) > 1:
        quantile = T_QUANTILES[min(len(values) - 1, len(T_QUANTILES)) - 1]
        half_width = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": statistics.fmean(values), "half_width": half_width, "values": list(values)}


def format_estimate(value: dict[str, Any] | None, factor: int = 1, unit: str = "") -> str:
    """Format a result of `estimate` as mean ± half-width, or return an empty string if it is None."""
    if value is None:
        return ""
    half_width = value["half_width"]
    digits = 3 if factor == 1 else 0
    text = with_error(factor * value["mean"], None if half_width is None else factor * half_width, digits)
    return f"{text} {unit}".rstrip()


def ratio_with_error(values: np.ndarray, sizes: np.ndarray) -> tuple[float, float | None]:
    """
    Return sum(values) / sum(sizes), and its standard error, or None if there is only one value.

    The standard error is a first-order approximation. The pairs (value, size) must be independent.
    """
    ratio = values.sum() / sizes.sum()
    if len(values) == 1:
        return float(ratio), None
    variance = ((values - ratio * sizes) ** 2).sum() * len(values) / (len(values) - 1)
    return float(ratio), float(variance**0.5 / sizes.sum())


def wilson_interval(fraction: float, total: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's confidence interval of a fraction of `total` trials (95 % for z = 1.96)."""
    scale = 1 + z**2 / total
    center = (fraction + z**2 / (2 * total)) / scale
    half = z / scale * math.sqrt(fraction * (1 - fraction) / total + z**2 / (4 * total**2))
    return min(max(center - half, 0.0), fraction), max(min(center + half, 1.0), fraction)
