# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The decoder under `model.model.compile()`: one graph per bucket of rows, and the same samples."""

from collections.abc import Callable

import pytest
import torch

from modeling_aogpt import AOGPTForAnyOrderLM
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
def backend() -> CountingBackend:
    torch._dynamo.reset()
    return CountingBackend()


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
    model = random_model()
    model.model.compile(backend=backend, fullgraph=True, dynamic=False)
    for num_steps in (1, 2, 3, 6, 12):
        model.generate(num_return_sequences=2, num_steps=num_steps, reveal="fixed", generator=seeded())
    assert sorted(backend.rows) == [1, 2, 4, 8, 16]
    for seed in range(5):
        model.generate(num_return_sequences=2, num_steps=4, generator=seeded(seed))
        model.generate(num_return_sequences=2, num_steps=4, order="left_to_right", generator=seeded(seed))
    assert len(backend.rows) == 5


def test_shapes_may_be_symbolic_too(backend: CountingBackend) -> None:
    """What `compile` does unless told otherwise: the second shape makes a graph for all."""
    model = random_model()
    model.model.compile(backend=backend, fullgraph=True)
    for num_steps in (1, 2, 3, 6):
        model.generate(num_steps=num_steps, reveal="fixed", generator=seeded())
    num_graphs = len(backend.rows)
    assert num_graphs <= 3
    for seed in range(5):
        model.generate(num_steps=4, generator=seeded(seed))
    assert len(backend.rows) == num_graphs
