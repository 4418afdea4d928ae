# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The least time that a generation can take on a machine, from its operations and bytes."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from modeling_aogpt import AOGPTConfig
from modeling_aogpt.linear import Linear


@dataclass
class Machine:
    """What large products and large reads reach here, by their best run."""

    flop_per_second: float
    bytes_per_second: float


@torch.no_grad()
def measure_machine(config: AOGPTConfig, device: torch.device, dtype: torch.dtype) -> Machine:
    """
    Products of many rows with a weight of the MLP, and of one row with as many weights as the model's blocks have. An
    accelerator gets so much at once, and so many in a queue, that it is not the calls that take the time.
    """
    is_cpu = device.type == "cpu"
    num_rows, num_calls = (512, 1) if is_cpu else (2**14, 16)
    width, inner = config.hidden_size, config.intermediate_size
    num_layers = 3 * config.num_hidden_layers  # two of the MLP, and attention's, which are as large together
    sizes = [inner] * num_layers if is_cpu else [inner * num_layers]
    layers = [Linear(width, size, bias=False, device=device, dtype=dtype) for size in sizes]
    of_mlp = Linear(width, inner, bias=False, device=device, dtype=dtype)
    rows, row = (torch.randn(count, width, device=device, dtype=dtype) for count in (num_rows, 1))

    def read_all() -> None:
        for layer in layers:
            layer(row)

    product = best_time(lambda: of_mlp(rows), device, num_calls)
    num_bytes = sum(layer.weight.nbytes for layer in layers)
    return Machine(2 * rows.numel() * inner / product, num_bytes / best_time(read_all, device, num_calls))


def best_time(function: Callable[[], object], device: torch.device, num_calls: int, repeats: int = 10) -> float:
    """Seconds of a call, of the best of some rounds."""
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(num_calls):
            function()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times) / num_calls


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@dataclass
class Work:
    """Floating-point operations and bytes of a whole generation with a cache, in passes that are alike."""

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
    return Work(flop, num_passes * (weights + cached) * dtype.itemsize)
