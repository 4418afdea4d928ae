# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""
Operations of a generation step, counted on the simulated accelerator of `accelerator.py`.

`python -m tests.operations` prints all numbers as JSON. An operation is one call of PyTorch that computes on the
device: views and allocations do not count, and attention counts once. A launch is one request of the CPU to the
device: an operation outside of recordings, or the replay of a recording. No time is measured.
"""

import itertools
import json
from collections import Counter
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import nn

from modeling_aogpt import (
    AOGPTForAnyOrderLM,
    cuda_graphs,
    decoding_state,
    devices,
    modeling_aogpt,
    sampling,
    validation,
)
from modeling_aogpt.cuda_graphs import Arguments
from modeling_aogpt.decoding_state import CachedDecodingState
from modeling_aogpt.generation import GenerationProgress
from modeling_aogpt.unmasking import draw_step_sizes
from tests import accelerator
from tests.references import random_model, seeded

LENGTH = 24
# As in AO-GPT, the vocabulary consists of whole chunks, and not all ids are ids of text.
SIZES = {"max_position_embeddings": LENGTH, "vocab_size": 2 * sampling.CHUNK_SIZE, "num_valid_tokens": 250}
KINDS: dict[str, dict[str, Any]] = {
    "one at a time": {},
    "top-p": {"top_p": 0.9},
    "fixed counts": {"num_steps": 12, "unmasking": "fixed_count"},
    "Bernoulli": {"num_steps": 12},
}
SHAPES = (32, 1024, 1024), (32, 1024, 256), (32, 1024, 64), (1, 1024, 256)  # sequences, tokens, Bernoulli steps
MODELS: dict[str, dict[str, Any]] = {
    "learned": {},
    "rotary": {"position_encoding": "rotary"},
}
# Operations without a kernel of their own: allocations, and reshapes of contiguous tensors.
FREE = {"empty", "empty_like", "empty_strided", "new_empty", "detach", "_unsafe_view", "_reshape_alias", "lift_fresh"}


class Step(NamedTuple):
    """Numbers of one step."""

    operations: int  # on the device, in and outside of recordings
    launches: int
    waits: int


class CountingDevice(accelerator.Device):
    """Simulated device that counts operations and launches."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.launches, self.is_replaying = Counter(), 0, False

    def count(self, name: str) -> None:
        self.operations[name] += 1
        self.launches += not self.is_replaying

    def attention(self, query: torch.Tensor, *args: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        self.count("attention")
        with patch.object(self, "count", lambda name: None):
            return super().attention(query, *args, **kwargs)

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        before = len(self.waits)
        result = super().__torch_dispatch__(function, types, args, kwargs)
        if self.is_replaying and len(self.waits) > before:
            raise RuntimeError(f"{function} waits for the device in a recording.")
        values = result if isinstance(result, list | tuple) else [result]
        arguments = [leaf for value in args for leaf in (value if isinstance(value, list | tuple) else [value])]
        is_on_device = any(isinstance(value, accelerator.OnDevice) for value in (*values, *arguments))
        is_view = any(a.alias_info is not None and not a.alias_info.is_write for a in function._schema.arguments)
        name = function._schema.name.removeprefix("aten::")
        if is_on_device and not is_view and name not in FREE:
            self.count(name)
        return result


DEVICE: list[CountingDevice] = []  # of the current measurement


class CountedRecording:
    """Recording whose replays run the function, and count as one launch."""

    def __init__(self, function: Any, arguments: Arguments, device: torch.device, pool: object) -> None:
        self.function, self.arguments = function, tuple(v if v is None else v.to(device, copy=True) for v in arguments)

    def replay(self, arguments: Arguments) -> Any:
        for recorded, values in zip(self.arguments, arguments, strict=True):
            if recorded is not None:
                recorded.copy_(values, non_blocking=True)
        device = DEVICE[-1]
        device.launches += 1
        device.is_replaying = True
        try:
            return self.function(*self.arguments)
        finally:
            device.is_replaying = False


def fused_rms_norm(
    hidden_states: torch.Tensor, shape: tuple, weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """Count as a single operation, as on CUDA."""
    DEVICE[-1].count("rms_norm")
    with patch.object(DEVICE[-1], "count", lambda name: None):
        return RMS_NORM(hidden_states, shape, weight, eps)


RMS_NORM = nn.functional.rms_norm


def count_steps(model: AOGPTForAnyOrderLM, **arguments: Any) -> list[Step]:
    """Return the numbers of each step of a generation that is recorded whenever possible."""
    device = CountingDevice()
    DEVICE.append(device)
    snapshots = [(0, 0, 0)]

    def note(progress: GenerationProgress) -> None:
        snapshots.append((device.operations.total(), device.launches, len(device.waits)))

    with (
        device,
        patch.object(nn.functional, "scaled_dot_product_attention", device.attention),
        patch.object(nn.functional, "rms_norm", fused_rms_norm),
        patch.object(cuda_graphs, "Recording", CountedRecording),
        patch.object(torch.cuda, "graph_pool_handle", lambda: (0, 0)),
        patch.object(decoding_state, "can_record", lambda model, device: True),
        patch.object(sampling, "can_record", lambda model, device: True),
        patch.object(modeling_aogpt, "is_plain", lambda module, kinds: True),
        patch.object(devices, "is_readable", lambda values: not device.is_replaying),
        patch.object(validation, "is_readable", lambda values: not device.is_replaying),
        patch.object(GenerationProgress, "update", note),
    ):
        accelerator.to_device(model).generate(max_length=LENGTH, generator=seeded(), **arguments)
    return [Step(*(b - a for a, b in zip(*pair, strict=True))) for pair in itertools.pairwise(snapshots)]


def measure(kind: str, sizes: dict[str, Any]) -> dict[str, int]:
    """Return operations of each layer and outside of layers, launches and waits: medians of the last steps."""
    found = []
    for num_layers in (1, 2):
        sizes = SIZES | sizes | {"num_hidden_layers": num_layers}
        batch_size = 4 if kind == "Bernoulli" else 1
        steps = count_steps(random_model(**sizes).float(), num_return_sequences=batch_size, **KINDS[kind])
        late = steps[len(steps) // 2 : -1]
        found.append(Step(*(sorted(values)[len(values) // 2] for values in zip(*late, strict=True))))
    per_layer = found[1].operations - found[0].operations
    outside = found[0].operations - per_layer
    return {"layer": per_layer, "outside": outside, "launches": found[0].launches, "waits": found[0].waits}


def count_rows(batch_size: int, length: int, num_steps: int) -> dict[str, float]:
    """
    Return numbers of rows of a recorded Bernoulli generation, relative to the rows that it needs, and of shapes.

    `padded` is the number of rows if all sequences had as many rows as the longest one, rounded to a power of two.
    """
    model = random_model(max_position_embeddings=length, num_hidden_layers=1)
    masks, zeros = torch.full((batch_size, length), model.config.mask_token_id), torch.zeros(batch_size, length).long()
    state = CachedDecodingState(model, masks, torch.arange(length).expand_as(masks), zeros, zeros == 0)
    plan = draw_step_sizes(state.num_masked, num_steps, "linear", "bernoulli", seeded())
    num_needed, num_queries, num_drawn, num_padded, shapes = 0, 0, 0, 0, set()
    for sizes in plan.unbind(dim=1):
        ends, is_active = state.num_context + sizes, sizes > 0
        if not is_active.any():
            continue
        starts = torch.where(is_active, state.num_cached, ends)
        bounds = starts, state.num_context.clamp(min=starts), ends, state.num_context
        shape = state._lay_out(*bounds, is_fixed=True)[0]
        shapes.add(shape)
        num_needed, num_queries = num_needed + int((ends - starts).sum()), num_queries + int(sizes.sum())
        num_drawn += shape.num_lines * shape.num_kept
        num_padded += batch_size * (1 << (int((ends - state.num_cached).max()) - 1).bit_length())
        state.num_cached = torch.where(is_active, state.num_context + 1, state.num_cached)
        state.num_context = ends
    ratios = {"rows": state.num_rows / num_needed, "draws": num_drawn / num_queries, "padded": num_padded / num_needed}
    return {name: round(ratio, 2) for name, ratio in ratios.items()} | {"shapes": len(shapes)}


if __name__ == "__main__":
    accelerator.register_device()
    rows = {str(sizes): count_rows(*sizes) for sizes in SHAPES}
    outcomes = {f"{name}, {kind}": measure(kind, sizes) for name, sizes in MODELS.items() for kind in KINDS}
    print(json.dumps({"operations": outcomes, "rows": rows}, indent=1))
