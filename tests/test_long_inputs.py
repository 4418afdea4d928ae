# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Memory for large vocabularies and long sequences: no tensor holds all logits, or a value for each pair of tokens."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, AOGPTForCausalLM, decoding_state
from modeling_aogpt.likelihood import ROWS_PER_HEAD_CALL
from modeling_aogpt.modeling_aogpt import GATHERS_GRADIENTS, LOGITS_PER_CHUNK
from modeling_aogpt.orders import random_orders
from tests.references import seeded
from training.objectives import AnyOrderObjective

LLAMA = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1 if GATHERS_GRADIENTS else 2,  # PyTorch 2.7 has no kernel for shared keys on a CPU
    "position_encoding": "rotary",
    "target_injection": "none",
    "gated_mlp": True,
    "lm_head_bias": False,
    "start_token_id": 0,
}
LENGTH = 2048


class LargestTensor(TorchDispatchMode):
    """Context that records the number of elements of the largest tensor that an operator returns."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **kwargs or {})
        leaves = (leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))
        # An expanded or unfolded tensor has more elements than its memory.
        sizes = (min(leaf.numel(), leaf.untyped_storage().nbytes() // leaf.element_size()) for leaf in leaves)
        self.size = max(self.size, *sizes, 0)
        return output


def make_model(kind: type = AOGPTForAnyOrderLM, **settings: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return kind(AOGPTConfig(**LLAMA | settings)).eval()


def test_logits_of_a_large_vocabulary_are_computed_in_chunks() -> None:
    """The losses take several chunks. A vocabulary of Qwen has 151,936 ids."""
    vocab_size, length = 151_936, 512
    model = make_model(vocab_size=vocab_size, max_position_embeddings=length)
    ids, orders = torch.randint(vocab_size, (1, length), generator=seeded()), random_orders(1, length, seeded())
    most_scores = ROWS_PER_HEAD_CALL * 50304  # GPT-2's vocabulary
    assert LOGITS_PER_CHUNK["cpu"] < most_scores < 0.7 * length * vocab_size
    with LargestTensor() as training:
        AnyOrderObjective(model)(ids, orders).backward()
        model(ids, orders, labels=ids, skip_logits=True).loss.backward()
    assert training.size <= LOGITS_PER_CHUNK["cpu"]
    with LargestTensor() as scoring:
        model.log_likelihood(ids, orders=orders)
    assert scoring.size <= most_scores
    with LargestTensor() as plain, torch.no_grad():
        model(ids)
    assert plain.size == length * vocab_size


def train(model: AOGPTForAnyOrderLM, ids: torch.LongTensor, orders: torch.LongTensor) -> None:
    AnyOrderObjective(model)(ids, orders).backward()


def train_with_padding(model: AOGPTForAnyOrderLM, ids: torch.LongTensor, orders: torch.LongTensor) -> None:
    attention_mask = torch.ones_like(ids)
    attention_mask[:, -5:] = 0
    model(ids, orders, attention_mask, labels=ids).loss.backward()


def score(model: AOGPTForAnyOrderLM, ids: torch.LongTensor, orders: torch.LongTensor) -> None:
    model.log_likelihood(ids, orders=orders)
    model.log_likelihood(ids, num_orders=2, generator=seeded())


def score_an_infill(model: AOGPTForAnyOrderLM, ids: torch.LongTensor, orders: torch.LongTensor) -> None:
    for num_targets in (LENGTH // 2, 8):
        targets, arguments = orders < num_targets, {"orders": "random", "generator": seeded()}
        model.log_likelihood(ids, targets=targets, num_orders=2, rows_per_pass=LENGTH, **arguments)


def generate(model: AOGPTForAnyOrderLM, ids: torch.LongTensor, orders: torch.LongTensor) -> None:
    prompt = ids.masked_fill(orders < LENGTH // 2, model.config.mask_token_id)
    for arguments in ({"num_steps": 1}, {"num_steps": 2, "order": "confidence"}, {"strategy": "speculative"}):
        model.generate(prompt, generator=seeded(), **arguments)


USES = [train, train_with_padding, score, score_an_infill, generate]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_memory_is_linear_in_the_length(use: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_state, "MAX_ROWS_PER_PASS", 128)
    model = make_model(vocab_size=16, max_position_embeddings=LENGTH)
    ids, orders = torch.randint(16, (1, LENGTH), generator=seeded()), random_orders(1, LENGTH, seeded())
    with LargestTensor() as largest:
        use(model, ids, orders)
    assert largest.size < LENGTH * LENGTH / 8


def test_memory_of_the_causal_view_is_linear_in_the_length() -> None:
    model = make_model(AOGPTForCausalLM, vocab_size=16, max_position_embeddings=LENGTH)
    ids = torch.randint(16, (1, LENGTH - 2), generator=seeded())
    with LargestTensor() as largest:
        model(ids, labels=ids).loss.backward()
        model.generate(ids, max_new_tokens=2, do_sample=False)
    assert largest.size < LENGTH * LENGTH / 8
