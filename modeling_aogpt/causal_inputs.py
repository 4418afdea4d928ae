# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Inputs of `AOGPTForCausalLM`: rows, attention masks, positions and caches, with the conventions of Transformers.

Every forward pass runs the start row, followed by one row for each new token. The start row is not cached.
"""

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel

from .configuration_aogpt import AOGPTConfig
from .devices import has_padding
from .orders import token_positions
from .validation import check_integer_dtype, check_tensor, prepare_input_ids, should_validate

# Name of the cache in the outputs of models, and in the arguments that `generate` of Transformers passes to models.
# Transformers 5.24 renamed it from `past_key_values` to `cache`.
CACHE_NAME = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


def check_old_cache_name(cache: Cache | None) -> None:
    """Raise a `ValueError` if `past_key_values` and `cache` are both given. Warn if the old name is deprecated."""
    if cache is not None:
        raise ValueError(
            "`cache` and `past_key_values` are two names of the same argument, but both are given. Remove "
            "`past_key_values`."
        )
    if CACHE_NAME == "cache" and not torch.compiler.is_compiling():
        warnings.warn("`past_key_values` is deprecated in Transformers. Use `cache` instead.", FutureWarning, 3)


class StartRowCache:
    """Wrapper of a Transformers cache that does not store the start row, the first row of every forward pass."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cache all new rows but the first. Return keys and values of the first row, followed by those of the cache."""
        stored_keys, stored_values = self.cache.update(keys[:, :, 1:], values[:, :, 1:], layer_idx)
        return torch.cat((keys[:, :, :1], stored_keys), dim=2), torch.cat((values[:, :, :1], stored_values), dim=2)


def prepare_causal_inputs(
    model: PreTrainedModel,
    input_ids: torch.LongTensor,
    attention_mask: torch.Tensor | None,
    position_ids: torch.LongTensor | None,
    cache: Cache | None,
) -> dict[str, Any]:
    """Check the inputs of `AOGPTForCausalLM.forward`, and return the keyword arguments of `AOGPTModel.forward`."""
    length, num_cached = input_ids.shape[1], 0 if cache is None else cache.get_seq_length()
    is_token, is_visible = split_attention_mask(attention_mask, length, num_cached)
    input_ids = prepare_input_ids(model, input_ids, None if is_token is None else is_token[:, -length:])
    positions = prepare_positions(model, input_ids, position_ids, is_token, num_cached)
    if position_ids is not None and attention_mask is None:
        check_not_packed(positions)
    num_slots = length if cache is None else cache.get_mask_sizes(length, 0)[0]
    positions = F.pad(positions.expand_as(input_ids), (1, 0), value=-1)
    return {
        "input_ids": F.pad(input_ids, (1, 0)),
        "positions": positions,
        "target_positions": (positions + 1).clamp(max=model.config.max_position_embeddings - 1),
        "attention_mask": prepare_mask(is_token, is_visible, length, num_slots, num_cached, input_ids.device),
        "cache": None if cache is None else StartRowCache(cache),
    }


def check_positions(position_ids: torch.LongTensor, input_ids: torch.LongTensor) -> None:
    """Raise a `ValueError` unless `position_ids` are integers of shape (batch, n), (1, n) or (n,)."""
    check_tensor("position_ids", position_ids)
    batch_size, length = input_ids.shape
    if tuple(position_ids.shape) not in ((length,), (1, length), (batch_size, length)):
        raise ValueError(
            f"`position_ids` must have shape ({batch_size}, {length}), or (1, {length}) or ({length},) for all "
            f"sequences, but have shape {tuple(position_ids.shape)}."
        )
    check_integer_dtype("position_ids", position_ids)


def check_not_packed(position_ids: torch.LongTensor) -> None:
    """
    Raise a `ValueError` unless positions increase by one. Other positions mean that several texts are packed together.

    Packed texts would attend to each other. The check makes the CPU wait for an accelerator. It also runs in training,
    where packing is common, because no other check detects it.
    """
    if not torch.compiler.is_compiling() and (position_ids.diff(dim=-1) != 1).any():
        raise ValueError(
            "`position_ids` must increase by one from token to token if there is no `attention_mask`, but do not. "
            "Texts that are packed into one sequence would attend to each other. Put each text into its own "
            "sequence. If sequences are padded, pass an `attention_mask`."
        )


def split_attention_mask(
    attention_mask: torch.Tensor | None, length: int, num_cached: int | torch.Tensor
) -> tuple[torch.BoolTensor | None, torch.BoolTensor | None]:
    """
    Check the attention mask of a causal language model, and return it as (is_token, is_visible).

    At most one of the two is not None: for a 2-D mask `is_token` (batch, cached + n), which is True at tokens; for a
    4-D mask `is_visible` (batch or 1, 1, n, slots), which is True where a token attends to a slot.
    """
    if attention_mask is None:
        return None, None
    check_tensor("attention_mask", attention_mask)
    if attention_mask.dim() == 2:
        if attention_mask.shape[1] != num_cached + length:
            raise ValueError(
                f"`attention_mask` must have {int(num_cached) + length} columns, for {int(num_cached)} cached and "
                f"{length} new tokens, but has {attention_mask.shape[1]}. Include the cached tokens in the mask."
            )
        return attention_mask != 0, None
    is_boolean = attention_mask.dtype == torch.bool
    if attention_mask.dim() != 4 or not (is_boolean or attention_mask.is_floating_point()):
        raise ValueError(
            "`attention_mask` must have shape (batch, cached + n), or shape (batch, 1, n, keys) and a boolean or "
            f"floating-point dtype, but has shape {tuple(attention_mask.shape)} and dtype {attention_mask.dtype}. Use "
            "attention_mask.bool() if it is 1 where a token attends to a key."
        )
    if attention_mask.shape[1:3] != (1, length):
        raise ValueError(
            f"A 4-D `attention_mask` must have shape (batch or 1, 1, {length}, keys), with one row for each new token, "
            f"but has shape {tuple(attention_mask.shape)}."
        )
    return None, attention_mask if is_boolean else attention_mask == 0


def prepare_positions(
    model: PreTrainedModel,
    input_ids: torch.LongTensor,
    position_ids: torch.LongTensor | None,
    is_token: torch.BoolTensor | None,
    num_cached: int | torch.Tensor,
) -> torch.LongTensor:
    """Check `position_ids`, or count positions without padding. Return the positions (batch or 1, n) of the tokens."""
    length = input_ids.shape[1]
    if position_ids is not None:
        check_positions(position_ids, input_ids)
        positions = position_ids.long()
    elif is_token is not None:
        positions = token_positions(is_token)[:, -length:]
    else:
        positions = num_cached + torch.arange(length, device=input_ids.device)[None]
    if should_validate(model, positions):
        first, last = torch.stack(positions.aminmax()).tolist()  # waits for an accelerator only once
        check_last_position(model.config, last)
        if first < -1:
            raise ValueError(f"`position_ids` must be at least -1 (for padding), but contain {first}.")
    return positions


def check_last_position(config: AOGPTConfig, last: int) -> None:
    """Raise a `ValueError` if the model has no position `last`."""
    length = config.max_position_embeddings
    if last >= length:
        raise ValueError(
            f"A token would be at position {last}, but the last position of this model is {length - 1} "
            f"(config.max_position_embeddings is {length}). Generate fewer tokens, or shorten the prompt."
        )


def prepare_mask(
    is_token: torch.BoolTensor | None,
    is_visible: torch.BoolTensor | None,
    length: int,
    num_slots: int,
    num_cached: int | torch.Tensor,
    device: torch.device,
) -> torch.BoolTensor | None:
    """
    Return the attention mask (batch or 1, 1, rows, slots) with start row, or None if attention is causal.

    `is_token` and `is_visible` are results of [`split_attention_mask`]. `num_slots` is the number of keys, including
    unused entries of the cache.
    """
    if is_visible is None:
        if num_slots == length and not has_padding(is_token):
            return None
        is_visible = causal_mask(length, num_slots, num_cached, is_token, device)
    elif is_visible.shape[-1] != num_slots:
        raise ValueError(
            f"A 4-D `attention_mask` must have {num_slots} keys (the last dimension), one for each cached or new "
            f"token, but has {is_visible.shape[-1]}."
        )
    return add_start_row(is_visible)


def causal_mask(
    num_rows: int,
    num_slots: int,
    num_cached: int | torch.Tensor,
    is_token: torch.BoolTensor | None,
    device: torch.device,
) -> torch.BoolTensor:
    """
    Return the causal attention mask of `num_rows` new rows that follow `num_cached` cached rows.

    Its shape is (batch, 1, num_rows, num_slots), or (1, 1, num_rows, num_slots) if `is_token` is None. `num_slots` is
    the number of keys, including unused entries of the cache.

    `is_token` (batch, cached + rows) is False at padding, to which no row attends. If `is_token` is None, there is no
    padding.
    """
    rows = num_cached + torch.arange(num_rows, device=device)
    mask = (torch.arange(num_slots, device=device) <= rows[:, None])[None, None]
    if is_token is None:
        return mask
    is_token = F.pad(is_token, (0, num_slots - is_token.shape[1]))
    return mask & is_token[:, None, None, :]


def add_start_row(mask: torch.BoolTensor) -> torch.BoolTensor:
    """
    Add a start row to an attention mask (batch, 1, rows, slots), as its first row and first slot.

    All rows attend to the start row, and the start row attends only to itself.
    """
    mask = F.pad(mask, (0, 0, 1, 0), value=False)
    return F.pad(mask, (1, 0), value=True)
