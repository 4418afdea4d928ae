# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Log-likelihoods of many sequences. Processes divide the batches among themselves, and keep finished ones on disk.

Scores are negative log-likelihoods in nats.
"""

import json
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object

from common.commands import progress_bar
from eval.scorers import RANDOM_MEASURES, Batch, ModelScorer
from modeling_aogpt import DataCollatorForAnyOrderLM


class Journal:
    """
    Scores of finished batches. They are kept on disk, so a stopped run can continue.

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
                key, indices, scores = json.loads(line)
            except ValueError:
                continue  # the line is empty, or was cut off when the process was killed
            self.done[key].update(zip(indices, scores, strict=True))

    def add(self, key: str, indices: Sequence[int], scores: Sequence[float]) -> None:
        """Add the scores of a batch. `key` names the text and measure. `indices` are the indices of the sequences."""
        self.new += [(key, index, score) for index, score in zip(indices, scores, strict=True)]
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as file:  # the first "\n" ends a line that was cut off
                file.write("\n" + json.dumps([key, list(indices), list(scores)]) + "\n")

    def gather(self, key: str, num_sequences: int) -> list[float]:
        """Return the scores with this `key` from all processes. Check that each sequence was scored exactly once."""
        gathered = gather_object([(index, score) for added, index, score in self.new if added == key])
        self.new = [entry for entry in self.new if entry[0] != key]
        scored = sorted([*self.done[key], *(index for index, _ in gathered)])
        if scored != list(range(num_sequences)):
            folder = "" if self.file is None else f" Remove {self.file.parent}, and start again."
            raise RuntimeError(
                f"Each of the {num_sequences} sequences of {key} must have one score, but there are {len(scored)} "
                f"scores for {len(set(scored))} sequences.{folder}"
            )
        self.done[key].update(gathered)
        return [self.done[key][index] for index in range(num_sequences)]

    def remove(self) -> None:
        """Remove the files. Every process must call this method after the results are written."""
        self.state.wait_for_everyone()
        if self.folder is not None and self.state.is_main_process and self.folder.exists():
            shutil.rmtree(self.folder)


def score_sequences(
    scorer: ModelScorer,
    sequences: list[list[int]],
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

    For random orders, it is averaged over `num_orders` orders. The orders of a sequence depend on `seed`, its index and
    `num_orders`, but not on its batch. Other random numbers (for ensembles, and for the masks of an encoder) also
    depend on the other sequences of the batch.

    Args:
        scorer: Scorer of the model.
        sequences: Ids of each sequence.
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
        (number, indices)
        for number, key in enumerate(keys)
        for indices in split_batches([i for i in range(len(sequences)) if i not in journal.done[key]], batch_size)
    ]
    collator = DataCollatorForAnyOrderLM(pad_token_id=0, left_to_right_fraction=0.0, seed=seed)
    device = scorer.model.device
    own_work = work[state.process_index :: state.num_processes]
    options = {"desc": name or None, "unit": "pass", "leave": False, "disable": not state.is_local_main_process}
    for number, indices in progress_bar(own_work, **options):
        features = [{"input_ids": sequences[index], "order_seed": index * num_orders + number} for index in indices]
        batch: Batch = {part: values.to(device) for part, values in collator(features).items()}
        seeds = np.random.SeedSequence([seed, number, *indices])
        generator = torch.Generator().manual_seed(int(seeds.generate_state(1)[0]))
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            scores = scorer.negative_log_likelihood(measure, batch, generator)
        journal.add(keys[number], indices, scores.tolist())
    return np.mean([journal.gather(key, len(sequences)) for key in keys], axis=0)


def split_batches(values: list[Any], batch_size: int) -> list[list[Any]]:
    """Split a list into lists of at most `batch_size` values."""
    return [values[start : start + batch_size] for start in range(0, len(values), batch_size)]
