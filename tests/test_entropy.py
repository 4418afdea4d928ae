# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Remark 3.1 of the paper: the smallest possible loss is the entropy of the data, in every order."""

import itertools
import json
from pathlib import Path

import pytest
import torch

from eval.benchmarks import entropy
from eval.benchmarks.entropy import SEQUENCES, draw_markov_chain, expected_loss, steps_needed, train
from tests.references import random_model, seeded

TERNARY = torch.tensor(list(itertools.product(range(3), repeat=4)))  # all sequences of a model with three ids
ORDERS = list(itertools.permutations(range(4)))


def random_probabilities() -> torch.Tensor:
    """Return random probabilities of the sequences in `TERNARY`."""
    return torch.rand(len(TERNARY), generator=seeded(), dtype=torch.float64).log().neg().softmax(-1)


def conditional_entropy(probabilities: torch.Tensor, target: int, context: tuple[int, ...]) -> float:
    """Return H(target | context) = H(target, context) - H(context) in bits, by sums over `TERNARY`."""

    def of_positions(positions: tuple[int, ...]) -> float:
        names = (TERNARY[:, list(positions)] * 3 ** torch.arange(len(positions))).sum(dim=-1)
        return entropy.entropy(torch.zeros(81, dtype=torch.float64).index_add(0, names, probabilities))

    return of_positions((*context, target)) - of_positions(context)


def test_conditional_entropies_add_up_to_the_entropy_in_every_order() -> None:
    probabilities = random_probabilities()
    for order in ORDERS:
        parts = [conditional_entropy(probabilities, target, order[:rank]) for rank, target in enumerate(order)]
        assert sum(parts) == pytest.approx(entropy.entropy(probabilities))


def test_no_order_has_a_loss_below_the_entropy() -> None:
    model, probabilities, losses = random_model(vocab_size=3), random_probabilities(), []
    for order in ORDERS:
        orders = torch.tensor([order])
        log_q = model.log_likelihood(TERNARY, orders=orders.expand(len(TERNARY), -1)).log_likelihood
        assert log_q.exp().sum().item() == pytest.approx(1)  # so that the divergence below is at least 0
        divergence = (probabilities * (probabilities.log2() - log_q / torch.tensor(2.0).log())).sum().item()
        losses.append(expected_loss(model, TERNARY, probabilities, orders).item())
        assert losses[-1] == pytest.approx(entropy.entropy(probabilities) + divergence)
        assert divergence > 0
        # If the data has the distribution of the model in this order, the loss is the entropy.
        own = log_q.exp()
        assert expected_loss(model, TERNARY, own, orders).item() == pytest.approx(entropy.entropy(own))
    mean = expected_loss(model, TERNARY, probabilities, torch.tensor(ORDERS)).item()
    assert mean == pytest.approx(sum(losses) / len(ORDERS))


def test_a_markov_chain_has_its_transition_probabilities() -> None:
    probabilities = draw_markov_chain(seeded()).view(2, 2, 2, 2)
    assert probabilities.sum().item() == pytest.approx(1)
    first, after_0, after_1 = torch.rand(3, generator=seeded(), dtype=torch.float64).tolist()
    assert probabilities[1].sum().item() == pytest.approx(first)
    expected = (1 - first) * (1 - after_0) * after_0 * after_1
    assert SEQUENCES[3].tolist() == [0, 0, 1, 1]
    assert probabilities[0, 0, 1, 1].item() == pytest.approx(expected)


def test_the_steps_needed_end_with_the_last_value_above_the_distance() -> None:
    assert steps_needed([3.0, 0.5, 2.0, 1.0, 0.2], 1.0) == 3
    assert steps_needed([0.5, 0.5], 1.0) == 0
    assert steps_needed([0.5, 2.0], 1.0) is None


def test_losses_are_those_after_each_step() -> None:
    choice = draw_markov_chain(seeded()), torch.arange(4)[None], 0
    losses = train(*choice, steps=3)
    assert len(losses) == 4
    assert losses[:3] == train(*choice, steps=2)
    assert losses == sorted(losses, reverse=True)


def test_training_brings_the_loss_close_to_the_entropy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entropy, "SEEDS", (0,))
    entropy.main(["--steps=60", f"--output_dir={tmp_path}"])
    results = json.loads((tmp_path / "entropy.json").read_text())
    assert results["entropy"] == [entropy.entropy(draw_markov_chain(seeded()))]
    for arm in results["arms"].values():
        assert 0 < arm["last_excess"][0] < 0.1 < arm["first_excess"][0]
        assert arm["steps_needed"]["0.1"][0] < 60
    assert (tmp_path / "entropy.png").stat().st_size > 5000
