# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Slow and plain computations, on nothing but the forward pass of whole sequences, to hold the fast ones up against."""

import itertools
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig, MDMEncoderForMaskedLM
from modeling_aogpt.orders import blocks_of, group_order, left_to_right_orders, random_orders

Context = tuple[tuple[int, int], ...]  # (position, token), in the order in which they were revealed


def random_model(**arguments: object) -> AOGPTForAnyOrderLM:
    """A small float64 model whose predictions depend much on every token, position and order."""
    sizes = {
        "vocab_size": 11,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 12,
        "target_embedding_size": 8,
        "initializer_range": 0.6,
    }
    torch.manual_seed(0)
    return AOGPTForAnyOrderLM(AOGPTConfig(**(sizes | arguments))).double().eval()


def random_encoder(**arguments: object) -> MDMEncoderForMaskedLM:
    """The same with full attention; unless said, the last of the ids is the mask."""
    torch.manual_seed(0)
    sizes = random_model().config.to_dict()
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "target_embedding_size", "initializer_range")
    config = {name: sizes[name] for name in names} | {"vocab_size": 12, "max_position_embeddings": 12} | arguments
    torch.manual_seed(0)
    return MDMEncoderForMaskedLM(MDMEncoderConfig(**config)).double().eval()


@torch.no_grad()
def perturb_vectors(model: torch.nn.Module) -> None:
    """Moves biases and norms, which begin at 0 and 1, so that they show in what the model computes."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(torch.randn_like(parameter), alpha=0.3)


def take_out(folder: Path, name: str) -> None:
    """Saves a model's weights without one of them."""
    weights = load_file(folder / "model.safetensors")
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
def conditional(model: AOGPTForAnyOrderLM, context: Context, target: int, length: int) -> torch.Tensor:
    """p(x_target | context), (vocab,), by a full forward in an order where the target comes right after the context."""
    revealed = [position for position, _ in context]
    rest = [position for position in range(length) if position not in (*revealed, target)]
    ids = torch.zeros(1, length, dtype=torch.long)
    for position, token in context:
        ids[0, position] = token
    logits = model(ids, orders=torch.tensor([[*revealed, target, *rest]])).logits[0, target]
    return logits[: model.config.num_valid_tokens].double().softmax(-1)


@torch.no_grad()
def encoder_conditional(model: MDMEncoderForMaskedLM, context: Context, target: int, length: int) -> torch.Tensor:
    """p(x_target | context), (vocab,), by a pass over the whole sequence."""
    ids = torch.full((1, length), model.config.mask_token_id)
    for position, token in context:
        ids[0, position] = token
    return model(ids).logits[0, target, : model.config.num_valid_tokens].softmax(-1)


class Enumeration:
    """Distributions over all vocab^n sequences of a tiny model, as vectors indexed by itertools.product."""

    def __init__(
        self,
        model: AOGPTForAnyOrderLM | MDMEncoderForMaskedLM,
        length: int,
        conditional: Callable[..., torch.Tensor] = conditional,
    ) -> None:
        self.model, self.length, self.conditional = model, length, conditional
        self.sequences = list(itertools.product(range(model.config.num_valid_tokens), repeat=length))
        self._conditionals: dict[tuple[Context, int], list[float]] = {}

    def _probability(self, sequence: tuple[int, ...], context: Context, target: int) -> float:
        key = (context, target)
        if key not in self._conditionals:
            self._conditionals[key] = self.conditional(self.model, context, target, self.length).tolist()
        return self._conditionals[key][sequence[target]]

    def of_groups(self, groups: tuple[tuple[int, ...], ...]) -> torch.Tensor:
        """Positions of one group are drawn independently given those of the groups before, in the order given."""
        probabilities = []
        for sequence in self.sequences:
            context: Context = ()
            probability = 1.0
            for group in groups:
                for target in group:
                    probability *= self._probability(sequence, context, target)
                context += tuple((position, sequence[position]) for position in group)
            probabilities.append(probability)
        return torch.tensor(probabilities, dtype=torch.float64)

    def of_random_groups(self, sets: tuple[tuple[int, ...], ...]) -> torch.Tensor:
        """As `of_groups`, averaged over the orders within each group."""
        arrangements = list(itertools.product(*(itertools.permutations(group) for group in sets)))
        return sum(self.of_groups(groups) for groups in arrangements) / len(arrangements)

    def of_bernoulli(self, step_probabilities: list[float]) -> torch.Tensor:
        """Lemma 4.1: each position draws its own step."""
        total = torch.zeros(len(self.sequences), dtype=torch.float64)
        for steps in itertools.product(range(len(step_probabilities)), repeat=self.length):
            weight = torch.tensor([step_probabilities[step] for step in steps]).double().prod()
            groups = tuple(
                tuple(position for position in range(self.length) if steps[position] == step)
                for step in range(len(step_probabilities))
            )
            total += weight * self.of_random_groups(tuple(group for group in groups if group))
        return total

    def of_fixed(self, counts: list[int]) -> torch.Tensor:
        """Every order alike, cut into groups of given sizes."""
        orders = list(itertools.permutations(range(self.length)))
        return sum(self.of_groups(cut(order, counts)) for order in orders) / len(orders)

    def of_policy(self, policy: Callable[[Context, dict[int, torch.Tensor]], list[int]]) -> torch.Tensor:
        """
        Step after step `policy(context, predictions)` says which hidden positions are revealed, in which order, given
        what is revealed and what is predicted, (vocab,), at every hidden position.
        """
        index = {sequence: number for number, sequence in enumerate(self.sequences)}
        total = torch.zeros(len(self.sequences), dtype=torch.float64)

        def reveal(context: Context, probability: float) -> None:
            revealed = dict(context)
            hidden = [position for position in range(self.length) if position not in revealed]
            if not hidden:
                total[index[tuple(revealed[position] for position in range(self.length))]] += probability
                return
            predictions = {
                position: self.conditional(self.model, context, position, self.length) for position in hidden
            }
            chosen = policy(context, predictions)
            for tokens in itertools.product(range(self.model.config.num_valid_tokens), repeat=len(chosen)):
                added = tuple(zip(chosen, tokens, strict=True))
                weight = torch.stack([predictions[position][token] for position, token in added]).prod().item()
                reveal(context + added, probability * weight)

        reveal((), 1.0)
        return total

    def counts_of(self, samples: torch.LongTensor) -> torch.Tensor:
        base = self.model.config.num_valid_tokens ** torch.arange(self.length - 1, -1, -1)
        return (samples * base).sum(1).bincount(minlength=len(self.sequences)).double()


def cut(order: tuple[int, ...], counts: list[int]) -> tuple[tuple[int, ...], ...]:
    ends = list(itertools.accumulate(counts))
    return tuple(tuple(order[end - count : end]) for end, count in zip(ends, counts, strict=True))


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """
    Pearson's statistic over the bound it exceeds once in 10,000 times (Wilson and Hilferty): below 1 is good. What is
    expected less than 10 times is counted together.
    """
    expected = probabilities * counts.sum()
    is_rare = expected < 10
    assert is_rare.sum() < len(counts) / 2, "too few samples for a chi-square test"
    if is_rare.any():
        counts, expected = (torch.cat((v[~is_rare], v[is_rare].sum()[None])) for v in (counts, expected))
        if expected[-1] == 0:
            assert counts[-1] == 0, "drawn although impossible"
            counts, expected = counts[:-1], expected[:-1]
    degrees = len(counts) - 1
    bound = degrees * (1 - 2 / (9 * degrees) + 3.719 * (2 / (9 * degrees)) ** 0.5) ** 3
    return ((counts - expected) ** 2 / expected).sum().item() / bound


def check_estimates(estimates: torch.Tensor, exact: torch.Tensor, standard_errors: torch.Tensor) -> None:
    """Of some hundred independent estimates: no bias, and standard errors as large as the errors are."""
    errors, variance = estimates - exact, standard_errors.square().mean()
    assert variance > 1e-6, "nothing varies, so nothing is tested"
    assert errors.mean().abs() < 4 * (variance / len(errors)).sqrt(), "biased"
    assert 0.75 < errors.square().mean() / variance < 1.33, "wrong standard errors"


def block_orders(
    batch_size: int,
    length: int,
    block_length: int | None = None,
    stride: int | None = None,
    generator: torch.Generator | None = None,
) -> torch.LongTensor:
    """Independent orders, (batch, n), block after block and uniform within each."""
    orders = random_orders(batch_size, length, generator=generator)
    return group_order(orders, blocks_of(left_to_right_orders(batch_size, length), block_length, stride))
