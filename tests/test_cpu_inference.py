# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Generation on a CPU with private copies of models, whose linear layers use oneDNN and packed weights."""

import pickle
from collections.abc import Callable

import pytest
import torch
from accelerate import dispatch_model
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from modeling_aogpt import cpu_inference, decoding_state
from modeling_aogpt.cpu_inference import HAS_ONEDNN, OneDNNLinear, copy_for_cpu, pack_weights
from tests.references import random_encoder, random_model, seeded

pytestmark = pytest.mark.skipif(not HAS_ONEDNN, reason="this PyTorch has no oneDNN")
needs_bfloat16 = pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="needs bfloat16 instructions")
DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)]


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let layers of any size use oneDNN in float32."""
    monkeypatch.setattr(cpu_inference, "LEAST_PRODUCTS", 1)


def uses_onednn(model: nn.Module) -> bool:
    """Return whether a copy for a CPU uses oneDNN."""
    return any(isinstance(layer, OneDNNLinear) for layer in copy_for_cpu(model).modules())


@torch.no_grad()
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 24), (5, 24), (2, 3, 24), (0, 24), (2, 0, 24)])
def test_products_are_those_of_the_model(shape: tuple[int, ...], bias: bool, dtype: torch.dtype) -> None:
    layers = nn.Sequential(nn.Linear(24, 40, bias=bias)).to(dtype)
    inputs = torch.randn(*shape[:-1], 2 * shape[-1], dtype=dtype)[..., ::2]  # not contiguous
    expected = layers.double()(inputs.double())
    layers.to(dtype)
    copied, tolerance = copy_for_cpu(layers), 1e-5 if dtype == torch.float32 else 2e-2
    assert copied[0].weight is layers[0].weight
    assert type(layers[0]) is nn.Linear
    torch.testing.assert_close(copied(inputs).double(), expected, rtol=0, atol=tolerance)
    pack_weights(copied)
    torch.testing.assert_close(copied(inputs).double(), expected, rtol=0, atol=tolerance)
    copied[0].packed_weight = torch.ops.mkldnn._reorder_linear_weight(torch.zeros(40, 24, dtype=dtype), None)
    is_packed = inputs.numel() > 0 and (dtype == torch.bfloat16 or inputs.numel() > 24)  # float32: not for a single row
    unchanged = torch.allclose(copied(inputs).double(), expected, rtol=0, atol=tolerance)
    assert unchanged != is_packed


@torch.no_grad()
@pytest.mark.parametrize("bias", [torch.randn(40, 3)[:, 1], torch.tensor([3.0]).expand(40)], ids=["column", "scalar"])
def test_weights_and_biases_may_have_strides(bias: torch.Tensor) -> None:
    layers, inputs = nn.Sequential(nn.Linear(24, 40), nn.Linear(40, 3)), torch.randn(5, 24)
    layers[0].weight, layers[0].bias = nn.Parameter(torch.randn(24, 40).T), nn.Parameter(bias)
    torch.testing.assert_close(copy_for_cpu(layers)(inputs), layers(inputs), rtol=0, atol=1e-4)
    layers[0].bias = nn.Parameter(bias.clone())
    torch.testing.assert_close(copy_for_cpu(layers)(inputs), layers(inputs), rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_only_plain_inference_uses_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = nn.Sequential(nn.Linear(8, 4))
    assert copy_for_cpu(layers) is layers
    with torch.no_grad():
        assert uses_onednn(layers)
        assert not uses_onednn(nn.Sequential(nn.Linear(8, 4)).double())
        for is_fast in (True, False):
            monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda is_fast=is_fast: is_fast)
            assert uses_onednn(nn.Sequential(nn.Linear(8, 4)).bfloat16()) == is_fast
        assert not uses_onednn(nn.Sequential(nn.Linear(8, 4)).to("meta"))
        with torch.autocast("cpu", torch.bfloat16):
            assert not uses_onednn(layers)
        with torch.backends.mkldnn.flags(enabled=False):
            assert not uses_onednn(layers)
        with torch.autograd.forward_ad.dual_level():
            assert not uses_onednn(layers)


def find_products(function: Callable[[], object]) -> set[str]:
    """Return the kinds of products that a function computes: with oneDNN, or with MKL."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        function()
    return {event.key for event in profiler.key_averages()} & {"mkldnn::_linear_pointwise", "aten::addmm", "aten::mm"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_inference_uses_onednn_for_all_linear_layers(dtype: torch.dtype) -> None:
    model, encoder, ids = random_model().to(dtype), random_encoder().to(dtype), torch.tensor([[1, 2, 3]])
    for function in (
        lambda: model.generate(num_steps=3),
        lambda: model.log_likelihood(ids),
        lambda: encoder.log_likelihood(ids, num_times=2),
    ):
        assert find_products(function) == {"mkldnn::_linear_pointwise"}


@torch.no_grad()
def test_small_products_of_float32_do_not_use_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_inference, "LEAST_PRODUCTS", 24 * 40 * 3)
    copied = copy_for_cpu(nn.Sequential(nn.Linear(24, 40)))
    for _ in ("unpacked", "packed"):
        for rows in range(1, 5):
            expected = {"aten::addmm" if rows < 3 else "mkldnn::_linear_pointwise"}
            assert find_products(lambda rows=rows: copied(torch.ones(rows, 24))) == expected
        pack_weights(copied)


def test_flop_counters_see_generation() -> None:
    model = random_model().float()
    with FlopCounterMode(display=False) as counter:
        model.generate(num_steps=3)
    assert counter.get_total_flops() > 0


@pytest.mark.parametrize(
    "model",
    [random_model(), random_model(gated_mlp=True), random_encoder(target_injection="sigma")],
)
def test_generation_changes_no_layer(model: PreTrainedModel) -> None:
    """Transformers and PEFT replace only linear layers whose class is exactly `nn.Linear`."""
    model = model.float()
    before = {name: (type(module), module.training) for name, module in model.train().named_modules()}
    model.generate(max_length=4)
    assert {name: (type(module), module.training) for name, module in model.named_modules()} == before
    assert b"OneDNN" not in pickle.dumps(model)


def test_each_long_generation_packs_the_current_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """No matter how the weights were changed since the last generation."""
    model = random_model().float()
    arguments = {"num_steps": 4, "unmasking": "fixed_count", "return_dict_in_generate": True}
    is_packed = []
    model.model.layers[1].register_forward_hook(
        lambda module, *_: is_packed.append(module.mlp.up_proj.packed_weight is not None)
    )

    def generate(**more: str) -> torch.Tensor:
        return model.generate(generator=seeded(), **arguments, **more).token_logprobs

    def change_in_place() -> None:
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight.mul_(-1)

    def change_data() -> None:
        model.lm_head.weight.data.mul_(0.5)

    def load() -> None:
        model.load_state_dict(random_model(initializer_range=0.4).float().state_dict())

    def replace() -> None:
        model.lm_head = nn.Linear(16, 11)

    for change in (lambda: None, change_in_place, change_data, load, replace):
        change()
        plain = generate()
        with monkeypatch.context() as patch:
            patch.setattr(decoding_state, "MIN_PASSES_TO_PREPARE", 4)
            packed = generate()
            generate(order="confidence")  # queries all masked positions, so the number of passes is not known before
            patch.setattr(decoding_state, "MIN_PASSES_TO_PREPARE", 5)
            generate()
        assert is_packed == [False] * 4 + [True] * 4 + [False] * 3 + [True] + [False] * 4
        is_packed.clear()
        torch.testing.assert_close(packed, plain, rtol=0, atol=1e-4)


@pytest.mark.parametrize("normalize", [nn.utils.parametrizations.weight_norm, nn.utils.spectral_norm])
def test_layers_with_computed_weights_do_not_use_onednn(
    normalize: Callable[[nn.Module], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model().float()
    normalize(model.model.layers[1].mlp.up_proj)
    with torch.backends.mkldnn.flags(enabled=False):
        plain = model.generate(num_steps=4, generator=seeded())
    monkeypatch.setattr(decoding_state, "MIN_PASSES_TO_PREPARE", 1)
    assert torch.equal(model.generate(num_steps=4, generator=seeded()), plain)
    with torch.no_grad():
        mlp = copy_for_cpu(model).model.layers[1].mlp
    assert isinstance(mlp.down_proj, OneDNNLinear)
    assert not isinstance(mlp.up_proj, OneDNNLinear)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_packed_for_passes_of_one_row_only_in_bfloat16(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, such passes gain nothing."""
    packed = []
    monkeypatch.setattr(decoding_state, "MIN_PASSES_TO_PREPARE", 1)
    monkeypatch.setattr(decoding_state, "pack_weights", packed.append)
    random_model().to(dtype).generate(max_length=8)
    assert len(packed) == (dtype == torch.bfloat16)


@pytest.mark.parametrize("make", [random_model, random_encoder])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dispatched_models_are_not_copied(make: Callable, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hooks of Accelerate call the modules they were attached to, so a copy would not use its layers."""
    monkeypatch.setattr(decoding_state, "MIN_PASSES_TO_PREPARE", 1)
    arguments = {"max_length": 8, "order": "confidence", "return_dict_in_generate": True}
    other = make().to(dtype)
    other.model.norm.register_forward_hook(lambda *_: None)  # norms with hooks are not folded: bfloat16 rounds the same
    plain = other.generate(generator=seeded(), **arguments)
    device_map = {"model": "cpu", "lm_head": "cpu"}
    model = dispatch_model(make().to(dtype), device_map, main_device="cpu", force_hooks=True)
    with torch.no_grad():
        assert copy_for_cpu(model) is model
    actual = model.generate(generator=seeded(), **arguments)
    torch.testing.assert_close(actual.token_logprobs, plain.token_logprobs, rtol=0, atol=1e-4)


def test_biases_can_be_trained_alone() -> None:
    """As in BitFit, where the inputs of a layer may need no gradients."""
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
