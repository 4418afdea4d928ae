# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import itertools

import pytest
import torch

from modeling_aogpt.orders import check_orders
from modeling_aogpt.seeded_orders import OrderDistribution, as_uniform, numbers_of, stream_of


def draw(distribution: OrderDistribution, count: int, length: int, seed: int = 0) -> torch.LongTensor:
    return distribution.draw(seed, torch.arange(count), torch.full((count,), length), length)


def test_numbers_are_those_of_split_mix() -> None:
    """The first five for the seed 1234567, which other implementations publish as their test vector."""
    numbers = [number % 2**64 for number in numbers_of(torch.tensor(1234567), 5).tolist()]
    assert numbers == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert 0 <= as_uniform(numbers_of(torch.tensor(0), 1000)).min() < 0.01


def test_streams_of_neighbouring_seeds_and_samples_differ() -> None:
    streams = torch.cat([stream_of(seed, torch.arange(-1, 500)) for seed in (0, 1, 2, -1, 2**63, 2**70)])
    assert len(streams.unique()) == len(streams) - 501  # 2**70 is 0 again, modulo 2**64
    numbers = torch.cat([numbers_of(stream_of(seed, torch.arange(-1, 100)), 20) for seed in range(3)])
    assert len(numbers.unique()) == numbers.numel()


def test_the_orders_of_a_seed_stay_what_they_are() -> None:
    """Else a run that is resumed with another version would go on with other orders."""
    distribution = OrderDistribution.named("uniform", 0.3)
    assert draw(distribution, 4, 7, seed=5)[1:].tolist() == [
        [0, 1, 2, 3, 4, 5, 6],
        [4, 1, 5, 3, 6, 0, 2],
        [5, 1, 0, 3, 4, 2, 6],
    ]


def test_uniform() -> None:
    drawn = draw(OrderDistribution(), 24000, 4)
    counts = [(drawn == torch.tensor(order)).all(1).sum() for order in itertools.permutations(range(4))]
    assert sum((count - 1000) ** 2 / 1000 for count in counts) < 60.5  # chi-square, 23 degrees of freedom, 1e-4


def test_mixture_has_its_share_of_left_to_right() -> None:
    drawn = draw(OrderDistribution.named("uniform", 0.1), 4000, 12)
    share = (drawn == torch.arange(12)).all(1).float().mean().item()
    assert abs(share - 0.1) < 4 * (0.09 / 4000) ** 0.5
    assert (draw(OrderDistribution.named("left_to_right"), 5, 7) == torch.arange(7)).all()
    for name in ("blocks-3", "strided-3"):  # left to right is so whatever the others are
        assert (draw(OrderDistribution.named(name, 1.0), 5, 7) == torch.arange(7)).all()
    others = draw(OrderDistribution.named("uniform", 0.5), 4000, 4)
    first = others[(others != torch.arange(4)).any(1), 0].bincount(minlength=4)
    share = torch.tensor([5, 6, 6, 6]) / 23  # of the 23 orders that are not left to right
    assert ((first - first.sum() * share).abs() < 4 * (first.sum() * share).sqrt()).all()  # so the choice tells nothing


@pytest.mark.parametrize("name", ["uniform", "blocks-3", "strided-3", "fixed", "fixed-blocks-3", "fixed-strided-3"])
def test_an_order_is_a_function_of_seed_sample_and_length(name: str) -> None:
    distribution = OrderDistribution.named(name, 0.2)
    samples, lengths = torch.arange(100, 140), torch.arange(40) % 8 + 1
    together = distribution.draw(5, samples, lengths, 11)
    check_orders(together, 40, 11)
    for row, sample, length in zip(together, samples, lengths, strict=True):
        assert row[length:].tolist() == list(range(length, 11))
        assert torch.equal(row[:length], distribution.draw(5, sample[None], length[None], int(length))[0])
    assert not torch.equal(together, distribution.draw(6, samples, lengths, 11))


def test_fixed_orders_are_one_order() -> None:
    fixed = draw(OrderDistribution.named("fixed"), 50, 9)
    assert (fixed == fixed[0]).all()
    assert not torch.equal(fixed[0], torch.arange(9))
    mixed = draw(OrderDistribution.named("fixed", 0.5), 50, 9)
    assert {tuple(order) for order in mixed.tolist()} == {tuple(range(9)), tuple(fixed[0].tolist())}


@pytest.mark.parametrize("seed", [0, 1])
def test_fixed_blocks_repeat_one_order(seed: int) -> None:
    """As in the paper: 0 2 3 1, 4 6 7 5, ..."""
    order = draw(OrderDistribution.named("fixed-blocks-4"), 2, 10, seed)[1]
    inside = order[:4].tolist()
    assert sorted(inside) == [0, 1, 2, 3]
    assert order[4:8].tolist() == [4 + position for position in inside]
    assert order[8:].tolist() == [8 + position for position in inside if position < 2]
    order = draw(OrderDistribution.named("fixed-strided-3"), 2, 9, seed)[1]
    assert sorted(order[:3].tolist()) == [0, 3, 6]
    assert order[3:].tolist() == [*(order[:3] + 1).tolist(), *(order[:3] + 2).tolist()]


def test_blocks_are_uniform_within() -> None:
    drawn = draw(OrderDistribution.named("blocks-3"), 6000, 5)
    assert (drawn[:, :3].sort().values == torch.arange(3)).all()
    counts = [(drawn[:, :3] == torch.tensor(order)).all(1).sum() for order in itertools.permutations(range(3))]
    assert sum((count - 1000) ** 2 / 1000 for count in counts) < 25.7  # chi-square, 5 degrees of freedom, 1e-4
    strided = draw(OrderDistribution.named("strided-2"), 200, 4)
    assert {tuple(row) for row in strided.tolist()} == {(0, 2, 1, 3), (2, 0, 1, 3), (0, 2, 3, 1), (2, 0, 3, 1)}


@pytest.mark.parametrize("name", ["random", "blocks", "blocks-0", "strided-x", "fixed-uniform", ""])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no distribution of orders; there are uniform, left_to_right"):
        OrderDistribution.named(name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"left_to_right_fraction": 1.5}, "must lie between 0 and 1"), ({"stride": 0}, "stride of 0")],
)
def test_numbers_are_checked(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OrderDistribution(**arguments)
