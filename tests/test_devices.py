# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The warning about slow dtypes, and the switch of cuDNN attention."""

import itertools
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from modeling_aogpt.devices import allow_cudnn_attention, without_cudnn_attention
from tests.references import random_encoder, random_model, seeded

needs_bfloat16 = pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="needs bfloat16 instructions")


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
    return model.log_likelihood(torch.zeros(1, 4, dtype=torch.long), targets=torch.ones(1, 4)).log_likelihood


methods = pytest.mark.parametrize(
    ("make", "run"), [*itertools.product([random_model, random_encoder], [generate, score, score_targets])]
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
