# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Prompts and rewards for training/grpo.py: minimal puzzles with masks for the missing cells."""

import math
from collections.abc import Iterator
from functools import partial

from common.encoding import split_context
from eval.studies.sudoku.corpus import cached_texts, units_of_cells
from modeling_aogpt.tokenization import MASK

# One of this number of texts of a corpus becomes a prompt, because encoding all of them would take minutes.
STRIDES = {4: 1, 6: 32, 9: 16}


def puzzles(size: int) -> Iterator[tuple[str, str]]:
    """Yield pairs (key, prompt) for puzzles of the corpus of clues. Puzzles of a class have the same key."""
    for key, text in cached_texts(size, "clues", STRIDES[size]):
        grid, is_clue = split_context(text, "[]")
        yield key, "".join(digit if shown else str(MASK) for digit, shown in zip(grid, is_clue, strict=True))


def solved(prompts: list[str], completions: list[str]) -> list[float]:
    """Return 1 for each completion that solves its puzzle, and 0 for others."""
    return [float(is_solution(*pair)) for pair in zip(prompts, completions, strict=True)]


def is_solution(prompt: str, grid: str) -> bool:
    """Return whether a grid has all clues of a puzzle, and each digit once in every row, column and box."""
    puzzle, size = prompt.replace(str(MASK), "."), math.isqrt(len(grid))
    if len(grid) != len(puzzle) or set(grid) != set(map(str, range(1, size + 1))):
        return False
    units = {
        (kind, unit, digit)
        for units, digit in zip(units_of_cells(size), grid, strict=True)
        for kind, unit in enumerate(units)
    }
    return len(units) == 3 * len(grid) and all(clue in (".", digit) for clue, digit in zip(puzzle, grid, strict=True))


# Corpora for the option `corpus`.
puzzles_4 = partial(puzzles, 4)
puzzles_6 = partial(puzzles, 6)
puzzles_9 = partial(puzzles, 9)
