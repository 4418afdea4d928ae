# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from modeling_aogpt.devices import without_cudnn_attention


@pytest.mark.parametrize("was_enabled", [True, False])
def test_whoever_is_last_out_turns_cudnn_on_again(was_enabled: bool) -> None:
    """Threads come and go as they like."""
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
    torch.backends.cuda.enable_cudnn_sdp(before)
