# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Slow reference computations that use only forward passes of whole sequences, to compare the fast ones with."""

import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from common.files import write_json
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig, MDMEncoderForMaskedLM
from modeling_aogpt.orders import Orders, group_orders, left_to_right_orders, random_orders

Context = tuple[tuple[int, int], ...]  # (position, token), in the order in which they were unmasked


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 12,
    "target_embedding_size": 8,
    "initializer_range": 0.6,  # so that every weight affects the logits
}


def seeded(seed: int = 0) -> torch.Generator:
    """Return a generator with a seed."""
    return torch.Generator().manual_seed(seed)


def random_model(**arguments: object) -> AOGPTForAnyOrderLM:
    """Return a small float64 decoder whose predictions depend strongly on every token, position and order."""
    torch.manual_seed(0)
    return AOGPTForAnyOrderLM(AOGPTConfig(**({"vocab_size": 11} | SIZES | arguments))).double().eval()


def random_encoder(**arguments: object) -> MDMEncoderForMaskedLM:
    """Return the same as an encoder with full attention. By default the last of its 12 ids is the mask."""
    torch.manual_seed(0)
    return MDMEncoderForMaskedLM(MDMEncoderConfig(**({"vocab_size": 12} | SIZES | arguments))).double().eval()


def with_class(model: PreTrainedModel, kind: type[PreTrainedModel]) -> PreTrainedModel:
    """Return a model of another class with the same weights."""
    other = kind(model.config).double().eval()
    other.load_state_dict(model.state_dict())
    return other


def ragged_inputs() -> torch.LongTensor:
    """Return inputs (3, 12) of `random_model`: all masked, one position masked, and several positions masked."""
    inputs = torch.randint(0, 11, (3, 12), generator=seeded())
    inputs[0] = 11
    inputs[1, 5] = 11
    inputs[2, [0, 3, 4, 8, 11]] = 11
    return inputs


@torch.no_grad()
def perturb_vectors(model: torch.nn.Module) -> None:
    """Change biases and norms, which are initialized to 0 and 1, so that they affect the output of the model."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(torch.randn_like(parameter), alpha=0.3)


def any_order_methods(model_class: type) -> dict[str, Callable]:
    """Return the public methods of the mixins of this package that a model class has, by name."""
    methods = {
        name: value
        for base in model_class.__mro__
        if base.__module__.startswith("modeling_aogpt") and base.__name__.endswith("Mixin")
        for name, value in vars(base).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    del methods["adjust_generation_fn"]  # Transformers calls it
    return methods


def remove_weight(folder: Path, name: str) -> None:
    """Remove one tensor from the saved weights in `folder`."""
    weights = load_file(folder / "model.safetensors")
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def save_judge(folder: Path, tokenizer: PreTrainedTokenizerBase, longest: int = 12) -> str:
    """Write a tiny GPT-2 and a tokenizer to a folder, and return the folder."""
    set_seed(0)
    sizes = {"n_positions": longest, "n_embd": 16, "n_layer": 1, "n_head": 2, "initializer_range": 0.5}
    ends = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
    GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes, **ends)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def make_run(model_folder: str, sequence_length: int, **settings: object) -> None:
    """Make the parent of a folder `model` the folder of a finished run with these settings."""
    run = Path(model_folder).parent
    (run / "tokenizer").mkdir()
    write_json(run / "results.json", {"arguments": {"sequence_length": sequence_length, **settings}, "steps": 1})


def causal_nats(judge: str, ids: list[int]) -> float:
    """Return -log p of all ids but the first, under the GPT-2 in a folder."""
    logits = GPT2LMHeadModel.from_pretrained(judge)(torch.tensor([ids])).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum").item()


@torch.no_grad()
def conditional(model: AOGPTForAnyOrderLM, context: Context, target: int, length: int) -> torch.Tensor:
    """Return p(x_target | context) (num_valid_tokens,) by a full forward pass in an order: context, target, rest."""
    given = [position for position, _ in context]
    rest = [position for position in range(length) if position not in (*given, target)]
    ids = torch.zeros(1, length, dtype=torch.long)
    for position, token in context:
        ids[0, position] = token
    logits = model(ids, orders=torch.tensor([[*given, target, *rest]])).logits[0, target]
    return logits[: model.config.num_valid_tokens].double().softmax(-1)


@torch.no_grad()
def encoder_conditional(model: MDMEncoderForMaskedLM, context: Context, target: int, length: int) -> torch.Tensor:
    """Return p(x_target | context) (num_valid_tokens,) of an encoder by a pass over the whole sequence."""
    ids = torch.full((1, length), model.config.mask_token_id)
    for position, token in context:
        ids[0, position] = token
    return model(ids).logits[0, target, : model.config.num_valid_tokens].softmax(-1)


def network_output(
    model: MDMEncoderForMaskedLM, input_ids: torch.LongTensor, sigma: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the output of the head of an encoder (batch, n, vocab_size), without the changes of its `forward`."""
    return model.apply_head(model.model(input_ids, sigma=sigma).last_hidden_state)


def log_score(model: MDMEncoderForMaskedLM, input_ids: torch.LongTensor, sigma: torch.Tensor) -> torch.Tensor:
    """
    Return the log score of a SEDD model, log(p_t(x_t with y at i) / p_t(x_t)), as a tensor (batch, n, vocab_size).

    For a position i and an id y, the log score is the network's output minus log(e^sigma - 1) minus log V, where V is
    the number of ids of text. It is 0 at the id that `input_ids` has at position i.
    """
    output = network_output(model, input_ids, sigma)
    scale = sigma.expm1().log() + math.log(model.config.num_valid_tokens)
    return (output - scale[:, None, None]).to(output.dtype).scatter(2, input_ids[..., None], 0.0)


class Enumeration:
    """Exact distributions over all vocab^n sequences of a tiny model, as vectors in the order of itertools.product."""

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
        """Return the distribution if groups are drawn one by one, positions of a group independently of each other."""
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
        """Return the mean of `of_groups` over the orders within each group."""
        arrangements = list(itertools.product(*(itertools.permutations(group) for group in sets)))
        return sum(self.of_groups(groups) for groups in arrangements) / len(arrangements)

    def of_bernoulli(self, step_probabilities: list[float]) -> torch.Tensor:
        """Return the distribution if each position draws its own step (Lemma 4.1)."""
        total = torch.zeros(len(self.sequences), dtype=torch.float64)
        for steps in itertools.product(range(len(step_probabilities)), repeat=self.length):
            weight = torch.tensor([step_probabilities[step] for step in steps]).double().prod()
            groups = tuple(
                tuple(position for position in range(self.length) if steps[position] == step)
                for step in range(len(step_probabilities))
            )
            total += weight * self.of_random_groups(tuple(group for group in groups if group))
        return total

    def of_fixed_counts(self, counts: list[int]) -> torch.Tensor:
        """Return the distribution if a uniformly random order is cut into groups of the given sizes."""
        orders = list(itertools.permutations(range(self.length)))
        return sum(self.of_groups(cut_order(order, counts)) for order in orders) / len(orders)

    def of_policy(self, policy: Callable[[Context, dict[int, torch.Tensor]], list[int]]) -> torch.Tensor:
        """
        Return the distribution if each step unmasks the positions that `policy(context, predictions)` returns.

        `predictions` has the distribution (num_valid_tokens,) of each masked position given the context.
        """
        index = {sequence: number for number, sequence in enumerate(self.sequences)}
        total = torch.zeros(len(self.sequences), dtype=torch.float64)

        def continue_from(context: Context, probability: float) -> None:
            tokens = dict(context)
            masked = [position for position in range(self.length) if position not in tokens]
            if not masked:
                total[index[tuple(tokens[position] for position in range(self.length))]] += probability
                return
            predictions = {
                position: self.conditional(self.model, context, position, self.length) for position in masked
            }
            chosen = policy(context, predictions)
            for drawn in itertools.product(range(self.model.config.num_valid_tokens), repeat=len(chosen)):
                added = tuple(zip(chosen, drawn, strict=True))
                weight = torch.stack([predictions[position][token] for position, token in added]).prod().item()
                continue_from(context + added, probability * weight)

        continue_from((), 1.0)
        return total

    def count(self, samples: torch.LongTensor) -> torch.Tensor:
        """Return how often each sequence occurs in the samples (draws, length)."""
        base = self.model.config.num_valid_tokens ** torch.arange(self.length - 1, -1, -1)
        return (samples * base).sum(1).bincount(minlength=len(self.sequences)).double()


def cut_order(order: tuple[int, ...], counts: list[int]) -> tuple[tuple[int, ...], ...]:
    """Cut an order into consecutive groups of the given sizes."""
    ends = list(itertools.accumulate(counts))
    return tuple(tuple(order[end - count : end]) for end, count in zip(ends, counts, strict=True))


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """
    Return Pearson's statistic divided by its critical value at the level 1e-4 (Wilson-Hilferty): below 1 passes.

    Outcomes that are expected less than 10 times are counted together.
    """
    expected = probabilities * counts.sum()
    is_rare = expected < 10
    assert is_rare.sum() < len(counts) / 2, "too few samples for a chi-square test"
    if is_rare.any():
        counts, expected = (torch.cat((v[~is_rare], v[is_rare].sum()[None])) for v in (counts, expected))
        if expected[-1] == 0:
            assert counts[-1] == 0, "an impossible outcome was drawn"
            counts, expected = counts[:-1], expected[:-1]
    degrees = len(counts) - 1
    bound = degrees * (1 - 2 / (9 * degrees) + 3.719 * (2 / (9 * degrees)) ** 0.5) ** 3
    return ((counts - expected) ** 2 / expected).sum().item() / bound


def is_uniform(drawn: torch.Tensor, outcomes: Iterable[Sequence[int]]) -> bool:
    """Return whether the rows of `drawn` (draws, n) pass a chi-square test of a uniform distribution of outcomes."""
    counts = torch.stack([(drawn == torch.tensor(outcome)).all(1).sum() for outcome in outcomes])
    assert counts.sum() == len(drawn), "an impossible outcome was drawn"
    return chi_square(counts, torch.full((len(counts),), 1 / len(counts))) < 1


def check_estimates(estimates: torch.Tensor, exact: torch.Tensor, standard_errors: torch.Tensor) -> None:
    """Check that hundreds of independent estimates are unbiased and have the right standard errors."""
    errors, variance = estimates - exact, standard_errors.square().mean()
    assert variance > 1e-6, "the estimates do not vary, so nothing is tested"
    assert errors.mean().abs() < 4 * (variance / len(errors)).sqrt(), "biased"
    assert 0.75 < errors.square().mean() / variance < 1.33, "wrong standard errors"


def block_orders(
    batch_size: int,
    length: int,
    block_length: int | None = None,
    stride: int | None = None,
    generator: torch.Generator | None = None,
) -> torch.LongTensor:
    """Return independent orders (batch, n): block after block, uniformly random within each block."""
    orders = random_orders(batch_size, length, generator=generator)
    return group_orders(orders, Orders("random", block_length, stride).blocks(left_to_right_orders(batch_size, length)))
