# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The least time that a generation can take on a machine, from its operations and bytes."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from modeling_aogpt import AOGPTConfig
from modeling_aogpt.linear import Linear


@dataclass
class Machine:
    """What large products and large reads reach here, by their best run."""

    flop_per_second: float
    bytes_per_second: float

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


@torch.no_grad()
def measure_machine(config: AOGPTConfig, device: torch.device, dtype: torch.dtype) -> Machine:
    """Products of 512 rows with a weight of the MLP, and of one row with as many weights as the model's blocks have."""
    width, inner = config.hidden_size, config.intermediate_size
    num_layers = 3 * config.num_hidden_layers  # two of the MLP, and attention's, which are as large together
    layers = [Linear(width, inner, bias=False, device=device, dtype=dtype) for _ in range(num_layers)]
    rows, row = (torch.randn(count, width, device=device, dtype=dtype) for count in (512, 1))

    def read_all() -> None:
        for layer in layers:
            layer(row)

    product = best_time(lambda: layers[0](rows), device)
    num_bytes = sum(layer.weight.nbytes for layer in layers)
    return Machine(2 * rows.numel() * inner / product, num_bytes / best_time(read_all, device))


def best_time(function: Callable[[], object], device: torch.device, repeats: int = 10) -> float:
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        function()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass
class Work:
    """Floating-point operations and bytes of a whole generation with a cache, in passes that are alike."""

    num_passes: int
    flop: float
    bytes: float

    def seconds(self, machine: Machine) -> float:
        """A pass takes as long as what takes longer: computing, or reading weights and cache."""
        return max(self.flop / machine.flop_per_second, self.bytes / machine.bytes_per_second)


def decoder_work(config: AOGPTConfig, batch_size: int, length: int, num_steps: int, dtype: torch.dtype) -> Work:
    """
    `num_steps` fixed groups of g = n / T tokens: a pass queries g positions and enters g - 1 tokens of the group before
    (its last is entered by the first query), about 2 n - T rows in all, each of which sees n / 2 others on average.
    """
    num_passes = min(num_steps, length)
    width, inner, num_layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    group = length / num_passes
    num_entering = (num_passes - 1) * (group - 1)
    of_keys_and_values = 2 * width**2
    of_layer = 4 * width**2 + 2 * width * inner
    attended = 2 * width * length / 2
    flop = 2 * batch_size * (length + num_entering) * num_layers * (of_layer + attended)
    flop -= 2 * batch_size * num_entering * (of_layer + attended - of_keys_and_values)  # in the last layer
    head = width * config.vocab_size
    flop += 2 * batch_size * length * head

    weights = num_layers * of_layer + head
    cached = 2 * batch_size * num_layers * width * length / 2
    return Work(num_passes, flop, num_passes * (weights + cached) * dtype.itemsize)
