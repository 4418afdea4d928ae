# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Key-value caches: one that any-order generation writes by slot, and a view of transformers' caches for a start
row."""

from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from transformers.cache_utils import Cache

from .configuration_aogpt import AOGPTConfig


class AnyOrderCache:
    """
    Preallocated keys and values, in which the row that predicts rank r of an order lies in slot r.

    So it is full when all is generated, what a pass may overwrite (the queries of positions other than the one
    committed first) lies just where the next rows belong, and nothing is ever copied or moved.
    """

    def __init__(
        self,
        config: AOGPTConfig,
        batch_size: int,
        num_slots: int,
        dtype: torch.dtype,
        devices: Sequence[torch.device],
    ) -> None:
        """Of each layer on its own of the `devices`."""
        shape = (batch_size, config.num_attention_heads, num_slots, config.head_dim)
        # Not one tensor for all layers: a compiled pass would copy the whole of it to write to a part.
        self.layers = [
            tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in ("keys", "values")) for device in devices
        ]
        for store in self.stores():  # CUDA graphs write to nothing else
            torch._dynamo.mark_static_address(store, guard=False)  # a guard would compile anew for every cache
        self._sequences = torch.arange(batch_size, device=devices[0])[:, None]
        self._slots: slice | torch.LongTensor = slice(0, 0)
        self._num_visible = 0

    def stores(self) -> Iterator[torch.Tensor]:
        """Keys and values (batch, heads, slots, head_dim) of one layer after another."""
        return chain.from_iterable(self.layers)

    def write_to(self, slots: slice | torch.LongTensor, num_visible: int) -> None:
        """
        Says where the rows of the next pass go - `slots`, a slice where they are the same for every sequence, otherwise
        (batch, rows) - and that they attend to the first `num_visible` slots.
        """
        self._slots = slots
        self._num_visible = num_visible

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores keys and values (batch, heads, rows, head_dim) and returns those of all visible slots."""
        stored = self.layers[layer_idx]
        if isinstance(self._slots, slice):
            for store, states in zip(stored, (keys, values), strict=True):
                store[:, :, self._slots] = states
        else:
            sequences, slots = self._sequences.to(keys.device), self._slots.to(keys.device)  # of this layer
            for store, states in zip(stored, (keys, values), strict=True):
                store[sequences, :, slots] = states.transpose(1, 2).to(store.dtype)
        return stored[0][:, :, : self._num_visible], stored[1][:, :, : self._num_visible]


class StartRowCache:
    """A transformers cache for rows of which the first, the start row, is not to be kept."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        kept_keys, kept_values = self.cache.update(keys[:, :, 1:], values[:, :, 1:], layer_idx)
        return torch.cat((keys[:, :, :1], kept_keys), dim=2), torch.cat((values[:, :, :1], kept_values), dim=2)
