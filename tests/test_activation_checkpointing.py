# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import platform
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode

from modeling_aogpt import AOGPTForAnyOrderLM, MDMEncoderForMaskedLM
from tests.references import perturb_vectors, random_encoder, random_model
from training.activation_checkpointing import ActivationCheckpointing, checkpoint_activations

ROOT = Path(__file__).parents[1]
KINDS = get_args(ActivationCheckpointing)
LAYERS = 2
ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
# Numbers of operations that the backward pass recomputes: attention, activation functions, and products with weights.
RECOMPUTED = {
    "none": (0, 0, 0),
    "selective": (0, LAYERS, LAYERS),  # the products of the modulations only
    "full": (LAYERS, LAYERS, 7 * LAYERS),
}


def make_model(form: str, kind: ActivationCheckpointing) -> AOGPTForAnyOrderLM | MDMEncoderForMaskedLM:
    if form in ("learned", "rotary"):
        model = random_model(position_encoding=form)
    else:
        model = random_encoder(target_injection=form)
    perturb_vectors(model)
    model = model.float().train()
    checkpoint_activations(model, kind)
    return model


def compute_loss(model: AOGPTForAnyOrderLM | MDMEncoderForMaskedLM) -> torch.Tensor:
    ids = torch.arange(24).view(2, 12) % 11
    if isinstance(model, AOGPTForAnyOrderLM):
        return model(ids, orders=torch.stack((torch.arange(12), torch.arange(11, -1, -1))), labels=ids).loss
    is_masked = ids % 2 == 0
    return model(ids.masked_fill(is_masked, 11), labels=ids.masked_fill(~is_masked, -100)).loss


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def count_recomputed(counts: Counter[str]) -> tuple[int, ...]:
    return tuple(counts[name] for name in (ATTENTION, "gelu", "addmm"))


@pytest.mark.parametrize("form", ["learned", "rotary", "none", "sigma"])
def test_losses_and_gradients_are_the_same_bit_for_bit(form: str) -> None:
    results = []
    for kind in KINDS:
        model = make_model(form, kind)
        loss = compute_loss(model)
        loss.backward()
        results.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
    for other in results[1:]:
        assert all(torch.equal(one, another) for one, another in zip(results[0], other, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["learned", "sigma"])
def test_recomputed_operations(form: str, kind: ActivationCheckpointing) -> None:
    loss = compute_loss(make_model(form, kind))
    with Operators() as operators:
        loss.backward()
    assert count_recomputed(operators.counts) == RECOMPUTED[kind]


def test_compiled_graphs_recompute_the_same_operations() -> None:
    """By default, the partitioner recomputes no matrix product. With "full", it decides itself about attention."""
    counts: Counter[str] = Counter()

    def count(graph: torch.fx.GraphModule, inputs: Any, is_backward: bool) -> torch.fx.GraphModule:
        if is_backward:
            counts.update(
                node.target.overloadpacket.__name__
                for node in graph.graph.nodes
                if hasattr(node.target, "overloadpacket")
            )
        return graph

    backend = aot_autograd(
        fw_compiler=partial(count, is_backward=False),
        bw_compiler=partial(count, is_backward=True),
        partition_fn=min_cut_rematerialization_partition,
    )
    torch._dynamo.reset()
    model = make_model("learned", "selective")
    expected = compute_loss(model)
    model.model.compile(backend=backend)
    loss = compute_loss(model)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert counts[ATTENTION] == RECOMPUTED["selective"][0]
    assert counts["addmm"] == RECOMPUTED["selective"][2]


def test_memory_of_freed_tensors_is_returned_to_the_system() -> None:
    """A later tensor that is still in use keeps glibc from shrinking its heap."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("needs glibc")
    code = """
import psutil, torch
from training.activation_checkpointing import release_freed_memory
torch.ones(8_000_000).sum()  # raises the size below which glibc allocates on its heap
tensors = [torch.ones(1_000_000) for _ in range(200)]
full = psutil.Process().memory_info().rss
del tensors[:-1]
release_freed_memory()
print(full - psutil.Process().memory_info().rss)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(done.stdout) > 0.9 * 199 * 4_000_000
