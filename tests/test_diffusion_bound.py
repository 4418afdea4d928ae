# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The masked-diffusion bound (Eq. 1): by full enumeration the any-order bound (Eq. 7), and what its estimators mean."""

import itertools
import math

import pytest
import torch

from modeling_aogpt import AOGPTForAnyOrderLM, MDMEncoderForMaskedLM
from modeling_aogpt.diffusion_bound import hide, stratified
from tests.references import check_estimates, perturb_vectors, random_encoder, random_model

BATCH, N = 400, 4
MASK = 11
INJECTIONS = ("adaln", "none", "sigma")


def encoder(target_injection: str) -> MDMEncoderForMaskedLM:
    model = random_encoder(target_injection=target_injection, position_encoding="rotary", max_position_embeddings=6)
    perturb_vectors(model)
    return model


@pytest.fixture
def ids() -> torch.LongTensor:
    """Twenty sequences, each twenty times, so that there is little to enumerate."""
    return torch.randint(0, 11, (20, N), generator=torch.Generator().manual_seed(0)).repeat(BATCH // 20, 1)


def each_often(exact: torch.Tensor) -> torch.Tensor:
    """What holds for the twenty sequences, for all of the batch."""
    return torch.cat([exact] * (BATCH // 20))


def mean_over_orders(model: AOGPTForAnyOrderLM | MDMEncoderForMaskedLM, ids: torch.LongTensor) -> torch.Tensor:
    """The any-order bound (Eq. 7) over all orders."""
    orders = list(itertools.permutations(range(N)))
    scores = (model.log_likelihood(ids, torch.tensor(order).expand(len(ids), N)).log_likelihood for order in orders)
    return sum(scores) / len(orders)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@torch.no_grad()
def score_hidden(
    model: MDMEncoderForMaskedLM, ids: torch.LongTensor, hidden: tuple[int, ...], sigma: float | None = None
) -> torch.Tensor:
    """log p of each hidden token (batch, n) given the others, 0 elsewhere, by the model's own forward."""
    where = list(hidden)
    masked = ids.clone()
    masked[:, where] = MASK
    noise = None if sigma is None else torch.full((len(ids),), sigma, dtype=torch.float64)
    scores = model(masked, sigma=noise).logits.log_softmax(-1).gather(2, ids[..., None])[..., 0]
    kept = torch.zeros_like(scores)
    kept[:, where] = scores[:, where]
    return kept


def subsets() -> list[tuple[int, ...]]:
    return [hidden for k in range(1, N + 1) for hidden in itertools.combinations(range(N), k)]


def exact_bound(model: MDMEncoderForMaskedLM, ids: torch.LongTensor) -> torch.Tensor:
    """Eq. 1 over all sets of k hidden positions: the integral of t^(k - 1) (1 - t)^(n - k) is a Beta function."""
    total = torch.zeros(len(ids), dtype=torch.float64)
    for hidden in subsets():
        k = len(hidden)
        weight = math.gamma(k) * math.gamma(N - k + 1) / math.gamma(N + 1)
        total += weight * score_hidden(model, ids, hidden).sum(1)
    return total


def exact_sigma_bound(model: MDMEncoderForMaskedLM, ids: torch.LongTensor) -> torch.Tensor:
    """Eq. 1 for a model that is told the noise level -log(1 - 0.999 t) of each time, by quadrature."""
    total = torch.zeros(len(ids), dtype=torch.float64)
    for low, high in ((0.0, 0.8), (0.8, 1.0)):
        nodes, weights = gauss_legendre(10)
        for time, weight in zip((low + nodes * (high - low)).tolist(), (weights * (high - low)).tolist(), strict=True):
            for hidden in subsets():
                share = time ** (len(hidden) - 1) * (1 - time) ** (N - len(hidden))
                total += weight * share * score_hidden(model, ids, hidden, -math.log1p(-0.999 * time)).sum(1)
    return total


def gauss_legendre(points: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Nodes and weights on [0, 1], from the eigenvectors of the Jacobi matrix (Golub and Welsch)."""
    index = torch.arange(1, points, dtype=torch.float64)
    beside = index / (4 * index**2 - 1).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(beside, 1) + torch.diag(beside, -1))
    return (values + 1) / 2, vectors[0] ** 2


@pytest.mark.parametrize("injection", INJECTIONS)
def test_equation_1_is_equation_7_by_full_enumeration(injection: str, ids: torch.LongTensor) -> None:
    """Over all sets of hidden tokens, and over all orders."""
    model, ids = encoder(injection), ids[:5]
    torch.testing.assert_close(mean_over_orders(model, ids), exact_bound(model, ids), rtol=0, atol=1e-12)
    output = model.log_likelihood(ids, torch.tensor([2, 0, 3, 1]).expand(5, N))
    assert output.num_rows == 5 * N * N
    assert (output.standard_error == 0).all()
    torch.testing.assert_close(output.token_log_likelihood.sum(1), output.log_likelihood)


@pytest.mark.parametrize("masking", ["bernoulli", "fixed"])
@pytest.mark.parametrize("injection", ["adaln", "none"])
def test_estimates_of_an_encoder(injection: str, masking: str, ids: torch.LongTensor) -> None:
    model = encoder(injection)
    output = model.log_likelihood(ids, num_times=16, masking=masking, generator=generator())
    check_estimates(output.log_likelihood, each_often(exact_bound(model, ids[:20])), output.standard_error)
    torch.testing.assert_close(output.token_log_likelihood.sum(1), output.log_likelihood)
    assert output.importance_weighted is None
    assert output.num_rows == BATCH * 16 * N


def test_hiding_a_fixed_number_has_less_spread(ids: torch.LongTensor) -> None:
    model = encoder("none")
    fixed, bernoulli = (
        model.log_likelihood(ids, masking=masking, generator=generator()) for masking in ("fixed", "bernoulli")
    )
    assert fixed.standard_error.mean() < 0.8 * bernoulli.standard_error.mean()
    torch.testing.assert_close(model.log_likelihood(ids, generator=generator()).log_likelihood, fixed.log_likelihood)
    assert fixed.num_rows == BATCH * 32 * N  # the default


def test_noise_levels_of_a_score_network(ids: torch.LongTensor) -> None:
    """By default it is told the noise level of each time; with a fixed number of masks, that of their share."""
    model = encoder("sigma")
    exact, typical = each_often(exact_sigma_bound(model, ids[:20])), each_often(exact_bound(model, ids[:20]))
    assert (exact - typical).abs().mean() > 0.1
    output = model.log_likelihood(ids, num_times=32, generator=generator())
    check_estimates(output.log_likelihood, exact, output.standard_error)
    fixed = model.log_likelihood(ids, num_times=16, masking="fixed", generator=generator())
    check_estimates(fixed.log_likelihood, typical, fixed.standard_error)


def test_random_orders_of_an_encoder(ids: torch.LongTensor) -> None:
    model = encoder("adaln")
    output = model.log_likelihood(ids, num_orders=6, generator=generator())
    check_estimates(output.log_likelihood, each_often(exact_bound(model, ids[:20])), output.standard_error)
    assert (output.importance_weighted > output.log_likelihood).all()
    torch.testing.assert_close(output.token_log_likelihood.sum(1), output.log_likelihood)
    left_to_right = model.log_likelihood(ids, "left_to_right").token_log_likelihood
    torch.testing.assert_close(left_to_right[:, 1], score_hidden(model, ids, (1, 2, 3))[:, 1])


@pytest.mark.parametrize("injection", INJECTIONS)
def test_some_tokens_given_others_of_an_encoder(injection: str, ids: torch.LongTensor) -> None:
    """Positions 0 and 2 given 3: what stands at 1 is hidden all the time, whatever it is."""
    model = encoder(injection)
    sets = [torch.tensor([marks]).expand(BATCH, N) for marks in ([1, 0, 1, 0], [0, 0, 0, 1])]
    given = ids.index_fill(1, torch.tensor([1]), MASK)
    both, first, second = (score_hidden(model, ids[:20], hidden) for hidden in ((0, 1, 2), (0, 1), (1, 2)))

    output = model.conditional_log_likelihood(given, *sets, orders=torch.tensor([[1, 2, 3, 0]]).expand(BATCH, N))
    zero = torch.zeros(20, dtype=torch.float64)
    expected = each_often(torch.stack((first[:, 0], zero, both[:, 2], zero), dim=1))
    torch.testing.assert_close(output.token_log_likelihood, expected, rtol=0, atol=1e-12)
    assert output.num_rows == BATCH * 2 * N

    exact = each_often((both[:, 0] + both[:, 2] + first[:, 0] + second[:, 2]) / 2)
    ways = [{"num_times": 16}, {"num_times": 16, "masking": "bernoulli"}, {"num_orders": 6}]
    outputs = [model.conditional_log_likelihood(given, *sets, generator=generator(), **way) for way in ways]
    for output in outputs:
        check_estimates(output.log_likelihood, exact, output.standard_error)
        assert (output.token_log_likelihood[:, [1, 3]] == 0).all()
    fixed = model.conditional_log_likelihood(given, *sets, num_times=16, masking="fixed", generator=generator())
    assert torch.equal(fixed.log_likelihood, outputs[0].log_likelihood)


def test_context_of_an_encoder_is_all_the_rest_unless_given(ids: torch.LongTensor) -> None:
    model, ids = encoder("none"), ids[:3]
    targets, mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]), torch.ones_like(ids)
    mask[0, 3] = 0
    left_to_right = {"orders": "left_to_right", "attention_mask": mask}
    output = model.conditional_log_likelihood(ids, targets, **left_to_right)
    last = model.log_likelihood(ids[:1], torch.tensor([[2, 0, 1, 3]]), attention_mask=mask[:1]).token_log_likelihood
    torch.testing.assert_close(output.token_log_likelihood[0, :2], last[0, :2], rtol=0, atol=1e-12)
    torch.testing.assert_close(output.log_likelihood[2], score_hidden(model, ids[2:], (1,)).sum(), rtol=0, atol=1e-12)
    assert output.log_likelihood[1] == 0
    with pytest.raises(ValueError, match="Position 3 of sequence 0 is padding"):
        model.conditional_log_likelihood(ids, torch.ones_like(ids), attention_mask=mask)


@pytest.mark.parametrize("masking", ["bernoulli", "fixed"])
def test_estimates_of_the_decoder(masking: str, ids: torch.LongTensor) -> None:
    """Against its any-order likelihood (Eq. 7) over all orders."""
    model: AOGPTForAnyOrderLM = random_model(max_position_embeddings=N)
    output = model.diffusion_log_likelihood(ids, num_times=16, masking=masking, generator=generator())
    check_estimates(output.log_likelihood, each_often(mean_over_orders(model, ids[:20])), output.standard_error)
    torch.testing.assert_close(output.token_log_likelihood.sum(1), output.log_likelihood)
    assert output.num_rows == BATCH * 16 * N


def test_orders_tell_more_than_masks_of_as_many_rows(ids: torch.LongTensor) -> None:
    model = random_model(max_position_embeddings=N)
    bound = model.diffusion_log_likelihood(ids, num_times=16, generator=generator())
    any_order = model.log_likelihood(ids, num_orders=16, generator=generator())
    assert any_order.num_rows == bound.num_rows
    assert any_order.standard_error.mean() < 0.8 * bound.standard_error.mean()


@pytest.mark.parametrize("masking", ["bernoulli", "fixed"])
@pytest.mark.parametrize("model_type", ["encoder", "decoder"])
def test_padding_counts_for_nothing(model_type: str, masking: str, ids: torch.LongTensor) -> None:
    padded, mask = torch.full((BATCH, 6), -1), torch.zeros(BATCH, 6, dtype=torch.long)
    where = [1, 2, 4, 5]
    padded[:, where], mask[:, where] = ids, 1
    arguments = {"num_times": 16, "masking": masking, "attention_mask": mask, "generator": generator()}
    if model_type == "encoder":
        model = encoder("none")
        output, exact = model.log_likelihood(padded, **arguments), exact_bound(model, ids[:20])
        orders = torch.tensor([[3, 5, 0, 1, 2, 4]]).expand(BATCH, 6)
        chain = model.log_likelihood(padded, orders, attention_mask=mask).token_log_likelihood
        expected = model.log_likelihood(ids, torch.tensor([[3, 0, 1, 2]]).expand(BATCH, N)).token_log_likelihood
        torch.testing.assert_close(chain[:, where], expected, rtol=0, atol=1e-10)
        assert (chain[:, [0, 3]] == 0).all()
    else:
        model = random_model(max_position_embeddings=6)
        exact = mean_over_orders(model, ids[:20])
        output = model.diffusion_log_likelihood(padded, **arguments)
    check_estimates(output.log_likelihood, each_often(exact), output.standard_error)
    assert (output.token_log_likelihood[:, [0, 3]] == 0).all()


def test_times_are_stratified_in_pairs() -> None:
    draws = stratified(8, 1000, generator(), None)
    strata = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])[:, None]
    assert ((draws * 4).floor() == strata).all()
    within = draws * 4 - strata
    assert 0.48 < within.mean() < 0.52
    assert torch.corrcoef(torch.stack((within[0], within[1])))[0, 1].abs() < 0.15


@pytest.mark.parametrize("time", [0.05, 0.6, 1.0])
def test_hidden_tokens(time: float) -> None:
    """Of four tokens three at t = 0.6; or each with probability t, if any: then all sets as often as they should be."""
    is_token = torch.tensor([[0, 1, 1, 1, 0, 1]], dtype=torch.bool).expand(4000, 6)
    times = torch.full((4000,), time, dtype=torch.float64)
    is_hidden, weights = hide(is_token, times, "fixed", generator())
    number = math.ceil(4 * time)
    assert (is_hidden.sum(1) == number).all()
    assert (weights == 4 / number).all()
    share = torch.tensor([0, 1, 1, 1, 0, 1]) * number / 4
    torch.testing.assert_close(is_hidden.float().mean(0), share, rtol=0, atol=0.03)

    is_hidden, weights = hide(is_token, times, "bernoulli", generator())
    share_of_any = 1 - (1 - time) ** 4
    torch.testing.assert_close(weights, torch.full_like(weights, share_of_any / time))
    found = {chosen: 0 for chosen in itertools.product((False, True), repeat=4) if any(chosen)}
    for row in is_hidden[:, [1, 2, 3, 5]].tolist():
        found[tuple(row)] += 1
    assert not is_hidden[:, [0, 4]].any()
    for chosen, count in found.items():
        expected = time ** sum(chosen) * (1 - time) ** (4 - sum(chosen)) / share_of_any
        assert abs(count - 4000 * expected) < 4 * math.sqrt(4000 * expected) + 1


@pytest.mark.parametrize("injection", ["adaln", "sigma"])
def test_passes_hold_few_rows(injection: str, ids: torch.LongTensor) -> None:
    model, passes = encoder(injection), []
    whole = model.log_likelihood(ids[:7], generator=generator())
    model.model.register_forward_pre_hook(lambda module, arguments: passes.append(arguments[0].numel()))
    parts = model.log_likelihood(ids[:7], generator=generator(), rows_per_pass=9)
    torch.testing.assert_close(whole.log_likelihood, parts.log_likelihood)
    assert set(passes) == {8, 4}  # two sequences and one of four tokens


@pytest.mark.parametrize("masking", ["bernoulli", "fixed"])
def test_a_sequence_of_padding_alone_scores_nothing(masking: str, ids: torch.LongTensor) -> None:
    keep = torch.ones_like(ids[:2]).index_fill(0, torch.tensor([1]), 0)
    for bound in (encoder("none").log_likelihood, random_model().diffusion_log_likelihood):
        output = bound(ids[:2], masking=masking, attention_mask=keep, generator=generator())
        assert output.log_likelihood[0] < 0
        assert output.log_likelihood[1] == 0


def test_a_token_is_hidden_whatever_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest uniform number may be rounded to where the last token ends."""
    times = torch.linspace(1e-6, 1, 2000, dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.full(size, 1 - 2**-53, dtype=torch.float64))
    is_hidden, _ = hide(torch.ones(2000, 7, dtype=torch.bool), times, "bernoulli", None)
    assert is_hidden.any(dim=1).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_times": 3}, "num_times=3 must be even"),
        ({"num_times": 0}, "num_times=0 must be an integer of at least 1"),
        ({"masking": "half"}, "masking='half' is not one of 'bernoulli', 'fixed'"),
        ({"rows_per_pass": 0}, "rows_per_pass=0 must be an integer of at least 1"),
    ],
)
@pytest.mark.parametrize("model_type", ["encoder", "decoder"])
def test_refuses(model_type: str, arguments: dict, message: str, ids: torch.LongTensor) -> None:
    bound = random_model().diffusion_log_likelihood
    if model_type == "encoder":
        bound = encoder("none").log_likelihood
    with pytest.raises(ValueError, match=message):
        bound(ids, **arguments)


def test_encoder_refuses(ids: torch.LongTensor) -> None:
    model = encoder("none")
    for arguments, message in (
        ({"num_orders": 2, "num_times": 4}, "leave out either"),
        ({"num_orders": 2, "masking": "fixed"}, "leave out either"),
        ({"num_orders": 0}, "num_orders=0"),
        ({"orders": "left_to_right", "num_orders": 2}, "one order is fixed"),
    ):
        with pytest.raises(ValueError, match=message):
            model.log_likelihood(ids, **arguments)
    with pytest.raises(ValueError, match="a likelihood needs whole text"):
        model.log_likelihood(torch.tensor([[1, MASK]]))
    with torch.no_grad():
        model.lm_head.bias[0] = float("nan")
    with pytest.raises(ValueError, match="sequence 0 is not finite"):
        model.log_likelihood(ids)
