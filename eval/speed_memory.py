# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Memory of a generation, each length in a process of its own."""

import multiprocessing
import threading
from typing import Any

import psutil
import torch
from tqdm import tqdm

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.cached_decoder import PASSES_WORTH_PACKING, CachedDecoder

# As few steps as make a CPU pack the weights, which then adds the same to the peak of every length.
NUM_STEPS = PASSES_WORTH_PACKING


def measure_memory(config: AOGPTConfig, lengths: list[int], device: str, dtype: torch.dtype) -> list[dict[str, Any]]:
    """
    For each length: bytes of keys and values and of the modulation table, and how far a generation of one sequence
    raised the memory of a process that held the model (on CUDA: what was allocated).
    """
    context = multiprocessing.get_context("spawn")
    found = []
    for length in tqdm(lengths, desc="memory", unit="length"):
        with context.Pool(1) as pool:
            found.append(pool.apply(memory_of, (config.to_dict(), length, device, dtype, torch.get_num_threads())))
    return found


def memory_of(sizes: dict[str, Any], length: int, device_name: str, dtype: torch.dtype, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    device = torch.device(device_name)
    config = AOGPTConfig(**(sizes | {"max_position_embeddings": length}))
    model = AOGPTForAnyOrderLM(config).eval().to(device, dtype)
    model.generate(max_length=min(length, 2))  # what is loaded once
    held = {}

    class Observed(CachedDecoder):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            held["cache_bytes"] = sum(store.nbytes for store in self.cache.stores())
            held["modulation_bytes"] = sum(table.nbytes for table in self.modulations or ())

    model.canvas_class = Observed
    with PeakMemory(device) as peak:
        model.generate(max_length=length, num_steps=min(NUM_STEPS, length), reveal="fixed")
    return {"length": length, "num_parameters": model.num_parameters(), **held, "peak_bytes": peak.bytes}


class PeakMemory:
    """By how much memory rose at most within the block: sampled every 2 ms, or as CUDA's allocator counts it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes = 0
        self._process = psutil.Process()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "PeakMemory":
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device)
        else:
            self._before = self._process.memory_info().rss
            self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._is_over.wait(0.002):
            self.bytes = max(self.bytes, self._process.memory_info().rss - self._before)

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            self.bytes = torch.cuda.max_memory_allocated(self.device) - self._before
        else:
            self._is_over.set()
            self._thread.join()
            self.bytes = max(self.bytes, self._process.memory_info().rss - self._before)
