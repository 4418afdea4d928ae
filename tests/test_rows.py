# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from modeling_aogpt.causal import make_causal_mask
from modeling_aogpt.orders import (
    CONTEXT,
    PADDING,
    branch_mask,
    branch_rows,
    chain,
    make_rows,
    parallel_queries,
)

# Tokens and positions of two sequences of five, by rank. The token of rank r is 10 r, or 100 + 10 r.
IDS = torch.tensor([[0, 10, 20, 30, 40], [100, 110, 120, 130, 140]])
POSITIONS = torch.tensor([[3, 0, 4, 1, 2], [1, 2, 0, 4, 3]])


def values(rows: dict[str, torch.Tensor]) -> list[list[list[int]]]:
    return [rows[name].tolist() for name in ("input_ids", "positions", "target_positions")]


def to_strings(mask: torch.BoolTensor) -> list[str]:
    """Return one string per row of a mask (1, 1, rows, slots), with x at visible slots."""
    return ["".join("x" if is_visible else "." for is_visible in row) for row in mask[0, 0].tolist()]


def test_a_row_holds_a_token_its_position_and_a_target_position() -> None:
    rows = make_rows(IDS, POSITIONS, carried=torch.tensor([[2, -1], [0, 4]]), targets=torch.tensor([[4, 0], [1, 1]]))
    assert values(rows) == [
        [[20, 0], [100, 140]],
        [[4, -1], [1, 3]],
        [[2, 3], [2, 2]],
    ]


def test_the_row_of_a_rank_carries_the_token_of_the_rank_before() -> None:
    """The first row of a sequence carries no token: its position is -1, and its id is a valid one that is not used."""
    assert values(branch_rows(IDS, POSITIONS, torch.zeros_like(IDS))) == [
        [[0, 0, 10, 20, 30], [0, 100, 110, 120, 130]],
        [[-1, 3, 0, 4, 1], [-1, 1, 2, 0, 4]],
        POSITIONS.tolist(),
    ]


def test_the_first_row_of_a_branch_carries_the_last_token_of_the_context() -> None:
    branches = torch.tensor([[CONTEXT, CONTEXT, 0, 0, 1], [0, 0, 1, 1, PADDING]])
    rows = branch_rows(IDS, POSITIONS, branches)
    assert rows["input_ids"][0].tolist() == [0, 0, 10, 20, 10]
    assert rows["positions"][0].tolist() == [-1, 3, 0, 4, 0]
    assert rows["positions"][1, :4].tolist() == [-1, 1, -1, 0]  # without a context, a branch begins with a start row
    assert rows["input_ids"][1, :4].tolist() == [0, 100, 0, 120]
    assert torch.equal(rows["target_positions"], POSITIONS)


def test_a_row_attends_to_the_context_and_to_its_branch_up_to_itself() -> None:
    branches = torch.tensor([[CONTEXT, CONTEXT, 0, 0, 1, 1, PADDING]])
    assert to_strings(branch_mask(branches))[:6] == [
        "x......",
        "xx.....",
        "xxx....",
        "xxxx...",
        "xx..x..",
        "xx..xx.",
    ]


@pytest.mark.parametrize("branches", [[0, 0, 0], [CONTEXT, 0, 0], [CONTEXT, CONTEXT, CONTEXT], [CONTEXT, 0]])
def test_a_single_branch_is_causal(branches: list[int]) -> None:
    size = len(branches)
    assert torch.equal(branch_mask(torch.tensor([branches]))[0, 0], torch.ones(size, size, dtype=torch.bool).tril())


def test_chains_and_parallel_queries_are_branches_after_a_context() -> None:
    num_context, ends = torch.tensor([2, 0, 3]), torch.tensor([5, 3, 3])
    assert chain(num_context, ends, 5).tolist() == [
        [CONTEXT, CONTEXT, 0, 0, 0],
        [0, 0, 0, PADDING, PADDING],
        [CONTEXT, CONTEXT, CONTEXT, PADDING, PADDING],
    ]
    queries = parallel_queries(num_context, ends, 5)
    assert (queries == CONTEXT).tolist() == (chain(num_context, ends, 5) == CONTEXT).tolist()
    assert (queries == PADDING).tolist() == (chain(num_context, ends, 5) == PADDING).tolist()
    for row in queries.tolist():
        of_queries = [branch for branch in row if branch >= 0]
        assert len(set(of_queries)) == len(of_queries)  # one branch per row


def test_queries_carry_the_last_token_of_the_context_and_attend_to_it_and_to_themselves() -> None:
    branches = parallel_queries(torch.tensor([2, 0]), torch.tensor([5, 5]), 5)
    rows, mask = branch_rows(IDS, POSITIONS, branches), branch_mask(branches)
    assert rows["positions"].tolist() == [[-1, 3, 0, 0, 0], [-1] * 5]
    assert rows["input_ids"].tolist() == [[0, 0, 10, 10, 10], [0] * 5]
    assert torch.equal(rows["target_positions"], POSITIONS)
    assert to_strings(mask[:1]) == ["x....", "xx...", "xxx..", "xx.x.", "xx..x"]
    assert to_strings(mask[1:]) == ["x....", ".x...", "..x..", "...x.", "....x"]


def test_new_rows_attend_to_cached_slots_and_to_rows_before_them() -> None:
    assert make_causal_mask(None, None, None, 0, torch.arange(3), 3) is None
    # A static cache has more slots than are in use.
    assert to_strings(make_causal_mask(None, None, None, 0, torch.arange(2, 4), 6)) == ["xxx...", "xxxx.."]


def test_no_row_attends_to_padding() -> None:
    is_token = torch.tensor([[True, False, True, True], [False, True, True, False]])
    mask = make_causal_mask(is_token, None, None, 0, torch.arange(2, 4), 6)
    assert to_strings(mask[:1]) == ["x.x...", "x.xx.."]
    assert to_strings(mask[1:]) == [".xx...", ".xx..."]


def test_all_rows_attend_to_the_start_row_which_attends_only_to_itself() -> None:
    mask = make_causal_mask(torch.tensor([[False, True, True]]), None, None, 1, torch.arange(1, 3), 3)
    assert to_strings(mask) == ["x...", "x.x.", "x.xx"]
