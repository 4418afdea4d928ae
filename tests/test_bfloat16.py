# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from tests.references import random_model
from training.activation_checkpointing import ActivationCheckpointing, checkpoint_activations
from training.bfloat16 import Float32Products, bfloat16_products
from training.objectives import AnyOrderObjective


def autocast() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_rounds_where_autocast_does(has_bias: bool) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(7, 50, requires_grad=True), torch.randn(7, requires_grad=has_bias)
    states = torch.randn(3, 4, 50, requires_grad=True)
    parameters = [states, weight, bias][: 2 + has_bias]
    outputs, gradients = [], []
    for products in (nullcontext(), Float32Products()):
        with products, autocast():
            outputs.append(F.linear(states, weight, bias if has_bias else None))
        gradients.append(torch.autograd.grad(outputs[-1].float().square().sum(), parameters))
    assert outputs[1].dtype == torch.bfloat16
    # Sums come in another order, and the bias was rounded by autocast: one unit in the last place of bfloat16.
    torch.testing.assert_close(outputs[1], outputs[0], rtol=2**-7, atol=2**-6)
    for actual, expected, parameter in zip(gradients[1], gradients[0], parameters, strict=True):
        assert actual.dtype == parameter.dtype
        torch.testing.assert_close(actual, expected, rtol=2**-5, atol=0.3)
    exact = F.linear(states.bfloat16().double(), weight.bfloat16().double(), bias.double() if has_bias else None)
    torch.testing.assert_close(outputs[1], exact.bfloat16(), rtol=2**-7, atol=1e-6)


def test_products_are_made_in_float32() -> None:
    model = AnyOrderObjective(random_model().float().train())
    ids, orders = torch.randint(11, (2, 8)), torch.stack([torch.randperm(8) for _ in range(2)])
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: object, types: object, args: tuple = (), kwargs: dict | None = None):  # noqa: ANN204
            if any(name in str(function) for name in ("mm", "attention")):
                seen.extend(tensor.dtype for tensor in args if isinstance(tensor, torch.Tensor))
            return function(*args, **(kwargs or {}))

    with Watch(), Float32Products():
        with autocast():
            loss = model(ids, orders)
        loss.backward()
    assert set(seen) == {torch.float32}
    assert len(seen) > 20


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_model_trains_as_under_autocast(checkpointing: ActivationCheckpointing) -> None:
    ids, orders = torch.randint(11, (2, 8)), torch.stack([torch.randperm(8) for _ in range(2)])
    losses, gradients = [], []
    for products in (nullcontext(), Float32Products()):
        model = random_model(initializer_range=0.2).float().train()
        checkpoint_activations(model, checkpointing, products)
        with products:
            with autocast():
                loss = AnyOrderObjective(model)(ids, orders)
            loss.backward()
        losses.append(loss.detach())
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=0)
    assert F.cosine_similarity(*gradients, dim=0) > 0.999


def test_compiled_model_that_makes_activations_again_is_refused() -> None:
    for kind in ("selective", "full"):
        with pytest.raises(ValueError, match=f"={kind}, mixed_precision=bf16 and dynamo_backend do not go together"):
            checkpoint_activations(random_model(), kind, Float32Products(), is_compiled=True)
        checkpoint_activations(random_model(), kind, nullcontext(), is_compiled=True)
    checkpoint_activations(random_model(), "none", Float32Products(), is_compiled=True)


def test_only_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert isinstance(bfloat16_products(torch.device("cpu"), "bf16"), Float32Products)
    for device, precision in (("cpu", "no"), ("cuda", "bf16")):
        assert isinstance(bfloat16_products(torch.device(device), precision), nullcontext)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert isinstance(bfloat16_products(torch.device("cpu"), "bf16"), nullcontext)
    with Float32Products():  # without autocast nothing is rounded
        assert F.linear(torch.ones(2, 3), torch.ones(1, 3)).dtype == torch.float32
