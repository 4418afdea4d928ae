# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import itertools

import pytest
import torch

from modeling_aogpt.orders import (
    blocks_of,
    check_orders,
    draw_uniform,
    group_order,
    in_order,
    in_place,
    random_orders,
    token_positions,
)
from tests.references import block_orders


def test_uniform_numbers_have_all_bits_of_float64() -> None:
    draws = draw_uniform(100, generator=torch.Generator().manual_seed(0))
    assert draws.dtype == torch.float64
    assert (draws * 2**24 % 1 > 0).all()


def test_random_orders_are_uniform_and_seeded() -> None:
    draw = random_orders(12_000, 3, torch.Generator().manual_seed(0))
    assert torch.equal(draw, random_orders(12_000, 3, torch.Generator().manual_seed(0)))
    counts = [(draw == torch.tensor(order)).all(1).sum().item() for order in itertools.permutations(range(3))]
    assert sum(counts) == 12_000
    assert sum((count - 2000) ** 2 / 2000 for count in counts) < 25.7  # chi-square, 5 degrees of freedom, 1e-4


def test_blocks_come_one_after_the_other_and_are_uniform_within() -> None:
    contiguous = block_orders(6000, 5, block_length=3, generator=torch.Generator().manual_seed(0))
    assert (contiguous[:, :3].sort().values == torch.tensor([0, 1, 2])).all()
    counts = [(contiguous[:, :3] == torch.tensor(order)).all(1).sum() for order in itertools.permutations(range(3))]
    assert sum((count - 1000) ** 2 / 1000 for count in counts) < 25.7  # chi-square, 5 degrees of freedom, 1e-4
    strided = block_orders(200, 5, stride=3, generator=torch.Generator().manual_seed(0))
    blocks = [strided[:, :2], strided[:, 2:4], strided[:, 4:]]
    assert [sorted({tuple(row) for row in block.tolist()}) for block in blocks] == [
        [(0, 3), (3, 0)],
        [(1, 4), (4, 1)],
        [(2,)],
    ]
    assert blocks_of(torch.arange(5)).tolist() == [0, 0, 0, 0, 0]
    assert torch.equal(
        block_orders(3, 5, generator=torch.Generator().manual_seed(1)),
        random_orders(3, 5, torch.Generator().manual_seed(1)),
    )


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        (torch.tensor([[0, 1, 2], [0, 2, 2]]), r"orders\[1\] is not a permutation of 0 ... 2"),
        (torch.tensor([[0, 1, 2], [1, 2, 3]]), r"orders\[1\] is not a permutation"),
        (torch.tensor([[0, 1, 2]]), r"shape \(1, 3\), but must .* \(2, 3\)"),
        (torch.zeros(2, 3), "positions must be integers"),
    ],
)
def test_check_refuses(orders: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_orders(orders, 2, 3)


def test_check_refuses_a_list() -> None:
    with pytest.raises(TypeError, match=r"orders is a list, but must be a torch\.Tensor"):
        check_orders([[0, 1, 2]], 1, 3)


def test_in_place_undoes_in_order() -> None:
    orders = random_orders(5, 7, torch.Generator().manual_seed(0))
    values = torch.arange(35).view(5, 7)
    assert in_order(values, orders)[2, 3] == values[2, orders[2, 3]]
    assert torch.equal(in_place(in_order(values, orders), orders), values)
    vectors = torch.stack((values, -values), dim=-1)
    gathered = torch.stack((in_order(values, orders), in_order(-values, orders)), dim=-1)
    assert torch.equal(in_place(gathered, orders), vectors)


def test_group_order_keeps_relative_order() -> None:
    orders = torch.tensor([[4, 0, 3, 1, 2]])
    groups = torch.tensor([[1, 0, 2, 0, 1]])
    assert group_order(orders, groups).tolist() == [[3, 1, 4, 0, 2]]


def test_positions_do_not_count_padding() -> None:
    assert token_positions(torch.tensor([[0, 1, 0, 1, 1, 0]])).tolist() == [[0, 0, 0, 1, 2, 2]]
