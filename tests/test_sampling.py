# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Warpers, draws of tokens, and the chunks in which logits are computed."""

import pytest
import torch
from transformers import LogitsProcessorList
from transformers.generation import TopPLogitsWarper

from modeling_aogpt import sampling
from modeling_aogpt.devices import draw_uniform
from modeling_aogpt.sampling import choose_tokens, compute_probabilities, draw_tokens, make_warpers
from tests.references import chi_square, random_model, seeded
from tests.test_logits_processors import ForbidVisibleTokens

LOGITS = torch.tensor([0.5, -1.0, 2.0, 0.0, float("-inf"), 1.0])
NUM_CANDIDATES = sampling.NUM_TOP_P_CANDIDATES


def sample(logits: torch.Tensor, do_sample: bool = True, **arguments: object) -> tuple[torch.LongTensor, torch.Tensor]:
    """Return tokens and log-probabilities (rows,) drawn from logits (rows, vocab_size) after the given warpers."""
    warpers = make_warpers(**{"temperature": 1.0, "top_k": 0, "top_p": 1.0} | arguments)
    uniform = draw_uniform(len(logits), 1, generator=seeded()) if do_sample else None
    return choose_tokens(compute_probabilities(logits, warpers), uniform)


def draw_counts(num_draws: int, **arguments: float) -> torch.Tensor:
    tokens, _ = sample(LOGITS.expand(num_draws, -1), **arguments)
    return tokens.bincount(minlength=len(LOGITS)).double()


def follows(counts: torch.Tensor, probabilities: torch.Tensor) -> bool:
    """Return whether counts pass a chi-square test, after checking that no impossible token was drawn."""
    is_possible = probabilities > 0
    assert counts[~is_possible].sum() == 0
    return chi_square(counts[is_possible], probabilities[is_possible]) < 1


# ----------------------------------------------------------------------------------------------------------- warpers


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_draws_follow_the_softmax_with_temperature(temperature: float) -> None:
    probabilities = (LOGITS.double() / temperature).softmax(0)
    assert follows(draw_counts(20_000, temperature=temperature), probabilities)


def test_top_k_keeps_the_k_likeliest_tokens() -> None:
    is_removed = torch.tensor([True, True, False, True, True, False])
    probabilities = LOGITS.double().masked_fill(is_removed, -torch.inf).softmax(0)
    assert follows(draw_counts(20_000, top_k=2), probabilities)


@pytest.mark.parametrize("scale", [0.1, 4.0], ids=["flat", "peaked"])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.9999])
@pytest.mark.parametrize("top_k", [0, 700])
def test_top_p_keeps_the_tokens_that_transformers_keeps(scale: float, top_p: float, top_k: int) -> None:
    """Also if the tokens that are sorted first do not reach p, and after top-k."""
    logits = scale * torch.randn(5, 3 * NUM_CANDIDATES, generator=seeded()).double()
    logits[:, 7] = float("-inf")
    top_k_only = make_warpers(1.0, top_k, 1.0)
    expected = TopPLogitsWarper(top_p)(None, top_k_only(None, logits))
    actual = make_warpers(1.0, top_k, top_p)(None, logits)
    assert torch.equal(actual, expected)
    if top_k == 0 and top_p == 0.9:
        assert ((actual > -torch.inf).sum(1) > NUM_CANDIDATES).all() == (scale == 0.1)


def test_top_p_sorts_all_tokens_if_one_row_needs_it() -> None:
    logits = torch.randn(2, 3 * NUM_CANDIDATES, generator=seeded()).double()
    logits[0] *= 10  # few tokens of this row reach p
    expected = TopPLogitsWarper(0.9)(None, logits)
    assert torch.equal(make_warpers(1.0, 0, 0.9)(None, logits), expected)
    assert ((expected > -torch.inf).sum(1) > NUM_CANDIDATES).tolist() == [False, True]


def test_top_p_keeps_no_further_token_if_p_is_reached_exactly() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.25]]).double().log()
    is_kept = make_warpers(1.0, 0, 0.5)(None, logits) > -torch.inf
    assert is_kept.tolist() == [[True, False, False]] == (TopPLogitsWarper(0.5)(None, logits) > -torch.inf).tolist()


def test_top_p_keeps_as_many_equally_likely_tokens_as_transformers() -> None:
    logits = torch.randn(8, 2000, generator=seeded()).bfloat16().double()
    actual, expected = make_warpers(1.0, 0, 0.2)(None, logits), TopPLogitsWarper(0.2)(None, logits)
    assert torch.equal(actual.sort().values, expected.sort().values)


@pytest.mark.parametrize("rule", sampling.TOP_P_RULES)
def test_rounding_does_not_change_the_number_of_equally_likely_tokens(rule: str) -> None:
    for size in (5, 8, 10, 20):
        for count in range(1, size):
            kept = make_warpers(1.0, 0, count / size, rule)(None, torch.zeros(1, size).double())
            assert kept.isfinite().sum() == count


def test_exclusive_top_p_removes_the_token_that_crosses_p() -> None:
    logits = torch.tensor([[0.6, 0.3, 0.1], [0.3, 0.1, 0.6], [0.35, 0.25, 0.4]]).double().log()
    is_kept = make_warpers(1.0, 0, 0.7, "exclusive")(None, logits) > -torch.inf
    assert is_kept.tolist() == [[True, False, False], [False, False, True], [False, False, True]]
    is_kept = make_warpers(1.0, 0, 0.8, "exclusive")(None, logits) > -torch.inf
    assert is_kept[2].tolist() == [True, False, True]
    assert make_warpers(1.0, 0, 0.1, "exclusive")(None, logits).isfinite().sum() == 3  # the likeliest of each row


# ------------------------------------------------------------------------------------------------------------- draws


@pytest.mark.parametrize("num_tokens", [sampling.CHUNK_SIZE * 3, sampling.CHUNK_SIZE * 2 + 7])
def test_draws_from_several_blocks_of_tokens_follow_their_weights(num_tokens: int) -> None:
    weights = torch.rand(num_tokens, generator=seeded(1), dtype=torch.float64) + 0.1
    weights[: sampling.CHUNK_SIZE] *= 3  # chunks of different total weight
    weights[5], weights[-1] = 0, 0
    tokens = draw_tokens(weights.expand(100_000, -1), seeded())
    assert follows(tokens.bincount(minlength=num_tokens).double(), weights / weights.sum())


def test_log_probabilities_are_those_after_warping() -> None:
    tokens, logprobs = sample(LOGITS[None], do_sample=False, temperature=0.7, top_k=3)
    kept = (LOGITS.double() / 0.7)[[2, 5, 0]].softmax(0)
    assert tokens.tolist() == [2]
    assert logprobs.item() == pytest.approx(kept[0].log().item(), abs=1e-12)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_extreme_uniform_numbers_draw_tokens_of_positive_probability(
    monkeypatch: pytest.MonkeyPatch, uniform: float
) -> None:
    logits = torch.randn(200, 100, generator=seeded())
    logits[:, 0] = logits[:, -1] = float("-inf")
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.full(size, uniform, dtype=torch.float64))
    tokens, logprobs = sample(logits)
    assert (tokens == (98 if uniform else 1)).all()
    assert torch.isfinite(logprobs).all()


def test_nan_logits_give_nan_log_probabilities() -> None:
    _, logprobs = sample(torch.tensor([[0.0, float("nan")]]))
    assert torch.isnan(logprobs).all()


# ------------------------------------------------------------------------------------------------------------ chunks


@pytest.mark.parametrize("with_processor", [False, True])
@pytest.mark.parametrize("arguments", [{"num_steps": 2}, {"order": "margin"}, {"strategy": "speculative"}])
def test_chunks_do_not_change_samples(monkeypatch: pytest.MonkeyPatch, arguments: dict, with_processor: bool) -> None:
    model = random_model()
    head_rows = []
    model.lm_head.register_forward_hook(lambda module, inputs, logits: head_rows.append(len(logits)))

    def generate() -> torch.LongTensor:
        processors = LogitsProcessorList([ForbidVisibleTokens()] if with_processor else [])
        return model.generate(
            max_length=10, num_return_sequences=4, generator=seeded(), logits_processor=processors, **arguments
        )

    expected = generate()
    assert max(head_rows) > 3
    head_rows.clear()
    monkeypatch.setattr(sampling, "ROWS_PER_HEAD_CALL", 3)
    monkeypatch.setattr(sampling, "ROWS_ON_CPU", 2)
    assert torch.equal(generate(), expected)
    assert max(head_rows) == 3
