# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Orders for training, which are a function of the seeds of the run and of the sample."""

import itertools
from collections import Counter

import pytest
import torch

from modeling_aogpt.data_collator import OrderDistribution, draw_integers, make_streams, to_uniform
from modeling_aogpt.validation import check_orders
from tests.references import is_uniform


def draw(distribution: OrderDistribution, count: int, length: int, seed: int = 0) -> torch.LongTensor:
    return distribution.draw(seed, torch.arange(count), torch.full((count,), length), length)[0]


def test_streams_are_those_of_splitmix64() -> None:
    """The first five numbers for the seed 1234567 are a published test vector."""
    numbers = [number % 2**64 for number in draw_integers(torch.tensor(1234567), 5).tolist()]
    assert numbers == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    uniform = to_uniform(draw_integers(torch.tensor(0), 1000))
    assert 0 <= uniform.min() < 0.01
    assert 0.99 < uniform.max() < 1


def test_streams_of_different_seeds_and_samples_differ() -> None:
    streams = torch.cat([make_streams(seed, torch.arange(-1, 500)) for seed in (0, 1, 2, -1, 2**63, 2**70)])
    assert len(streams.unique()) == len(streams) - 501  # 2**70 is 0 again, modulo 2**64
    numbers = torch.cat([draw_integers(make_streams(seed, torch.arange(-1, 100)), 20) for seed in range(3)])
    assert len(numbers.unique()) == numbers.numel()


LEFT_TO_RIGHT = [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"left_to_right_fraction": 0.3}, [LEFT_TO_RIGHT, [4, 1, 5, 3, 6, 0, 2], [5, 1, 0, 3, 4, 2, 6]]),
        ({"left_to_right_fraction": 0}, [[3, 0, 5, 2, 6, 1, 4], [4, 1, 5, 3, 6, 0, 2], [5, 1, 0, 3, 4, 2, 6]]),
        (
            {"block_length": 3, "left_to_right_fraction": 0.3},
            [LEFT_TO_RIGHT, [1, 0, 2, 4, 5, 3, 6], [1, 0, 2, 5, 3, 4, 6]],
        ),
        ({"stride": 3}, [[3, 0, 6, 1, 4, 5, 2], [3, 6, 0, 4, 1, 5, 2], [0, 3, 6, 1, 4, 5, 2]]),
        ({"orders": "shared"}, [[1, 4, 0, 6, 5, 2, 3]] * 3),
        (
            {"orders": "shared", "block_length": 3, "left_to_right_fraction": 0.3},
            [LEFT_TO_RIGHT, *[[1, 0, 2, 4, 3, 5, 6]] * 2],
        ),
        ({"orders": "shared", "stride": 3}, [[3, 0, 6, 4, 1, 5, 2]] * 3),
        (
            {"orders": "context_first", "min_context": 2, "max_context": 5},
            [[0, 2, 3, 5, 6, 1, 4], [1, 3, 4, 5, 6, 0, 2], [0, 1, 3, 5, 4, 2, 6]],
        ),
        (
            {"orders": "gaps_last", "left_to_right_fraction": 0.3},
            [LEFT_TO_RIGHT, [3, 0, 1, 2, 4, 5, 6], [4, 5, 0, 1, 2, 3, 6]],
        ),
    ],
)
def test_the_orders_of_a_seed_never_change(arguments: dict, expected: list[list[int]]) -> None:
    """Otherwise a run resumed with another version would continue with other orders."""
    assert draw(OrderDistribution(**arguments), 4, 7, seed=5)[1:].tolist() == expected


def test_random_orders_are_uniform() -> None:
    drawn = draw(OrderDistribution(left_to_right_fraction=0), 24000, 4)
    assert is_uniform(drawn, itertools.permutations(range(4)))


def test_a_given_fraction_of_sequences_is_left_to_right() -> None:
    drawn = draw(OrderDistribution(left_to_right_fraction=0.1), 4000, 12)
    fraction = (drawn == torch.arange(12)).all(1).float().mean().item()
    assert abs(fraction - 0.1) < 4 * (0.09 / 4000) ** 0.5
    assert (draw(OrderDistribution("left_to_right"), 5, 7) == torch.arange(7)).all()
    for arguments in ({"block_length": 3}, {"stride": 3}, {"orders": "shared"}):
        assert (draw(OrderDistribution(left_to_right_fraction=1.0, **arguments), 5, 7) == torch.arange(7)).all()


def test_being_left_to_right_does_not_depend_on_the_order_drawn() -> None:
    drawn = draw(OrderDistribution(left_to_right_fraction=0.5), 4000, 4)
    first = drawn[(drawn != torch.arange(4)).any(1), 0].bincount(minlength=4)
    expected = first.sum() * torch.tensor([5, 6, 6, 6]) / 23  # of the 23 orders that are not left to right
    assert ((first - expected).abs() < 4 * expected.sqrt()).all()


@pytest.mark.parametrize("orders", ["random", "shared"])
@pytest.mark.parametrize("arguments", [{}, {"block_length": 6}, {"stride": 2}])
def test_the_default_left_to_right_fraction_is_0_except_for_random_orders_without_blocks(
    orders: str, arguments: dict
) -> None:
    distribution = OrderDistribution(orders, **arguments)
    is_plain = orders == "random" and not arguments
    assert distribution.left_to_right_fraction == (0.1 if is_plain else 0)
    fraction = (draw(distribution, 2000, 12) == torch.arange(12)).all(dim=1).float().mean()
    assert 0.07 < fraction < 0.13 if is_plain else fraction == 0
    mixed = draw(OrderDistribution(orders, **arguments, left_to_right_fraction=0.5), 200, 12)
    assert 50 < (mixed == torch.arange(12)).all(dim=1).sum() < 150  # a given fraction applies to every distribution


@pytest.mark.parametrize(
    ("orders", "arguments"),
    [*itertools.product(["random", "shared"], [{}, {"block_length": 3}, {"stride": 3}]), ("gaps_last", {})],
)
def test_an_order_is_a_function_of_seed_sample_and_length(orders: str, arguments: dict) -> None:
    distribution = OrderDistribution(orders, left_to_right_fraction=0.2, **arguments)
    samples, lengths = torch.arange(100, 140), torch.arange(40) % 8 + 1
    together, _ = distribution.draw(5, samples, lengths, 11)
    check_orders("orders", together, 40, 11)
    for row, sample, length in zip(together, samples, lengths, strict=True):
        assert row[length:].tolist() == list(range(length, 11))
        assert torch.equal(row[:length], distribution.draw(5, sample[None], length[None], int(length))[0][0])
    assert not torch.equal(together, distribution.draw(6, samples, lengths, 11)[0])


def test_the_context_comes_first_from_left_to_right() -> None:
    distribution = OrderDistribution("context_first", min_context=1, max_context=3)
    samples, lengths = torch.arange(12000), torch.tensor([5, 4, 2]).repeat(4000)
    orders, is_context = distribution.draw(0, samples, lengths, 6)
    check_orders("orders", orders, 12000, 6)
    for length, most in ((5, 3), (4, 3), (2, 1)):  # at least one position is not context
        counts = is_context[lengths == length].sum(dim=1)
        for size in range(1, most + 1):
            assert abs((counts == size).float().mean() - 1 / most) < 0.03
        assert counts.min() == 1
        assert counts.max() == most
        assert not is_context[lengths == length, length:].any()
    for order, context, length in zip(orders[:60], is_context, lengths, strict=False):
        given = context.nonzero()[:, 0].tolist()
        assert order[: len(given)].tolist() == given
        assert order[length:].tolist() == list(range(length, 6))


def test_context_and_the_order_of_the_rest_are_uniform() -> None:
    distribution = OrderDistribution("context_first", min_context=2, max_context=2)
    orders = draw(distribution, 12000, 4)
    contexts = list(itertools.combinations(range(4), 2))
    allowed = [(*given, *rest) for given in contexts for rest in itertools.permutations(set(range(4)) - set(given))]
    assert is_uniform(orders, allowed)


def test_a_fraction_of_sequences_has_no_context() -> None:
    distribution = OrderDistribution("context_first", min_context=2, left_to_right_fraction=0.25)
    samples, lengths = torch.arange(4000), torch.full((4000,), 12)
    orders, is_context = distribution.draw(0, samples, lengths, 12)
    is_empty = ~is_context.any(dim=1)
    assert abs(is_empty.float().mean() - 0.25) < 4 * (0.1875 / 4000) ** 0.5
    assert (orders[is_empty] == torch.arange(12)).all()


def test_gaps_are_last_from_left_to_right() -> None:
    """Text and gaps alternate. The rate of changes is 1 / 2 ... 1 / n, with a uniform logarithm."""
    samples, lengths = torch.arange(40000), torch.tensor([3, 4]).repeat(20000)
    orders, is_context = OrderDistribution("gaps_last").draw(0, samples, lengths, 5)
    assert not is_context.any()  # all tokens have a loss
    for length in (3, 4):
        rates = 0.5 * (2 / length) ** ((torch.arange(1000, dtype=torch.float64) + 0.5) / 1000)
        expected: Counter[tuple[int, ...]] = Counter()
        for is_gap in itertools.product((False, True), repeat=length):
            order = tuple(sorted(range(length), key=lambda position: (is_gap[position], position)))
            changes = sum(one != other for one, other in itertools.pairwise(is_gap))
            expected[order] += 0.5 * (rates**changes * (1 - rates) ** (length - 1 - changes)).mean().item()
        drawn = orders[lengths == length]
        assert (drawn[:, length:] == torch.arange(length, 5)).all()
        counts = Counter(map(tuple, drawn[:, :length].tolist()))
        assert counts.keys() == expected.keys()
        for order, probability in expected.items():
            assert abs(counts[order] - 20000 * probability) < 4 * (20000 * probability) ** 0.5


def test_shared_orders_are_the_same_for_all_samples() -> None:
    shared = draw(OrderDistribution("shared"), 50, 9)
    assert (shared == shared[0]).all()
    assert not torch.equal(shared[0], torch.arange(9))
    mixed = draw(OrderDistribution("shared", left_to_right_fraction=0.5), 50, 9)
    assert {tuple(order) for order in mixed.tolist()} == {tuple(range(9)), tuple(shared[0].tolist())}


@pytest.mark.parametrize("seed", [0, 1])
def test_shared_orders_are_the_same_in_every_block(seed: int) -> None:
    """As in the paper: 0 2 3 1, 4 6 7 5, ..."""
    order = draw(OrderDistribution("shared", block_length=4), 2, 10, seed)[1]
    offsets = order[:4].tolist()
    assert sorted(offsets) == [0, 1, 2, 3]
    assert order[4:8].tolist() == [4 + offset for offset in offsets]
    assert order[8:].tolist() == [8 + offset for offset in offsets if offset < 2]
    order = draw(OrderDistribution("shared", stride=3), 2, 9, seed)[1]
    assert sorted(order[:3].tolist()) == [0, 3, 6]
    assert order[3:].tolist() == [*(order[:3] + 1).tolist(), *(order[:3] + 2).tolist()]


def test_random_orders_are_uniform_within_blocks() -> None:
    drawn = draw(OrderDistribution(block_length=3), 6000, 5)
    assert is_uniform(drawn[:, :3], itertools.permutations(range(3)))
    strided = draw(OrderDistribution(stride=2), 200, 4)
    assert {tuple(row) for row in strided.tolist()} == {(0, 2, 1, 3), (2, 0, 1, 3), (0, 2, 3, 1), (2, 0, 3, 1)}


@pytest.mark.parametrize("orders", ["uniform", "blocks-3", "strided-3", "fixed", "fixed-blocks-3", "", None])
def test_unknown_names_are_errors(orders: object) -> None:
    names = "'left_to_right', 'random', 'shared', 'context_first', 'gaps_last'"
    message = f"`orders` must be one of {names}, but is {orders!r}"
    with pytest.raises(ValueError, match=message):
        OrderDistribution(orders)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"left_to_right_fraction": 1.5}, "`left_to_right_fraction` must be a number"),
        ({"left_to_right_fraction": "0.5"}, "`left_to_right_fraction` must be a number"),
        ({"stride": 0}, "`stride` must be an integer of at least 1"),
        ({"block_length": 2.5}, "`block_length` must be an integer of at least"),
        ({"block_length": 2, "stride": 3}, r"`block_length` \(2\) and `stride` \(3\)"),
        ({"min_context": 2}, "`min_context` has no effect without"),
        ({"orders": "shared", "max_context": 2}, "`max_context` has no effect without"),
        ({"orders": "context_first", "max_context": 0}, "`max_context` must be an integer of at least"),
        ({"orders": "context_first", "min_context": 4, "max_context": 3}, r"`min_context` \(4\) is more than"),
        ({"orders": "context_first", "stride": 2}, "cannot be combined with"),
        ({"orders": "gaps_last", "block_length": 2}, "cannot be combined with `orders='gaps_last'`"),
    ],
)
def test_values_that_are_not_allowed_are_errors(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OrderDistribution(**arguments)


def test_left_to_right_orders_follow_blocks() -> None:
    """As in `generate` and in likelihoods."""
    strided = draw(OrderDistribution("left_to_right", stride=3), 2, 7)
    assert strided.tolist() == [[0, 3, 6, 1, 4, 2, 5]] * 2
    assert draw(OrderDistribution("left_to_right", block_length=3), 2, 7).tolist() == [list(range(7))] * 2
    mixed = draw(OrderDistribution("left_to_right", stride=3, left_to_right_fraction=0.5), 50, 7)
    assert {tuple(order) for order in mixed.tolist()} == {tuple(range(7)), (0, 3, 6, 1, 4, 2, 5)}
