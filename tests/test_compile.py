# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The decoder after `model.model.compile()`: the same samples, and one graph per bucket of rows."""

from collections.abc import Callable, Iterator

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from modeling_aogpt.decoding_state import CachedDecodingState
from tests.references import ragged_inputs, random_model, seeded


class CountingBackend:
    """Backend that runs graphs as they are, and records the number of rows that each was compiled for."""

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
    """Return a new backend, with no graphs of other tests and with PyTorch's default limit of graphs."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=8):
        yield CountingBackend()


@pytest.mark.parametrize(
    "settings",
    [{}, {"position_encoding": "rotary"}],
    ids=["learned", "rotary"],
)
@pytest.mark.parametrize(
    "arguments",
    [{"num_steps": 5}, {"num_steps": 5, "order": "confidence"}, {"strategy": "speculative", "draft_length": 3}],
    ids=["parallel", "adaptive", "speculative"],
)
def test_extra_rows_and_slots_do_not_change_samples(backend: CountingBackend, settings: dict, arguments: dict) -> None:
    model = random_model(**settings)
    inputs = ragged_inputs()
    arguments |= {"return_dict_in_generate": True}
    plain = model.generate(inputs, generator=seeded(1), **arguments)
    model.model.compile(backend=backend, fullgraph=True)
    compiled = model.generate(inputs, generator=seeded(1), **arguments)
    assert backend.rows
    assert compiled.num_rows >= plain.num_rows
    assert torch.equal(compiled.sequences, plain.sequences)
    assert torch.equal(compiled.orders, plain.orders)
    torch.testing.assert_close(compiled.token_logprobs, plain.token_logprobs, rtol=0, atol=1e-10)


def test_there_is_one_graph_for_each_power_of_two_of_rows(backend: CountingBackend) -> None:
    """With `fullgraph`, which raises an error at a graph break. Later generations compile nothing."""
    model = random_model(num_hidden_layers=1)
    model.model.compile(backend=backend, fullgraph=True, dynamic=False)
    for num_steps in (1, 2, 3, 6, 12):
        model.generate(num_return_sequences=2, num_steps=num_steps, unmasking="fixed_count", generator=seeded())
    assert sorted(backend.rows) == [1, 2, 4, 8, 16]
    for seed in range(5):
        model.generate(num_return_sequences=2, num_steps=4, generator=seeded(seed))
        model.generate(num_return_sequences=2, num_steps=4, order="left_to_right", generator=seeded(seed))
    assert len(backend.rows) == 5


def test_many_batch_sizes_compile_within_the_limit(backend: CountingBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fullgraph` raises an error beyond the limit. A graph is reused with a new cache of the same shape."""
    mark = torch._dynamo.mark_static_address
    # Whether it adds a guard by default depends on the version of PyTorch.
    monkeypatch.setattr(torch._dynamo, "mark_static_address", lambda tensor, guard=True: mark(tensor, guard=guard))
    model = random_model(num_hidden_layers=1)
    model.model.compile(backend=backend, fullgraph=True, dynamic=False)
    for _ in range(2):
        for batch_size in (1, 2, 3):
            model.generate(num_return_sequences=batch_size, num_steps=4, unmasking="fixed_count")
            model.generate(num_return_sequences=batch_size, num_steps=12, unmasking="fixed_count")
    assert sorted(backend.rows) == sorted([1, 4, 8] * 3)


def test_dynamic_shapes_compile_few_graphs(backend: CountingBackend) -> None:
    """By default the second shape compiles a graph for all shapes."""
    model = random_model(num_hidden_layers=1)
    model.model.compile(backend=backend, fullgraph=True)
    for num_steps in (1, 2, 3, 6):
        model.generate(num_steps=num_steps, unmasking="fixed_count", generator=seeded())
    num_graphs = len(backend.rows)
    assert num_graphs <= 3
    for seed in range(5):
        model.generate(num_steps=4, generator=seeded(seed))
    assert len(backend.rows) == num_graphs


def test_bfloat16_compiles_to_a_whole_graph(backend: CountingBackend) -> None:
    """`fullgraph` raises an error if a layer asks for the instructions of the CPU."""
    model = random_model(num_hidden_layers=1).bfloat16()
    model.model.compile(backend=backend, fullgraph=True, dynamic=False)
    model.generate(num_steps=12, unmasking="fixed_count")
    assert backend.rows == [1]


def test_compiled_pass_does_not_copy_the_cache() -> None:
    """Only views may be larger than the cache of one layer, because Inductor writes to whole inputs in place."""
    torch._dynamo.reset()
    model = random_model(max_position_embeddings=512)
    output_sizes = []

    def inspect(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
        outputs = [node.meta["val"] for node in nodes if node.target is not torch.ops.aten.view.default]
        output_sizes.extend(output.numel() for output in outputs if isinstance(output, torch.Tensor))
        return make_boxed_func(graph)

    model.model.compile(backend=aot_autograd(fw_compiler=inspect), fullgraph=True)
    masks, zeros = torch.full((1, 512), model.config.mask_token_id), torch.zeros(1, 512, dtype=torch.long)
    state = CachedDecodingState(model, masks, torch.arange(512)[None], zeros, zeros == 0)
    with torch.no_grad():
        state.query(torch.tensor([2]))
    assert max(output_sizes) <= state.cache.layers[0][0].numel()
