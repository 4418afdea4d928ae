# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Parts of `AOGPTForCausalLM` that follow the conventions of Transformers: inputs and caches of a pass, generation.

Every forward pass runs the start row, followed by one row for each new token. The start row is not cached. If a text
begins with the model's start token, the row of this token is a start row, too. No other row attends to the token, and
the positions of the text are counted after it. If all texts of a batch begin with it, no start row is added.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from transformers.cache_utils import Cache
from transformers.generation import CandidateGenerator, GenerationConfig, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import ModelOutput, logging

from .configuration_aogpt import AOGPTConfig, as_list
from .devices import has_padding, is_readable
from .orders import token_positions
from .validation import check_integer_dtype, check_tensor, find_tokens, prepare_input_ids, should_validate, start_mask

# Name of the cache in the outputs of models, and in the arguments that `generate` of Transformers passes to models.
# Transformers 5.24 renamed it from `past_key_values` to `cache`.
CACHE_NAME = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
# Attribute of caches: whether all texts begin with a start token to which rows attend.
VISIBLE_NAME = "_aogpt_start_is_visible"
# In the first layer of a cache, start tokens to which no row attends get a key whose elements all have this value.
# Later passes recognize the tokens by it, even if the texts were reordered. The value is exact in every dtype.
START_KEY = 1.625

LARGEST_MASKED = -10_000  # of an additive attention mask, as in models of the time of GPT-2

logger = logging.get_logger(__name__)


class StartRowCache:
    """Wrapper of a Transformers cache that does not store the start row, the first row of every forward pass.

    `is_start` (batch, n) marks new tokens that are start tokens. In the first layer, their keys become `START_KEY`.
    """

    def __init__(self, cache: Cache, is_start: torch.BoolTensor | None) -> None:
        self.cache, self.is_start = cache, is_start

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cache all new rows but the first. Return the keys and values of the first row, then all cached ones."""
        new_keys = keys[:, :, 1:]
        if marks_starts := layer_idx == 0 and self.is_start is not None:
            new_keys = new_keys.masked_fill(self.is_start.to(keys.device)[:, None, :, None], START_KEY)
        stored_keys, stored_values = self.cache.update(new_keys, values[:, :, 1:], layer_idx)
        if marks_starts and hasattr(self.cache.layers[0], "_quantize"):
            raise ValueError(
                "A quantized cache can hold start tokens only if all texts begin with one in the first column. Use "
                "another cache, or remove the start tokens."
            )
        return torch.cat((keys[:, :, :1], stored_keys), dim=2), torch.cat((values[:, :, :1], stored_values), dim=2)


class CausalInputs(NamedTuple):
    """Inputs of a forward pass of `AOGPTForCausalLM`."""

    rows: dict[str, Any]  # keyword arguments of `AOGPTModel.forward`; the last n rows contain the new tokens
    is_start: torch.BoolTensor | None  # (batch, n): whether a new token is a start token; None if the model has none
    is_beyond: torch.BoolTensor | None  # (batch, n): whether a new row predicts a position that the model lacks


def prepare_causal_inputs(
    model: PreTrainedModel,
    input_ids: torch.LongTensor,
    attention_mask: torch.Tensor | None,
    position_ids: torch.LongTensor | None,
    cache: Cache | None,
) -> CausalInputs:
    """Check the inputs of `AOGPTForCausalLM.forward`, and return the inputs of the decoder."""
    config, length, num_cached = model.config, input_ids.shape[1], 0 if cache is None else cache.get_seq_length()
    if length == 0:
        raise ValueError("`input_ids` has no tokens. To generate without a prompt, call `generate()` without inputs.")
    is_token, is_visible = split_attention_mask(attention_mask, len(input_ids), length, num_cached)
    input_ids = prepare_input_ids(model, input_ids, None if is_token is None else is_token[:, -length:])
    num_slots = length if cache is None else cache.get_mask_sizes(length, 0)[0]
    columns = num_cached + torch.arange(length, device=input_ids.device)
    is_empty = isinstance(num_cached, int) and num_cached == 0
    first = starts = is_start = hidden = None
    num_added = 1  # start rows
    if attention_mask is not None or config.start_token_id is not None:
        first = find_first_tokens(is_token, is_visible, input_ids, num_slots)
    if config.start_token_id is not None:
        is_start = (columns == first[:, None]) & (input_ids == config.start_token_id)
        cached = -1 if is_empty else read_cached_starts(cache, num_cached, first)
        starts = torch.where(is_start.any(dim=1), first, cached)  # (batch,): column of the start token, or -1
        num_added, hidden = replace_start_row(starts, first, is_visible, is_empty, cache)
    if is_empty and not model.training and is_readable(input_ids):
        warn_if_started(config, input_ids[:, 0] if first is None else input_ids[columns == first[:, None]])
    positions, last = prepare_positions(model, input_ids, position_ids, is_token, num_cached, starts, is_start)
    if position_ids is not None and is_visible is None and length > 1:
        check_not_packed(positions, is_token)
    if first is not None:  # rows before the text are start rows
        is_before = columns < first[:, None]
        is_before = is_before if is_start is None else is_before | is_start
        positions = torch.where(is_before, -1, positions)
    mask = make_causal_mask(is_token, is_visible, hidden, num_added, columns, num_slots)
    targets, is_beyond = positions.expand_as(input_ids) + 1, None
    if config.target_injection != "none":
        is_beyond = find_rows_beyond(model, targets, last)
        targets = targets.clamp(max=config.max_position_embeddings - 1)
    rows = {
        "input_ids": F.pad(input_ids, (num_added, 0)),
        "positions": F.pad(positions.expand_as(input_ids), (num_added, 0), value=-1),
        "target_positions": F.pad(targets, (num_added, 0)),
        "attention_mask": mask,
        "cache": cache,
    }
    if cache is not None and num_added:
        rows["cache"] = StartRowCache(cache, None if hidden is None else is_start)
    return CausalInputs(rows, is_start, is_beyond)


def find_first_tokens(
    is_token: torch.BoolTensor | None, is_visible: torch.BoolTensor | None, input_ids: torch.LongTensor, num_slots: int
) -> torch.LongTensor:
    """Return the column (batch,) of the first token of each text, counted with cached ones; `num_slots` if none."""
    if is_visible is not None:
        is_token = is_visible.any(dim=2)[:, 0]  # no row attends to padding
    if is_token is None:
        return torch.zeros(len(input_ids), dtype=torch.long, device=input_ids.device)
    first = torch.where(is_token.any(dim=1), is_token.long().argmax(dim=1), num_slots)
    return first.to(input_ids.device).expand(len(input_ids))


def read_cached_starts(cache: Cache, num_cached: int | torch.Tensor, texts: torch.Tensor) -> torch.LongTensor:
    """Return the column (batch,) of the start token of each cached text, or -1. `texts` has their number and device."""
    is_visible, keys = getattr(cache, VISIBLE_NAME, None), cache.layers[0].keys
    if is_visible is None and (
        not isinstance(num_cached, torch.Tensor) or (is_readable(num_cached) and num_cached > 0)
    ):
        raise ValueError(
            "`cache` was not filled by `forward` of an AOGPTForCausalLM, so it is unknown whether the cached texts "
            "begin with the start token. Pass an empty cache and the whole texts."
        )
    starts = texts.new_full((len(texts),), 0 if is_visible else -1)
    if keys.dim() < 4:  # all keys are quantized
        return starts
    is_start = (keys[:, 0] == START_KEY).all(dim=-1)
    is_start &= torch.arange(keys.shape[2], device=keys.device) < num_cached  # others may be of an earlier text
    is_start = is_start.to(texts.device)
    return torch.where(is_start.any(dim=1), is_start.long().argmax(dim=1), starts)


def replace_start_row(
    starts: torch.LongTensor,
    first: torch.LongTensor,
    is_visible: torch.BoolTensor | None,
    is_empty: bool,
    cache: Cache | None,
) -> tuple[int, torch.LongTensor | None]:
    """Return the number of start rows to add, and the slot (batch,) of the start token to hide in each text.

    The slot is -1 in a text without such a token. If no text has one, None is returned instead of the slots.
    If every text begins with a start token in the first column, these tokens are visible, and no start row is added.
    Static caches always hide start tokens, because compiled passes cannot read how they were filled.
    """
    replaces_all, is_any = False, True
    if is_readable(starts):
        replaces_all, is_any = torch.stack((((starts == 0) & (first == 0)).all(), (starts >= 0).any())).tolist()
        replaces_all &= is_visible is None and (is_empty or getattr(cache, VISIBLE_NAME, False))
        replaces_all &= cache is None or not cache.is_compileable
    if cache is not None and (is_empty or not hasattr(cache, VISIBLE_NAME)):
        setattr(cache, VISIBLE_NAME, replaces_all)
    return (0, None) if replaces_all else (1, starts if is_any else None)


def warn_if_started(config: AOGPTConfig, tokens: torch.LongTensor) -> None:
    """Warn if one of `tokens`, the first ones of texts, is beginning- or end-of-text, but not the start token."""
    special = sorted({config.bos_token_id, *as_list(config.eos_token_id)} - {None, config.start_token_id})
    if special and torch.isin(tokens, torch.tensor(special, device=tokens.device)).any():
        row = "a learned start row" if config.start_token_id is None else f"the start token {config.start_token_id}"
        logger.warning_once(
            f"A text begins with a special token (one of {special}). It is treated as text, because the model adds "
            f"{row}. If it is there to start the text, remove it: call the tokenizer with add_special_tokens=False, "
            "and `generate()` without inputs if there is no prompt. In lm-eval, use `--model aogpt` (eval/harness.py)."
        )


def find_rows_beyond(model: PreTrainedModel, targets: torch.LongTensor, last: int | None) -> torch.BoolTensor | None:
    """Return whether each row predicts a position that the model lacks; None if no row does, or in training.

    `targets` (batch, n) are the target positions of the rows, and `last` is an upper bound of positions, if known.
    """
    most = model.config.max_position_embeddings
    if model.training or (last is not None and last + 1 < most):
        return None
    if is_readable(targets):
        logger.warning_once(
            f"A text has {most} tokens, and this model has {most} positions (config.max_position_embeddings), so it "
            "cannot predict the token after the last one. These logits are NaN. If they are needed, use shorter texts "
            f"(in lm-eval: --model_args max_length={most - 1})."
        )
    return targets >= most


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


def check_not_packed(positions: torch.LongTensor, is_token: torch.BoolTensor | None) -> None:
    """Raise a `ValueError` if a position is not that of the token before plus one, as in packed texts."""
    is_jump = positions.diff(dim=-1) != 1
    if is_token is not None:  # (batch, cached + n): False at padding
        is_token = is_token[:, -positions.shape[-1] :].to(positions.device)
        is_jump = is_jump & is_token[:, 1:] & is_token[:, :-1]
    # This check makes the CPU wait for an accelerator. It also runs in training, where packing is common.
    if not torch.compiler.is_compiling() and is_jump.any():
        raise ValueError(
            "`position_ids` must increase by one from token to token, but do not. Texts that are packed would attend "
            "to each other. Put each text into its own sequence or pass a 4-D mask, and mark padding in the mask."
        )


def split_attention_mask(
    attention_mask: torch.Tensor | None, batch_size: int, length: int, num_cached: int | torch.Tensor
) -> tuple[torch.BoolTensor | None, torch.BoolTensor | None]:
    """Check an attention mask, and return it as (is_token, is_visible), of which at most one is not None.

    A 2-D mask gives `is_token` (batch, cached + n). A 4-D mask gives `is_visible` (batch or 1, 1, n, slots).
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
        return find_tokens(attention_mask, attention_mask), None
    is_boolean = attention_mask.dtype == torch.bool
    if attention_mask.dim() != 4 or not (is_boolean or attention_mask.is_floating_point()):
        raise ValueError(
            "`attention_mask` must have shape (batch, cached + n), or shape (batch, 1, n, keys) and a boolean or "
            f"floating-point dtype, but has shape {tuple(attention_mask.shape)} and dtype {attention_mask.dtype}. Use "
            "attention_mask.bool() if it is 1 where a token attends to a key."
        )
    if attention_mask.shape[1:3] != (1, length) or len(attention_mask) not in (1, batch_size):
        raise ValueError(
            f"A 4-D `attention_mask` must have shape ({batch_size} or 1, 1, {length}, keys), with one row for each new "
            f"token, but has shape {tuple(attention_mask.shape)}."
        )
    if is_boolean:
        return None, attention_mask
    is_other = (attention_mask != 0) & ~(attention_mask <= LARGEST_MASKED)  # also NaN
    if is_readable(is_other) and is_other.any():
        raise ValueError(
            "A floating-point `attention_mask` must be 0 where a token attends to a key, and at most "
            f"{LARGEST_MASKED:,} elsewhere, but contains {attention_mask[is_other][0]:g}. Remove biases such as ALiBi."
        )
    return None, attention_mask == 0


def prepare_positions(
    model: PreTrainedModel,
    input_ids: torch.LongTensor,
    position_ids: torch.LongTensor | None,
    is_token: torch.BoolTensor | None,
    num_cached: int | torch.Tensor,
    starts: torch.LongTensor | None,
    is_start: torch.BoolTensor | None,
) -> tuple[torch.LongTensor, int | None]:
    """Check `position_ids`, which count a start token as in Transformers, or count positions without padding.

    Return the positions (batch or 1, n) of the tokens, at which a start token has -1, and an upper bound, if known.
    """
    length, last = input_ids.shape[1], None
    if position_ids is None and isinstance(num_cached, int):
        last = num_cached + length - 1
    if position_ids is not None:
        check_positions(position_ids, input_ids)
        positions = position_ids.long()
    elif is_token is not None:
        positions = token_positions(is_token)[:, -length:]
    else:
        positions = num_cached + torch.arange(length, device=input_ids.device)[None]
    lowest = -1
    if starts is not None:
        is_counted, lowest = starts >= 0, -2
        if position_ids is None and is_token is not None:  # a mask of a later pass may hide the start token
            is_counted &= is_token.gather(1, starts.clamp(min=0)[:, None])[:, 0]
        positions = positions - is_counted[:, None].long()
    if should_validate(model, positions):
        is_wrong = positions.new_zeros(()) if is_start is None else (is_start & (positions != -1)).any().long()
        least, last, is_wrong = torch.stack((*positions.aminmax(), is_wrong)).tolist()  # waits for an accelerator once
        check_last_position(model.config, last)
        if least < lowest:
            raise ValueError(f"`position_ids` must be at least -1 (for padding), but contain {least - lowest - 1}.")
        if is_wrong and position_ids is not None:
            raise ValueError("`position_ids` must be 0 at the start token of a text, but are not. Count from 0.")
    return positions, last


def check_last_position(config: AOGPTConfig, last: int) -> None:
    """Raise a `ValueError` if the model has no position `last`."""
    length = config.max_position_embeddings
    if last >= length:
        raise ValueError(
            f"A token would be at position {last}, but the last position of this model is {length - 1} "
            f"(config.max_position_embeddings is {length}). Generate fewer tokens, or shorten the prompt."
        )


def make_causal_mask(
    is_token: torch.BoolTensor | None,
    is_visible: torch.BoolTensor | None,
    hidden: torch.LongTensor | None,
    num_added: int,
    columns: torch.LongTensor,
    num_slots: int,
) -> torch.BoolTensor | None:
    """Return the attention mask (batch or 1, 1, rows, slots) with the added start row, or None if attention is causal.

    `hidden` (batch,) is the slot of each text's start token, or -1. No row attends to this slot. `columns` (n,) are the
    slots of the new tokens. `num_slots` is the number of keys, including unused entries of the cache.
    """
    slots = torch.arange(num_slots, device=columns.device)
    if is_visible is None:
        if num_slots == len(columns) and hidden is None and not has_padding(is_token):
            return None
        is_visible = (slots <= columns[:, None])[None, None]
        if is_token is not None:
            is_visible = is_visible & F.pad(is_token, (0, num_slots - is_token.shape[1]))[:, None, None]
    elif is_visible.shape[-1] != num_slots:
        raise ValueError(
            f"A 4-D `attention_mask` must have {num_slots} keys (the last dimension), one for each cached or new "
            f"token, but has {is_visible.shape[-1]}."
        )
    if hidden is not None:
        is_visible = is_visible & (slots != hidden[:, None])[:, None, None]
    if num_added:  # all rows attend to the start row, which attends only to itself
        is_visible = F.pad(F.pad(is_visible, (0, 0, 1, 0), value=False), (1, 0), value=True)
    return is_visible


class CausalGenerationMixin(GenerationMixin):
    """Mixin that adapts `generate` of Transformers to the start row and the last position of the model."""

    def generate(
        self, inputs: torch.LongTensor | None = None, *arguments: Any, **options: Any
    ) -> ModelOutput | torch.LongTensor:
        """Generate text as in Transformers.

        Without a prompt, the text begins after the start row. The returned sequences then have one more column at the
        beginning: the start token or, if the model has none, a beginning-of-text token that the model does not read.
        """
        given = options.get("input_ids") if inputs is None else inputs
        if options.get("inputs_embeds") is None and (given is None or given.numel() == 0):
            options.pop("input_ids", None)
            start, bos = self.config.start_token_id, self.config.bos_token_id
            token = next((token for token in (start, bos) if token is not None), 0)
            inputs = torch.full((1 if given is None else len(given), 1), token, device=self.device)
            options["attention_mask"] = torch.zeros_like(inputs) if start is None else torch.ones_like(inputs)
        mask = options.get("attention_mask")
        if mask is not None and mask.dim() == 2 and ((mask[:, -1] == 0) & mask.any(dim=-1)).any():
            raise ValueError("`attention_mask` marks padding after a prompt. Pad before it: padding_side='left'.")
        if mask is not None and options.get("position_ids") is None and not mask.any(dim=-1).all():
            # Otherwise, Transformers would count the last column of a prompt that contains only padding.
            options["position_ids"] = mask.long().cumsum(dim=-1) - 1
        return super().generate(inputs, *arguments, **options)

    def prepare_inputs_for_generation(self, input_ids: torch.LongTensor, **kwargs: Any) -> dict[str, Any]:
        """Prepare inputs as in Transformers, and raise a `ValueError` if no position is left for the next token."""
        if (position_ids := kwargs.get("position_ids")) is not None:
            last = int(position_ids.max())
            if last == self.config.max_position_embeddings - 1 and self.config.start_token_id is not None:
                has_start = self._begins_with_start(input_ids, kwargs.get("attention_mask"), kwargs.get(CACHE_NAME))
                last = int((position_ids - has_start[:, None].long()).max())
            check_last_position(self.config, last + 1)
        return super().prepare_inputs_for_generation(input_ids, **kwargs)

    def _begins_with_start(
        self, input_ids: torch.LongTensor, attention_mask: torch.Tensor | None, cache: Cache | None
    ) -> torch.BoolTensor:
        """Return whether each text of a generation begins with the start token, a tensor (batch,)."""
        if hasattr(cache, VISIBLE_NAME) and (num_cached := cache.get_seq_length()) > 0:
            return read_cached_starts(cache, num_cached, input_ids) >= 0
        is_whole = attention_mask is not None and attention_mask.shape == input_ids.shape
        return start_mask(self.config, input_ids, attention_mask if is_whole else None).any(dim=1)

    def _get_candidate_generator(
        self, *, generation_config: GenerationConfig, input_ids: torch.LongTensor, **options: Any
    ) -> CandidateGenerator:
        """Return the source of drafts. It drafts nothing for the last column, because no token can follow it."""
        source = super()._get_candidate_generator(generation_config=generation_config, input_ids=input_ids, **options)
        if getattr(source, "eos_token_id", 0) is None:  # prompt lookup of Transformers 5.10 fails without ids
            source.eos_token_id = input_ids.new_empty(0)
        mask, cache = (options["model_kwargs"].get(name) for name in ("attention_mask", CACHE_NAME))
        num_unused = 0 if mask is None else int((mask == 0).sum())
        num_unused += int(self._begins_with_start(input_ids, mask, cache).any())
        longest = min(generation_config.max_length, self.config.max_position_embeddings + num_unused) - 1
        draft = source.get_candidates

        def draft_within_limit(input_ids: torch.LongTensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
            ids, logits = draft(input_ids, **options)
            num_drafts = max(0, min(ids.shape[1], longest) - input_ids.shape[1])
            ids = ids[:, : input_ids.shape[1] + num_drafts]
            return ids, None if logits is None or not num_drafts else logits[:, :num_drafts]

        source.get_candidates = draft_within_limit
        return source
