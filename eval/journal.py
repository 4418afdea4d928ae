# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Results of many sequences, such as log-likelihoods. Processes divide the batches, and keep finished ones on disk.

The results do not depend on the number of processes.
"""

import hashlib
import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState

from common.caching import code_version
from common.commands import progress_bar
from common.processes import gather
from eval.scorers import RANDOM_MEASURES, Batch, ModelScorer
from modeling_aogpt import DataCollatorForAnyOrderLM


class Journal:
    """Values of finished batches, which can be written as JSON. They are kept on disk, so a stopped run can continue.

    When a process finishes a batch, it appends a line to its own file, so not even `kill -9` loses finished batches. At
    the start, each process reads all files, so a run can continue with another number of processes. Evaluations with
    other settings need another `folder`. If it is None, nothing is kept on disk.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.state = PartialState()
        self.folder = folder
        self.done: dict[str, dict[int, Any]] = defaultdict(dict)
        if folder is not None:
            texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jsonl"))]
            for line in "\n".join(texts).splitlines():
                try:
                    key, indices, values = json.loads(line)
                except ValueError:
                    continue  # the line is empty, or was cut off when the process was killed
                self.done[key].update(zip(indices, values, strict=True))
            self.state.wait_for_everyone()  # no process may append before all have read

    def complete(
        self, sizes: dict[str, int], batch_size: int, compute: Callable[[str, list[int]], list[Any]], **bar: Any
    ) -> dict[str, list[Any]]:
        """Compute the values that are missing, and return the `sizes[key]` values of each key.

        `compute` returns the values with a key and at most `batch_size` indices. `bar` are options of a progress bar.
        """
        work = [
            (key, indices)
            for key, size in sizes.items()
            for indices in split_batches([i for i in range(size) if i not in self.done[key]], batch_size)
        ]
        own_work = work[self.state.process_index :: self.state.num_processes]
        for key, indices in progress_bar(own_work, leave=False, disable=not self.state.is_local_main_process, **bar):
            self.add(key, indices, compute(key, indices))
        for of_process in gather({key: self.done[key] for key in sizes}, self.state.num_processes):
            for key, values in of_process.items():
                self.done[key].update(values)
        for key, size in sizes.items():
            if self.done[key].keys() != set(range(size)):
                folder = "" if self.folder is None else f" Remove {self.folder}, and start again."
                raise RuntimeError(
                    f"Each of the {size} sequences of {key} must have a result, but there are {len(self.done[key])} "
                    f"results.{folder}"
                )
        return {key: [self.done[key][index] for index in range(size)] for key, size in sizes.items()}

    def add(self, key: str, indices: Sequence[int], values: Sequence[Any]) -> None:
        """Add the values of a batch. `key` names what was computed. `indices` are the indices of the sequences."""
        self.done[key].update(zip(indices, values, strict=True))
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            own_file = self.folder / f"process-{self.state.process_index}.jsonl"
            with own_file.open("a", encoding="utf-8") as file:  # the first "\n" ends a line that was cut off
                file.write("\n" + json.dumps([key, list(indices), list(values)]) + "\n")

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
    """Return the negative log-likelihood of each sequence in nats.

    For random orders, it is averaged over `num_orders` orders. The orders of a sequence depend on `seed`, its index and
    `num_orders`, but not on its batch. Other random numbers (for ensembles, and for the masks of an encoder) also
    depend on the other sequences of the batch.

    `measure` is explained in eval/scorers.py. `precision` is `"no"`, or `"bf16"` for autocast. `name` names the text in
    the journal and the progress bar.
    """
    journal = Journal() if journal is None else journal
    keys = {f"{name}/{measure}/{number}": number for number in range(num_orders if measure in RANDOM_MEASURES else 1)}
    collator = DataCollatorForAnyOrderLM(pad_token_id=0, left_to_right_fraction=0.0, seed=seed)
    device = scorer.model.device

    def score(key: str, indices: list[int]) -> list[float]:
        number = keys[key]
        features = [{"input_ids": sequences[index], "order_seed": index * num_orders + number} for index in indices]
        batch: Batch = {part: values.to(device) for part, values in collator(features).items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            generator = make_generator(seed, number, *indices)
            return scorer.negative_log_likelihood(measure, batch, generator).tolist()

    sizes = dict.fromkeys(keys, len(sequences))
    scores = journal.complete(sizes, batch_size, score, desc=name or None, unit="pass")
    return np.mean(list(scores.values()), axis=0)


def make_generator(*numbers: int) -> torch.Generator:
    """Return a generator whose seed depends on all `numbers`, which must not be negative."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(numbers).generate_state(1)[0]))


def name_by_content(folder: Path, content: Iterable[Any]) -> Path:
    """Append a hash of the code and of `content`, which can be written as JSON, to the name of a journal's folder."""
    code = code_version(Path(__file__).parents[1] / name for name in ("common", "eval", "modeling_aogpt"))
    digest = hashlib.sha256(code.encode())
    for part in content:
        digest.update(json.dumps(part).encode())
    return folder.with_name(f"{folder.name}-{digest.hexdigest()[:12]}")


def split_batches(values: list[Any], batch_size: int) -> list[list[Any]]:
    """Split a list into lists of at most `batch_size` values."""
    return [values[start : start + batch_size] for start in range(0, len(values), batch_size)]
