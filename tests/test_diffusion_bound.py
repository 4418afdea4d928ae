# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The masked-diffusion bound (Eq. 1): it equals the any-order bound (Eq. 7), and its estimators are unbiased."""

import itertools
import math

import pytest
import torch

from modeling_aogpt import AOGPTForAnyOrderLM, MDMEncoderForMaskedLM, modeling_mdm_encoder
from modeling_aogpt.likelihood import draw_stratified
from modeling_aogpt.modeling_mdm_encoder import mask_fixed_count, mask_independently
from tests.references import check_estimates, perturb_vectors, random_encoder, seeded

BATCH, N = 400, 4
MASK = 11
INJECTIONS = ("adaln", "none", "sigma")


def encoder(target_injection: str) -> MDMEncoderForMaskedLM:
    model = random_encoder(target_injection=target_injection, position_encoding="rotary", max_position_embeddings=6)
    perturb_vectors(model)
    return model


@pytest.fixture
def ids() -> torch.LongTensor:
    """Return twenty sequences, each twenty times, so that there is little to enumerate."""
    return torch.randint(0, 11, (20, N), generator=torch.Generator().manual_seed(0)).repeat(BATCH // 20, 1)


def repeat_for_batch(exact: torch.Tensor) -> torch.Tensor:
    """Repeat values of the twenty sequences for the whole batch."""
    return torch.cat([exact] * (BATCH // 20))


def mean_over_orders(model: AOGPTForAnyOrderLM | MDMEncoderForMaskedLM, ids: torch.LongTensor) -> torch.Tensor:
    """Return the any-order bound (Eq. 7), averaged over all orders."""
    orders = list(itertools.permutations(range(N)))
    scores = (model.log_likelihood(ids, torch.tensor(order).expand(len(ids), N)).log_likelihood for order in orders)
    return sum(scores) / len(orders)


@torch.no_grad()
def score_masked(
    model: MDMEncoderForMaskedLM, ids: torch.LongTensor, positions: tuple[int, ...], sigma: float | None = None
) -> torch.Tensor:
    """Return log p of each token masked at `positions` (batch, n), and 0 elsewhere, from the forward of the model."""
    columns = list(positions)
    inputs = ids.clone()
    inputs[:, columns] = MASK
    sigmas = None if sigma is None else torch.full((len(ids),), sigma, dtype=torch.float64)
    scores = model(inputs, sigma=sigmas).logits.log_softmax(-1).gather(2, ids[..., None])[..., 0]
    masked_scores = torch.zeros_like(scores)
    masked_scores[:, columns] = scores[:, columns]
    return masked_scores


def subsets() -> list[tuple[int, ...]]:
    return [positions for k in range(1, N + 1) for positions in itertools.combinations(range(N), k)]


def exact_bound(model: MDMEncoderForMaskedLM, ids: torch.LongTensor) -> torch.Tensor:
    """Return Eq. 1 by enumeration: for k masks, the integral of t^(k - 1) (1 - t)^(n - k) is a Beta function."""
    total = torch.zeros(len(ids), dtype=torch.float64)
    for positions in subsets():
        k = len(positions)
        weight = math.gamma(k) * math.gamma(N - k + 1) / math.gamma(N + 1)
        total += weight * score_masked(model, ids, positions).sum(1)
    return total


def exact_sigma_bound(model: MDMEncoderForMaskedLM, ids: torch.LongTensor) -> torch.Tensor:
    """Return Eq. 1 by quadrature, for a model that gets the noise level -log(1 - 0.999 t) of each time."""
    total = torch.zeros(len(ids), dtype=torch.float64)
    for low, high in ((0.0, 0.8), (0.8, 1.0)):
        nodes, weights = gauss_legendre(10)
        for time, weight in zip((low + nodes * (high - low)).tolist(), (weights * (high - low)).tolist(), strict=True):
            sigma = -math.log1p(-0.999 * time)
            for positions in subsets():
                density = time ** (len(positions) - 1) * (1 - time) ** (N - len(positions))
                total += weight * density * score_masked(model, ids, positions, sigma).sum(1)
    return total


def gauss_legendre(points: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return nodes and weights on [0, 1], from the eigenvectors of the Jacobi matrix (Golub and Welsch)."""
    index = torch.arange(1, points, dtype=torch.float64)
    off_diagonal = index / (4 * index**2 - 1).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1))
    return (values + 1) / 2, vectors[0] ** 2


@pytest.mark.parametrize("injection", INJECTIONS)
def test_equation_1_over_all_masks_equals_equation_7_over_all_orders(injection: str, ids: torch.LongTensor) -> None:
    model, ids = encoder(injection), ids[:5]
    torch.testing.assert_close(mean_over_orders(model, ids), exact_bound(model, ids), rtol=0, atol=1e-12)
    output = model.log_likelihood(ids, torch.tensor([2, 0, 3, 1]).expand(5, N))
    assert output.num_rows == 5 * N * N
    assert (output.standard_error == 0).all()
    torch.testing.assert_close(output.token_log_likelihood.sum(1), output.log_likelihood)


@pytest.mark.parametrize("injection", ["adaln", "none"])
def test_estimates_of_an_encoder_are_unbiased(injection: str, ids: torch.LongTensor) -> None:
    model = encoder(injection)
    output = model.log_likelihood(ids, num_times=16, generator=seeded())
    check_estimates(output.log_likelihood, repeat_for_batch(exact_bound(model, ids[:20])), output.standard_error)
    torch.testing.assert_close(output.token_log_likelihood.sum(1), output.log_likelihood)
    assert output.importance_weighted is None
    assert output.num_rows == BATCH * 16 * N


def test_masking_a_fixed_count_has_a_smaller_standard_error(
    ids: torch.LongTensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = encoder("none")
    fixed_count = model.log_likelihood(ids, generator=seeded())
    assert fixed_count.num_rows == BATCH * 32 * N  # 32 times by default
    monkeypatch.setattr(modeling_mdm_encoder, "mask_fixed_count", mask_independently)
    independent = model.log_likelihood(ids, generator=seeded())
    check_estimates(
        independent.log_likelihood, repeat_for_batch(exact_bound(model, ids[:20])), independent.standard_error
    )
    assert fixed_count.standard_error.mean() < 0.8 * independent.standard_error.mean()


def test_a_score_network_gets_the_noise_level_of_the_time_or_of_the_fraction_of_masks(ids: torch.LongTensor) -> None:
    """It gets the level of each time or, for a conditional likelihood, the level that matches the fraction of masks."""
    model = encoder("sigma")
    exact_of_time, exact_of_fraction = exact_sigma_bound(model, ids[:20]), exact_bound(model, ids[:20])
    assert (exact_of_time - exact_of_fraction).abs().mean() > 0.1
    output = model.log_likelihood(ids, num_times=32, generator=seeded())
    check_estimates(output.log_likelihood, repeat_for_batch(exact_of_time), output.standard_error)
    output = model.log_likelihood(ids, targets=torch.ones_like(ids), num_times=16, generator=seeded())
    check_estimates(output.log_likelihood, repeat_for_batch(exact_of_fraction), output.standard_error)


def test_random_orders_of_an_encoder_are_unbiased(ids: torch.LongTensor) -> None:
    model = encoder("adaln")
    output = model.log_likelihood(ids, num_orders=6, generator=seeded())
    check_estimates(output.log_likelihood, repeat_for_batch(exact_bound(model, ids[:20])), output.standard_error)
    assert (output.importance_weighted > output.log_likelihood).all()
    torch.testing.assert_close(output.token_log_likelihood.sum(1), output.log_likelihood)
    left_to_right = model.log_likelihood(ids, "left_to_right").token_log_likelihood
    torch.testing.assert_close(left_to_right[:, 1], score_masked(model, ids, (1, 2, 3))[:, 1])


@pytest.mark.parametrize("injection", INJECTIONS)
def test_an_encoder_always_masks_tokens_that_are_neither_targets_nor_context(
    injection: str, ids: torch.LongTensor
) -> None:
    """The targets are at positions 0 and 2, the context is at 3, and the token at 1 is in neither set."""
    model = encoder(injection)
    marks = {"targets": [1, 0, 1, 0], "context": [0, 0, 0, 1]}
    sets = {name: torch.tensor([selected]).expand(BATCH, N) for name, selected in marks.items()}
    given = ids.index_fill(1, torch.tensor([1]), MASK)
    both, first, second = (score_masked(model, ids[:20], positions) for positions in ((0, 1, 2), (0, 1), (1, 2)))

    output = model.log_likelihood(given, **sets, orders=torch.tensor([[1, 2, 3, 0]]).expand(BATCH, N))
    zero = torch.zeros(20, dtype=torch.float64)
    expected = repeat_for_batch(torch.stack((first[:, 0], zero, both[:, 2], zero), dim=1))
    torch.testing.assert_close(output.token_log_likelihood, expected, rtol=0, atol=1e-12)
    assert output.num_rows == BATCH * 2 * N

    exact = repeat_for_batch((both[:, 0] + both[:, 2] + first[:, 0] + second[:, 2]) / 2)
    outputs = [
        model.log_likelihood(given, **sets, generator=seeded(), **arguments)
        for arguments in ({"num_times": 16}, {"num_orders": 6})
    ]
    for output in outputs:
        check_estimates(output.log_likelihood, exact, output.standard_error)
        assert (output.token_log_likelihood[:, [1, 3]] == 0).all()


def test_the_default_context_of_an_encoder_is_all_other_tokens(ids: torch.LongTensor) -> None:
    model, ids = encoder("none"), ids[:3]
    targets, mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]), torch.ones_like(ids)
    mask[0, 3] = 0
    left_to_right = {"orders": "left_to_right", "attention_mask": mask}
    output = model.log_likelihood(ids, targets=targets, **left_to_right)
    last = model.log_likelihood(ids[:1], torch.tensor([[2, 0, 1, 3]]), attention_mask=mask[:1]).token_log_likelihood
    torch.testing.assert_close(output.token_log_likelihood[0, :2], last[0, :2], rtol=0, atol=1e-12)
    torch.testing.assert_close(output.log_likelihood[2], score_masked(model, ids[2:], (1,)).sum(), rtol=0, atol=1e-12)
    assert output.log_likelihood[1] == 0
    with pytest.raises(ValueError, match="Column 3 of sequence 0 is padding"):
        model.log_likelihood(ids, targets=torch.ones_like(ids), attention_mask=mask)


def test_padding_does_not_affect_estimates(ids: torch.LongTensor) -> None:
    padded, mask = torch.full((BATCH, 6), -1), torch.zeros(BATCH, 6, dtype=torch.long)
    columns = [1, 2, 4, 5]
    padded[:, columns], mask[:, columns] = ids, 1
    for injection, exact in (("none", exact_bound), ("sigma", exact_sigma_bound)):
        model = encoder(injection)
        output = model.log_likelihood(padded, num_times=16, attention_mask=mask, generator=seeded())
        check_estimates(output.log_likelihood, repeat_for_batch(exact(model, ids[:20])), output.standard_error)
        assert (output.token_log_likelihood[:, [0, 3]] == 0).all()
    orders = torch.tensor([[3, 5, 0, 1, 2, 4]]).expand(BATCH, 6)
    along_orders = model.log_likelihood(padded, orders, attention_mask=mask).token_log_likelihood
    expected = model.log_likelihood(ids, torch.tensor([[3, 0, 1, 2]]).expand(BATCH, N)).token_log_likelihood
    torch.testing.assert_close(along_orders[:, columns], expected, rtol=0, atol=1e-10)
    assert (along_orders[:, [0, 3]] == 0).all()


def test_stratified_draws_come_in_independent_pairs() -> None:
    draws = draw_stratified(8, 1000, seeded(), None)
    strata = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])[:, None]
    assert ((draws * 4).floor() == strata).all()
    within = draws * 4 - strata
    assert 0.48 < within.mean() < 0.52
    assert torch.corrcoef(torch.stack((within[0], within[1])))[0, 1].abs() < 0.15


IS_TARGET = torch.tensor([[0, 1, 1, 1, 0, 1]], dtype=torch.bool).expand(4000, 6)


@pytest.mark.parametrize("time", [0.05, 0.6, 1.0])
def test_fixed_count_masks_a_fixed_number_of_targets_uniformly(time: float) -> None:
    times = torch.full((4000,), time, dtype=torch.float64)
    is_masked, weights = mask_fixed_count(IS_TARGET, times, seeded())
    count = math.ceil(4 * time)
    assert (is_masked.sum(1) == count).all()
    assert (weights == 4 / count).all()
    torch.testing.assert_close(is_masked.float().mean(0), IS_TARGET[0] * count / 4, rtol=0, atol=0.03)


@pytest.mark.parametrize("time", [0.05, 0.6, 1.0])
def test_each_target_is_masked_independently_given_that_any_is_masked(time: float) -> None:
    times = torch.full((4000,), time, dtype=torch.float64)
    is_masked, weights = mask_independently(IS_TARGET, times, seeded())
    probability_of_any = 1 - (1 - time) ** 4
    torch.testing.assert_close(weights, torch.full_like(weights, probability_of_any / time))
    counts = {masks: 0 for masks in itertools.product((False, True), repeat=4) if any(masks)}
    for masks in is_masked[:, IS_TARGET[0]].tolist():
        counts[tuple(masks)] += 1
    assert not is_masked[:, ~IS_TARGET[0]].any()
    for masks, count in counts.items():
        expected = 4000 * time ** sum(masks) * (1 - time) ** (4 - sum(masks)) / probability_of_any
        assert abs(count - expected) < 4 * math.sqrt(expected) + 1


@pytest.mark.parametrize("injection", ["adaln", "sigma"])
def test_passes_of_few_rows_do_not_change_results(injection: str, ids: torch.LongTensor) -> None:
    model, passes = encoder(injection), []
    whole = model.log_likelihood(ids[:7], generator=seeded())
    model.model.register_forward_pre_hook(lambda module, arguments: passes.append(arguments[0].numel()))
    parts = model.log_likelihood(ids[:7], generator=seeded(), rows_per_pass=9)
    torch.testing.assert_close(whole.log_likelihood, parts.log_likelihood)
    assert set(passes) == {8, 4}  # two sequences of four tokens, or one


@pytest.mark.parametrize("injection", ["none", "sigma"])
def test_the_log_likelihood_of_a_sequence_of_only_padding_is_zero(injection: str, ids: torch.LongTensor) -> None:
    keep = torch.ones_like(ids[:2]).index_fill(0, torch.tensor([1]), 0)
    bound = encoder(injection).log_likelihood
    output = bound(ids[:2], attention_mask=keep, generator=seeded())
    assert output.log_likelihood[0] < 0
    assert output.log_likelihood[1] == 0
    assert (bound(ids[:2], attention_mask=keep * 0).log_likelihood == 0).all()


def test_at_least_one_token_is_masked_even_for_the_largest_uniform_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding could otherwise put the first mask after the last token."""
    times = torch.linspace(1e-6, 1, 2000, dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.full(size, 1 - 2**-53, dtype=torch.float64))
    is_masked, _ = mask_independently(torch.ones(2000, 7, dtype=torch.bool), times, None)
    assert is_masked.any(dim=1).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_times": 3}, "`num_times` must be even, but is 3"),
        ({"num_times": 0}, "`num_times` must be an integer of at least 2"),
        ({"rows_per_pass": 0}, "`rows_per_pass` must be an integer of at"),
    ],
)
def test_arguments_that_are_not_allowed_are_errors(arguments: dict, message: str, ids: torch.LongTensor) -> None:
    with pytest.raises(ValueError, match=message):
        encoder("none").log_likelihood(ids, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_orders": 2, "num_times": 4}, "`num_times` applies only to the"),
        ({"orders": "random", "num_times": 4}, "`num_times` applies only to the"),
        ({"num_orders": 0}, "`num_orders` must be an integer of at least"),
        ({"orders": "left_to_right", "num_orders": 2}, r"`num_orders` \(2\) averages over random"),
        ({"stride": 2, "num_times": 4}, "`num_times` applies only to the"),
    ],
)
def test_arguments_of_an_encoder_that_have_no_effect_are_errors(
    arguments: dict, message: str, ids: torch.LongTensor
) -> None:
    model = encoder("none")
    with pytest.raises(ValueError, match=message):
        model.log_likelihood(ids, **arguments)
    with pytest.raises(ValueError, match=message):
        model.log_likelihood(ids, targets=ids != 3, **arguments)


def test_masks_and_weights_that_are_not_finite_are_errors(ids: torch.LongTensor) -> None:
    model = encoder("none")
    with pytest.raises(ValueError, match=r"This id is the mask\. .* likelihoods need"):
        model.log_likelihood(torch.tensor([[1, MASK]]))
    with torch.no_grad():
        model.lm_head.bias[0] = float("nan")
    with pytest.raises(ValueError, match="The log-likelihood of sequence 0 is not"):
        model.log_likelihood(ids)
