# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from modeling_aogpt.linear import HAS_ONEDNN, Linear, uses_onednn
from tests.references import random_model


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 24), (5, 24), (2, 3, 24), (0, 24), (2, 0, 24)])
def test_is_a_linear_layer(shape: tuple[int, ...], bias: bool) -> None:
    layer = Linear(24, 40, bias=bias)
    inputs = torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]  # not contiguous
    expected = F.linear(inputs.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            torch.testing.assert_close(layer(inputs).double(), expected, rtol=0, atol=1e-5)


def test_gradients_are_those_of_a_linear_layer() -> None:
    layer, inputs = Linear(8, 4), torch.randn(3, 8, requires_grad=True)
    layer(inputs).square().sum().backward()
    assert layer.weight.grad is not None
    assert inputs.grad is not None


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.skipif(not HAS_ONEDNN, reason="this PyTorch has no oneDNN")
def test_only_plain_float32_inference_goes_to_onednn() -> None:
    rows, weight = torch.randn(3, 8), torch.nn.Parameter(torch.randn(4, 8))
    assert not uses_onednn(rows, weight)
    with torch.no_grad():
        assert uses_onednn(rows, weight)
        assert not uses_onednn(rows.double(), torch.nn.Parameter(weight.double()))
        assert not uses_onednn(rows.bfloat16(), torch.nn.Parameter(weight.bfloat16()))
        assert not uses_onednn(rows.to("meta"), weight)
        with torch.autocast("cpu", torch.bfloat16):
            assert not uses_onednn(rows, weight)
        with torch.backends.mkldnn.flags(enabled=False):
            assert not uses_onednn(rows, weight)


@pytest.mark.skipif(not HAS_ONEDNN, reason="this PyTorch has no oneDNN")
def test_generation_in_float32_has_no_other_products() -> None:
    model = random_model().float()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        model.generate(num_steps=3)
    names = {event.key for event in profiler.key_averages()}
    assert "mkldnn::_linear_pointwise" in names
    assert "aten::addmm" not in names
