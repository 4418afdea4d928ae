# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Ensembles over context orders (Eq. 4): their estimators, compared with the mean over all orders by enumeration."""

import itertools

import pytest
import torch

from modeling_aogpt import AOGPTForAnyOrderLM
from modeling_aogpt.likelihood import permute_context
from tests.references import check_estimates, random_model, seeded

BATCH, N = 400, 5


@pytest.fixture(scope="module")
def model() -> AOGPTForAnyOrderLM:
    return random_model(max_position_embeddings=7)


@pytest.fixture(scope="module")
def ids() -> torch.LongTensor:
    """Return twenty sequences, each twenty times, so that there is little to enumerate."""
    return torch.randint(0, 11, (20, N), generator=torch.Generator().manual_seed(0)).repeat(BATCH // 20, 1)


@pytest.fixture(scope="module")
def conditionals(model: AOGPTForAnyOrderLM, ids: torch.LongTensor) -> dict[tuple[int, ...], torch.Tensor]:
    """Return p(x_target | context), (20,), for each ordered context followed by the target."""
    found = {}
    for order in itertools.permutations(range(N)):
        with torch.no_grad():
            logits = model(ids[:20], torch.tensor(order).expand(20, N)).logits
        scores = logits.softmax(-1).gather(2, ids[:20, :, None])[..., 0]
        found |= {order[: rank + 1]: scores[:, position] for rank, position in enumerate(order)}
    return found


def exact(
    conditionals: dict[tuple[int, ...], torch.Tensor], ensemble_size: int, order: tuple[int, ...]
) -> torch.Tensor:
    """Return the expected log p_ens of each token (batch, n) under an order, over draws of the M - 1 permutations."""
    per_token = torch.zeros(20, N, dtype=torch.float64)
    for rank, target in enumerate(order):
        permutations = itertools.permutations(order[:rank])
        probabilities = [conditionals[(*context, target)] for context in permutations]
        drawn = list(itertools.product(probabilities, repeat=ensemble_size - 1))
        current = conditionals[order[: rank + 1]]
        per_token[:, target] = sum((sum(others, current) / ensemble_size).log() for others in drawn) / len(drawn)
    return per_token.repeat(BATCH // 20, 1)


def exact_mean(conditionals: dict[tuple[int, ...], torch.Tensor], ensemble_size: int) -> torch.Tensor:
    """Return the mean of `exact` over all orders."""
    orders = list(itertools.permutations(range(N)))
    return sum(exact(conditionals, ensemble_size, order) for order in orders) / len(orders)


# Arguments of each estimator, and the number of rows that it takes for each sequence with M = 2.
ESTIMATORS = {
    # For each of K orders: 5 rows of the order, and rank + 1 rows at the ranks 2, 3 and 4.
    "all ranks": ({"num_orders": 3}, 3 * (5 + 3 + 4 + 5)),
    "random contexts": ({"orders": "random", "num_orders": 4, "num_ranks": 6}, 4 * 5 + 6 * 2 * 5),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_is_unbiased_for_the_mean_over_orders(
    name: str,
    model: AOGPTForAnyOrderLM,
    ids: torch.LongTensor,
    conditionals: dict[tuple[int, ...], torch.Tensor],
) -> None:
    arguments, num_rows = ESTIMATORS[name]
    output = model.log_likelihood(ids, ensemble_size=2, generator=seeded(), **arguments)
    check_estimates(output.log_likelihood, exact_mean(conditionals, 2).sum(1), output.standard_error)
    torch.testing.assert_close(output.token_log_likelihood.sum(1), output.log_likelihood)
    assert output.num_rows == BATCH * num_rows
    assert (output.importance_weighted is not None) == ("importance_weighted" in output) == (name == "all ranks")


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (3, 1, 4, 0, 2)])
def test_estimates_of_a_given_order_are_unbiased(
    order: tuple[int, ...],
    model: AOGPTForAnyOrderLM,
    ids: torch.LongTensor,
    conditionals: dict[tuple[int, ...], torch.Tensor],
) -> None:
    """The standard error comes from repeated permutations."""
    orders = torch.tensor(order).expand(BATCH, N)
    output = model.log_likelihood(ids, orders, num_orders=3, ensemble_size=3, generator=seeded())
    check_estimates(output.log_likelihood, exact(conditionals, 3, order).sum(1), output.standard_error)
    assert output.num_rows == BATCH * 3 * (5 + 2 * (3 + 4 + 5))


def test_the_ensemble_gain_is_added_to_the_right_tokens(
    model: AOGPTForAnyOrderLM, ids: torch.LongTensor, conditionals: dict[tuple[int, ...], torch.Tensor]
) -> None:
    orders = {"orders": "random", "num_orders": 4}
    output = model.log_likelihood(ids, ensemble_size=2, num_ranks=16, generator=seeded(), **orders)
    single = model.log_likelihood(ids, generator=seeded(), **orders)  # along the same orders
    gain = output.token_log_likelihood - single.token_log_likelihood
    exact_gain = exact_mean(conditionals, 2) - exact_mean(conditionals, 1)
    means = [values.view(-1, 20, N).mean(0).flatten() for values in (gain, exact_gain)]
    assert torch.corrcoef(torch.stack(means))[0, 1] > 0.9
    # The variance between orders, which both have in common, would hide a wrong weight of the gain.
    errors = (gain - exact_gain).sum(1)
    assert errors.mean().abs() < 4 * errors.std() / BATCH**0.5 < 0.2 * exact_gain.sum(1).mean()
    errors = output.token_log_likelihood - exact_mean(conditionals, 2)
    assert (errors.mean(0).abs() < 4 * errors.std(0) / BATCH**0.5).all()


def test_log_likelihood_grows_with_the_ensemble_size(model: AOGPTForAnyOrderLM, ids: torch.LongTensor) -> None:
    means = [
        model.log_likelihood(ids, num_orders=2, ensemble_size=m, generator=seeded()).log_likelihood.mean()
        for m in (1, 2, 8)
    ]
    assert means[0] < means[1] < means[2]


def test_sequences_in_passes_of_their_own_take_no_unneeded_rows(
    model: AOGPTForAnyOrderLM, ids: torch.LongTensor
) -> None:
    arguments = {"ensemble_size": 3, "generator": seeded(), "rows_per_pass": 1}
    for orders in ({"orders": "left_to_right"}, {"orders": "random", "block_length": 2}):  # not uniform
        output = model.log_likelihood(ids[:5], **orders, **arguments)
        # Each of the ranks 2, 3 and 4 takes rank + 1 rows for each of the two other orders.
        assert output.num_rows == 5 * (5 + 2 * (3 + 4 + 5))
        assert output.standard_error.isnan().all()  # the variance is unknown after one random ensemble


@pytest.mark.parametrize("estimator", ["all ranks", "random contexts"])
def test_padding_does_not_affect_estimates(
    estimator: str,
    model: AOGPTForAnyOrderLM,
    ids: torch.LongTensor,
    conditionals: dict[tuple[int, ...], torch.Tensor],
) -> None:
    arguments, _ = ESTIMATORS[estimator]
    padded, mask = torch.zeros(BATCH, 7, dtype=torch.long), torch.zeros(BATCH, 7, dtype=torch.long)
    where = [1, 2, 4, 5, 6]
    padded[:, where], mask[:, where] = ids, 1
    output = model.log_likelihood(padded, ensemble_size=2, attention_mask=mask, generator=seeded(), **arguments)
    check_estimates(output.log_likelihood, exact_mean(conditionals, 2).sum(1), output.standard_error)
    assert (output.token_log_likelihood[:, [0, 3]] == 0).all()


@pytest.mark.parametrize("arguments", [{}, {"orders": "left_to_right"}])
@pytest.mark.parametrize("length", [1, 2])
def test_short_contexts_have_one_order(length: int, arguments: dict, model: AOGPTForAnyOrderLM) -> None:
    """In a batch with a longer sequence, a sequence without anything to permute is scored as without an ensemble."""
    ids = torch.tensor([[3, 7, 5, 1, 2], [4, 1, 0, 0, 0]])
    mask = torch.tensor([[1] * 5, [1] * length + [0] * (5 - length)])
    expected = model.log_likelihood(ids[1:, :length], orders=torch.arange(length)[None]).log_likelihood
    arguments = {"orders": torch.arange(5).expand(2, 5)} | arguments
    output = model.log_likelihood(ids, ensemble_size=4, attention_mask=mask, generator=seeded(), **arguments)
    torch.testing.assert_close(output.log_likelihood[1:], expected, rtol=0, atol=1e-12)
    alone = model.log_likelihood(ids[1:, :length], ensemble_size=4, num_orders=2, generator=seeded())
    assert alone.num_rows == 2 * length


def test_passes_of_few_rows_do_not_change_results(model: AOGPTForAnyOrderLM, ids: torch.LongTensor) -> None:
    arguments = {"orders": "random", "block_length": 2, "num_orders": 2, "ensemble_size": 3}
    whole = model.log_likelihood(ids[:4], generator=seeded(), **arguments)
    parts = model.log_likelihood(ids[:4], generator=seeded(), rows_per_pass=7, **arguments)
    torch.testing.assert_close(whole.log_likelihood, parts.log_likelihood)
    assert (whole.standard_error > 0).all()


def test_permute_context_permutes_only_the_context() -> None:
    order = torch.tensor([[4, 2, 0, 1, 3]]).repeat(600, 1)
    num_context = torch.tensor([3, 0]).repeat(300)
    permuted = permute_context(order, num_context, seeded())
    assert torch.equal(permuted[1::2], order[1::2])
    assert torch.equal(permuted[::2, 3:], order[::2, 3:])
    counts = torch.tensor(
        [sum(row == list(p) for row in permuted[::2, :3].tolist()) for p in itertools.permutations((4, 2, 0))]
    )
    assert counts.sum() == 300
    assert counts.min() > 25


@pytest.mark.parametrize("length", [1, 2])
def test_short_sequences_have_no_gain_from_random_contexts(length: int, model: AOGPTForAnyOrderLM) -> None:
    ids = torch.tensor([[3, 7, 5, 1, 2], [4, 1, 0, 0, 0]])
    mask = torch.tensor([[1] * 5, [1] * length + [0] * (5 - length)])
    arguments = {"orders": "random", "ensemble_size": 4, "num_ranks": 2, "generator": seeded()}
    _, found = model.log_likelihood(ids, attention_mask=mask, **arguments).log_likelihood
    of_orders = [
        model.log_likelihood(ids[1:, :length], orders=torch.tensor([order])).log_likelihood.item()
        for order in itertools.permutations(range(length))
    ]
    assert any(found.item() == pytest.approx(expected, abs=1e-12) for expected in of_orders)


@pytest.mark.parametrize("rows_per_pass", [16, 4096])
def test_tokens_that_are_not_scored_have_a_score_of_zero(rows_per_pass: int) -> None:
    ids, attention_mask = torch.randint(0, 11, (2, 8), generator=seeded()), torch.ones(2, 8, dtype=torch.long)
    attention_mask[0, :3] = 0
    output = random_model().log_likelihood(
        ids,
        "random",
        num_orders=2,
        ensemble_size=3,
        num_ranks=4,
        attention_mask=attention_mask,
        generator=seeded(),
        rows_per_pass=rows_per_pass,
    )
    assert output.token_log_likelihood[0, :3].eq(0).all()
