# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Sudoku of 4 x 4, 6 x 6 and 9 x 9 cells: an exact solver, grids, and puzzles with a unique solution.

A grid is a list of digits by row, with 0 for an empty cell. As text, an empty cell is a dot. Two grids are in the same
class if they differ in the names of the digits only; the grid of a class with 1, 2, 3, ... in its first row stands for
all of them. Everything is a function of seeds.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from random import Random

BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}  # rows and columns of a box, by the size of a grid
NUM_CLASSES_DRAWN = 20_000  # of 9 x 9 grids, which are too many to enumerate
TEST_FRACTION = 1 / 8  # of the classes
GRIDS_PER_CLASS = 8

Grid = list[int]


@lru_cache
def _units(size: int) -> list[tuple[int, int, int]]:
    """Return the row, column and box of each cell."""
    height, width = BOXES[size]
    cells = (divmod(cell, size) for cell in range(size * size))
    return [(row, column, row // height * height + column // width) for row, column in cells]


def solve(puzzle: Grid, size: int, rng: Random | None = None) -> Iterator[Grid]:
    """
    Yield all solutions of a puzzle.

    Args:
        puzzle: Digits by cell, 0 where a cell is empty. Clues must not contradict each other.
        size: Number of rows, 4, 6 or 9.
        rng: Source of a random order of the solutions; by default, digits are tried in increasing order.
    """
    units, grid, every = _units(size), list(puzzle), (1 << size) - 1
    used = [[0] * size for _ in range(3)]  # bits of the digits in each row, column and box
    for (row, column, box), digit in zip(units, grid, strict=True):
        if digit:
            for kind, unit in enumerate((row, column, box)):
                used[kind][unit] |= 1 << digit - 1
    rows, columns, boxes = used

    def fill() -> Iterator[Grid]:
        best, free, fewest = -1, 0, size + 1
        for cell, digit in enumerate(grid):
            if not digit:
                row, column, box = units[cell]
                bits = every & ~(rows[row] | columns[column] | boxes[box])
                count = bits.bit_count()
                if count < fewest:
                    best, free, fewest = cell, bits, count
                    if count < 2:
                        break
        if best < 0:
            yield grid.copy()
            return
        digits = [digit for digit in range(1, size + 1) if free >> digit - 1 & 1]
        if rng is not None:
            rng.shuffle(digits)
        row, column, box = units[best]
        for digit in digits:
            bit = 1 << digit - 1
            grid[best] = digit
            rows[row], columns[column], boxes[box] = rows[row] | bit, columns[column] | bit, boxes[box] | bit
            yield from fill()
            rows[row], columns[column], boxes[box] = rows[row] ^ bit, columns[column] ^ bit, boxes[box] ^ bit
        grid[best] = 0

    return fill()


def has_unique_solution(puzzle: Grid, size: int) -> bool:
    """Return whether a puzzle has exactly one solution."""
    return len(list(islice(solve(puzzle, size), 2))) == 1


@lru_cache
def classes(size: int) -> list[tuple[int, ...]]:
    """
    Return the grid of each class: all of them for 4 x 4 (12) and 6 x 6 (39,168), and 20,000 random ones for 9 x 9.

    The random ones are not uniform: they are the first solutions that a random search finds.
    """
    empty = [*range(1, size + 1), *[0] * (size * size - size)]
    if size < 9:
        return [tuple(grid) for grid in solve(empty, size)]
    drawn = (next(solve(empty, size, Random(f"9 x 9, grid {number}"))) for number in range(NUM_CLASSES_DRAWN))
    return sorted(set(map(tuple, drawn)))


def is_test_class(grid: tuple[int, ...]) -> bool:
    """Return whether the puzzles of a class, given by its grid, are for tests only."""
    return Random(f"test {to_text(list(grid))}").random() < TEST_FRACTION


def relabel(grid: tuple[int, ...], size: int, rng: Random) -> Grid:
    """Return a random grid of the same class."""
    names = rng.sample(range(1, size + 1), size)
    return [names[digit - 1] for digit in grid]


def training_grids(size: int) -> Iterator[tuple[str, Grid]]:
    """Yield `GRIDS_PER_CLASS` grids of each class that is not for tests, as (text of the grid of the class, grid)."""
    for grid in classes(size):
        if not is_test_class(grid):
            key = to_text(list(grid))
            rng = Random(f"train {key}")
            for _ in range(GRIDS_PER_CLASS):
                yield key, relabel(grid, size, rng)


def with_random_clues(grid: Grid, rng: Random) -> Grid:
    """Return a puzzle with a random sixth to five sixths of the cells. It may have several solutions."""
    num_clues = rng.randint(len(grid) // 6, len(grid) * 5 // 6)
    kept = set(rng.sample(range(len(grid)), num_clues))
    return [digit if cell in kept else 0 for cell, digit in enumerate(grid)]


def make_puzzle(grid: Grid, size: int, rng: Random, num_clues: int | None = None) -> Grid:
    """
    Return a puzzle whose only solution is `grid`, by removing clues in random order.

    Args:
        grid: The solution.
        size: Number of rows.
        rng: Source of randomness.
        num_clues: Number of clues at which to stop. By default, the puzzle is minimal: without any of its clues, it
            would have several solutions. Minimal puzzles with more clues than `num_clues` are returned as they are.
    """
    puzzle, remaining = list(grid), len(grid)
    for cell in rng.sample(range(len(grid)), len(grid)):
        if remaining == num_clues:
            break
        puzzle[cell] = 0
        if has_unique_solution(puzzle, size):
            remaining -= 1
        else:
            puzzle[cell] = grid[cell]
    return puzzle


def held_out_puzzles(size: int, count: int, num_clues: int | None = None) -> list[tuple[Grid, Grid]]:
    """
    Return (puzzle, solution) pairs of classes that no corpus contains, always the same ones.

    The classes are taken in random order; each gives one puzzle before any gives a second one.
    """
    grids = [grid for grid in classes(size) if is_test_class(grid)]
    pairs = []
    for number in range(count):
        rng = Random(f"puzzle {number} with {num_clues} clues")
        if number % len(grids) == 0:
            Random(f"round {number // len(grids)}").shuffle(grids)
        solution = relabel(grids[number % len(grids)], size, rng)
        pairs.append((make_puzzle(solution, size, rng, num_clues), solution))
    return pairs


def to_text(grid: Grid) -> str:
    """Return a grid or puzzle as text, with dots for empty cells."""
    return "".join(str(digit) if digit else "." for digit in grid)
