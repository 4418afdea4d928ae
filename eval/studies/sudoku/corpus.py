# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Sudoku of 4 x 4, 6 x 6 and 9 x 9 cells: an exact solver, grids, and puzzles with a unique solution.

A grid is a list of the digits of all cells, line by line, where 0 stands for an empty cell. In text, an empty cell is a
dot. Two grids are in the same class if one can be made from the other by permuting the digits. A class is represented
by its grid whose first line is 1, 2, 3, ... All random choices depend only on seeds.
"""

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import count, islice
from random import Random
from string import ascii_lowercase
from typing import Literal

from datasets import Dataset

from common.caching import versioned
from common.commands import progress_bar

BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}  # rows and columns of a box, by the size of a grid
NUM_CLASSES_DRAWN = 20_000  # for 9 x 9 grids, whose classes are too many to enumerate
TEST_FRACTION = 1 / 8  # fraction of the classes that are used only for tests
GRIDS_PER_CLASS = 8  # grids of each training class in a corpus

Grid = list[int]
Form = Literal["grid", "clues", "puzzle", "moves"]  # forms of the texts of a corpus


@lru_cache
def units_of_cells(size: int) -> list[tuple[int, int, int]]:
    """Return the indices (row, column, box) of each cell."""
    height, width = BOXES[size]
    cells = (divmod(cell, size) for cell in range(size * size))
    return [(row, column, row // height * height + column // width) for row, column in cells]


def solve(puzzle: Grid, size: int, rng: Random | None = None) -> Iterator[Grid]:
    """Yield all solutions of a puzzle.

    Args:
        puzzle: Digits by cell, 0 where a cell is empty. Clues must not contradict each other.
        size: Number of rows, 4, 6 or 9.
        rng: Random numbers for the order in which digits are tried; by default, digits are tried in increasing order.
    """
    units, grid, every = units_of_cells(size), list(puzzle), (1 << size) - 1
    used = [[0] * size for _ in range(3)]  # one bit per digit that a row, a column or a box contains
    for (row, column, box), digit in zip(units, grid, strict=True):
        if digit:
            for kind, unit in enumerate((row, column, box)):
                used[kind][unit] |= 1 << digit - 1
    rows, columns, boxes = used

    def fill() -> Iterator[Grid]:
        """Try all digits in the empty cell that allows the fewest, and fill the other cells recursively."""
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
    """Return the representative grid of each class: all 12 for 4 x 4, all 39,168 for 6 x 6, and 20,000 for 9 x 9.

    For 9 x 9, each class is the first solution that a random search finds, so classes are not drawn uniformly.
    """
    empty = [*range(1, size + 1), *[0] * (size * size - size)]
    if size < 9:
        return [tuple(grid) for grid in solve(empty, size)]
    drawn = (next(solve(empty, size, Random(f"9 x 9, grid {number}"))) for number in range(NUM_CLASSES_DRAWN))
    return sorted(set(map(tuple, drawn)))


def is_test_class(grid: tuple[int, ...]) -> bool:
    """Return whether a class is used only for tests. `grid` is the representative of the class."""
    return Random(f"test {to_text(list(grid))}").random() < TEST_FRACTION


def relabel(grid: tuple[int, ...], size: int, rng: Random) -> Grid:
    """Permute the digits of a grid at random. The result is in the same class."""
    names = rng.sample(range(1, size + 1), size)
    return [names[digit - 1] for digit in grid]


def representative_of(grid: Grid, size: int) -> tuple[int, ...]:
    """Return the representative of the class of a grid."""
    names = {digit: name for name, digit in enumerate(grid[:size], start=1)}
    return tuple(names[digit] for digit in grid)


def rearrange(size: int, rng: Random) -> list[int]:
    """Return a random permutation of the cells that makes a grid from every grid.

    Lines of the same boxes change places, and rows and columns of boxes change places. A puzzle that is rearranged in
    the same way as its solution has no other solution, and is minimal if it was minimal before.
    """

    def lines(width: int) -> list[int]:
        starts = rng.sample(range(0, size, width), size // width)
        return [start + offset for start in starts for offset in rng.sample(range(width), width)]

    height, width = BOXES[size]
    rows, columns = lines(height), lines(width)
    return [row * size + column for row in rows for column in columns]


def make_puzzle(grid: Grid, size: int, rng: Random, num_clues: int | None = None) -> Grid:
    """Remove clues from `grid` in random order, and return a puzzle whose only solution is `grid`.

    Args:
        grid: The solution.
        size: Number of rows.
        rng: Random numbers for the order in which clues are removed.
        num_clues: Number of clues. By default, clues are removed until the puzzle is minimal, that is, until removing
            any further clue would allow several solutions.

    Raises:
        ValueError: If `num_clues` is the number of cells or more, or less than the number of clues of the minimal
            puzzle.
    """
    if num_clues is not None and num_clues >= len(grid):
        raise ValueError(f"`num_clues` must be below {len(grid)}, the number of cells, but is {num_clues}.")
    puzzle, remaining = list(grid), len(grid)
    for cell in rng.sample(range(len(grid)), len(grid)):
        if remaining == num_clues:
            break
        puzzle[cell] = 0
        if has_unique_solution(puzzle, size):
            remaining -= 1
        else:
            puzzle[cell] = grid[cell]
    if num_clues not in (None, remaining):
        raise ValueError(
            f"`num_clues` is {num_clues}, but this puzzle of {to_text(grid)} must have {remaining} to {len(grid) - 1} "
            "clues. With fewer, it would have several solutions. Set another `num_clues`."
        )
    return puzzle


def solving_rounds(puzzle: Grid, solution: Grid, size: int) -> list[int]:
    """Return the round in which each cell of a puzzle is filled in, if the easiest cells come first; 0 for clues.

    A round fills in all cells that the rules determine directly: no other digit is possible in the cell, or its digit
    is possible in no other cell of its row, column or box. If there are none, it fills in one of the cells in which the
    fewest digits are possible.
    """
    units = [(row, size + column, 2 * size + box) for row, column, box in units_of_cells(size)]
    grid, rounds, every = list(puzzle), [0] * len(puzzle), (1 << size) - 1
    for number in count(1):
        used, possible_once, possible_twice = ([0] * 3 * size for _ in range(3))  # bits of digits, for each unit
        for cell, digit in enumerate(grid):
            for unit in units[cell] if digit else ():
                used[unit] |= 1 << digit - 1
        possible = {}  # bits of digits, for each empty cell
        for cell, (row, column, box) in enumerate(units):
            if not grid[cell]:
                possible[cell] = every & ~(used[row] | used[column] | used[box])
        if not possible:
            return rounds
        for cell, digits in possible.items():
            for unit in units[cell]:
                possible_twice[unit] |= possible_once[unit] & digits
                possible_once[unit] |= digits
        determined = [
            cell
            for cell, digits in possible.items()
            if digits.bit_count() == 1 or any(digits & ~possible_twice[unit] for unit in units[cell])
        ]
        for cell in determined or [min(possible, key=lambda cell: possible[cell].bit_count())]:
            grid[cell], rounds[cell] = solution[cell], number


def training_texts(size: int, form: Form) -> Iterator[tuple[str, str]]:
    """Yield pairs (key, text) for `GRIDS_PER_CLASS` random grids of each training class.

    All grids of a class have the same key. A minimal puzzle is made for each class, which takes most of the time. With
    puzzles, the texts are therefore random rearrangements of this puzzle. They belong to other training classes.

    Args:
        size: Number of rows.
        form: `"grid"`: a text is a grid. `"clues"`: a text is a grid in which the clues of a minimal puzzle are in
            brackets, which mark the context, such as `1[2]34[3]...`. `"puzzle"`: a text is `[PUZZLE=]GRID`. A puzzle
            contains the clues of a minimal puzzle, and a random number of the other cells. `"moves"`: a text is
            `[PUZZLE=]MOVES`, with a minimal puzzle (see `_moves_text`).
    """
    training_classes = [representative for representative in classes(size) if not is_test_class(representative)]
    for representative in progress_bar(training_classes, desc="Making puzzles", disable=form == "grid"):
        key = to_text(list(representative))
        rng = Random(f"train {key}")
        if form == "grid":
            yield from ((key, to_text(relabel(representative, size, rng))) for _ in range(GRIDS_PER_CLASS))
        else:
            minimal = make_puzzle(list(representative), size, rng)
            rounds = [0 if digit else 1 for digit in minimal]
            if form == "moves":
                rounds = solving_rounds(minimal, list(representative), size)
            for _ in range(GRIDS_PER_CLASS):
                yield _rearranged_text(representative, rounds, size, form, rng)


def _rearranged_text(
    representative: tuple[int, ...], rounds: list[int], size: int, form: Form, rng: Random
) -> tuple[str, str]:
    """Return (key, text) for a random rearrangement of a minimal puzzle that belongs to a training class.

    `rounds` has a number for each cell of the puzzle whose solution is `representative`: 0 for clues, and another
    number for missing cells. For moves, these are the `solving_rounds`.
    """
    while True:
        cells = rearrange(size, rng)
        image = representative_of([representative[cell] for cell in cells], size)
        if not is_test_class(image):
            break
    key, grid = to_text(list(image)), relabel(image, size, rng)
    rounds = [rounds[cell] for cell in cells]
    missing = [number for number, round_number in enumerate(rounds) if round_number]
    if form == "clues":
        return key, _mark_clues(grid, set(missing))
    empty = set(missing if form == "moves" else rng.sample(missing, rng.randint(1, len(missing))))
    puzzle = [0 if number in empty else digit for number, digit in enumerate(grid)]
    return key, f"[{to_text(puzzle)}=]{_moves_text(grid, rounds, size) if form == 'moves' else to_text(grid)}"


def _moves_text(grid: Grid, rounds: list[int], size: int) -> str:
    """Return the missing cells as text, sorted by `solving_rounds`, and by row and column within a round.

    A cell is three characters: the letter of its row, the number of its column, and its digit. For instance, `b14` is a
    4 in the first column of the second row.
    """
    cells = sorted((cell for cell, number in enumerate(rounds) if number), key=lambda cell: (rounds[cell], cell))
    return "".join(f"{ascii_lowercase[cell // size]}{cell % size + 1}{grid[cell]}" for cell in cells)


def _mark_clues(grid: Grid, empty: set[int]) -> str:
    """Return a grid as text, with brackets around the cells that are not in `empty`."""
    cells = (str(digit) if cell in empty else f"[{digit}]" for cell, digit in enumerate(grid))
    return "".join(cells).replace("][", "")


def held_out_puzzles(size: int, count: int, num_clues: int | None = None) -> list[tuple[Grid, Grid]]:
    """Return `count` pairs (puzzle, solution). The solutions are from test classes, which no corpus contains.

    The same arguments always give the same pairs. The classes are in random order. A class is used for a second puzzle
    only when all classes have been used.
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


def held_out_texts(size: int, form: Form, count: int, num_clues: int | None = None) -> list[tuple[str, str]]:
    """Return `count` pairs of texts of held-out puzzles: one with `_` for each missing digit, and the complete text.

    With the forms `"puzzle"` and `"moves"`, a text is `PUZZLE=GRID` or `PUZZLE=MOVES`, and everything after `=` is
    missing. Otherwise, a text is only the grid.
    """
    texts = []
    for puzzle, solution in held_out_puzzles(size, count, num_clues):
        if form in ("grid", "clues"):
            texts.append((to_text(puzzle).replace(".", "_"), to_text(solution)))
            continue
        rounds = solving_rounds(puzzle, solution, size)
        answer = to_text(solution) if form == "puzzle" else _moves_text(solution, rounds, size)
        texts.append((f"{to_text(puzzle)}={'_' * len(answer)}", f"{to_text(puzzle)}={answer}"))
    return texts


def to_text(grid: Grid) -> str:
    """Return a grid or puzzle as text, with dots for empty cells."""
    return "".join(str(digit) if digit else "." for digit in grid)


def cached_texts(size: int, form: Form, stride: int = 1) -> Iterator[tuple[str, str]]:
    """Yield one in `stride` pairs of `training_texts`, which take minutes to make, from the cache of `datasets`."""
    rows = Dataset.from_generator(versioned(_training_rows), gen_kwargs={"size": size, "form": form})
    rows = rows.select(range(0, len(rows), stride))
    return zip(rows["key"], rows["text"], strict=True)


def _training_rows(size: int, form: Form) -> Iterator[dict[str, str]]:
    return ({"key": key, "text": text} for key, text in training_texts(size, form))


# Corpora for the option `corpus`.
sudoku_4 = partial(cached_texts, 4, "grid")
sudoku_4_clues = partial(cached_texts, 4, "clues")
sudoku_4_puzzles = partial(cached_texts, 4, "puzzle")
sudoku_4_moves = partial(cached_texts, 4, "moves")
sudoku_6 = partial(cached_texts, 6, "grid")
sudoku_6_clues = partial(cached_texts, 6, "clues")
sudoku_6_puzzles = partial(cached_texts, 6, "puzzle")
sudoku_6_moves = partial(cached_texts, 6, "moves")
sudoku_9 = partial(cached_texts, 9, "grid")
sudoku_9_clues = partial(cached_texts, 9, "clues")
sudoku_9_puzzles = partial(cached_texts, 9, "puzzle")
sudoku_9_moves = partial(cached_texts, 9, "moves")
