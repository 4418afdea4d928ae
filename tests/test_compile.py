# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The decoder under `model.model.compile()`: one graph per bucket of rows, and the same samples."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext

from modeling_aogpt import AOGPTForAnyOrderLM
from modeling_aogpt.cached_decoder import CachedDecoder
from tests.references import random_model


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ragged(model: AOGPTForAnyOrderLM) -> torch.LongTensor:
    """Nothing given, all but one given, some given."""
    mask = model.config.mask_token_id
    inputs = torch.randint(0, 11, (3, 12), generator=seeded())
    inputs[0] = mask
    inputs[1, 5] = mask
    inputs[2, [0, 3, 4, 8, 11]] = mask
    return inputs


class CountingBackend:
    """Runs graphs as they are, and keeps the numbers of rows that they were made for."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        def run(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
            output = graph.forward(*arguments)
            if len(self.rows) == number:
                self.rows.append(output[0].shape[1])
            return output

        number = len(self.rows)
        return run


@pytest.fixture
def backend() -> Iterator[CountingBackend]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=8):
        yield CountingBackend()


@pytest.mark.parametrize("encoding", ["learned", "rotary"])
@pytest.mark.parametrize(
    "arguments",
    [{"num_steps": 5}, {"num_steps": 5, "order": "confidence"}, {"strategy": "speculative", "draft_length": 3}],
    ids=["parallel", "adaptive", "speculative"],
)
def test_padding_rows_and_slots_change_no_sample(backend: CountingBackend, encoding: str, arguments: dict) -> None:
    model = random_model(position_encoding=encoding)
    inputs = ragged(model)
    arguments |= {"return_dict_in_generate": True}
    plain = model.generate(inputs, generator=seeded(1), **arguments)
    model.model.compile(backend=backend, fullgraph=True)
    compiled = model.generate(inputs, generator=seeded(1), **arguments)
    assert backend.rows
    assert compiled.num_rows >= plain.num_rows
    assert torch.equal(compiled.sequences, plain.sequences)
    assert torch.equal(compiled.orders, plain.orders)
    torch.testing.assert_close(compiled.token_logprobs, plain.token_logprobs, rtol=0, atol=1e-10)


def test_there_is_one_graph_per_bucket_and_none_after_the_first_generations(backend: CountingBackend) -> None:
    """`fullgraph` raises where a graph would break."""
    model = random_model(num_hidden_layers=1)
    model.model.compile(backend=backend, fullgraph=True, dynamic=False)
    for num_steps in (1, 2, 3, 6, 12):
        model.generate(num_return_sequences=2, num_steps=num_steps, reveal="fixed", generator=seeded())
    assert sorted(backend.rows) == [1, 2, 4, 8, 16]
    for seed in range(5):
        model.generate(num_return_sequences=2, num_steps=4, generator=seeded(seed))
        model.generate(num_return_sequences=2, num_steps=4, order="left_to_right", generator=seeded(seed))
    assert len(backend.rows) == 5


def test_many_sizes_of_batches_are_compiled(backend: CountingBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit `fullgraph` raises. Caches come and go: a graph that was made for one serves others."""
    mark = torch._dynamo.mark_static_address
    # By default, versions of torch have it guarded or not.
    monkeypatch.setattr(torch._dynamo, "mark_static_address", lambda tensor, guard=True: mark(tensor, guard=guard))
    model = random_model(num_hidden_layers=1)
    model.model.compile(backend=backend, fullgraph=True, dynamic=False)
    for _ in range(2):
        for batch_size in (1, 2, 3):
            model.generate(num_return_sequences=batch_size, num_steps=4, reveal="fixed")
            model.generate(num_return_sequences=batch_size, num_steps=12, reveal="fixed")
    assert sorted(backend.rows) == sorted([1, 4, 8] * 3)


@pytest.mark.parametrize("injection", ["adaln", "input"])
def test_a_generation_takes_over_the_memory_of_the_one_before(
    backend: CountingBackend, injection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA graphs are recorded for addresses."""
    model, addresses = random_model(target_injection=injection, num_hidden_layers=1), []

    class Recorded(CachedDecoder):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            tensors = [*self.cache.stores(), *(self.modulations or ())]
            addresses.append([tensor.data_ptr() for tensor in tensors])

    monkeypatch.setattr(model, "canvas_class", Recorded, raising=False)
    plain = copy.deepcopy(model)
    model.model.compile(backend=backend, fullgraph=True)
    model.generate(num_return_sequences=2, num_steps=4, generator=seeded(1))
    with torch.no_grad():
        for weights in (*model.parameters(), *plain.parameters()):
            weights.mul_(1.5)
    again = model.generate(num_return_sequences=2, num_steps=4, generator=seeded())
    assert addresses[0] == addresses[1]
    assert torch.equal(again, plain.generate(num_return_sequences=2, num_steps=4, generator=seeded()))
    with torch.inference_mode():
        model.generate(num_return_sequences=3, num_steps=4)
    model.generate(num_return_sequences=3, num_steps=4)  # writes to none of the tensors of that mode: it may not


def test_shapes_may_be_symbolic_too(backend: CountingBackend) -> None:
    """What `compile` does unless told otherwise: the second shape makes a graph for all."""
    model = random_model(num_hidden_layers=1)
    model.model.compile(backend=backend, fullgraph=True)
    for num_steps in (1, 2, 3, 6):
        model.generate(num_steps=num_steps, reveal="fixed", generator=seeded())
    num_graphs = len(backend.rows)
    assert num_graphs <= 3
    for seed in range(5):
        model.generate(num_steps=4, generator=seeded(seed))
    assert len(backend.rows) == num_graphs


def test_a_compiled_pass_copies_neither_cache_nor_tables() -> None:
    """
    Inductor writes to a cache where it lies if that is a whole input: nothing may be made of all layers' size. CUDA
    graphs copy all inputs but those whose addresses stay, and are given up if another is written to.
    """
    torch._dynamo.reset()
    model = random_model(max_position_embeddings=512)
    num_made, num_moving = [], []

    def look_at(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        outputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "call_function"]
        num_made.extend(output.numel() for output in outputs if isinstance(output, torch.Tensor))
        staying = TracingContext.get().fw_metadata.static_input_indices
        num_moving.extend(given.numel() for index, given in enumerate(inputs) if index not in staying)
        return make_boxed_func(graph)

    model.model.compile(backend=aot_autograd(fw_compiler=look_at), fullgraph=True)
    masks, zeros = torch.full((1, 512), model.config.mask_token_id), torch.zeros(1, 512, dtype=torch.long)
    canvas = CachedDecoder(model, masks, torch.arange(512)[None], zeros, zeros.bool())
    with torch.no_grad():
        canvas.query(torch.tensor([2]))
    assert max(num_made) <= next(canvas.cache.stores()).numel()
    assert max(num_moving) <= 2 * 512  # the mask
