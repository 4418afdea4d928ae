# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Smallest possible loss in several training orders: the entropy of the data (Remark 3.1 of the paper).

    python eval/benchmarks/entropy.py [--output_dir DIR]

The data are sequences of four bits from a random Markov chain. The probability of each of the 16 sequences is known,
and so is their entropy. For each seed, the command draws a chain, and trains three small AO-GPT models: left to right,
in one random order, and in all 24 orders. The training loss is the exact expected loss, a sum over all sequences and
orders. The command writes entropy.json and entropy.png, which show how far each loss is above the entropy.
"""

import itertools
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch.nn.functional import cross_entropy, pad

from common.commands import Options, Parser, command_line, one_line_errors, option
from common.files import write_json
from common.reports import BLUE, GREEN, ORANGE, save_figure, style_axes
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.orders import random_orders

LENGTH, SEEDS, LEARNING_RATE = 4, (0, 1, 2), 4e-3
SEQUENCES = torch.tensor(list(itertools.product(range(2), repeat=LENGTH)))
ALL_ORDERS = torch.tensor(list(itertools.permutations(range(LENGTH))))
SIZES = {"vocab_size": 2, "max_position_embeddings": LENGTH, "hidden_size": 32, "target_embedding_size": 32}
SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 2, "initializer_range": 0.06}
DISTANCES = (0.1, 0.01, 0.001)  # bits above the entropy; entropy.json says how many steps each one takes


@dataclass
class Arguments(Options):
    """Options of eval/benchmarks/entropy.py."""

    steps: int = option(300, "Number of training steps.", least=1)
    output_dir: Path = option(Path("runs/entropy"), "Folder for entropy.json and entropy.png.")


def draw_markov_chain(generator: torch.Generator) -> torch.DoubleTensor:
    """Return the probabilities (16,) of `SEQUENCES` in a Markov chain whose transition probabilities are random."""
    ones = torch.rand(3, generator=generator, dtype=torch.float64)  # p(bit = 1): first bit, after a 0, after a 1
    previous = pad(SEQUENCES[:, :-1] + 1, (1, 0))
    return torch.where(SEQUENCES == 1, ones[previous], 1 - ones[previous]).prod(dim=-1)


def entropy(probabilities: torch.DoubleTensor) -> float:
    """Return the entropy of a distribution in bits."""
    return torch.special.entr(probabilities).sum().item() / math.log(2)


def expected_loss(
    model: AOGPTForAnyOrderLM, sequences: torch.LongTensor, probabilities: torch.DoubleTensor, orders: torch.LongTensor
) -> torch.Tensor:
    """Return the expected negative log-likelihood of a sequence in bits, averaged over `orders` (num_orders, n)."""
    input_ids = sequences.repeat(len(orders), 1)
    logits = model(input_ids, orders=orders.repeat_interleave(len(sequences), dim=0)).logits
    nats = cross_entropy(logits.double().transpose(1, 2), input_ids, reduction="none").sum(dim=-1)
    return (nats.view(len(orders), -1) @ probabilities).mean() / math.log(2)


def train(probabilities: torch.DoubleTensor, orders: torch.LongTensor, seed: int, steps: int) -> list[float]:
    """Train a model with the exact loss over `SEQUENCES` and `orders`. Return losses in bits after 0, 1, ... steps."""
    torch.manual_seed(seed)
    model, losses = AOGPTForAnyOrderLM(AOGPTConfig(**SIZES)), []
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.0)
    for _ in range(steps):
        loss = expected_loss(model, SEQUENCES, probabilities, orders)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, expected_loss(model, SEQUENCES, probabilities, orders).item()]


def steps_needed(excess: list[float], distance: float) -> int | None:
    """Return the number of steps after which `excess` stays at `distance` or below, or None if it does not."""
    steps = max((step + 1 for step, value in enumerate(excess) if value > distance), default=0)
    return steps if steps < len(excess) else None


def _plot(excess: dict[str, list[list[float]]], path: Path) -> None:
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for (arm, of_seeds), color in zip(excess.items(), (BLUE, GREEN, ORANGE), strict=True):
        lines = axes.plot(list(zip(*of_seeds, strict=True)), color=color, linewidth=1.2)
        lines[0].set_label(arm)
    axes.set(yscale="log", xlabel="training steps", ylabel="loss minus entropy, bits per sequence")
    style_axes(axes, "Distance of the loss from the entropy of the data")
    axes.legend(title="training orders", frameon=False)
    save_figure(figure, path)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    (arguments,) = Parser(Arguments).parse(argv)
    entropies, excess = [], {"left to right": [], "one random order": [], "all 24 orders": []}
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(seed)
        probabilities, shared = draw_markov_chain(generator), random_orders(1, LENGTH, generator=generator)
        entropies.append(entropy(probabilities))
        for arm, orders in zip(excess, (torch.arange(LENGTH)[None], shared, ALL_ORDERS), strict=True):
            losses = train(probabilities, orders, seed, arguments.steps)
            excess[arm].append([loss - entropies[-1] for loss in losses])
    arms = {
        arm: {
            "first_excess": [values[0] for values in of_seeds],
            "last_excess": [values[-1] for values in of_seeds],
            "steps_needed": {
                distance: [steps_needed(values, distance) for values in of_seeds] for distance in DISTANCES
            },
        }
        for arm, of_seeds in excess.items()
    }
    command = command_line(__file__, argv)
    results = {"command": command, "seeds": SEEDS, "steps": arguments.steps, "entropy": entropies, "arms": arms}
    _plot(excess, arguments.output_dir / "entropy.png")
    write_json(arguments.output_dir / "entropy.json", results)
    print(f"Written: {arguments.output_dir / 'entropy'}.json and .png.")


if __name__ == "__main__":
    main(sys.argv[1:])
