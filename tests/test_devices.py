# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Linear layers and packed weights on CPUs, the warning about slow dtypes, and the switch of cuDNN attention."""

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from accelerate import dispatch_model
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel
from transformers.utils import logging

from modeling_aogpt import decoding_state, devices
from modeling_aogpt.devices import (
    HAS_ONEDNN,
    Linear,
    allow_cudnn_attention,
    pack_weights,
    uses_onednn,
    without_cudnn_attention,
)
from tests.references import random_encoder, random_model, seeded

needs_bfloat16 = pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="needs bfloat16 instructions")
DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)]
needs_onednn = pytest.mark.skipif(not HAS_ONEDNN, reason="this PyTorch has no oneDNN")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 24), (5, 24), (2, 3, 24), (0, 24), (2, 0, 24)])
def test_linear_computes_a_linear_layer(shape: tuple[int, ...], bias: bool) -> None:
    layer = Linear(24, 40, bias=bias)
    inputs = torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]  # not contiguous
    expected = F.linear(inputs.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            torch.testing.assert_close(layer(inputs).double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("bias", [torch.randn(40, 3)[:, 1], torch.tensor([3.0]).expand(40)], ids=["column", "scalar"])
def test_weights_and_biases_may_have_strides(bias: torch.Tensor) -> None:
    layer, inputs = Linear(24, 40), torch.randn(5, 24)
    layer.weight, layer.bias = torch.nn.Parameter(torch.randn(24, 40).T), torch.nn.Parameter(bias)
    with torch.no_grad():
        torch.testing.assert_close(layer(inputs), inputs @ layer.weight.T + bias, rtol=0, atol=1e-4)


def test_linear_has_gradients() -> None:
    layer, inputs = Linear(8, 4), torch.randn(3, 8, requires_grad=True)
    layer(inputs).square().sum().backward()
    assert layer.weight.grad is not None
    assert inputs.grad is not None


def test_linear_supports_forward_derivatives_and_flop_counters() -> None:
    layer, inputs = Linear(8, 4).requires_grad_(False), torch.randn(3, 8)
    _, tangents = torch.func.jvp(layer, (inputs,), (inputs,))
    torch.testing.assert_close(tangents, F.linear(inputs, layer.weight))
    with FlopCounterMode(display=False) as counter:
        layer(inputs)
    assert counter.get_total_flops() == 2 * 3 * 8 * 4


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


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@needs_onednn
def test_only_plain_inference_uses_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, weight = torch.randn(3, 8), torch.nn.Parameter(torch.randn(4, 8))
    assert not uses_onednn(rows, weight)
    with torch.no_grad():
        assert uses_onednn(rows, weight)
        assert not uses_onednn(rows.double(), torch.nn.Parameter(weight.double()))
        for is_fast in (True, False):
            monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda is_fast=is_fast: is_fast)
            assert uses_onednn(rows.bfloat16(), torch.nn.Parameter(weight.bfloat16())) == is_fast
        assert not uses_onednn(rows.to("meta"), weight)
        with torch.autocast("cpu", torch.bfloat16):
            assert not uses_onednn(rows, weight)
        with torch.backends.mkldnn.flags(enabled=False):
            assert not uses_onednn(rows, weight)


@needs_onednn
@pytest.mark.parametrize("dtype", DTYPES)
def test_generation_uses_onednn_for_all_linear_layers(dtype: torch.dtype) -> None:
    model = random_model().to(dtype)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        model.generate(num_steps=3)
    names = {event.key for event in profiler.key_averages()}
    assert "mkldnn::_linear_pointwise" in names
    assert "aten::addmm" not in names


@pytest.mark.parametrize(
    "model",
    [random_model(), random_model(gated_mlp=True), random_encoder(target_injection="sigma")],
)
def test_new_models_can_be_quantized_and_use_onednn_in_evaluation_mode(model: PreTrainedModel) -> None:
    """Transformers replaces only linear layers whose class is exactly `nn.Linear`, when it makes a model."""
    model = type(model)(model.config)
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    assert layers
    assert all(type(layer) is torch.nn.Linear for layer in layers)
    assert all(type(layer) is torch.nn.Linear for layer in model.to("meta").eval().modules() if layer in layers)
    model.to_empty(device="cpu").eval()
    assert all(type(layer) is Linear for layer in layers)


@needs_onednn
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 24), (5, 24), (2, 3, 24)])
def test_packed_weights_give_the_same_products(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    layer = torch.nn.Sequential(Linear(24, 40)).to(dtype)
    packed, rows = pack_weights(layer), torch.randn(shape, dtype=dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    assert layer[0].packed_weight is None
    assert packed[0].weight is layer[0].weight
    expected = F.linear(rows.double(), layer[0].weight.double(), layer[0].bias.double())
    with torch.no_grad():
        torch.testing.assert_close(packed[0](rows).double(), expected, rtol=0, atol=tolerance)
        packed[0].packed_weight = torch.ops.mkldnn._reorder_linear_weight(torch.zeros(40, 24, dtype=dtype), None)
        uses_weight = dtype == torch.float32 and rows.numel() == 24  # a single row
        assert torch.equal(packed[0](rows)[..., 0], layer[0].bias[0].expand(shape[:-1])) != uses_weight
    rows.requires_grad_()
    torch.testing.assert_close(packed[0](rows).double(), expected, rtol=0, atol=tolerance)


@needs_onednn
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
        model.lm_head = Linear(16, 11)

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


@needs_onednn
def test_layers_with_parametrizations_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model().float()
    torch.nn.utils.parametrizations.weight_norm(model.model.layers[1].mlp.up_proj)
    plain = model.generate(num_steps=4, generator=seeded())
    monkeypatch.setattr(decoding_state, "MIN_PASSES_TO_PREPARE", 1)
    assert torch.equal(model.generate(num_steps=4, generator=seeded()), plain)
    assert pack_weights(model).model.layers[1].mlp.down_proj.packed_weight is not None


@needs_onednn
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_packed_for_passes_of_one_row_only_in_bfloat16(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, such passes gain nothing."""
    packed = []
    monkeypatch.setattr(decoding_state, "MIN_PASSES_TO_PREPARE", 1)
    monkeypatch.setattr(decoding_state, "pack_weights", lambda model: packed.append(model) or model)
    random_model().to(dtype).generate(max_length=8)
    assert len(packed) == (dtype == torch.bfloat16)


@pytest.mark.parametrize("make", [random_model, random_encoder])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dispatched_models_are_not_packed(make: Callable, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hooks of Accelerate call the modules they were attached to, so a copy would not use its packed weights."""
    monkeypatch.setattr(decoding_state, "MIN_PASSES_TO_PREPARE", 1)
    arguments = {"max_length": 8, "order": "confidence", "return_dict_in_generate": True}
    plain = make().to(dtype).generate(generator=seeded(), **arguments)
    device_map = {"model": "cpu", "lm_head": "cpu"}
    model = dispatch_model(make().to(dtype), device_map, main_device="cpu", force_hooks=True)
    assert pack_weights(model) is model
    actual = model.generate(generator=seeded(), **arguments)
    torch.testing.assert_close(actual.token_logprobs, plain.token_logprobs, rtol=0, atol=1e-4)


# --------------------------------------------------------------------------------------------------------- attention


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@needs_onednn
@needs_bfloat16
@torch.no_grad()
@pytest.mark.parametrize("num_key_heads", [4, 2, 1])
@pytest.mark.parametrize("has_mask", [True, False])
def test_attention_avoids_single_queries(num_key_heads: int, has_mask: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16: a query is repeated, or gets a mask, with which Transformers stacks the queries of a group."""
    model = random_model(num_attention_heads=4, num_key_value_heads=num_key_heads, head_dim=8).bfloat16()
    row, calls, attend = torch.randn(2, 1, 16, dtype=torch.bfloat16), [], F.scaled_dot_product_attention
    mask = (torch.rand(2, 1, 1, 64) < 0.5).index_fill(3, torch.tensor([63]), True) if has_mask else None
    cache = decoding_state.AnyOrderCache(model.config, 2, 64, torch.bfloat16, [torch.device("cpu")])
    for tensor in cache.tensors():
        tensor.normal_()
    cache.set_slots(slice(63, 64), 64)

    def record(query: torch.Tensor, *arguments: torch.Tensor, **settings: object) -> torch.Tensor:
        calls.append((query.shape[2], settings["attn_mask"] is not None))
        return attend(query, *arguments, **settings)

    def run() -> torch.Tensor:
        return model.model.layers[0].self_attn(row, None, mask, cache)[0]

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    with monkeypatch.context() as patch:
        patch.setattr(devices, "MIN_KEYS_TO_REPEAT", 65)
        expected = run()
    torch.testing.assert_close(run(), expected)
    is_grouped = num_key_heads < 4
    if devices.STACKS_QUERIES or not is_grouped:
        assert calls[1] == (4 // num_key_heads if is_grouped else 2, True)
    with torch.backends.mkldnn.flags(enabled=False):
        run()
    with torch.enable_grad():
        run()
    assert calls[2] == calls[3] == calls[0]
    monkeypatch.setattr(devices, "STACKS_QUERIES", False)
    run()
    assert calls[4] == (calls[0] if is_grouped else calls[1])


# ----------------------------------------------------------------------------------------------------------- warning


def slow_dtype_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "bfloat16" in record.message]


@pytest.fixture
def forget_warnings() -> None:
    """Let `warning_once` warn again about what it warned about in other tests."""
    logging.warning_once.cache_clear()


def generate(model: PreTrainedModel) -> torch.LongTensor:
    return model.generate(num_steps=3, max_length=4, generator=seeded())


def score(model: PreTrainedModel) -> torch.Tensor:
    return model.log_likelihood(torch.zeros(1, 4, dtype=torch.long)).log_likelihood


def score_targets(model: PreTrainedModel) -> torch.Tensor:
    return model.conditional_log_likelihood(torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 4)).log_likelihood


def bound_score(model: PreTrainedModel) -> torch.Tensor:
    return model.diffusion_log_likelihood(torch.zeros(1, 4, dtype=torch.long)).log_likelihood


methods = pytest.mark.parametrize(
    ("make", "run"),
    [*itertools.product([random_model, random_encoder], [generate, score, score_targets]), (random_model, bound_score)],
)


@pytest.mark.usefixtures("forget_warnings")
@methods
def test_slow_bfloat16_is_warned_about_once(
    make: Callable, run: Callable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    model = make().bfloat16()
    for _ in range(2):
        run(model)
    (message,) = slow_dtype_warnings(caplog)
    assert "this CPU has no bfloat16 instructions" in message
    assert "Load the model with dtype=torch.float32" in message


@pytest.mark.usefixtures("forget_warnings")
@methods
@pytest.mark.parametrize(
    ("dtype", "is_supported"), [(torch.float32, False), pytest.param(torch.bfloat16, True, marks=needs_bfloat16)]
)
def test_fast_dtypes_are_not_warned_about(
    make: Callable,
    run: Callable,
    dtype: torch.dtype,
    is_supported: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: is_supported)
    run(make().to(dtype))
    assert slow_dtype_warnings(caplog) == []


@pytest.mark.usefixtures("forget_warnings")
@methods
def test_bfloat16_models_compute_in_bfloat16(make: Callable, run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a CPU without bfloat16 instructions: the weights are used as they are."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    model, dtypes = make().bfloat16(), []
    model.lm_head.register_forward_hook(lambda module, rows, logits: dtypes.append((rows[0].dtype, logits.dtype)))
    run(model)
    assert set(dtypes) == {(torch.bfloat16, torch.bfloat16)}


# ------------------------------------------------------------------------------------------------------------- cuDNN


@pytest.mark.parametrize("was_enabled", [True, False])
def test_last_context_to_exit_restores_cudnn_attention(was_enabled: bool) -> None:
    """Contexts of different threads may exit in any order."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(was_enabled)
    first, second = (without_cudnn_attention(torch.device("meta")) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    second.__exit__(None, None, None)
    assert torch.backends.cuda.cudnn_sdp_enabled() == was_enabled
    with without_cudnn_attention(torch.device("cpu")):
        assert torch.backends.cuda.cudnn_sdp_enabled() == was_enabled
    with allow_cudnn_attention(), without_cudnn_attention(torch.device("meta")):
        assert torch.backends.cuda.cudnn_sdp_enabled() == was_enabled
    torch.backends.cuda.enable_cudnn_sdp(before)
