# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import itertools
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch

from modeling_aogpt import row_scores
from modeling_aogpt.orders import left_to_right_orders, random_orders
from modeling_aogpt.seeded_orders import OrderDistribution
from tests.references import block_orders, random_encoder, random_model


@pytest.fixture
def ids() -> torch.LongTensor:
    return torch.randint(0, 11, (3, 12), generator=torch.Generator().manual_seed(1))


def test_is_the_chain_rule_along_the_order(ids: torch.LongTensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_scores, "ROWS_PER_HEAD_CALL", 5)
    model, orders = random_model(), random_orders(3, 12, torch.Generator().manual_seed(0))
    for given, order in ((orders, orders), (None, None), ("left_to_right", None)):
        expected = model(ids, order).logits.log_softmax(-1).gather(2, ids[..., None])[..., 0]
        output = model.log_likelihood(ids, given)
        torch.testing.assert_close(output.token_log_likelihood, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(output.log_likelihood, expected.sum(1), rtol=0, atol=1e-12)
        assert (output.standard_error == 0).all()


def test_probabilities_of_all_sequences_sum_to_one() -> None:
    model = random_model(vocab_size=3, max_position_embeddings=4)
    every = torch.cartesian_prod(*[torch.arange(3)] * 4)
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        total = model.log_likelihood(every, torch.tensor(order).expand(81, 4)).log_likelihood.exp().sum()
        assert total.item() == pytest.approx(1, abs=1e-12)


def test_random_orders_average_to_the_any_order_likelihood() -> None:
    """The mean over K orders lies within its standard error of the mean over all n! of them, as often as it should."""
    model = random_model(max_position_embeddings=4)
    ids = torch.randint(0, 11, (200, 4), generator=torch.Generator().manual_seed(0))
    every = [torch.tensor(order).expand(200, 4) for order in itertools.permutations(range(4))]
    exact = torch.stack([model.log_likelihood(ids, order).log_likelihood for order in every]).mean(0)
    output = model.log_likelihood(ids, num_orders=64, generator=torch.Generator().manual_seed(0))
    deviations = (output.log_likelihood - exact) / output.standard_error
    assert abs(deviations.mean()) < 4 / math.sqrt(200)
    assert 0.85 < deviations.std() < 1.15
    torch.testing.assert_close(output.token_log_likelihood.sum(1), output.log_likelihood)


def test_random_orders_are_seeded_and_one_has_no_spread(ids: torch.LongTensor) -> None:
    model = random_model()
    first, second = (model.log_likelihood(ids, "random", generator=torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(first.log_likelihood, second.log_likelihood)
    assert not torch.equal(first.log_likelihood, model.log_likelihood(ids).log_likelihood)
    assert first.standard_error.isnan().all()


def test_importance_weighted_bound(ids: torch.LongTensor) -> None:
    model, generator = random_model(), torch.Generator().manual_seed(0)
    orders = [random_orders(3, 12, generator) for _ in range(5)]
    each = torch.stack([model.log_likelihood(ids, order).log_likelihood for order in orders])
    output = model.log_likelihood(ids, num_orders=5, generator=generator.manual_seed(0))
    torch.testing.assert_close(output.log_likelihood, each.mean(0))
    torch.testing.assert_close(output.importance_weighted, each.exp().mean(0).log())
    assert (output.importance_weighted > output.log_likelihood).all()
    single = model.log_likelihood(ids)
    assert torch.equal(single.importance_weighted, single.log_likelihood)


def mixed_orders(batch_size: int, length: int, generator: torch.Generator) -> torch.LongTensor:
    """The first two sequences left to right, the others uniform."""
    return torch.cat((left_to_right_orders(2, length), random_orders(batch_size - 2, length, generator)))


@pytest.mark.parametrize("distribution", [partial(block_orders, block_length=5), mixed_orders])
def test_distribution_of_orders(distribution: Callable[..., torch.LongTensor], ids: torch.LongTensor) -> None:
    model, generator = random_model(), torch.Generator().manual_seed(0)
    expected = sum(model.log_likelihood(ids, distribution(3, 12, generator=generator)).log_likelihood for _ in range(2))
    output = model.log_likelihood(ids, distribution, num_orders=2, generator=generator.manual_seed(0))
    torch.testing.assert_close(output.log_likelihood, expected / 2)
    assert output.standard_error[2] > 0
    assert model.log_likelihood(ids, distribution).standard_error.isnan().all()


def test_named_distributions(ids: torch.LongTensor) -> None:
    """Blocks of one position, and strides as long as the text, leave one order; a mixture with nothing else, too."""
    model = random_model()
    left_to_right = model.log_likelihood(ids)
    of_remote_code = type("OrderDistribution", (), dict(vars(OrderDistribution)))  # a copy of the class
    distributions = [kind(left_to_right_fraction=1.0) for kind in (OrderDistribution, of_remote_code)]
    for orders in ("blocks-1", "strided-12", *distributions):
        output = model.log_likelihood(ids, orders, num_orders=2)
        torch.testing.assert_close(output.token_log_likelihood, left_to_right.token_log_likelihood)
    generator = torch.Generator().manual_seed(0)
    output = model.log_likelihood(ids, "blocks-4", num_orders=8, generator=generator)
    assert (output.standard_error > 0).all()
    uniform = [model.log_likelihood(ids, name, generator=generator.manual_seed(0)) for name in ("random", "uniform")]
    assert torch.equal(uniform[0].log_likelihood, uniform[1].log_likelihood)


@pytest.mark.parametrize("orders", ["blocks-2", "strided-3"])
def test_blocks_do_not_count_padding(orders: str) -> None:
    """They are made of positions, as in training and generation, wherever the padding stands."""
    ids, keep = torch.tensor([[3, 1, 4, 1, 5]]), torch.tensor([[0, 1, 1, 0, 0, 1, 1, 0, 1, 0]])
    padded = torch.zeros_like(keep).masked_scatter(keep == 1, ids)
    decoder, encoder = random_model(), random_encoder()
    generator = torch.Generator()
    for score in (
        decoder.log_likelihood,
        encoder.log_likelihood,
        lambda ids, **more: decoder.conditional_log_likelihood(ids, more.get("attention_mask", ids), **more),
    ):
        plain = score(ids, orders=orders, generator=generator.manual_seed(0)).token_log_likelihood
        output = score(padded, orders=orders, attention_mask=keep, generator=generator.manual_seed(0))
        torch.testing.assert_close(output.token_log_likelihood[keep == 1][None], plain, rtol=0, atol=1e-12)


def test_passes_hold_few_rows_and_batches_do_not_matter(ids: torch.LongTensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model()
    mask = torch.ones_like(ids)
    mask[0, :5] = mask[2, 3:] = 0
    expected = model.log_likelihood(ids, "random", attention_mask=mask, generator=torch.Generator().manual_seed(0))
    passes = []
    forward = model.model.forward
    monkeypatch.setattr(
        model.model, "forward", lambda *args, **kwargs: passes.append(kwargs["input_ids"].shape) or forward(**kwargs)
    )
    output = model.log_likelihood(
        ids, "random", attention_mask=mask, generator=torch.Generator().manual_seed(0), rows_per_pass=12
    )
    assert passes == [(1, 12), (1, 7), (1, 3)]
    assert (output.num_rows, expected.num_rows) == (12 + 7 + 3, 3 * 12)
    torch.testing.assert_close(output.token_log_likelihood, expected.token_log_likelihood)


def test_head_sees_what_is_scored_and_little_at_once(ids: torch.LongTensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """No logits of context rows or padding, and never those of all rows."""
    monkeypatch.setattr(row_scores, "ROWS_PER_HEAD_CALL", 5)
    model, seen = random_model(), []
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    model.log_likelihood(ids)
    assert (sum(seen), max(seen)) == (3 * 12, 5)
    seen.clear()
    model.conditional_log_likelihood(ids, torch.arange(12).expand(3, 12) >= 10, num_orders=2)
    assert (sum(seen), max(seen)) == (2 * 3 * 2, 5)
    seen.clear()
    model.diffusion_log_likelihood(ids, num_times=2, generator=torch.Generator().manual_seed(0))
    assert sum(seen) < 2 * 3 * 12


def test_scores_of_bfloat16_logits_are_computed_in_float32() -> None:
    torch.manual_seed(0)
    head, states, ids = torch.nn.Linear(8, 50).bfloat16(), torch.randn(20, 8).bfloat16(), torch.arange(20)
    expected = head(states).float().log_softmax(-1).gather(1, ids[:, None])[:, 0].double()
    torch.testing.assert_close(row_scores.token_scores(head, states, ids), expected, rtol=0, atol=1e-6)


def test_bfloat16_autocast_is_near(ids: torch.LongTensor) -> None:
    model = random_model(initializer_range=0.1).float()
    exact = model.log_likelihood(ids)
    with torch.autocast("cpu", torch.bfloat16):
        rough = model.log_likelihood(ids)
    assert rough.log_likelihood.dtype == torch.float64
    assert not torch.equal(rough.log_likelihood, exact.log_likelihood)
    torch.testing.assert_close(rough.log_likelihood, exact.log_likelihood, rtol=0.01, atol=0)


@pytest.mark.parametrize("is_supported", [False, True])
def test_bfloat16_is_scored_in_float32_where_a_processor_lacks_it(
    is_supported: bool, ids: torch.LongTensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in generation; the weights are those of bfloat16 all the same."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: is_supported)
    for model in (random_model().bfloat16(), random_encoder().bfloat16()):
        arguments = {"orders": torch.arange(12).expand_as(ids)}
        scores = model.log_likelihood(ids, **arguments).log_likelihood
        assert model.dtype == torch.bfloat16
        assert torch.equal(scores, model.float().log_likelihood(ids, **arguments).log_likelihood) != is_supported


def test_padding_counts_for_nothing() -> None:
    model = random_model()
    plain = model.log_likelihood(torch.tensor([[3, 7, 5]]))
    padded = model.log_likelihood(torch.tensor([[-1, 3, 7, 11, 5]]), attention_mask=torch.tensor([[0, 1, 1, 0, 1]]))
    torch.testing.assert_close(padded.log_likelihood, plain.log_likelihood, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        padded.token_log_likelihood[:, [1, 2, 4]], plain.token_log_likelihood, rtol=0, atol=1e-12
    )
    assert (padded.token_log_likelihood[:, [0, 3]] == 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_orders": 0}, "num_orders=0 must be an integer of at least 1"),
        ({"orders": "sideways"}, "orders: 'sideways' is no distribution of orders"),
        ({"orders": [2, 0, 1]}, r"orders is a list; give a \(batch, n\) tensor"),
        ({"orders": "fixed"}, "orders is a fixed order, .*: give it as a tensor"),
        ({"orders": "left_to_right", "num_orders": 2}, "one order is fixed"),
        ({"orders": torch.arange(12).expand(3, 12), "num_orders": 2}, "one order is fixed"),
        ({"orders": torch.zeros(3, 12, dtype=torch.long)}, "is not a permutation"),
        ({"orders": lambda batch, length, generator: torch.zeros(batch, 3)}, r"orders has shape \(3, 3\)"),
        ({"rows_per_pass": 0}, "rows_per_pass=0 must be an integer of at least 1"),
        ({"num_context_orders": 0}, "num_context_orders=0 must be an integer of at least 1"),
        ({"num_ranks": 2}, "there is none: set num_context_orders"),
        ({"num_ranks": 3, "num_context_orders": 2}, "num_ranks=3 must be even"),
        ({"num_ranks": 2.0, "num_context_orders": 2}, r"num_ranks=2\.0 must be an integer of at least 1"),
        ({"num_orders": 2.0}, r"num_orders=2\.0 must be an integer of at least 1"),
        ({"rows_per_pass": 2.5}, r"rows_per_pass=2\.5 must be an integer of at least 1"),
    ],
)
def test_refuses(arguments: dict, message: str, ids: torch.LongTensor) -> None:
    with pytest.raises(ValueError, match=message):
        random_model().log_likelihood(ids, **arguments)


def test_refuses_masks_and_broken_weights(ids: torch.LongTensor) -> None:
    model = random_model()
    with pytest.raises(ValueError, match="a likelihood needs whole text"):
        model.log_likelihood(torch.tensor([[1, 11]]))
    with torch.no_grad():
        model.lm_head.bias[0] = float("nan")
    targets = torch.zeros_like(ids).index_fill(1, torch.tensor([2]), 1)
    for score in (
        model.log_likelihood,
        model.diffusion_log_likelihood,
        partial(model.conditional_log_likelihood, targets=targets),
    ):
        with pytest.raises(ValueError, match="sequence 0 is not finite"):
            score(ids)
