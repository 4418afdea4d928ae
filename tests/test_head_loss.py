# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from modeling_aogpt import modeling_aogpt as module
from modeling_aogpt.modeling_aogpt import Loss, head_loss


def plain_loss(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, loss: Loss) -> torch.Tensor:
    if loss == "cross_entropy":
        return (nn.functional.cross_entropy(logits, targets, reduction="none") * weights).sum()
    log_ratios = logits - math.log(logits.shape[1])
    target_ratios = log_ratios.gather(1, targets[:, None])[:, 0]
    return ((log_ratios.exp().sum(1) - target_ratios - 1) * weights).sum()


@pytest.mark.parametrize("loss", ["cross_entropy", "score_entropy"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_ids", [None, 9])
@pytest.mark.parametrize("width", [11, 16])
def test_values_and_gradients_equal_those_with_all_logits(
    monkeypatch: pytest.MonkeyPatch, loss: Loss, bias: bool, num_ids: int | None, width: int
) -> None:
    """Products have a padded width of 16."""
    monkeypatch.setitem(module.LOGITS_PER_CHUNK, "cpu", 3 * width)  # chunks of 3, 3, 3 and 1 rows
    monkeypatch.setitem(module.WIDTH_MULTIPLE, "cpu", width)
    torch.manual_seed(0)
    head = nn.Linear(5, 11, bias=bias).double()
    hidden_states = torch.randn(10, 5, dtype=torch.float64, requires_grad=True)
    targets, weights = torch.randint(9, (10,)), torch.rand(10, dtype=torch.float64)
    parameters = [hidden_states, *head.parameters()]
    expected = plain_loss(head(hidden_states)[:, :num_ids], targets, weights, loss)
    actual = head_loss(hidden_states, head, targets, weights, loss, num_ids)
    torch.testing.assert_close(actual, expected)
    for one, other in zip(
        torch.autograd.grad(3 * actual, parameters), torch.autograd.grad(3 * expected, parameters), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_frozen_heads_get_no_gradient() -> None:
    head = nn.Linear(5, 11).requires_grad_(False)
    hidden_states = torch.randn(4, 5, requires_grad=True)
    head_loss(hidden_states, head, torch.arange(4), torch.ones(4)).backward()
    assert hidden_states.grad.abs().sum() > 0
    assert head.weight.grad is None


@pytest.mark.parametrize("bias", [True, False])
def test_no_gradients_are_computed_without_autograd(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, compute = [], module.differentiate_chunk
    monkeypatch.setattr(module, "differentiate_chunk", lambda *args: seen.append(compute(*args)) or seen[-1])
    head, states = nn.Linear(5, 11, bias=bias), torch.randn(4, 5, requires_grad=True)
    with torch.no_grad():
        assert not head_loss(states, head, torch.arange(4), torch.ones(4)).requires_grad
    assert [grad_logits for _, grad_logits in seen] == [None]


def test_large_logits_do_not_overflow() -> None:
    head = nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1e4], [0.0], [-1e4]]))
    loss = head_loss(torch.ones(1, 1), head, torch.tensor([1]), torch.ones(1))
    assert loss.item() == pytest.approx(1e4)


@pytest.mark.parametrize("autocast", [True, False])
def test_bfloat16_states_give_float32_losses(autocast: bool) -> None:
    torch.manual_seed(0)
    head = nn.Linear(16, 50)
    states = torch.randn(20, 16).bfloat16().requires_grad_()
    targets, weights = torch.randint(50, (20,)), torch.ones(20)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = head_loss(states, head, targets, weights)
    loss.backward()
    assert (loss.dtype, states.grad.dtype, head.weight.grad.dtype) == (torch.float32, torch.bfloat16, torch.float32)
    torch.testing.assert_close(loss, plain_loss(head(states.float()), targets, weights, "cross_entropy"))


@pytest.mark.parametrize("loss", ["cross_entropy", "score_entropy"])
def test_float16_keeps_the_gradients_of_many_rows(monkeypatch: pytest.MonkeyPatch, loss: Loss) -> None:
    """Weights of 1e-5 per row would underflow, because the loss scale is applied after gradients are computed."""
    torch.manual_seed(0)
    rows, ids, size = 4096, 500, 8
    head = nn.Linear(size, ids)
    states = torch.randn(rows, size, requires_grad=True)
    targets, weights = torch.randint(ids, (rows,)), torch.full((rows,), 1e-5)
    parameters = [states, *head.parameters()]
    expected = torch.autograd.grad(head_loss(states, head, targets, weights, loss), parameters)
    monkeypatch.setattr(module, "_matmul_dtype", lambda states: torch.float16)
    actual = torch.autograd.grad(head_loss(states, head, targets, weights, loss), parameters)
    for one, other in zip(actual, expected, strict=True):
        assert (one - other).norm() < 2e-3 * other.norm()


@pytest.mark.parametrize("loss", ["cross_entropy", "score_entropy"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_compiled_losses_neither_scatter_nor_overwrite_their_inputs(loss: Loss, dtype: torch.dtype) -> None:
    """Inductor would write the logits to memory in float32."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    graphs, exact = [], torch.promote_types(dtype, torch.float32)
    logits, ids = torch.randn(4, 11, dtype=dtype), torch.randint(9, (4, 1))
    arguments = ids, torch.rand(4, dtype=exact), torch.tensor(0.5, dtype=exact), loss, 9, True
    compiler = aot_autograd(fw_compiler=lambda graph, inputs: make_boxed_func(graphs.append(graph) or graph))
    compiled = torch.compile(module.differentiate_chunk, backend=compiler, fullgraph=True)(logits.clone(), *arguments)
    for one, other in zip(compiled, module.differentiate_chunk(logits.clone(), *arguments), strict=True):
        torch.testing.assert_close(one, other)
    (graph,) = graphs
    assert torch.ops.aten.scatter_add.default not in {node.target for node in graph.graph.nodes}
    assert [len(node.args[0]) for node in graph.graph.nodes if node.op == "output"] == [2]  # no overwritten inputs


def test_chunks_have_about_the_same_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled graph can then be reused."""
    monkeypatch.setitem(module.LOGITS_PER_CHUNK, "cpu", 7 * 11)
    sizes, compute = [], module.differentiate_chunk
    monkeypatch.setattr(module, "differentiate_chunk", lambda *args: sizes.append(len(args[0])) or compute(*args))
    for rows in (0, 7, 8, 20):
        head_loss(torch.randn(rows, 5), nn.Linear(5, 11), torch.zeros(rows, dtype=torch.long), torch.ones(rows))
    assert sizes == [7, 4, 4, 7, 7, 6]
