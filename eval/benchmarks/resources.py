# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Lower bound on the time of a generation on this machine, and memory of a generation.

The bound, which reports call the floor, is computed from the number of floating-point operations, the number of bytes
that the generation reads, and measured rates of the machine.
"""

import multiprocessing
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import torch
from torch import nn

from common.commands import progress_bar
from eval.benchmarks.contenders import make_encoder
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.cpu_inference import copy_for_cpu, pack_weights
from modeling_aogpt.decoding_state import MIN_PASSES_TO_PREPARE, CachedDecodingState

# Number of steps of the generations whose memory is measured. It is the smallest number for which a CPU packs the
# weights for oneDNN. The peak therefore includes the packed weights, unless there are fewer tokens than this number.
NUM_STEPS = MIN_PASSES_TO_PREPARE


# ------------------------------------------------------------------------------------------------------------- time


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
    vector by matrices that are together as large as all layers of the model (limited by reading memory). On an
    accelerator, the matrices are large and many products are queued, so that the time to launch kernels does not
    matter. On a CPU, packed weights are measured too, and the faster rate counts.
    """
    is_cpu = device.type == "cpu"
    num_rows, num_calls = (512, 1) if is_cpu else (2**14, 16)
    width, inner = config.hidden_size, config.intermediate_size
    # A layer is as large as three MLP matrices: the two of its MLP, and the four of attention, which together have the
    # size of one.
    num_layers = 3 * config.num_hidden_layers
    sizes = [inner] * num_layers if is_cpu else [inner * num_layers]
    options: dict[str, Any] = {"bias": False, "device": device, "dtype": dtype}
    layers = nn.ModuleList(nn.Linear(width, size, **options) for size in sizes)
    mlp_layer = nn.Linear(width, inner, **options)
    rows, row = (torch.randn(count, width, device=device, dtype=dtype) for count in (num_rows, 1))

    def read_all(layers: nn.ModuleList) -> None:
        for layer in layers:
            layer(row)

    def fastest(model: nn.Module, function: Callable[[nn.Module], object]) -> float:
        """Return the seconds of the function with plain or packed weights, whichever is shorter."""
        plain, packed = copy_for_cpu(model), copy_for_cpu(model)
        pack_weights(packed)
        return min(best_time(partial(function, some), device, num_calls) for some in (plain, packed))

    product_seconds = fastest(mlp_layer, lambda layer: layer(rows))
    num_bytes = sum(layer.weight.nbytes for layer in layers)
    return Machine(2 * rows.numel() * inner / product_seconds, num_bytes / fastest(layers, read_all))


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
    width, num_layers = config.hidden_size, config.num_hidden_layers
    queries, keys = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
    group = length / num_passes
    num_entering = (num_passes - 1) * (group - 1)
    keys_and_values = 2 * width * keys
    layer = 2 * width * (queries + keys) + (3 if config.gated_mlp else 2) * width * config.intermediate_size
    attention = 2 * queries * length / 2
    flop = 2 * batch_size * (length + num_entering) * num_layers * (layer + attention)
    # In the last layer, rows that only add tokens to the cache need only keys and values.
    flop -= 2 * batch_size * num_entering * (layer + attention - keys_and_values)
    head = width * config.vocab_size
    flop += 2 * batch_size * length * head

    weights = num_layers * layer + head
    cached = 2 * batch_size * num_layers * keys * length / 2
    return Work(flop, num_passes * (weights + cached) * dtype.itemsize)


# ----------------------------------------------------------------------------------------------------------- memory


def run_in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a new process, so that only its own memory is measured, and return its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def measure_memory(config: AOGPTConfig, lengths: list[int], device: str, dtype: torch.dtype) -> list[dict[str, Any]]:
    """
    Return, for each length, the bytes needed to generate one sequence. Each measurement runs in a new process.

    `cache_bytes` is the size of the keys and values, and `modulation_bytes` the size of the modulation table.
    `peak_bytes` is the largest increase of the memory of the process (on CUDA: of allocated memory) during generation.
    `encoder_peak_bytes` is the same for an encoder.
    """
    arguments = (device, dtype, torch.get_num_threads())
    return [
        {"length": length}
        | run_in_new_process(measure_decoder, config.to_dict(), length, *arguments)
        | run_in_new_process(measure_encoder, config.to_dict(), length, *arguments)
        for length in progress_bar(lengths, desc="memory", unit="length")
    ]


def measure_decoder(
    sizes: dict[str, Any], length: int, device_name: str, dtype: torch.dtype, threads: int
) -> dict[str, int]:
    """Return the bytes that a decoder needs to generate one sequence (see `measure_memory`)."""
    model = _make_decoder(sizes, length, device_name, dtype, threads)
    model.generate(max_length=min(length, 2))  # so that libraries that are loaded once per process are not counted
    held = {}

    class Observed(CachedDecodingState):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            held["cache_bytes"] = sum(tensor.nbytes for tensor in self.cache.tensors())
            held["modulation_bytes"] = sum(table.nbytes for table in self.precomputed.tables or ())

    model.decoding_state_class = Observed
    settings = {"max_length": length, "num_steps": min(NUM_STEPS, length), "unmasking": "fixed_count"}
    return {"peak_bytes": measure_peak(partial(model.generate, **settings), model.device)} | held


def measure_encoder(
    sizes: dict[str, Any], length: int, device_name: str, dtype: torch.dtype, threads: int
) -> dict[str, int]:
    """
    Return the peak memory of a generation of one sequence with an encoder (see `measure_memory`).

    Only the last step is run, because every step of an encoder computes all rows.
    """
    config = _make_decoder(sizes, length, device_name, dtype, threads).config
    with torch.device(device_name):
        model = make_encoder("encoder", config).eval().to(dtype)
    inputs = torch.zeros(1, length, dtype=torch.long)
    inputs[:, : max(1, length // NUM_STEPS)] = config.mask_token_id
    model.generate(inputs[:, :2], num_steps=1)
    return {"encoder_peak_bytes": measure_peak(partial(model.generate, inputs, num_steps=1), model.device)}


def _make_decoder(
    sizes: dict[str, Any], length: int, device_name: str, dtype: torch.dtype, threads: int
) -> AOGPTForAnyOrderLM:
    torch.set_num_threads(threads)
    config = AOGPTConfig(**(sizes | {"max_position_embeddings": length}))
    with torch.device(device_name):
        return AOGPTForAnyOrderLM(config).eval().to(dtype)


def measure_peak(function: Callable[[], object], device: torch.device) -> int:
    """
    Call a function, and return the largest increase of memory in bytes.

    On CUDA, the allocator reports the peak. Otherwise, the memory of the process is sampled every 2 ms.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        function()
        return torch.cuda.max_memory_allocated(device) - before
    process, is_over = psutil.Process(), threading.Event()
    samples = [process.memory_info().rss]

    def sample() -> None:
        while not is_over.wait(0.002):
            samples.append(process.memory_info().rss)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    function()
    is_over.set()
    thread.join()
    return max(*samples, process.memory_info().rss) - samples[0]
