# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The mean of each objective over all possible draws equals the bound that it estimates."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd

from modeling_aogpt import MDMEncoderForMaskedLM, modeling_aogpt
from modeling_aogpt.unmasking import MAX_MASKED_FRACTION
from tests.references import log_score, random_encoder, random_model
from training.objectives import OBJECTIVES, AnyOrderObjective, MaskedDiffusionObjective, ScoreEntropyObjective

IDS = torch.tensor([[3, 1, 3, 0]])
LENGTH = IDS.shape[1]
MASKS = torch.tensor(list(itertools.product([False, True], repeat=LENGTH)))[1:]
# Nodes and weights on (0, 1) that integrate polynomials of degree up to 7 exactly.
NODES, WEIGHTS = ((1 + values) / 2 for values in np.polynomial.legendre.leggauss(4))
WEIGHTS = WEIGHTS - 1 / 2


def small_encoder(target_injection: str) -> MDMEncoderForMaskedLM:
    sizes = {"vocab_size": 7, "num_valid_tokens": 5, "max_position_embeddings": 6}
    return random_encoder(target_injection=target_injection, **sizes)


def any_order_bound(model: MDMEncoderForMaskedLM) -> float:
    """Return Eq. 7 by its definition: the mean over all orders of -log p(x | order), per token."""
    total = 0.0
    for order in itertools.permutations(range(LENGTH)):
        ids = torch.full_like(IDS, model.config.mask_token_id)
        for position in order:
            total -= model(ids).logits[0, position].log_softmax(-1)[IDS[0, position]].item()
            ids[0, position] = IDS[0, position]
    return total / math.factorial(LENGTH) / LENGTH


def loss(objective: MaskedDiffusionObjective, is_masked: torch.Tensor, time: float) -> float:
    return compute(objective, IDS, is_masked[None], time).item()


def compute(
    objective: MaskedDiffusionObjective, ids: torch.Tensor, is_masked: torch.Tensor, time: float
) -> torch.Tensor:
    indices, times = is_masked.flatten().nonzero().squeeze(1), torch.tensor([time], dtype=torch.float64)
    return objective(ids, is_masked=is_masked, masked_indices=indices, times=times)


def probability(is_masked: torch.Tensor, fraction: float) -> float:
    return fraction ** int(is_masked.sum()) * (1 - fraction) ** int((~is_masked).sum())


@torch.no_grad()
def test_any_order_loss_of_a_decoder_is_the_mean_over_orders() -> None:
    model = random_model()
    objective = AnyOrderObjective(model)
    orders = torch.tensor(list(itertools.permutations(range(LENGTH))))
    logits = model(IDS.expand(len(orders), -1), orders=orders).logits
    expected = -logits.log_softmax(-1).gather(2, IDS.expand(len(orders), -1)[..., None]).mean()
    torch.testing.assert_close(objective(IDS.expand(len(orders), -1), orders=orders), expected)
    torch.testing.assert_close(torch.stack([objective(IDS, orders=order[None]) for order in orders]).mean(), expected)


def test_packed_text_may_begin_with_the_start_token() -> None:
    """It is an end-of-text there, and is predicted. In the model, a start token before the text says so."""
    model, ids = random_model(start_token_id=3), torch.tensor([[3, 1, 4, 1], [2, 6, 3, 3]])
    orders = torch.tensor([[2, 0, 3, 1], [1, 3, 2, 0]])
    whole, with_start = (torch.nn.functional.pad(values, (1, 0), value=3) for values in (ids, orders + 1))
    with_start[:, 0] = 0
    expected = -model.log_likelihood(whole, orders=with_start).token_log_likelihood[:, 1:]
    assert (expected > 0).all()
    torch.testing.assert_close(AnyOrderObjective(model)(ids, orders).double(), expected.mean())


def test_any_order_loss_and_gradients_of_a_decoder_equal_those_of_the_model() -> None:
    model = random_model()
    ids, orders = torch.randint(11, (3, 8)), torch.stack([torch.randperm(8) for _ in range(3)])
    labels = ids.masked_fill(torch.rand(3, 8) < 0.3, -100)
    expected, actual = model(ids, orders=orders, labels=labels).loss, AnyOrderObjective(model)(ids, orders, labels)
    torch.testing.assert_close(actual, expected)
    parameters = list(model.parameters())
    for one, other in zip(
        torch.autograd.grad(actual, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(one, other)


@torch.no_grad()
@pytest.mark.parametrize("target_injection", ["adaln", "none"])
def test_masked_diffusion_loss_is_the_any_order_bound(target_injection: str) -> None:
    model = small_encoder(target_injection)
    objective = MaskedDiffusionObjective(model)
    integral = sum(
        weight * probability(mask, time) * loss(objective, mask, time)
        for time, weight in zip(NODES, WEIGHTS, strict=True)
        for mask in MASKS
    )
    assert integral == pytest.approx(any_order_bound(model), rel=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("target_injection", ["adaln", "sigma"])
def test_any_order_loss_of_an_encoder_is_the_any_order_bound(target_injection: str) -> None:
    """The number of masks and their positions are uniformly distributed."""
    model = small_encoder(target_injection)
    objective = OBJECTIVES["encoder", "any_order"](model)
    mean = sum(
        loss(objective, mask, int(mask.sum()) / LENGTH) / math.comb(LENGTH, int(mask.sum())) / LENGTH for mask in MASKS
    )
    assert mean == pytest.approx(any_order_bound(model), rel=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("time", [0.03, 0.5, 1.0])
def test_score_entropy_equals_its_definition(time: float) -> None:
    """
    Eq. 9 of arXiv 2310.16834 term by term, over all states x_t and their neighbours y:

    sum of Q_t(x_t, y) (s(x_t)_y - r log s(x_t)_y + r (log r - 1)), with r = p(y | x_0) / p(x_t | x_0).
    """
    model = small_encoder("sigma")
    mask_id, num_ids = model.config.mask_token_id, model.config.num_valid_tokens
    sigma = -math.log(1 - MAX_MASKED_FRACTION * time)
    rate = MAX_MASKED_FRACTION / (1 - MAX_MASKED_FRACTION * time)  # sigma'(t)
    expected = actual = 0.0
    for mask in MASKS:
        state = IDS.masked_fill(mask, mask_id)
        scores = log_score(model, state, torch.tensor([sigma], dtype=torch.float64))[0]
        state_loss = 0.0
        for position in mask.nonzero()[:, 0]:  # other transitions have rate 0
            for token in range(num_ids):
                ratio = math.exp(-sigma) / (1 - math.exp(-sigma)) if token == IDS[0, position] else 0.0
                value = scores[position, token].item()
                state_loss += math.exp(value) - ratio * value + (ratio and ratio * (math.log(ratio) - 1))
        weight = probability(mask, 1 - math.exp(-sigma))
        expected += weight * rate * state_loss / LENGTH
        actual += weight * loss(ScoreEntropyObjective(model), mask, time)
    assert actual == pytest.approx(expected, rel=1e-9)


@torch.no_grad()
def test_normalized_scores_have_the_same_loss_under_both_objectives() -> None:
    model = small_encoder("sigma")
    model.lm_head.weight.zero_()
    model.lm_head.bias.copy_(torch.arange(7.0))
    num_ids = model.config.num_valid_tokens
    model.lm_head.bias += math.log(num_ids) - model.lm_head.bias[:num_ids].logsumexp(0)
    for mask in MASKS:
        expected = loss(MaskedDiffusionObjective(model), mask, 0.3)
        assert loss(ScoreEntropyObjective(model), mask, 0.3) == pytest.approx(expected, rel=1e-9)


def test_the_loss_without_masks_is_zero() -> None:
    objective = MaskedDiffusionObjective(small_encoder("adaln"))
    value = compute(objective, IDS, torch.zeros_like(IDS, dtype=torch.bool), 0.1)
    value.backward()
    assert value.item() == 0
    assert all(weight.grad is None or not weight.grad.any() for weight in objective.parameters())


def test_the_loss_of_a_pass_without_labels_is_zero() -> None:
    """Another pass of the step has labels, so `num_items_in_batch` is not zero."""
    labels, count = torch.full_like(IDS, -100), torch.tensor(2.0)
    value = AnyOrderObjective(random_model())(IDS, torch.arange(LENGTH)[None], labels, num_items_in_batch=count)
    value.backward()
    assert value.item() == 0


@pytest.fixture
def graphs() -> list[torch.fx.GraphModule]:
    """Return the list to which `record` adds graphs, without graphs of other tests."""
    torch._dynamo.reset()
    return []


def record(graphs: list[torch.fx.GraphModule], graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
    """Compile nothing. This is a backend of torch.compile."""
    graphs.append(graph)
    return graph.forward


@pytest.mark.parametrize("objective", [MaskedDiffusionObjective, ScoreEntropyObjective])
def test_batches_with_other_numbers_of_masked_tokens_use_the_same_compiled_graph(
    objective: type[MaskedDiffusionObjective], graphs: list[torch.fx.GraphModule]
) -> None:
    plain = objective(small_encoder("sigma").train())
    compiled = torch.compile(plain, backend=partial(record, graphs))
    for mask in MASKS:
        torch.testing.assert_close(compute(compiled, IDS, mask[None], 0.5), compute(plain, IDS, mask[None], 0.5))
    # One is for the first number of masked tokens, and one for all numbers. PyTorch 2.7 makes another one.
    assert len(graphs) <= (2 if modeling_aogpt.GATHERS_GRADIENTS else 3)


def test_the_compiled_graph_of_a_decoder_contains_no_other_graphs(
    graphs: list[torch.fx.GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch before 2.13 cannot divide such a graph, as DDP needs. A `torch.autograd.Function` is such a graph."""
    monkeypatch.setattr(modeling_aogpt, "GATHERS_GRADIENTS", False)
    plain = AnyOrderObjective(random_model().train())
    compiled = torch.compile(plain, backend=partial(record, graphs))
    orders = torch.arange(LENGTH).flip(0)[None]
    torch.testing.assert_close(compiled(IDS, orders), plain(IDS, orders))
    (graph,) = graphs
    assert not [node.target for node in graph.graph.nodes if node.op == "get_attr"]


@pytest.mark.skipif(not modeling_aogpt.GATHERS_GRADIENTS, reason="needs PyTorch 2.13")
@pytest.mark.parametrize("length", [12, 8])
def test_compiled_graphs_recompute_modulations_and_do_not_scatter_gradients(length: int) -> None:
    """The gradient of a modulation is a sum over sequences, also if sequences are shorter than the model allows."""
    torch._dynamo.reset()
    model = random_model().train()
    objective, graphs = AnyOrderObjective(model), []
    ids, orders = torch.randint(11, (5, length)), torch.rand(5, length).argsort(dim=1)
    expected = torch.autograd.grad(objective(ids, orders), list(model.parameters()))
    compiler = aot_autograd(
        fw_compiler=lambda graph, inputs: make_boxed_func(graphs.append(graph) or graph),
        partition_fn=min_cut_rematerialization_partition,
        decompositions={},
    )
    value = torch.compile(objective, backend=compiler)(ids, orders)
    for one, other in zip(torch.autograd.grad(value, list(model.parameters())), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)
    counts = Counter(node.target for node in graphs[1].graph.nodes)
    # Scales and gates of 2 layers and of the final norm are recomputed, and all 6 or 2 vectors have gradients.
    assert counts[torch.ops.aten.index.Tensor] == 2 * (4 + 6) + 1 + 2
    assert counts[torch.ops.aten.embedding_dense_backward.default] == 4  # start, token, position, target embeddings


def test_ids_that_are_not_text_are_errors() -> None:
    objective = MaskedDiffusionObjective(small_encoder("adaln"))
    with pytest.raises(ValueError, match=r"`input_ids` contains the id 5, but .* at"):
        compute(objective, torch.full_like(IDS, 5), MASKS[:1], 0.1)
