# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""How well a run uses its machine: operations per token, the device's best, and the peak of memory."""

import resource
import sys
import time

import torch

from modeling_aogpt import AOGPTConfig, MDMEncoderConfig

# Operations per second in bfloat16 and float16 with sums in float32, without sparsity, by NVIDIA's data sheets, which
# give twice as many since Hopper: with sparsity. By the whole name, since variants and slices of a device differ.
PEAK_OF_DEVICE = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA H100 80GB HBM3": 989.4e12,  # SXM
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989.4e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA GeForce RTX 4090": 165.2e12,
}


def flops_per_token(config: AOGPTConfig | MDMEncoderConfig, length: int) -> float:
    """
    Operations of a training step per token in the products that no implementation can leave out: 6 for every weight of
    the blocks and the head, and those of attention, of which causality spares a decoder half.

    Modulation is left out: it can be made once for each position instead of each row. Recomputing does not count.
    """
    layers, width = config.num_hidden_layers, config.hidden_size
    weights = layers * (4 * width**2 + 2 * width * config.intermediate_size) + width * config.vocab_size
    attention = 12.0 * layers * width * length
    return 6.0 * weights + (attention if isinstance(config, MDMEncoderConfig) else attention / 2)


def peak_flops(device: torch.device, mixed_precision: str) -> float | None:
    """The most operations per second of a device: known of GPUs in 16 bits, measured on a CPU; None: not known."""
    if device.type == "cpu":
        return product_speed()
    if device.type != "cuda" or mixed_precision not in ("bf16", "fp16"):
        return None
    return PEAK_OF_DEVICE.get(torch.cuda.get_device_name(device))


def product_speed() -> float:
    """Operations per second of float32 products on the CPU, the best of some."""
    left, right = torch.randn(512, 1024), torch.randn(1024, 1024)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        left @ right
        best = min(best, time.perf_counter() - started)
    return 2 * 512 * 1024**2 / best


def peak_memory(device: torch.device) -> int:
    """Bytes at the peak so far: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
