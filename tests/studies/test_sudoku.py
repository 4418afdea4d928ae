# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
from random import Random

import pytest
from datasets.exceptions import DatasetGenerationError

from common.corpora import load_corpus
from common.data_arguments import DataArguments
from common.encoding import split_context
from eval.studies.sudoku import corpus as sudoku


def units(grid: list[int], size: int) -> list[list[int]]:
    """Return the rows, columns and boxes."""
    height, width = sudoku.BOXES[size]
    rows = [grid[start : start + size] for start in range(0, size * size, size)]
    boxes = [
        [rows[top + row][left + column] for row in range(height) for column in range(width)]
        for top in range(0, size, height)
        for left in range(0, size, width)
    ]
    return [*rows, *map(list, zip(*rows, strict=True)), *boxes]


def is_valid(grid: list[int], size: int) -> bool:
    return all(sorted(unit) == list(range(1, size + 1)) for unit in units(grid, size))


@pytest.mark.parametrize(("size", "number"), [(4, 288), (6, 28_200_960)])
def test_classes_are_all_grids_up_to_relabelling(size: int, number: int) -> None:
    """The numbers of 4 x 4 and 6 x 6 grids are published (OEIS A107739, and Wikipedia's "Mathematics of Sudoku")."""
    classes = sudoku.classes(size)
    factorial = 1
    for digit in range(2, size + 1):
        factorial *= digit
    assert len(set(classes)) * factorial == number
    assert all(is_valid(list(grid), size) and grid[:size] == tuple(range(1, size + 1)) for grid in classes[::97])


def test_solve_finds_every_solution_once() -> None:
    grids = list(sudoku.solve([0] * 16, 4))
    assert len(grids) == len(set(map(tuple, grids))) == 288
    assert all(is_valid(grid, 4) for grid in grids)
    shuffled = list(sudoku.solve([0] * 16, 4, Random(1)))
    assert shuffled != grids
    assert sorted(shuffled) == sorted(grids)
    assert list(sudoku.solve([1, 2, 0, 0, 0, 0, 0, 3, *[0] * 8], 4)) == [
        grid for grid in grids if grid[:2] == [1, 2] and grid[7] == 3
    ]


def test_nine_by_nine() -> None:
    puzzle, grid = nine_by_nine()
    assert is_valid(grid, 9)
    assert sum(map(bool, puzzle)) == 40
    assert list(sudoku.solve(puzzle, 9)) == [grid]


def test_minimal_puzzles_are_unique_and_need_every_clue() -> None:
    for puzzle, solution in sudoku.held_out_puzzles(6, 10):
        assert list(sudoku.solve(puzzle, 6)) == [solution]
        for cell, clue in enumerate(puzzle):
            assert clue in (0, solution[cell])
            if clue:
                assert not sudoku.has_unique_solution([*puzzle[:cell], 0, *puzzle[cell + 1 :]], 6)


def test_puzzles_have_the_given_number_of_clues() -> None:
    pairs = sudoku.held_out_puzzles(6, 10, num_clues=18)
    assert [sum(map(bool, puzzle)) for puzzle, _ in pairs] == [18] * 10
    assert all(sudoku.has_unique_solution(puzzle, 6) for puzzle, _ in pairs)


def test_impossible_numbers_of_clues_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`num_clues` is 3, but .* must have [4-6] to 15 clues\."):
        sudoku.held_out_puzzles(4, 1, num_clues=3)
    with pytest.raises(ValueError, match=r"`num_clues` must be below 16, the number of"):
        sudoku.held_out_puzzles(4, 1, num_clues=16)


def test_held_out_puzzles_never_change() -> None:
    pairs = sudoku.held_out_puzzles(4, 30)
    assert len(set(map(str, pairs))) == 30  # although there are few classes
    assert pairs[:5] == sudoku.held_out_puzzles(4, 5)
    assert [sudoku.to_text(grid) for grid in pairs[0]] == ["....14..3......1", "2314142331424231"]


def make_moves(puzzle: str, moves: str) -> str:
    """Return the grid after moves such as `b14` (second row, first column, digit 4)."""
    size, cells = int(len(puzzle) ** 0.5), list(puzzle)
    for row, column, digit in zip(moves[::3], moves[1::3], moves[2::3], strict=True):
        cell = "abcdefghi".index(row) * size + int(column) - 1
        assert cells[cell] == "."
        cells[cell] = digit
    return "".join(cells)


def class_of(grid: str) -> str:
    """Name the digits of the first row 1, 2, 3, ..."""
    size = int(len(grid) ** 0.5)
    return grid.translate(str.maketrans(grid[:size], "123456789"[:size]))


def clues_of(text: str) -> tuple[str, str]:
    """Return the puzzle and the grid of a text of the corpora `sudoku_N_clues`, `_puzzles` and `_moves`."""
    grid, is_context = split_context(text, "[]")
    if "=" in grid:
        puzzle, answer = grid.split("=")
        assert is_context == [True] * (len(puzzle) + 1) + [False] * len(answer)
        return puzzle, answer if answer.isdecimal() else make_moves(puzzle, answer)
    return "".join(digit if given else "." for digit, given in zip(grid, is_context, strict=True)), grid


def test_held_out_grids_exclude_only_relabelled_training_grids() -> None:
    """The report on Sudoku says that exchanging two rows of a box turns most held-out grids into training grids."""
    training = {grid for grid in sudoku.classes(6) if not sudoku.is_test_class(grid)}
    test = [sudoku.to_text(list(grid)) for grid in sudoku.classes(6) if sudoku.is_test_class(grid)]
    exchanged = [tuple(map(int, class_of(grid[6:12] + grid[:6] + grid[12:]))) for grid in test]
    assert 0.85 < sum(grid in training for grid in exchanged) / len(test) < 0.9


@pytest.mark.parametrize("corpus", ["sudoku_4", "sudoku_4_clues", "sudoku_4_puzzles", "sudoku_4_moves"])
@pytest.mark.usefixtures("datasets_cache")
def test_splits_have_no_class_in_common(corpus: str) -> None:
    loaded = load_corpus(DataArguments([f"{sudoku.__name__}:{corpus}"], validation_fraction=0.3))
    classes = [{class_of(clues_of(text)[1]) for text in split} for split in (loaded.train, loaded.validation)]
    test = {class_of(sudoku.to_text(solution)) for _, solution in sudoku.held_out_puzzles(4, 30)}
    assert all(len(grids) > 0 for grids in (*classes, test))
    assert sum(map(len, (*classes, test))) == 12
    assert len(set.union(*classes, test)) == 12


@pytest.mark.usefixtures("datasets_cache")
def test_training_puzzles_are_made_once_for_each_version_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def texts_of(corpus: str) -> list[str]:
        loaded = load_corpus(DataArguments([f"{sudoku.__name__}:{corpus}"], validation_fraction=0.3))
        return [*loaded.train, *loaded.validation]

    texts, others = texts_of("sudoku_4_clues"), texts_of("sudoku_4_puzzles")
    monkeypatch.setattr(sudoku, "make_puzzle", None)  # making another puzzle would fail
    assert texts_of("sudoku_4_clues") == texts
    assert texts_of("sudoku_4_puzzles") == others
    monkeypatch.setattr("common.caching.version", lambda library: "another version")
    with pytest.raises(DatasetGenerationError):
        texts_of("sudoku_4_clues")


def cells_of(puzzle: str) -> list[int]:
    return [0 if cell == "." else int(cell) for cell in puzzle]


@pytest.mark.parametrize("form", ["clues", "puzzle", "moves"])
def test_training_puzzles_have_a_unique_solution(form: sudoku.Form) -> None:
    pairs = [clues_of(text) for _, text in sudoku.training_texts(4, form)]
    for puzzle, grid in pairs:
        assert list(map(sudoku.to_text, sudoku.solve(cells_of(puzzle), 4))) == [grid]
    counts = {16 - puzzle.count(".") for puzzle, _ in pairs}
    # Minimal puzzles, or those with a random number of further cells, up to all cells but one.
    assert counts == set(range(4, 16)) if form == "puzzle" else counts <= {4, 5, 6}


@pytest.mark.parametrize("form", ["clues", "moves"])
def test_training_puzzles_with_clues_or_moves_are_minimal(form: sudoku.Form) -> None:
    for _, text in sudoku.training_texts(4, form):
        puzzle = cells_of(clues_of(text)[0])
        for cell, clue in enumerate(puzzle):
            assert not clue or not sudoku.has_unique_solution([*puzzle[:cell], 0, *puzzle[cell + 1 :]], 4)


@pytest.mark.parametrize("form", ["grid", "clues", "puzzle", "moves"])
def test_keys_are_the_training_classes_of_the_texts(form: sudoku.Form) -> None:
    training = {sudoku.to_text(list(grid)) for grid in sudoku.classes(4) if not sudoku.is_test_class(grid)}
    pairs = list(sudoku.training_texts(4, form))
    assert {key for key, _ in pairs} == training
    assert all(key == class_of(clues_of(text)[1] if form != "grid" else text) for key, text in pairs)


def is_determined(grid: list[int], cell: int, size: int) -> bool:
    """Return whether one rule determines an empty cell: of its digits, or of the cells for a digit in one unit."""

    def fits(digit: int, cell: int) -> bool:
        return not grid[cell] and digit not in [grid[other] for unit in around(cell) for other in unit]

    def around(cell: int) -> list[list[int]]:
        return [unit for unit in units(list(range(size**2)), size) if cell in unit]

    digits = [digit for digit in range(1, size + 1) if fits(digit, cell)]
    alone = [digit for digit in digits for unit in around(cell) if sum(fits(digit, other) for other in unit) == 1]
    return len(digits) == 1 or bool(alone)


@pytest.mark.parametrize("size", [4, 6, 9])
def test_each_round_fills_in_all_cells_that_are_determined(size: int) -> None:
    pairs = sudoku.held_out_puzzles(size, 40)[32:] if size < 9 else [nine_by_nine()]
    is_guess = []
    for puzzle, solution in pairs:
        rounds, grid = sudoku.solving_rounds(puzzle, solution, size), list(puzzle)
        assert [not number for number in rounds] == list(map(bool, puzzle))
        for number in range(1, max(rounds) + 1):
            cells = [cell for cell, of_cell in enumerate(rounds) if of_cell == number]
            determined = [cell for cell in range(size**2) if not grid[cell] and is_determined(grid, cell, size)]
            is_guess.append(not determined)
            assert cells == determined if determined else len(cells) == 1
            for cell in cells:
                grid[cell] = solution[cell]
        assert grid == solution
    assert any(is_guess) == (size == 6)  # one of these 6 x 6 puzzles has a round without determined cells


def nine_by_nine() -> tuple[list[int], list[int]]:
    grid = next(sudoku.solve([0] * 81, 9, Random(0)))
    return sudoku.make_puzzle(grid, 9, Random(0), num_clues=40), grid


def test_moves_are_in_the_order_of_the_rounds() -> None:
    for (puzzle, solution), (question, text) in zip(
        sudoku.held_out_puzzles(6, 5), sudoku.held_out_texts(6, "moves", 5), strict=True
    ):
        start, moves = text.split("=")
        assert question == f"{start}={'_' * len(moves)}"
        assert (start, make_moves(start, moves)) == (sudoku.to_text(puzzle), sudoku.to_text(solution))
        rounds = sudoku.solving_rounds(puzzle, solution, 6)
        cells = ["abcdef".index(row) * 6 + int(column) - 1 for row, column in zip(moves[::3], moves[1::3], strict=True)]
        assert cells == sorted(cells, key=lambda cell: (rounds[cell], cell))
    assert sudoku.held_out_texts(4, "moves", 1)[0][1] == "....14..3......1=a12a23a31c21d14d22d33a44b32b43c34c42"


@pytest.mark.parametrize("size", [4, 6, 9])
def test_rearranged_grids_are_grids(size: int) -> None:
    grid, rng = next(sudoku.solve([0] * size**2, size, Random(0))), Random(1)
    images = [[grid[cell] for cell in sudoku.rearrange(size, rng)] for _ in range(30)]
    assert all(is_valid(image, size) for image in images)
    assert len(set(map(tuple, images))) > 20
    assert all(
        sudoku.to_text(list(sudoku.representative_of(image, size))) == class_of(sudoku.to_text(image))
        for image in images
    )
