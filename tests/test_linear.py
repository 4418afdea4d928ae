# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from accelerate import dispatch_model
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from modeling_aogpt import cached_decoder
from modeling_aogpt.linear import HAS_ONEDNN, Linear, uses_onednn, with_packed_weights
from tests.references import random_encoder, random_model


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


def test_forward_derivatives_and_watchers_see_a_linear_layer() -> None:
    layer, inputs = Linear(8, 4).requires_grad_(False), torch.randn(3, 8)
    _, tangents = torch.func.jvp(layer, (inputs,), (inputs,))
    torch.testing.assert_close(tangents, F.linear(inputs, layer.weight))
    with FlopCounterMode(display=False) as counter:
        layer(inputs)
    assert counter.get_total_flops() == 2 * 3 * 8 * 4


def test_a_bias_trains_alone() -> None:
    """As when only biases are fitted (BitFit), and nothing that comes before the layer needs gradients."""
    model, ids = random_model().float(), torch.randint(11, (2, 6))
    for name, weight in model.named_parameters():
        weight.requires_grad_(name.endswith("bias"))
    model(ids, labels=ids).loss.backward()
    model.double()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}
    model.zero_grad()
    model(ids, labels=ids).loss.backward()
    for name, gradient in gradients.items():
        assert gradient is not None, name
        torch.testing.assert_close(gradient, model.get_parameter(name).grad, rtol=1e-2, atol=1e-4)


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


@pytest.mark.skipif(not HAS_ONEDNN, reason="this PyTorch has no oneDNN")
@pytest.mark.parametrize("shape", [(1, 24), (5, 24), (2, 3, 24)])
def test_a_packed_weight_is_the_weight(shape: tuple[int, ...]) -> None:
    layer = torch.nn.Sequential(Linear(24, 40))
    packed, rows = with_packed_weights(layer), torch.randn(shape)
    assert layer[0].packed is None
    assert packed[0].weight is layer[0].weight
    expected = F.linear(rows.double(), layer[0].weight.double(), layer[0].bias.double())
    with torch.no_grad():
        torch.testing.assert_close(packed[0](rows).double(), expected, rtol=0, atol=1e-5)
        packed[0].packed = torch.ops.mkldnn._reorder_linear_weight(torch.zeros(40, 24), None)
        is_one_row = rows.numel() == 24
        assert torch.equal(packed[0](rows)[..., 0], layer[0].bias[0].expand(shape[:-1])) != is_one_row
    rows.requires_grad_()
    torch.testing.assert_close(packed[0](rows).double(), expected, rtol=0, atol=1e-5)


@pytest.mark.skipif(not HAS_ONEDNN, reason="this PyTorch has no oneDNN")
def test_weights_are_packed_anew_by_each_long_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever way the weights changed since the last one."""
    model, arguments = random_model().float(), {"num_steps": 4, "reveal": "fixed", "return_dict_in_generate": True}
    by_confidence = {"order": "confidence"}  # each pass asks for all: how many there will be is not seen
    are_packed = []
    model.model.layers[1].register_forward_hook(
        lambda module, *_: are_packed.append(module.mlp.up_proj.packed is not None)
    )

    def logprobs(**more: str) -> torch.Tensor:
        return model.generate(generator=torch.Generator().manual_seed(0), **arguments, **more).token_logprobs

    def change_in_place() -> None:
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight.mul_(-1)

    def change_behind_the_back() -> None:
        model.lm_head.weight.data.mul_(0.5)

    def load() -> None:
        model.load_state_dict(random_model(initializer_range=0.4).float().state_dict())

    def replace() -> None:
        model.lm_head = Linear(16, 11)

    for change in (lambda: None, change_in_place, change_behind_the_back, load, replace):
        change()
        plain = logprobs()
        with monkeypatch.context() as patch:
            patch.setattr(cached_decoder, "PASSES_WORTH_PACKING", 4)
            packed = logprobs()
            logprobs(**by_confidence)
            patch.setattr(cached_decoder, "PASSES_WORTH_PACKING", 5)
            logprobs()
        assert are_packed == [False] * 4 + [True] * 4 + [False] * 3 + [True] + [False] * 4
        are_packed.clear()
        torch.testing.assert_close(packed, plain, rtol=0, atol=1e-4)


@pytest.mark.parametrize("make", [random_model, random_encoder])
def test_bfloat16_generates_in_float32_where_that_is_faster(make: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make().bfloat16()
    twin = make().bfloat16().float()
    before = {name: (weight, weight.data_ptr()) for name, weight in model.named_parameters()}
    dtypes = []
    model.lm_head.register_forward_hook(lambda module, rows, logits: dtypes.append((rows[0].dtype, logits.dtype)))

    def generate(model: torch.nn.Module) -> torch.LongTensor:
        return model.generate(num_steps=3, max_length=12, generator=torch.Generator().manual_seed(0))

    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert torch.equal(generate(model), generate(twin))
    assert set(dtypes) == {(torch.float32, torch.float32)}
    dtypes.clear()
    model.model.layers[0].compile(backend="eager")
    generate(model)
    model.model.layers[0]._compiled_call_impl = None
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    generate(model)
    assert set(dtypes) == {(torch.bfloat16, torch.bfloat16)}
    for name, weight in model.named_parameters():
        assert weight is before[name][0]
        assert weight.data_ptr() == before[name][1]
        assert weight.dtype == torch.bfloat16


@pytest.mark.parametrize("make", [random_model, random_encoder])
def test_no_copy_is_made_of_what_accelerate_dispatched(make: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hooks call the modules that they were put on, whose weights a copy does not have."""
    monkeypatch.setattr(cached_decoder, "PASSES_WORTH_PACKING", 1)
    arguments = {"max_length": 8, "order": "confidence", "return_dict_in_generate": True}
    for dtype, has_bfloat16 in ((torch.bfloat16, True), (torch.float32, False)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda has=has_bfloat16: has)
        plain = make().to(dtype).generate(generator=torch.Generator().manual_seed(0), **arguments)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
        places = {"model": "cpu", "lm_head": "cpu"}
        model = dispatch_model(make().to(dtype), places, main_device="cpu", force_hooks=True)
        assert with_packed_weights(model) is model
        actual = model.generate(generator=torch.Generator().manual_seed(0), **arguments)
        torch.testing.assert_close(actual.token_logprobs, plain.token_logprobs, rtol=0, atol=1e-4)
