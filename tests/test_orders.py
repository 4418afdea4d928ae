# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import itertools

import pytest
import torch

from modeling_aogpt.devices import draw_uniform
from modeling_aogpt.orders import (
    Orders,
    group_orders,
    index_by_position,
    index_by_rank,
    left_to_right_orders,
    random_orders,
    token_positions,
)
from tests.references import block_orders, is_uniform, seeded


def test_uniform_numbers_have_all_bits_of_float64() -> None:
    draws = draw_uniform(100, generator=seeded())
    assert draws.dtype == torch.float64
    assert (draws * 2**24 % 1 > 0).all()


def test_random_orders_are_uniform_and_depend_on_the_seed_only() -> None:
    orders = random_orders(12_000, 3, seeded())
    assert torch.equal(orders, random_orders(12_000, 3, seeded()))
    assert is_uniform(orders, itertools.permutations(range(3)))


def test_block_orders_visit_blocks_in_turn_and_are_uniform_within() -> None:
    contiguous = block_orders(6000, 5, block_length=3, generator=seeded())
    assert is_uniform(contiguous[:, :3], itertools.permutations(range(3)))
    strided = block_orders(200, 5, stride=3, generator=seeded())
    blocks = [strided[:, :2], strided[:, 2:4], strided[:, 4:]]
    assert [sorted({tuple(row) for row in block.tolist()}) for block in blocks] == [
        [(0, 3), (3, 0)],
        [(1, 4), (4, 1)],
        [(2,)],
    ]
    assert Orders().blocks(torch.arange(5)).tolist() == [0, 0, 0, 0, 0]
    assert torch.equal(block_orders(3, 5, generator=seeded(1)), random_orders(3, 5, seeded(1)))


def test_index_by_position_inverts_index_by_rank() -> None:
    orders = random_orders(5, 7, seeded())
    values = torch.arange(35).view(5, 7)
    assert index_by_rank(values, orders)[2, 3] == values[2, orders[2, 3]]
    assert torch.equal(index_by_position(index_by_rank(values, orders), orders), values)
    vectors = torch.stack((values, -values), dim=-1)
    gathered = torch.stack((index_by_rank(values, orders), index_by_rank(-values, orders)), dim=-1)
    assert torch.equal(index_by_position(gathered, orders), vectors)


def test_group_orders_keeps_the_order_within_each_group() -> None:
    orders = torch.tensor([[4, 0, 3, 1, 2]])
    groups = torch.tensor([[1, 0, 2, 0, 1]])
    assert group_orders(orders, groups).tolist() == [[3, 1, 4, 0, 2]]


def test_token_positions_do_not_count_padding() -> None:
    assert token_positions(torch.tensor([[0, 1, 0, 1, 1, 0]])).tolist() == [[0, 0, 0, 1, 2, 2]]


# --------------------------------------------------------------------------------------------------- order sources

IS_TOKEN = torch.tensor([[False, True, True, False, True, True, True]]).expand(50, 7)


@pytest.mark.parametrize(
    ("arguments", "blocks"),
    [
        ({}, [{1, 2, 4, 5, 6}, {0, 3}]),
        ({"block_length": 2}, [{1, 2}, {4, 5}, {6}, {0, 3}]),
        ({"stride": 3}, [{1, 5}, {2, 6}, {4}, {0, 3}]),
    ],
)
@pytest.mark.parametrize("orders", ["random", "left_to_right"])
def test_named_orders_visit_blocks_of_tokens_in_turn_and_padding_last(
    orders: str, arguments: dict, blocks: list[set[int]]
) -> None:
    source = Orders(orders, **arguments)
    drawn = source.draw(IS_TOKEN, seeded())
    first = 0
    for block in blocks:
        last = first + len(block)
        assert {frozenset(row) for row in drawn[:, first:last].tolist()} == {frozenset(block)}
        if orders == "left_to_right":
            assert (drawn[:, first:last] == torch.tensor(sorted(block))).all()
        first = last
    assert (len({tuple(row) for row in drawn.tolist()}) > 1) == (orders == "random") == source.is_random
    assert source.is_uniform == (orders == "random" and not arguments)
    assert torch.equal(drawn, source.draw(IS_TOKEN, seeded()))


def test_given_orders_are_used_with_padding_moved_last() -> None:
    given = random_orders(50, 7, seeded())
    expected = torch.tensor([sorted(row, key=lambda position: position in (0, 3)) for row in given.tolist()])
    fixed = Orders(given.int())
    assert torch.equal(fixed.draw(IS_TOKEN, None), expected)
    assert not fixed.is_random
    assert not fixed.is_uniform


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "uniform"}, "`context_orders` must be one of"),
        ({"kind": [2, 0, 1]}, "`context_orders` must be one of .*, but is"),
        ({"kind": "random", "block_length": 0}, "`block_length` must be an integer of at least"),
        ({"kind": "random", "stride": 1.5}, "`stride` must be an integer of at least 1"),
        ({"kind": "random", "block_length": 2, "stride": 3}, r"`block_length` \(2\) and `stride` \(3\)"),
        ({"kind": torch.arange(7).expand(50, 7), "block_length": 2}, "`block_length` and `stride` cannot be"),
        ({"kind": torch.arange(7).expand(50, 7), "takes_tensor": False}, "`context_orders` must be one of"),
    ],
)
def test_orders_that_are_not_allowed_are_errors(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Orders(**arguments, argument="context_orders")


def test_orders_that_are_not_permutations_are_errors() -> None:
    source = Orders(torch.zeros(50, 7, dtype=torch.long), argument="context_orders")
    with pytest.raises(ValueError, match=r"`context_orders\[0\]` must contain each"):
        source.draw(IS_TOKEN, None)


def test_left_to_right_orders_are_the_identity() -> None:
    assert left_to_right_orders(2, 3).tolist() == [[0, 1, 2], [0, 1, 2]]
