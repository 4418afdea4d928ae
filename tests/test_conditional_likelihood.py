# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""log p(x_A | x_B) against forward passes of whole sequences, one for each conditional."""

import itertools
import math

import pytest
import torch

from modeling_aogpt import AOGPTForAnyOrderLM
from modeling_aogpt.orders import random_orders
from tests.references import conditional, random_model

N = 6
# A and B of three sequences; what is in neither is marginalised. The second has no context, the third no targets.
TARGETS = ([4, 1, 5], [3, 0], [])
CONTEXTS = ([0, 3], [], [1, 2, 3])


@pytest.fixture
def model() -> AOGPTForAnyOrderLM:
    return random_model(max_position_embeddings=N)


@pytest.fixture
def ids() -> torch.LongTensor:
    return torch.randint(0, 11, (3, N), generator=torch.Generator().manual_seed(1))


def mark(sets: tuple[list[int], ...]) -> torch.BoolTensor:
    return torch.tensor([[position in chosen for position in range(N)] for chosen in sets])


def chain(
    model: AOGPTForAnyOrderLM, ids: torch.LongTensor, targets: list[int], context: list[int]
) -> tuple[torch.Tensor, float]:
    """Shares (n,) in place and their sum, of targets and context in the orders in which they are listed."""
    shares, revealed = torch.zeros(N, dtype=torch.float64), tuple((i, int(ids[i])) for i in context)
    for target in targets:
        shares[target] = conditional(model, revealed, target, N)[ids[target]].log()
        revealed += ((target, int(ids[target])),)
    return shares, float(shares.sum())


def sorted_by(order: torch.Tensor, chosen: list[int]) -> list[int]:
    return [position for position in order.tolist() if position in chosen]


@pytest.mark.parametrize("given", [False, True])
def test_is_the_chain_rule_of_the_targets_given_the_context(
    given: bool, model: AOGPTForAnyOrderLM, ids: torch.LongTensor
) -> None:
    orders = random_orders(3, N, torch.Generator().manual_seed(0)) if given else torch.arange(N).expand(3, N)
    context_orders = orders.flip(1) if given else orders
    # What is in neither set has no effect, not even if it is no token.
    known = mark(TARGETS) | mark(CONTEXTS)
    arguments = {"orders": orders, "context_orders": context_orders} if given else {}
    output = model.conditional_log_likelihood(
        ids.masked_fill(~known, model.config.mask_token_id), mark(TARGETS), mark(CONTEXTS), **arguments
    )
    for b in range(3):
        targets, context = sorted_by(orders[b], TARGETS[b]), sorted_by(context_orders[b], CONTEXTS[b])
        shares, total = chain(model, ids[b], targets, context)
        torch.testing.assert_close(output.token_log_likelihood[b], shares, rtol=0, atol=1e-12)
        assert output.log_likelihood[b].item() == pytest.approx(total, abs=1e-12)
    assert (output.standard_error == 0).all()
    # Each pass is as wide as its neediest sequence: here 5 rows, for the one with three targets and a context of two.
    assert output.num_rows == 2 * 5


def test_context_is_everything_else_unless_given(model: AOGPTForAnyOrderLM, ids: torch.LongTensor) -> None:
    mask = torch.ones_like(ids)
    mask[0, 2] = 0
    output = model.conditional_log_likelihood(ids, mark(TARGETS), attention_mask=mask)
    context = mask.bool() & ~mark(TARGETS)
    expected = model.conditional_log_likelihood(ids, mark(TARGETS), context, attention_mask=mask)
    assert torch.equal(output.token_log_likelihood, expected.token_log_likelihood)
    # p(A | rest) = p(rest, A) / p(rest), in the order that has the rest first.
    order = torch.tensor([[0, 2, 3, 1, 4, 5]])
    whole = model.log_likelihood(ids[:1], order).token_log_likelihood[0, [1, 4, 5]].sum()
    without_padding = model.conditional_log_likelihood(ids[:1], mark(TARGETS)[:1])
    torch.testing.assert_close(without_padding.log_likelihood[0], whole, rtol=0, atol=1e-12)


def test_padding_is_not_counted_in_positions(model: AOGPTForAnyOrderLM) -> None:
    plain = model.conditional_log_likelihood(torch.tensor([[3, 7, 5]]), torch.tensor([[0, 1, 0]]))
    padded = model.conditional_log_likelihood(
        torch.tensor([[0, 3, 7, 0, 5]]), torch.tensor([[0, 0, 1, 0, 0]]), attention_mask=torch.tensor([[0, 1, 1, 0, 1]])
    )
    torch.testing.assert_close(padded.log_likelihood, plain.log_likelihood, rtol=0, atol=1e-12)


def test_sums_to_one_over_the_targets() -> None:
    model = random_model(vocab_size=3, max_position_embeddings=5)
    every = torch.tensor([[a, 2, 1, b, 0] for a, b in itertools.product(range(3), repeat=2)])
    targets, context = torch.tensor([[1, 0, 0, 1, 0]]).expand(9, 5), torch.tensor([[0, 0, 1, 0, 1]]).expand(9, 5)
    output = model.conditional_log_likelihood(
        every, targets, context, orders=torch.tensor([[3, 0, 1, 2, 4]]).expand(9, 5)
    )
    assert output.log_likelihood.exp().sum().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("rows_per_pass", [1, 16384])
def test_random_orders_share_the_rows_of_the_context(
    rows_per_pass: int, model: AOGPTForAnyOrderLM, ids: torch.LongTensor
) -> None:
    """Two targets and a context of four: two orders for each pass of four rows of context and two of each order."""
    targets, context = ([4, 1], [3], [0, 2]), ([0, 2, 3, 5], [0, 2], [1])
    generator = torch.Generator().manual_seed(0)
    orders = [random_orders(3, N, generator) for _ in range(4)]
    output = model.conditional_log_likelihood(
        ids,
        mark(targets),
        mark(context),
        num_orders=4,
        generator=generator.manual_seed(0),
        rows_per_pass=rows_per_pass,
    )
    each = torch.zeros(4, 3, dtype=torch.float64)
    shares = torch.zeros(3, N, dtype=torch.float64)
    for k, b in itertools.product(range(4), range(3)):
        own, each[k, b] = chain(model, ids[b], sorted_by(orders[k][b], targets[b]), context[b])
        shares[b] += own / 4
    torch.testing.assert_close(output.token_log_likelihood, shares, rtol=0, atol=1e-12)
    torch.testing.assert_close(output.log_likelihood, each.mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(output.standard_error, each.std(0) / 2)
    torch.testing.assert_close(output.importance_weighted, each.exp().mean(0).log())
    # Alone, a sequence has b + 2 a rows in each of two passes; together, three times those of the neediest.
    assert output.num_rows == (2 * (4 + 4 + 2 + 2 + 1 + 4) if rows_per_pass == 1 else 2 * 3 * 8)


def test_context_orders_average_the_probabilities(model: AOGPTForAnyOrderLM) -> None:
    """Of a context of two, M = 2 orders are the given one and, as often as not, the other."""
    ids = torch.tensor([[3, 7, 5, 1, 2, 9]]).repeat(60, 1)
    targets, context = mark(([5],)).repeat(60, 1), mark(([0, 3],)).repeat(60, 1)
    given, other = (math.exp(chain(model, ids[0], [5], order)[1]) for order in ([3, 0], [0, 3]))
    output = model.conditional_log_likelihood(
        ids,
        targets,
        context,
        context_orders=torch.tensor([[3, 0, 1, 2, 4, 5]]).expand(60, N),
        num_context_orders=2,
        generator=torch.Generator().manual_seed(0),
    )
    found = output.log_likelihood.exp()
    is_mixed = torch.isclose(found, torch.tensor((given + other) / 2, dtype=torch.float64), rtol=1e-9)
    assert (is_mixed | torch.isclose(found, torch.tensor(given, dtype=torch.float64), rtol=1e-9)).all()
    assert 15 < is_mixed.sum() < 45


def test_context_orders_leave_the_targets_behind_the_context(model: AOGPTForAnyOrderLM, ids: torch.LongTensor) -> None:
    """A context of one token has one order, so all M are alike, whatever the targets before."""
    targets, context = mark(([1, 2, 4],) * 3), mark(([3],) * 3)
    one = model.conditional_log_likelihood(ids, targets, context)
    many = model.conditional_log_likelihood(ids, targets, context, num_context_orders=5)
    torch.testing.assert_close(many.token_log_likelihood, one.token_log_likelihood, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"targets": torch.ones(3, 4)}, r"targets has shape \(3, 4\), but input_ids \(3, 6\)"),
        ({"targets": torch.zeros(3, N)}, "targets holds no position"),
        ({"targets": mark(([1], [2], [3])), "context": mark(([0], [2], []))}, "Position 2 of sequence 1 is both"),
        ({"targets": mark(([1],) * 3), "attention_mask": ~mark(([0], [], [1]))}, "Position 1 of sequence 2 is padding"),
        ({"targets": mark(([1],) * 3), "context_orders": "sideways"}, "context_orders: 'sideways' is no"),
        ({"targets": mark(([1],) * 3), "num_context_orders": 0}, "num_context_orders=0"),
        ({"targets": mark(([1],) * 3), "orders": "left_to_right", "num_orders": 2}, "one order is fixed"),
    ],
)
def test_refuses(arguments: dict, message: str, model: AOGPTForAnyOrderLM, ids: torch.LongTensor) -> None:
    with pytest.raises(ValueError, match=message):
        model.conditional_log_likelihood(ids, **arguments)


def test_refuses_what_is_no_tensor(model: AOGPTForAnyOrderLM, ids: torch.LongTensor) -> None:
    targets = torch.zeros_like(ids).index_fill(1, torch.tensor([0]), 1)
    for arguments, name in (
        ((ids.tolist(), targets), "input_ids"),
        ((ids, targets.tolist()), "targets"),
        ((ids, None), "targets"),
        ((ids, targets, (1 - targets).tolist()), "context"),
    ):
        with pytest.raises(TypeError, match=rf"{name} is a (list|NoneType), but must be a torch.Tensor"):
            model.conditional_log_likelihood(*arguments)


def test_refuses_masks_in_the_sets(model: AOGPTForAnyOrderLM, ids: torch.LongTensor) -> None:
    with pytest.raises(ValueError, match="a likelihood needs whole text"):
        model.conditional_log_likelihood(ids.index_fill(1, torch.tensor([0]), 11), mark(([1],) * 3))


@pytest.mark.parametrize("arguments", [{"context_orders": "random"}, {"num_context_orders": 2}])
def test_one_draw_of_random_contexts_has_no_standard_error(arguments: dict) -> None:
    ids, targets = torch.arange(6)[None], torch.tensor([[0, 0, 0, 1, 1, 0]])
    output = random_model().conditional_log_likelihood(ids, targets=targets, **arguments)
    assert output.standard_error.isnan().all()


def test_the_standard_error_is_that_of_independent_draws() -> None:
    """Were a context's random order shared by several orders of the targets, it would be too small."""
    model = random_model()
    ids, targets = torch.arange(8)[None] % 11, torch.tensor([[0, 0, 0, 1, 0, 0, 0, 0]])
    outputs = [
        model.conditional_log_likelihood(
            ids, targets=targets, context_orders="random", num_orders=6, generator=torch.Generator().manual_seed(seed)
        )
        for seed in range(60)
    ]
    errors = torch.stack([output.standard_error for output in outputs])
    spread = torch.stack([output.log_likelihood for output in outputs]).std()
    assert 0.8 < errors.square().mean().sqrt() / spread < 1.25
