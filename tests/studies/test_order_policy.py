# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Joint probabilities of cells and tokens of the study of rewards, against one pass for each token in float64."""

import itertools

import torch

from eval.studies.rewards.order_policy import drawn_order, joint_log_probs
from modeling_aogpt import AOGPTForAnyOrderLM
from tests.references import random_model, seeded

TAU, PUZZLE = 0.5, torch.tensor([2, 3, 1, 3, 3])  # 3 is the mask


def all_trajectories() -> tuple[torch.LongTensor, torch.LongTensor, torch.LongTensor]:
    """Return the sequences, orders and steps of all trajectories of `PUZZLE`."""
    orders = torch.tensor([(0, 2, *rest) for rest in itertools.permutations((1, 3, 4))]).repeat_interleave(27, dim=0)
    tokens = torch.cartesian_prod(*[torch.arange(3)] * 3).repeat(6, 1)
    sequences = PUZZLE.repeat(len(orders), 1).scatter(1, orders[:, 2:], tokens)
    return sequences, orders, orders.argsort(dim=1).sub(2).clamp(min=-1)


def reference(
    model: AOGPTForAnyOrderLM, ids: torch.LongTensor, order: torch.LongTensor, steps: torch.LongTensor
) -> torch.Tensor:
    """Return the log-probability of one trajectory."""
    result, order, first = torch.zeros((), dtype=torch.float64), order.tolist(), int((steps < 0).sum())
    for count in range(first, len(order)):
        masked = order[count:]
        rests = [[column, *(other for other in masked if other != column)] for column in masked]
        orders = torch.tensor([order[:count] + rest for rest in rests])
        logits = model(ids.expand(len(masked), -1), orders=orders).logits[range(len(masked)), masked]
        scores = logits[:, : model.config.num_valid_tokens].log_softmax(dim=-1)
        result = result + (scores.amax(dim=-1) / TAU).log_softmax(dim=0)[0] + scores[0, ids[order[count]]]
    return result


def test_joint_log_probs_and_their_gradients() -> None:
    model = random_model(vocab_size=3)
    more_given = torch.tensor([[2, 0, 1, 1, 0]]), torch.tensor([[2, 0, 3, 1, 4]]), torch.tensor([[-1, 0, -1, -1, 1]])
    trajectories = [torch.cat(pair) for pair in zip(all_trajectories(), more_given, strict=True)]
    log_probs = joint_log_probs(model, *trajectories, TAU)
    assert not log_probs[trajectories[2] < 0].any()
    result = log_probs.sum(dim=1)
    assert abs(result[:-1].exp().sum().item() - 1) < 1e-12
    expected = torch.stack([reference(model, *row) for row in zip(*trajectories, strict=True)])
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)
    rewards = torch.rand(len(result), dtype=torch.float64, generator=seeded())
    means = [(scores.exp() * rewards).sum() for scores in (result, expected)]
    gradients = [torch.autograd.grad(mean, list(model.parameters()), allow_unused=True) for mean in means]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_generate_draws_from_the_joint_distribution() -> None:
    model, (sequences, orders, steps), count = random_model(vocab_size=3), all_trajectories(), 10_000
    probabilities = joint_log_probs(model, sequences, orders, steps, TAU).sum(dim=1).exp()
    with drawn_order(TAU, seed=1):
        inputs = PUZZLE.repeat(count, 1)
        output = model.generate(inputs, order="confidence", generator=seeded(), return_dict_in_generate=True)
    drawn, rows = (torch.cat(pair, dim=1) for pair in ((output.orders, output.sequences), (orders, sequences)))
    frequencies = torch.stack([(drawn == row).all(dim=1).double().mean() for row in rows])
    error = (probabilities * (1 - probabilities) / count).sqrt()
    assert ((frequencies - probabilities).abs() < 4.5 * error + 1 / count).all()
