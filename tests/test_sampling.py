# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from transformers.generation import TopPLogitsWarper

from modeling_aogpt import sampling
from modeling_aogpt.sampling import choose_tokens, draw_tokens, make_warpers
from tests import references

LOGITS = torch.tensor([0.5, -1.0, 2.0, 0.0, float("-inf"), 1.0])


def counts_of(draws: int, **warping: float) -> torch.Tensor:
    arguments = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | warping
    generator = torch.Generator().manual_seed(0)
    tokens, _ = choose_tokens(LOGITS.expand(draws, -1), make_warpers(**arguments), True, generator)
    return tokens.bincount(minlength=len(LOGITS)).double()


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    assert counts[probabilities == 0].sum() == 0
    kept = probabilities > 0
    expected = probabilities[kept] * counts.sum()
    return ((counts[kept] - expected) ** 2 / expected).sum().item()


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_draws_follow_the_tempered_softmax(temperature: float) -> None:
    probabilities = (LOGITS.double() / temperature).softmax(0)
    assert chi_square(counts_of(20_000, temperature=temperature), probabilities) < 23.5  # 4 degrees of freedom, 1e-4


def test_top_k_keeps_the_k_likeliest() -> None:
    probabilities = (
        LOGITS.double().masked_fill(torch.tensor([True, True, False, True, True, False]), -torch.inf).softmax(0)
    )
    assert chi_square(counts_of(20_000, top_k=2), probabilities) < 15.1  # 1 degree of freedom, 1e-4


def test_top_p_keeps_the_token_that_crosses_p() -> None:
    """For probabilities .6, .3, .1 and p = .7 two tokens are kept, as in transformers; the authors' code keeps one."""
    logits = torch.tensor([0.6, 0.3, 0.1]).log().expand(4000, 3)
    tokens, _ = choose_tokens(logits, make_warpers(1.0, 0, 0.7), True, torch.Generator().manual_seed(0))
    counts = tokens.bincount(minlength=3)
    assert counts[2] == 0
    assert abs(counts[1] / 4000 - 1 / 3) < 0.03


@pytest.mark.parametrize("num_tokens", [sampling.BLOCK_SIZE * 3, sampling.BLOCK_SIZE * 2 + 7])
def test_draws_from_many_blocks_of_tokens_follow_their_weights(num_tokens: int) -> None:
    weights = torch.rand(num_tokens, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    weights[: sampling.BLOCK_SIZE] *= 3  # blocks of unequal mass
    weights[5], weights[-1] = 0, 0
    tokens = draw_tokens(weights.expand(100_000, -1), torch.Generator().manual_seed(0))
    counts = tokens.bincount(minlength=num_tokens).double()
    assert counts[weights == 0].sum() == 0
    kept = weights > 0
    assert references.chi_square(counts[kept], weights[kept] / weights.sum()) < 1


@pytest.mark.parametrize("scale", [0.1, 4.0], ids=["flat", "peaked"])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.9999])
@pytest.mark.parametrize("top_k", [0, 700])
def test_top_p_keeps_what_transformers_keeps(scale: float, top_p: float, top_k: int) -> None:
    """Whether the nucleus is among the candidates that are sorted first or not, and after top-k."""
    logits = scale * torch.randn(5, 3 * sampling.NUM_CANDIDATES, generator=torch.Generator().manual_seed(0)).double()
    logits[:, 7] = float("-inf")
    top_k_alone = make_warpers(1.0, top_k, 1.0)
    expected = TopPLogitsWarper(top_p)(None, top_k_alone(None, logits))
    given = make_warpers(1.0, top_k, top_p)(None, logits)
    assert torch.equal(given, expected)
    if top_k == 0 and top_p == 0.9:
        assert ((given > -torch.inf).sum(1) > sampling.NUM_CANDIDATES).all() == (scale == 0.1)


def test_top_p_sorts_all_where_one_row_needs_it() -> None:
    logits = torch.randn(2, 3 * sampling.NUM_CANDIDATES, generator=torch.Generator().manual_seed(0)).double()
    logits[0] *= 10  # whose nucleus is among the candidates
    expected = TopPLogitsWarper(0.9)(None, logits)
    assert torch.equal(make_warpers(1.0, 0, 0.9)(None, logits), expected)
    assert ((expected > -torch.inf).sum(1) > sampling.NUM_CANDIDATES).tolist() == [False, True]


def test_what_is_reached_exactly_is_enough_for_top_p() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.25]]).double().log()
    kept = make_warpers(1.0, 0, 0.5)(None, logits) > -torch.inf
    assert kept.tolist() == [[True, False, False]] == (TopPLogitsWarper(0.5)(None, logits) > -torch.inf).tolist()


def test_of_equals_at_the_edge_top_p_keeps_as_many_as_transformers() -> None:
    logits = torch.randn(8, 2000, generator=torch.Generator().manual_seed(0)).bfloat16().double()
    given, expected = make_warpers(1.0, 0, 0.2)(None, logits), TopPLogitsWarper(0.2)(None, logits)
    assert torch.equal(given.sort().values, expected.sort().values)


def test_top_p_of_the_released_code_leaves_out_the_token_that_crosses_p() -> None:
    logits = torch.tensor([[0.6, 0.3, 0.1], [0.3, 0.1, 0.6], [0.35, 0.25, 0.4]]).double().log()
    kept = make_warpers(1.0, 0, 0.7, "exclusive")(None, logits) > -torch.inf
    assert kept.tolist() == [[True, False, False], [False, False, True], [False, False, True]]
    kept = make_warpers(1.0, 0, 0.8, "exclusive")(None, logits) > -torch.inf
    assert kept[2].tolist() == [True, False, True]
    assert make_warpers(1.0, 0, 0.1, "exclusive")(None, logits).isfinite().sum() == 3  # the likeliest of each row


def test_log_probabilities_are_those_of_the_distribution_drawn_from() -> None:
    warpers = make_warpers(0.7, 3, 1.0)
    tokens, logprobs = choose_tokens(LOGITS[None], warpers, False)
    kept = (LOGITS.double() / 0.7)[[2, 5, 0]].softmax(0)
    assert tokens.tolist() == [2]
    assert logprobs.item() == pytest.approx(kept[0].log().item(), abs=1e-12)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_extreme_uniforms_draw_tokens_with_mass(monkeypatch: pytest.MonkeyPatch, uniform: float) -> None:
    logits = torch.randn(200, 100, generator=torch.Generator().manual_seed(0))
    logits[:, 0] = logits[:, -1] = float("-inf")
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.full(size, uniform, dtype=torch.float64))
    tokens, logprobs = choose_tokens(logits, make_warpers(1.0, 0, 1.0), True)
    assert (tokens == (98 if uniform else 1)).all()
    assert torch.isfinite(logprobs).all()


def test_nan_is_reported_not_drawn() -> None:
    _, logprobs = choose_tokens(torch.tensor([[0.0, float("nan")]]), make_warpers(1.0, 0, 1.0), True)
    assert not torch.isfinite(logprobs).any()
