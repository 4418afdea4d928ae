# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from modeling_aogpt import AOGPTConfig, MDMEncoderConfig
from training.throughput import flops_per_token, peak_flops, peak_memory


def test_operations_are_counted() -> None:
    """nanoGPT's count, 6 N + 12 L H Q T of GPT-2 small, without tables; causality spares half of the second term."""
    weights = 12 * 12 * 768**2 + 768 * 50304
    assert flops_per_token(AOGPTConfig(), 1024) == pytest.approx(6 * weights + 6 * 12 * 768 * 1024)
    assert flops_per_token(MDMEncoderConfig(), 1024) == pytest.approx(6 * weights + 12 * 12 * 768 * 1024)


def test_best_speed_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1e8 < peak_flops(torch.device("cpu"), "no") < 1e15
    for name, expected in (
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),  # a seventh of the device
        ("NVIDIA L4", None),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        assert peak_flops(torch.device("cuda"), "bf16") == expected
        assert peak_flops(torch.device("cuda"), "no") is None


def test_memory_has_a_peak() -> None:
    before = peak_memory(torch.device("cpu"))
    torch.ones(before // 4 + 10_000_000)  # more than the process ever had
    assert peak_memory(torch.device("cpu")) > before > 1e7
