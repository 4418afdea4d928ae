# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import itertools
import math
import re
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from modeling_aogpt import LogLikelihoodOutput, likelihood
from modeling_aogpt.orders import random_orders
from tests.references import block_orders, random_encoder, random_model


def test_log_likelihood_is_the_chain_rule_along_the_order(
    ids: torch.LongTensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likelihood, "ROWS_PER_HEAD_CALL", 5)
    model, orders = random_model(), random_orders(3, 12, torch.Generator().manual_seed(0))
    for given, order in ((orders, orders), (None, None), ("left_to_right", None)):
        expected = model(ids, order).logits.log_softmax(-1).gather(2, ids[..., None])[..., 0]
        output = model.log_likelihood(ids, given)
        torch.testing.assert_close(output.token_log_likelihood, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(output.log_likelihood, expected.sum(1), rtol=0, atol=1e-12)
        assert (output.standard_error == 0).all()


@pytest.mark.parametrize("vocab_size", [3, 8])
def test_probabilities_of_all_sequences_of_text_sum_to_one(vocab_size: int) -> None:
    model = random_model(vocab_size=vocab_size, num_valid_tokens=3, max_position_embeddings=4)
    all_sequences = torch.cartesian_prod(*[torch.arange(3)] * 4)
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        total = model.log_likelihood(all_sequences, torch.tensor(order).expand(81, 4)).log_likelihood.exp().sum()
        assert total.item() == pytest.approx(1, abs=1e-12)


# A token table with 5 rows that are not text. They have much of the probability mass of an untrained model.
PADDED_TABLE = {"vocab_size": 16, "num_valid_tokens": 11}


@pytest.mark.parametrize("order", ["random", "left_to_right"])
def test_log_likelihoods_with_a_padded_table_equal_the_token_logprobs_of_generate(order: str) -> None:
    model = random_model(**PADDED_TABLE, mask_token_id=15)
    inputs = torch.full((4, 8), 15)
    inputs[:, 3] = torch.arange(4)
    generated = model.generate(
        inputs, order=order, generator=torch.Generator().manual_seed(0), return_dict_in_generate=True
    )
    sequences, orders, is_target = generated.sequences, generated.orders, inputs == 15
    assert sequences.max() < 11
    expected = generated.token_logprobs
    assert (expected[is_target] < 0).all()

    whole = model.log_likelihood(sequences, orders).token_log_likelihood
    conditional = partial(model.log_likelihood, sequences, targets=is_target, orders=orders)
    one = conditional(context_orders=orders).token_log_likelihood
    # The context of one token has a single order, so the ensemble is the mean of equal probabilities.
    ensemble = conditional(ensemble_size=3, generator=torch.Generator().manual_seed(1)).token_log_likelihood
    for scores in (whole.masked_fill(~is_target, 0), one, ensemble):
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-10)

    pairs = model.generate(
        max_length=2, num_return_sequences=4, order=order, generator=torch.Generator(), return_dict_in_generate=True
    )
    scores = model.log_likelihood(pairs.sequences, pairs.orders, ensemble_size=3).token_log_likelihood
    torch.testing.assert_close(scores, pairs.token_logprobs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("order", ["random", "left_to_right"])
def test_log_likelihoods_of_an_encoder_equal_the_token_logprobs_of_generate(order: str) -> None:
    model = random_encoder(**PADDED_TABLE)
    arguments = {"max_length": 6, "num_return_sequences": 4, "generator": torch.Generator().manual_seed(0)}
    generated = model.generate(order=order, return_dict_in_generate=True, **arguments)
    scores = model.log_likelihood(generated.sequences, generated.orders).token_log_likelihood
    torch.testing.assert_close(scores, generated.token_logprobs, rtol=0, atol=1e-10)


ALL_ORDERS = {
    "random": {},
    "left to right": {"order": "left_to_right"},
    "confidence": {"order": "confidence"},
    "margin": {"order": "margin", "window": 2},
    "entropy": {"order": "entropy"},
    "blocks": {"block_length": 3},
    "blocks left to right": {"block_length": 3, "order": "left_to_right"},
    "adaptive in blocks": {"block_length": 4, "order": "confidence"},
    "strides": {"stride": 3},
    "speculative": {"strategy": "speculative"},
    "speculative in blocks": {"strategy": "speculative", "block_length": 5, "draft_length": 3},
    "prompt lookup": {"strategy": "speculative", "draft": "prompt_lookup", "order": "left_to_right"},
}


@pytest.mark.parametrize("with_padding", [False, True])
@pytest.mark.parametrize("name", ALL_ORDERS)
def test_log_likelihoods_equal_the_token_logprobs_of_generate_in_every_order(name: str, with_padding: bool) -> None:
    model = random_model(**PADDED_TABLE)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(11, (6, 10), generator=generator)
    is_masked = torch.rand(inputs.shape, generator=generator) < 0.7
    mask = (torch.rand(inputs.shape, generator=generator) < 0.8).long() if with_padding else torch.ones_like(inputs)
    is_target = is_masked & (mask == 1)
    output = model.generate(
        inputs.masked_fill(is_masked, model.config.mask_token_id),
        attention_mask=mask,
        generator=generator,
        return_dict_in_generate=True,
        **ALL_ORDERS[name],
    )
    whole = model.log_likelihood(output.sequences, output.orders, attention_mask=mask).token_log_likelihood
    assert (output.token_logprobs[is_target] < 0).all()
    torch.testing.assert_close(output.token_logprobs, whole.masked_fill(~is_target, 0), rtol=0, atol=1e-10)


def test_forward_and_loss_are_normalized_over_the_whole_table(ids: torch.LongTensor) -> None:
    """Training and the released code use all rows of the table; likelihoods and generation only those of text."""
    model = random_model(**PADDED_TABLE)
    output = model(ids, labels=ids)
    assert output.logits.shape == (3, 12, 16)
    log_probs = output.logits.log_softmax(-1).gather(2, ids[..., None])[..., 0]
    torch.testing.assert_close(output.loss, -log_probs.mean())
    assert (model.log_likelihood(ids).token_log_likelihood > log_probs).all()


def test_random_orders_average_to_the_any_order_likelihood() -> None:
    """The error of the mean over K orders, against the mean over all n!, is as large as the standard error says."""
    model = random_model(max_position_embeddings=4)
    ids = torch.randint(0, 11, (200, 4), generator=torch.Generator().manual_seed(0))
    all_orders = [torch.tensor(order).expand(200, 4) for order in itertools.permutations(range(4))]
    exact = torch.stack([model.log_likelihood(ids, order).log_likelihood for order in all_orders]).mean(0)
    output = model.log_likelihood(ids, num_orders=64, generator=torch.Generator().manual_seed(0))
    deviations = (output.log_likelihood - exact) / output.standard_error
    assert abs(deviations.mean()) < 4 / math.sqrt(200)
    assert 0.85 < deviations.std() < 1.15
    torch.testing.assert_close(output.token_log_likelihood.sum(1), output.log_likelihood)


def test_random_orders_are_seeded_and_one_has_no_standard_error(ids: torch.LongTensor) -> None:
    model = random_model()
    first, second = (model.log_likelihood(ids, "random", generator=torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(first.log_likelihood, second.log_likelihood)
    assert not torch.equal(first.log_likelihood, model.log_likelihood(ids).log_likelihood)
    assert first.standard_error.isnan().all()


def test_the_importance_weighted_bound_is_the_log_of_the_mean_probability(ids: torch.LongTensor) -> None:
    model, generator = random_model(), torch.Generator().manual_seed(0)
    orders = [random_orders(3, 12, generator) for _ in range(5)]
    each = torch.stack([model.log_likelihood(ids, order).log_likelihood for order in orders])
    output = model.log_likelihood(ids, num_orders=5, generator=generator.manual_seed(0))
    torch.testing.assert_close(output.log_likelihood, each.mean(0))
    torch.testing.assert_close(output.importance_weighted, each.exp().mean(0).log())
    assert (output.importance_weighted > output.log_likelihood).all()
    single = model.log_likelihood(ids)
    assert torch.equal(single.importance_weighted, single.log_likelihood)


def test_random_orders_may_be_block_by_block(ids: torch.LongTensor) -> None:
    """With blocks of one position, or a stride as long as the text, only the left-to-right order is left."""
    model = random_model()
    left_to_right = model.log_likelihood(ids)
    for blocks in ({"block_length": 1}, {"stride": 12}):
        for arguments in ({"orders": "random", "num_orders": 2}, {"num_orders": 2}, {"orders": "random"}):
            output = model.log_likelihood(ids, **arguments, **blocks)
            torch.testing.assert_close(output.token_log_likelihood, left_to_right.token_log_likelihood)
    generator = torch.Generator().manual_seed(0)
    output = model.log_likelihood(ids, "random", block_length=4, num_orders=8, generator=generator)
    assert (output.standard_error > 0).all()
    strided = model.log_likelihood(ids, "left_to_right", stride=5)
    order = torch.tensor([0, 5, 10, 1, 6, 11, 2, 7, 3, 8, 4, 9]).expand(3, 12)
    assert torch.equal(strided.token_log_likelihood, model.log_likelihood(ids, order).token_log_likelihood)


@pytest.mark.parametrize("blocks", [{"block_length": 2}, {"stride": 3}])
def test_blocks_do_not_count_padding(blocks: dict) -> None:
    """As in training and generation, blocks consist of positions, which are counted without padding."""
    ids, keep = torch.tensor([[3, 1, 4, 1, 5]]), torch.tensor([[0, 1, 1, 0, 0, 1, 1, 0, 1, 0]])
    padded = torch.zeros_like(keep).masked_scatter(keep == 1, ids)
    possible_orders = block_orders(100, 5, **blocks, generator=torch.Generator().manual_seed(0)).unique(dim=0)
    decoder, encoder = random_model(), random_encoder()

    def score_all_as_targets(
        ids: torch.LongTensor, attention_mask: torch.Tensor | None = None, **arguments: object
    ) -> LogLikelihoodOutput:
        targets = torch.ones_like(ids) if attention_mask is None else attention_mask
        return decoder.log_likelihood(ids, targets=targets, attention_mask=attention_mask, **arguments)

    for score in (decoder.log_likelihood, encoder.log_likelihood, score_all_as_targets):
        plain = score(ids.repeat(4, 1), orders=possible_orders).token_log_likelihood
        output = score(
            padded.repeat(60, 1),
            attention_mask=keep.repeat(60, 1),
            orders="random",
            generator=torch.Generator().manual_seed(0),
            **blocks,
        )
        distances = torch.cdist(output.token_log_likelihood[:, keep[0] == 1], plain, p=torch.inf)
        assert (distances.min(dim=1).values < 1e-12).all()  # every order drawn is possible
        assert (distances.min(dim=0).values < 1e-12).all()  # and every possible one is drawn


def test_passes_have_few_rows_and_do_not_change_results(ids: torch.LongTensor, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_head_runs_on_few_rows_at_a_time_and_only_on_scored_ones(
    ids: torch.LongTensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits of the context and of padding are not computed, and never those of all rows at once."""
    monkeypatch.setattr(likelihood, "ROWS_PER_HEAD_CALL", 5)
    model, num_rows = random_model(), []
    model.lm_head.register_forward_hook(lambda module, inputs, output: num_rows.append(len(inputs[0])))
    model.log_likelihood(ids)
    assert (sum(num_rows), max(num_rows)) == (3 * 12, 5)
    num_rows.clear()
    model.log_likelihood(ids, targets=torch.arange(12).expand(3, 12) >= 10, num_orders=2)
    assert (sum(num_rows), max(num_rows)) == (2 * 3 * 2, 5)


def test_scores_of_bfloat16_logits_are_computed_in_float32_over_ids_of_text() -> None:
    torch.manual_seed(0)
    head, states, ids = torch.nn.Linear(8, 50).bfloat16(), torch.randn(20, 8).bfloat16(), torch.arange(20)
    for num_valid_tokens in (20, 50):
        expected = head(states)[:, :num_valid_tokens].float().log_softmax(-1).gather(1, ids[:, None])[:, 0].double()
        model = SimpleNamespace(apply_head=head, config=SimpleNamespace(num_valid_tokens=num_valid_tokens))
        scores = likelihood.token_log_probs(model, states, ids)
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-6)


def test_bfloat16_autocast_is_close(ids: torch.LongTensor) -> None:
    model = random_model(initializer_range=0.1).float()
    exact = model.log_likelihood(ids)
    with torch.autocast("cpu", torch.bfloat16):
        rough = model.log_likelihood(ids)
    assert rough.log_likelihood.dtype == torch.float64
    assert not torch.equal(rough.log_likelihood, exact.log_likelihood)
    torch.testing.assert_close(rough.log_likelihood, exact.log_likelihood, rtol=0.01, atol=0)


def test_padding_anywhere_changes_no_scores() -> None:
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
        ({"num_orders": 0}, "`num_orders` must be an integer of at least"),
        ({"orders": "sideways"}, "`orders` must be one of 'left_to_right'"),
        ({"orders": "uniform"}, "`orders` must be one of 'left_to_right'"),
        ({"orders": "blocks-2"}, "`orders` must be one of 'left_to_right'"),
        ({"orders": [2, 0, 1]}, r"`orders` must be one of .*, but is \[2, 0"),
        ({"orders": "left_to_right", "num_orders": 2}, r"`num_orders` \(2\) averages over random"),
        ({"orders": torch.arange(12).expand(3, 12), "num_orders": 2}, r"`num_orders` \(2\) averages over random"),
        ({"orders": torch.zeros(3, 12, dtype=torch.long)}, r"`orders\[0\]` must contain each position from"),
        ({"orders": torch.arange(3).expand(3, 3)}, r"shape \(3, 12\), but has shape \(3, 3\)"),
        ({"orders": torch.arange(12).expand(3, 12), "stride": 2}, "cannot be combined"),
        ({"rows_per_pass": 0}, "`rows_per_pass` must be an integer of at"),
        ({"ensemble_size": 0}, "`ensemble_size` must be an integer of at"),
        ({"num_ranks": 2, "orders": "random"}, "`num_ranks` needs an ensemble"),
        ({"num_ranks": 2, "ensemble_size": 2}, "`num_ranks` needs .* random orders"),
        ({"num_ranks": 2, "ensemble_size": 2, "block_length": 2}, "`num_ranks` needs .* random orders"),
        ({"num_ranks": 2, "ensemble_size": 2, "orders": "random", "targets": torch.ones(3, 12)}, "`num_ranks` needs"),
        ({"context": torch.ones(3, 12)}, "`context` has no effect"),
        ({"context_orders": "random"}, "`context_orders` has no effect"),
        ({"num_ranks": 3, "ensemble_size": 2}, "`num_ranks` must be even, but is 3"),
        ({"num_ranks": 2.0, "ensemble_size": 2}, "`num_ranks` must be an integer of at least 2"),
        ({"num_orders": 2.0}, "`num_orders` must be an integer of at least"),
        ({"rows_per_pass": 2.5}, "`rows_per_pass` must be an integer of at"),
    ],
)
def test_arguments_that_are_not_allowed_are_errors(arguments: dict, message: str, ids: torch.LongTensor) -> None:
    with pytest.raises(ValueError, match=message):
        random_model().log_likelihood(ids, **arguments)


def test_masks_in_the_text_are_errors() -> None:
    message = "`input_ids` contains the id 11, .* This id is"
    with pytest.raises(ValueError, match=message):
        random_model().log_likelihood(torch.tensor([[1, 11]]))


def test_log_likelihoods_that_are_not_finite_are_errors(ids: torch.LongTensor) -> None:
    model = random_model()
    with torch.no_grad():
        model.lm_head.bias[0] = float("nan")
    targets = torch.zeros_like(ids).index_fill(1, torch.tensor([2]), 1)
    for score in (model.log_likelihood, partial(model.log_likelihood, targets=targets)):
        with pytest.raises(ValueError, match="The log-likelihood of sequence 0 is not"):
            score(ids)


@pytest.mark.parametrize(
    ("argument", "hint"),
    [("order", "Did you mean `orders`?"), ("num_order", "Did you mean `num_orders`?"), ("seed", "Use `generator=")],
)
def test_unknown_arguments_name_the_known_one(argument: str, hint: str, ids: torch.LongTensor) -> None:
    for model in (random_model(), random_encoder()):
        for method in (model.log_likelihood, partial(model.log_likelihood, targets=torch.ones_like(ids))):
            with pytest.raises(TypeError, match=re.escape(f"got the unknown argument `{argument}`. {hint}")):
                method(ids, **{argument: 1})
