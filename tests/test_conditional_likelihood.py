# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""log p(x_A | x_B), compared with forward passes of whole sequences, one for each conditional probability."""

import itertools
import math

import pytest
import torch

from modeling_aogpt import AOGPTForAnyOrderLM
from modeling_aogpt.orders import random_orders
from tests.references import conditional, random_model

N = 6
# A and B of three sequences; tokens in neither are marginalized out. The second has no context, the third no targets.
TARGETS = ([4, 1, 5], [3, 0], [])
CONTEXTS = ([0, 3], [], [1, 2, 3])


@pytest.fixture
def model() -> AOGPTForAnyOrderLM:
    return random_model(max_position_embeddings=N)


@pytest.fixture
def ids() -> torch.LongTensor:
    return torch.randint(0, 11, (3, N), generator=torch.Generator().manual_seed(1))


def mark(sets: tuple[list[int], ...]) -> torch.BoolTensor:
    return torch.tensor([[position in selected for position in range(N)] for selected in sets])


def chain_rule(
    model: AOGPTForAnyOrderLM, ids: torch.LongTensor, targets: list[int], context: list[int]
) -> tuple[torch.Tensor, float]:
    """Return log p of each target (n,) by position, and their sum; targets and context are used in the given order."""
    per_token, unmasked = torch.zeros(N, dtype=torch.float64), tuple((i, int(ids[i])) for i in context)
    for target in targets:
        per_token[target] = conditional(model, unmasked, target, N)[ids[target]].log()
        unmasked += ((target, int(ids[target])),)
    return per_token, float(per_token.sum())


def sorted_by(order: torch.Tensor, positions: list[int]) -> list[int]:
    return [position for position in order.tolist() if position in positions]


@pytest.mark.parametrize("given", [False, True])
def test_log_likelihood_is_the_chain_rule_of_the_targets_given_the_context(
    given: bool, model: AOGPTForAnyOrderLM, ids: torch.LongTensor
) -> None:
    orders = random_orders(3, N, torch.Generator().manual_seed(0)) if given else torch.arange(N).expand(3, N)
    context_orders = orders.flip(1) if given else orders
    # Positions in neither set have no effect, not even if they hold the mask.
    known = mark(TARGETS) | mark(CONTEXTS)
    arguments = {"orders": orders, "context_orders": context_orders} if given else {}
    output = model.log_likelihood(
        ids.masked_fill(~known, model.config.mask_token_id), targets=mark(TARGETS), context=mark(CONTEXTS), **arguments
    )
    for b in range(3):
        targets, context = sorted_by(orders[b], TARGETS[b]), sorted_by(context_orders[b], CONTEXTS[b])
        per_token, total = chain_rule(model, ids[b], targets, context)
        torch.testing.assert_close(output.token_log_likelihood[b], per_token, rtol=0, atol=1e-12)
        assert output.log_likelihood[b].item() == pytest.approx(total, abs=1e-12)
    assert (output.standard_error == 0).all()
    # A pass has as many rows per sequence as the longest one needs: 5, for three targets and a context of two. The
    # third sequence has no targets, so it is not run.
    assert output.num_rows == 2 * 5


def test_the_default_context_is_all_other_tokens(model: AOGPTForAnyOrderLM, ids: torch.LongTensor) -> None:
    mask = torch.ones_like(ids)
    mask[0, 2] = 0
    output = model.log_likelihood(ids, targets=mark(TARGETS), attention_mask=mask)
    context = mask.bool() & ~mark(TARGETS)
    expected = model.log_likelihood(ids, targets=mark(TARGETS), context=context, attention_mask=mask)
    assert torch.equal(output.token_log_likelihood, expected.token_log_likelihood)
    # p(A | rest) = p(rest, A) / p(rest), in an order that begins with the rest.
    order = torch.tensor([[0, 2, 3, 1, 4, 5]])
    whole = model.log_likelihood(ids[:1], order).token_log_likelihood[0, [1, 4, 5]].sum()
    without_padding = model.log_likelihood(ids[:1], targets=mark(TARGETS)[:1])
    torch.testing.assert_close(without_padding.log_likelihood[0], whole, rtol=0, atol=1e-12)


def test_padding_is_not_counted_in_positions(model: AOGPTForAnyOrderLM) -> None:
    plain = model.log_likelihood(torch.tensor([[3, 7, 5]]), targets=torch.tensor([[0, 1, 0]]))
    padded = model.log_likelihood(
        torch.tensor([[0, 3, 7, 0, 5]]),
        targets=torch.tensor([[0, 0, 1, 0, 0]]),
        attention_mask=torch.tensor([[0, 1, 1, 0, 1]]),
    )
    torch.testing.assert_close(padded.log_likelihood, plain.log_likelihood, rtol=0, atol=1e-12)


@pytest.mark.parametrize("vocab_size", [3, 8])
def test_probabilities_of_all_targets_of_text_sum_to_one(vocab_size: int) -> None:
    model = random_model(vocab_size=vocab_size, num_valid_tokens=3, max_position_embeddings=5)
    all_targets = torch.tensor([[a, 2, 1, b, 0] for a, b in itertools.product(range(3), repeat=2)])
    targets, context = torch.tensor([[1, 0, 0, 1, 0]]).expand(9, 5), torch.tensor([[0, 0, 1, 0, 1]]).expand(9, 5)
    output = model.log_likelihood(
        all_targets, targets=targets, context=context, orders=torch.tensor([[3, 0, 1, 2, 4]]).expand(9, 5)
    )
    assert output.log_likelihood.exp().sum().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("rows_per_pass", [1, 8, 16384])
def test_random_orders_share_the_rows_of_the_context(
    rows_per_pass: int, model: AOGPTForAnyOrderLM, ids: torch.LongTensor
) -> None:
    """With two targets and a context of four, a pass has four rows of context, and two rows for each of two orders."""
    targets, context = ([4, 1], [3], [0, 2]), ([0, 2, 3, 5], [0, 2], [1])
    generator = torch.Generator().manual_seed(0)
    orders = [random_orders(3, N, generator) for _ in range(4)]
    output = model.log_likelihood(
        ids,
        targets=mark(targets),
        context=mark(context),
        num_orders=4,
        generator=generator.manual_seed(0),
        rows_per_pass=rows_per_pass,
    )
    totals = torch.zeros(4, 3, dtype=torch.float64)
    per_token = torch.zeros(3, N, dtype=torch.float64)
    for k, b in itertools.product(range(4), range(3)):
        of_order, totals[k, b] = chain_rule(model, ids[b], sorted_by(orders[k][b], targets[b]), context[b])
        per_token[b] += of_order / 4
    torch.testing.assert_close(output.token_log_likelihood, per_token, rtol=0, atol=1e-12)
    torch.testing.assert_close(output.log_likelihood, totals.mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(output.standard_error, totals.std(0) / 2)
    torch.testing.assert_close(output.importance_weighted, totals.exp().mean(0).log())
    # With c tokens of context and m targets, two orders of a sequence take one pass of c + 2 m rows. If a pass may not
    # have so many rows, each order takes a pass of c + m rows. In a common pass, each sequence has as many rows as the
    # longest one.
    num_rows = {1: 4 * (4 + 2 + 2 + 1 + 1 + 2), 8: 2 * (4 + 4 + 2 + 2 + 1 + 4), 16384: 2 * 3 * 8}
    assert output.num_rows == num_rows[rows_per_pass]


def test_an_ensemble_averages_probabilities_over_orders_of_the_context(model: AOGPTForAnyOrderLM) -> None:
    """For a context of two tokens, M = 2 orders are the given one, and either one with equal probability."""
    ids = torch.tensor([[3, 7, 5, 1, 2, 9]]).repeat(60, 1)
    targets, context = mark(([5],)).repeat(60, 1), mark(([0, 3],)).repeat(60, 1)
    given, other = (math.exp(chain_rule(model, ids[0], [5], order)[1]) for order in ([3, 0], [0, 3]))
    output = model.log_likelihood(
        ids,
        targets=targets,
        context=context,
        context_orders=torch.tensor([[3, 0, 1, 2, 4, 5]]).expand(60, N),
        ensemble_size=2,
        generator=torch.Generator().manual_seed(0),
    )
    found = output.log_likelihood.exp()
    is_mixed = torch.isclose(found, torch.tensor((given + other) / 2, dtype=torch.float64), rtol=1e-9)
    assert (is_mixed | torch.isclose(found, torch.tensor(given, dtype=torch.float64), rtol=1e-9)).all()
    assert 15 < is_mixed.sum() < 45


def test_an_ensemble_does_not_permute_targets(model: AOGPTForAnyOrderLM, ids: torch.LongTensor) -> None:
    """A context of one token has one order, so the ensemble changes nothing, even for a target after others."""
    targets, context = mark(([1, 2, 4],) * 3), mark(([3],) * 3)
    one = model.log_likelihood(ids, targets=targets, context=context)
    many = model.log_likelihood(ids, targets=targets, context=context, ensemble_size=5)
    torch.testing.assert_close(many.token_log_likelihood, one.token_log_likelihood, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"targets": torch.ones(3, 4)}, "`targets` must have one value per token, that"),
        ({"targets": torch.zeros(3, N)}, "`targets` selects no position"),
        (
            {"targets": mark(([1], [2], [3])), "context": mark(([0], [2], []))},
            "Column 2 of sequence 1 is in both `targets`",
        ),
        ({"targets": mark(([1],) * 3), "attention_mask": ~mark(([0], [], [1]))}, "Column 1 of sequence 2 is padding"),
        ({"targets": mark(([1],) * 3), "context_orders": "sideways"}, "`context_orders` must be one of"),
        ({"targets": mark(([1],) * 3), "ensemble_size": 0}, "`ensemble_size` must be an integer of at"),
        (
            {"targets": mark(([1],) * 3), "orders": "left_to_right", "num_orders": 2},
            r"`num_orders` \(2\) averages over random",
        ),
        ({"targets": mark(([1],) * 3), "block_length": 2, "stride": 2}, r"`block_length` \(2\) and `stride` \(2\)"),
    ],
)
def test_arguments_that_are_not_allowed_are_errors(
    arguments: dict, message: str, model: AOGPTForAnyOrderLM, ids: torch.LongTensor
) -> None:
    with pytest.raises(ValueError, match=message):
        model.log_likelihood(ids, **arguments)


def test_arguments_that_are_not_tensors_are_errors(model: AOGPTForAnyOrderLM, ids: torch.LongTensor) -> None:
    targets = torch.zeros_like(ids).index_fill(1, torch.tensor([0]), 1)
    for arguments, name in (
        ({"input_ids": ids.tolist(), "targets": targets}, "input_ids"),
        ({"input_ids": ids, "targets": targets.tolist()}, "targets"),
        ({"input_ids": ids, "targets": targets, "context": (1 - targets).tolist()}, "context"),
    ):
        with pytest.raises(TypeError, match=rf"`{name}` must be a torch\.Tensor, but has type list"):
            model.log_likelihood(**arguments)


def test_masks_in_the_sets_are_errors(model: AOGPTForAnyOrderLM, ids: torch.LongTensor) -> None:
    with pytest.raises(ValueError, match=r"This id is the mask\. .* likelihoods need"):
        model.log_likelihood(ids.index_fill(1, torch.tensor([0]), 11), targets=mark(([1],) * 3))


@pytest.mark.parametrize("arguments", [{"context_orders": "random"}, {"ensemble_size": 2}])
def test_a_single_draw_of_a_random_context_order_has_no_standard_error(arguments: dict) -> None:
    ids, targets = torch.arange(6)[None], torch.tensor([[0, 0, 0, 1, 1, 0]])
    output = random_model().log_likelihood(ids, targets=targets, **arguments)
    assert output.standard_error.isnan().all()


@pytest.mark.parametrize("arguments", [{"context_orders": "random"}, {"ensemble_size": 2}])
def test_random_orders_of_the_context_can_be_averaged_for_a_given_order_of_the_targets(
    arguments: dict, model: AOGPTForAnyOrderLM, ids: torch.LongTensor
) -> None:
    output = model.log_likelihood(
        ids[:1], targets=mark(([4],)), context=mark(([0, 2, 3],)), orders="left_to_right", num_orders=300, **arguments
    )
    probabilities = [
        conditional(model, tuple((i, int(ids[0, i])) for i in context), 4, N)[ids[0, 4]]
        for context in itertools.permutations([0, 2, 3])
    ]
    if "ensemble_size" in arguments:  # the mean of the order from left to right and a random one
        probabilities = [(probabilities[0] + other) / 2 for other in probabilities]
    exact = torch.stack(probabilities).log().mean().item()
    assert output.log_likelihood.item() == pytest.approx(exact, abs=5 * output.standard_error.item())
    assert 0 < output.standard_error < 0.15


def test_the_standard_error_is_that_of_independent_draws() -> None:
    """It would be too small if several orders of the targets shared a random order of the context."""
    model = random_model()
    ids, targets = torch.arange(8)[None] % 11, torch.tensor([[0, 0, 0, 1, 0, 0, 0, 0]])
    outputs = [
        model.log_likelihood(
            ids, targets=targets, context_orders="random", num_orders=6, generator=torch.Generator().manual_seed(seed)
        )
        for seed in range(60)
    ]
    errors = torch.stack([output.standard_error for output in outputs])
    spread = torch.stack([output.log_likelihood for output in outputs]).std()
    assert 0.8 < errors.square().mean().sqrt() / spread < 1.25
