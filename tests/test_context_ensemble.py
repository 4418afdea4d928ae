# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The ensemble over context orders (Eq. 4) and its estimators against its enumerated mean."""

import itertools
from functools import partial

import pytest
import torch

from modeling_aogpt import AOGPTForAnyOrderLM
from modeling_aogpt.context_ensemble import permute_context
from modeling_aogpt.orders import random_orders
from tests.references import block_orders, check_estimates, random_model

BATCH, N = 400, 5


@pytest.fixture(scope="module")
def model() -> AOGPTForAnyOrderLM:
    return random_model(max_position_embeddings=7)


@pytest.fixture(scope="module")
def ids() -> torch.LongTensor:
    """Twenty sequences, each twenty times, so that there is little to enumerate."""
    return torch.randint(0, 11, (20, N), generator=torch.Generator().manual_seed(0)).repeat(BATCH // 20, 1)


@pytest.fixture(scope="module")
def conditionals(model: AOGPTForAnyOrderLM, ids: torch.LongTensor) -> dict[tuple[int, ...], torch.Tensor]:
    """p(x_target | context), (20,), for each context and its order, followed by the target."""
    found = {}
    for order in itertools.permutations(range(N)):
        with torch.no_grad():
            logits = model(ids[:20], torch.tensor(order).expand(20, N)).logits
        scores = logits.softmax(-1).gather(2, ids[:20, :, None])[..., 0]
        found |= {order[: rank + 1]: scores[:, position] for rank, position in enumerate(order)}
    return found


def exact(
    conditionals: dict[tuple[int, ...], torch.Tensor], num_context_orders: int, order: tuple[int, ...]
) -> torch.Tensor:
    """Mean over permutations of the tokens' shares (batch, n) under an order, whose own contexts are always there."""
    shares = torch.zeros(20, N, dtype=torch.float64)
    for rank, target in enumerate(order):
        # One of a large set of contexts is drawn M - 1 times on its own.
        permutations = itertools.permutations(order[:rank])
        probabilities = [conditionals[(*context, target)] for context in permutations]
        drawn = list(itertools.product(probabilities, repeat=num_context_orders - 1))
        own = conditionals[order[: rank + 1]]
        shares[:, target] = sum((sum(others, own) / num_context_orders).log() for others in drawn) / len(drawn)
    return shares.repeat(BATCH // 20, 1)


def exact_mean(conditionals: dict[tuple[int, ...], torch.Tensor], num_context_orders: int) -> torch.Tensor:
    """That, over all orders."""
    orders = list(itertools.permutations(range(N)))
    return sum(exact(conditionals, num_context_orders, order) for order in orders) / len(orders)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# How it is estimated, and how many rows that takes for each sequence with M = 2.
ESTIMATORS = {
    # K orders; for each, a row more than the context has tokens at ranks 2, 3 and 4.
    "all ranks": ({"num_orders": 3}, 3 * (5 + 3 + 4 + 5)),
    "random ranks": ({"orders": random_orders, "num_orders": 4, "num_ranks": 4}, None),
    "diffusion": ({"orders": "random", "num_orders": 4, "num_ranks": 6}, 4 * 5 + 6 * 2 * 5),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimates_the_mean_over_orders(
    name: str,
    model: AOGPTForAnyOrderLM,
    ids: torch.LongTensor,
    conditionals: dict[tuple[int, ...], torch.Tensor],
) -> None:
    arguments, num_rows = ESTIMATORS[name]
    output = model.log_likelihood(ids, num_context_orders=2, generator=generator(), **arguments)
    check_estimates(output.log_likelihood, exact_mean(conditionals, 2).sum(1), output.standard_error)
    torch.testing.assert_close(output.token_log_likelihood.sum(1), output.log_likelihood)
    assert output.num_rows == BATCH * num_rows if num_rows else output.num_rows > 0
    assert (output.importance_weighted is None) == (name != "all ranks")


def test_masked_diffusion_of_an_ensemble(
    model: AOGPTForAnyOrderLM, ids: torch.LongTensor, conditionals: dict[tuple[int, ...], torch.Tensor]
) -> None:
    """The same mean, with log p_ens itself in the estimate and so more spread than the gains have."""
    arguments = {"num_context_orders": 2, "generator": generator()}
    output = model.diffusion_log_likelihood(ids, num_times=16, **arguments)
    check_estimates(output.log_likelihood, exact_mean(conditionals, 2).sum(1), output.standard_error)
    assert output.num_rows == BATCH * 16 * 2 * N
    gains = model.log_likelihood(ids, "random", num_orders=10, num_ranks=10, **arguments)
    assert gains.num_rows < output.num_rows
    assert gains.standard_error.mean() < 0.8 * output.standard_error.mean()


@pytest.mark.parametrize(
    ("num_orders", "num_ranks", "order"),
    [
        (3, None, (0, 1, 2, 3, 4)),
        (3, None, (3, 1, 4, 0, 2)),
        (1, 6, (0, 1, 2, 3, 4)),
        (1, 6, (3, 1, 4, 0, 2)),
        (6, 2, (3, 1, 4, 0, 2)),
    ],
)
def test_estimates_of_a_given_order(
    num_orders: int,
    num_ranks: int | None,
    order: tuple[int, ...],
    model: AOGPTForAnyOrderLM,
    ids: torch.LongTensor,
    conditionals: dict[tuple[int, ...], torch.Tensor],
) -> None:
    """All ranks: from repeated permutations. Random ranks: the pairs of draws tell the standard error."""
    output = model.log_likelihood(
        ids,
        torch.tensor(order).expand(BATCH, N),
        num_orders=num_orders,
        num_context_orders=3,
        num_ranks=num_ranks,
        generator=generator(),
    )
    check_estimates(output.log_likelihood, exact(conditionals, 3, order).sum(1), output.standard_error)
    if num_ranks is None:
        assert output.num_rows == BATCH * 3 * (5 + 2 * (3 + 4 + 5))


@pytest.mark.parametrize("name", ["diffusion", "random ranks"])
def test_shares_of_tokens(
    name: str,
    model: AOGPTForAnyOrderLM,
    ids: torch.LongTensor,
    conditionals: dict[tuple[int, ...], torch.Tensor],
) -> None:
    """What the ensemble adds is added to the token that gains it."""
    arguments = ESTIMATORS[name][0] | {"num_ranks": 16}
    output = model.log_likelihood(ids, num_context_orders=2, generator=generator(), **arguments)
    arguments.pop("num_ranks")
    if name == "diffusion":
        single = model.log_likelihood(ids, generator=generator(), **arguments)  # of the same orders
        gains = output.token_log_likelihood - single.token_log_likelihood
        exact_gains = exact_mean(conditionals, 2) - exact_mean(conditionals, 1)
        means = [values.view(-1, 20, N).mean(0).flatten() for values in (gains, exact_gains)]
        assert torch.corrcoef(torch.stack(means))[0, 1] > 0.9
        # Without the spread of the orders that both share, an error of weights shows.
        errors = (gains - exact_gains).sum(1)
        assert errors.mean().abs() < 4 * errors.std() / BATCH**0.5 < 0.2 * exact_gains.sum(1).mean()
    errors = output.token_log_likelihood - exact_mean(conditionals, 2)
    assert (errors.mean(0).abs() < 4 * errors.std(0) / BATCH**0.5).all()


def test_gains_grow_with_the_ensemble_and_begin_at_one(model: AOGPTForAnyOrderLM, ids: torch.LongTensor) -> None:
    means = [
        model.log_likelihood(ids, num_orders=2, num_context_orders=m, generator=generator()).log_likelihood.mean()
        for m in (1, 2, 8)
    ]
    assert means[0] < means[1] < means[2]


def test_num_rows_of_random_ranks(model: AOGPTForAnyOrderLM, ids: torch.LongTensor) -> None:
    """Of the contexts of 2, 3 and 4 tokens a draw takes one; alone in its pass, a sequence takes no row in vain."""
    arguments = {"num_context_orders": 3, "num_ranks": 6, "generator": generator(), "rows_per_pass": 1}
    for orders in ("left_to_right", "blocks-2"):  # whose contexts are not uniform
        output = model.log_likelihood(ids[:5], orders, **arguments)
        # Six draws in three strata of one rank each: 2 * 2 permutations for 3, 4 and 5 rows.
        assert output.num_rows == 5 * (5 + 2 * 2 * (3 + 4 + 5))
    assert output.standard_error.isnan().all()  # of one random order, whatever its ranks tell


@pytest.mark.parametrize("estimator", ["all ranks", "diffusion", "random ranks"])
def test_padding_counts_for_nothing(
    estimator: str,
    model: AOGPTForAnyOrderLM,
    ids: torch.LongTensor,
    conditionals: dict[tuple[int, ...], torch.Tensor],
) -> None:
    arguments, _ = ESTIMATORS[estimator]
    padded, mask = torch.zeros(BATCH, 7, dtype=torch.long), torch.zeros(BATCH, 7, dtype=torch.long)
    where = [1, 2, 4, 5, 6]
    padded[:, where], mask[:, where] = ids, 1
    output = model.log_likelihood(padded, num_context_orders=2, attention_mask=mask, generator=generator(), **arguments)
    check_estimates(output.log_likelihood, exact_mean(conditionals, 2).sum(1), output.standard_error)
    assert (output.token_log_likelihood[:, [0, 3]] == 0).all()


@pytest.mark.parametrize("arguments", [{}, {"num_ranks": 2}, {"num_ranks": 2, "orders": "left_to_right"}])
@pytest.mark.parametrize("length", [1, 2])
def test_short_contexts_have_one_order(length: int, arguments: dict, model: AOGPTForAnyOrderLM) -> None:
    """A batch of one sequence with nothing to permute beside one with much: the first is as without an ensemble."""
    ids = torch.tensor([[3, 7, 5, 1, 2], [4, 1, 0, 0, 0]])
    mask = torch.tensor([[1] * 5, [1] * length + [0] * (5 - length)])
    own = model.log_likelihood(ids[1:, :length], orders=torch.arange(length)[None]).log_likelihood
    arguments = {"orders": torch.arange(5).expand(2, 5)} | arguments
    output = model.log_likelihood(ids, num_context_orders=4, attention_mask=mask, generator=generator(), **arguments)
    torch.testing.assert_close(output.log_likelihood[1:], own, rtol=0, atol=1e-12)
    alone = model.log_likelihood(ids[1:, :length], num_context_orders=4, num_orders=2, generator=generator())
    assert alone.num_rows == 2 * length


def test_other_distributions_and_few_rows_per_pass(model: AOGPTForAnyOrderLM, ids: torch.LongTensor) -> None:
    arguments = {"orders": partial(block_orders, block_length=2), "num_orders": 2, "num_context_orders": 3}
    whole = model.log_likelihood(ids[:4], generator=generator(), **arguments)
    parts = model.log_likelihood(ids[:4], generator=generator(), rows_per_pass=7, **arguments)
    torch.testing.assert_close(whole.log_likelihood, parts.log_likelihood)
    assert (whole.standard_error > 0).all()


def test_permutes_the_context_alone() -> None:
    order = torch.tensor([[4, 2, 0, 1, 3]]).repeat(600, 1)
    num_context = torch.tensor([3, 0]).repeat(300)
    permuted = permute_context(order, num_context, generator())
    assert torch.equal(permuted[1::2], order[1::2])
    assert torch.equal(permuted[::2, 3:], order[::2, 3:])
    counts = torch.tensor(
        [sum(row == list(p) for row in permuted[::2, :3].tolist()) for p in itertools.permutations((4, 2, 0))]
    )
    assert counts.sum() == 300
    assert counts.min() > 25
