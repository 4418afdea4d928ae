# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Lower bound on the time of a generation on this machine.

The bound, which reports call the floor, is computed from the number of floating-point operations, the number of bytes
that the generation reads, and measured rates of the machine.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from modeling_aogpt import AOGPTConfig
from modeling_aogpt.devices import Linear


@dataclass
class Machine:
    """The highest measured rates of two kinds of work: large matrix products, and reading weights."""

    flop_per_second: float
    bytes_per_second: float


@torch.no_grad()
def measure_machine(config: AOGPTConfig, device: torch.device, dtype: torch.dtype) -> Machine:
    """
    Measure the rates of a machine with two kinds of matrix product.

    The first multiplies many vectors by one weight matrix of an MLP (limited by computation). The second multiplies one
    vector by matrices that are together as large as all blocks of the model (limited by reading memory). On an
    accelerator, the matrices are large and many products are queued, so that the time to launch kernels does not
    matter.
    """
    is_cpu = device.type == "cpu"
    num_rows, num_calls = (512, 1) if is_cpu else (2**14, 16)
    width, inner = config.hidden_size, config.intermediate_size
    num_layers = 3 * config.num_hidden_layers  # 2 for the MLP, and 1 for attention (4 smaller matrices)
    sizes = [inner] * num_layers if is_cpu else [inner * num_layers]
    layers = [Linear(width, size, bias=False, device=device, dtype=dtype) for size in sizes]
    mlp_layer = Linear(width, inner, bias=False, device=device, dtype=dtype)
    rows, row = (torch.randn(count, width, device=device, dtype=dtype) for count in (num_rows, 1))

    def read_all() -> None:
        for layer in layers:
            layer(row)

    product_seconds = best_time(lambda: mlp_layer(rows), device, num_calls)
    num_bytes = sum(layer.weight.nbytes for layer in layers)
    return Machine(2 * rows.numel() * inner / product_seconds, num_bytes / best_time(read_all, device, num_calls))


def best_time(function: Callable[[], object], device: torch.device, num_calls: int, repeats: int = 10) -> float:
    """Run `repeats` rounds of `num_calls` calls, and return the seconds per call in the fastest round."""
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
    """Wait until an accelerator has finished its queued work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@dataclass
class Work:
    """Number of floating-point operations of a whole generation with a cache, and number of bytes that it reads."""

    flop: float
    bytes: float

    def seconds(self, machine: Machine) -> float:
        """Return the time of all operations, or the time to read all weights and caches, whichever is longer."""
        return max(self.flop / machine.flop_per_second, self.bytes / machine.bytes_per_second)


def count_work(config: AOGPTConfig, batch_size: int, length: int, num_steps: int, dtype: torch.dtype) -> Work:
    """
    Count the work of a generation of n = `length` tokens in T = `num_steps` equal steps, each of g = n / T tokens.

    A pass has g query rows, and g - 1 rows that add tokens of the previous step to the cache. (The first query row adds
    the remaining token of that step.) All passes together have about 2 n - T rows. On average, a row attends to n / 2
    rows.
    """
    num_passes = min(num_steps, length)
    width, inner, num_layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    group = length / num_passes
    num_entering = (num_passes - 1) * (group - 1)
    keys_and_values = 2 * width**2
    layer = 4 * width**2 + 2 * width * inner
    attention = 2 * width * length / 2
    flop = 2 * batch_size * (length + num_entering) * num_layers * (layer + attention)
    # In the last layer, rows that only add tokens to the cache need only keys and values.
    flop -= 2 * batch_size * num_entering * (layer + attention - keys_and_values)
    head = width * config.vocab_size
    flop += 2 * batch_size * length * head

    weights = num_layers * layer + head
    cached = 2 * batch_size * num_layers * width * length / 2
    return Work(flop, num_passes * (weights + cached) * dtype.itemsize)
