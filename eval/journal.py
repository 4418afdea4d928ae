# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run has finished so far: a line on disk for every batch, so that a run that was stopped goes on."""

import json
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import gather_object


class Journal:
    """
    Scores of rows under keys, from this run and those before it that were stopped, of all processes.

    Every process writes a file of its own, a line when a batch is finished, which `kill -9` cannot undo. All of them
    read all files when they begin, so the number of processes may change in between.

    Args:
        folder: where the lines are kept; None keeps nothing. It must belong to one run, whose settings never change.
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
            self.state.wait_for_everyone()  # before anybody adds a line that another would read
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
        """The scores of all rows, from all processes.

        Raises:
            RuntimeError: if a row was scored twice or not at all.
        """
        found = gather_object([(row, score) for added, row, score in self.new if added == key])
        self.new = [entry for entry in self.new if entry[0] != key]
        rows = sorted([*self.done[key], *(row for row, _ in found)])
        if rows != list(range(num_rows)):
            raise RuntimeError(f"{key}: {len(rows)} scores ({len(set(rows))} different) of {num_rows} rows.")
        self.done[key].update(found)
        return [self.done[key][row] for row in range(num_rows)]

    def remove(self) -> None:
        """Forgets the lines, once their results are written."""
        self.state.wait_for_everyone()
        if self.folder is not None and self.state.is_main_process:
            shutil.rmtree(self.folder)
