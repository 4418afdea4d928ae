# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
AO-GPT: a decoder-only language model that predicts tokens in any order (arXiv 2506.19935).

The unit of input is a row: (token revealed before, its position, target position). The row of rank k carries the token
of rank k - 1 and predicts the token at the target position `orders[b, k]`; row 0 carries a learned start embedding,
whose position is -1. Training, scoring, prefill and parallel decoding are the same forward over rows and differ only in
which rows see which.
"""

import copy
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from difflib import get_close_matches
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import GenerationMixin
from transformers.loss.loss_utils import fixed_cross_entropy
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast, MaskedLMOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from .cache_aogpt import StartRowCache
from .cached_decoder import CachedDecoder
from .configuration_aogpt import AOGPTConfig
from .devices import without_cudnn_attention
from .generation_aogpt import AnyOrderGenerationMixin
from .likelihood import AnyOrderLikelihoodMixin
from .linear import Linear
from .orders import (
    check_aligned,
    check_batch,
    check_orders,
    group_order,
    in_order,
    in_place,
    left_to_right_orders,
    token_positions,
    tokens_of,
)
from .rows import query_mask, rows_of

Rotation = tuple[torch.Tensor, torch.Tensor]


# ---------------------------------------------------------------------------------------------------------- blocks


def make_norm(config: AOGPTConfig) -> nn.Module:
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.use_bias)


def rotation_of(positions: torch.LongTensor, config: AOGPTConfig, dtype: torch.dtype) -> Rotation:
    """Cosines and sines (batch, 1, rows, head_dim) that turn a vector at `positions` (batch, rows)."""
    frequencies = config.rope_theta ** -(
        torch.arange(0, config.head_dim, 2, device=positions.device, dtype=torch.float32) / config.head_dim
    )
    angles = (positions[:, None, :, None] * frequencies).repeat(1, 1, 1, 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(states: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    cos, sin = rotation
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in plain operations; `attention_mask` is True where a row sees a slot, None is causal."""
    if attention_mask is None:
        rows = torch.arange(query.shape[2], device=query.device)
        attention_mask = rows[:, None] >= rows
    scores = query @ key.transpose(2, 3) * scaling
    scores = scores.masked_fill(~attention_mask, float("-inf"))
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    return (weights @ value).transpose(1, 2), weights


class AOGPTAttention(nn.Module):
    """Multi-head attention of rows; queries may be rotated by target positions, keys by the tokens' own."""

    def __init__(self, config: AOGPTConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = True
        self.scaling = config.head_dim**-0.5
        self.qkv_proj = Linear(config.hidden_size, 3 * config.hidden_size, bias=config.use_bias)
        self.o_proj = Linear(config.hidden_size, config.hidden_size, bias=config.use_bias)
        self.o_proj.writes_to_residual = True
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps) if config.qk_norm else nn.Identity()

    def forward(
        self,
        hidden_states: torch.Tensor,
        rotations: tuple[Rotation, Rotation] | None,
        attention_mask: torch.Tensor | None,
        past_key_values: Cache | None,
        kept: slice = slice(None),
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Of all rows keys and values are made, and the output of those that are `kept`."""
        batch_size, num_rows, _ = hidden_states.shape
        qkv = self.qkv_proj(hidden_states).view(batch_size, num_rows, 3, self.config.num_attention_heads, -1)
        query, key, value = qkv.unbind(dim=2)
        query, key = self.q_norm(query), self.k_norm(key)  # of what lies together: later it takes twice as long
        query, key, value = (states.transpose(1, 2) for states in (query, key, value))
        if rotations is not None:
            of_targets, of_tokens = rotations
            query, key = rotate(query, of_targets), rotate(key, of_tokens)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        query = query[:, :, kept]
        if attention_mask is not None:
            attention_mask = attention_mask[:, :, kept]

        implementation = self.config._attn_implementation
        if attention_mask is not None and implementation != "eager":
            implementation = "sdpa"  # parallel queries see neither a causal nor a padded pattern: others cannot take it
        attention: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        is_training = torch.is_grad_enabled() and attention_mask is None  # of one shape, again and again
        with nullcontext() if is_training or torch.compiler.is_compiling() else without_cudnn_attention(query.device):
            output, weights = attention(
                self, query, key, value, attention_mask, scaling=self.scaling, dropout=0.0, **kwargs
            )
        return self.o_proj(output.flatten(2)), weights


class AOGPTMLP(nn.Module):
    def __init__(self, config: AOGPTConfig) -> None:
        super().__init__()
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=config.use_bias)
        self.act_fn = ACT2FN[config.hidden_act]
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=config.use_bias)
        self.down_proj.writes_to_residual = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.up_proj(hidden_states)))


class TargetModulation(nn.Module):
    """adaLN: `num_vectors` vectors (shifts, scales, gates) of the model's width for each row, from its target alone."""

    def __init__(self, config: AOGPTConfig, num_vectors: int) -> None:
        super().__init__()
        self.num_vectors = num_vectors
        self.proj = Linear(config.target_embedding_size, num_vectors * config.hidden_size)

    def tabulate(self, conditions: torch.Tensor) -> torch.Tensor:
        """`conditions` (n, target_embedding_size) of every position -> all vectors of each position, (n, ...)."""
        return self.proj(conditions)

    def forward(
        self, conditions: torch.Tensor, target_positions: torch.LongTensor, table: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Returns `num_vectors` of (batch, rows, hidden_size), from the `table` of the conditions if there is one."""
        if table is None and target_positions.numel() > conditions.shape[0]:
            # Fewer positions than rows: project each position once. For 256 sequences of 16 rows this takes a sixth of
            # the time, forward and backward.
            table = self.tabulate(conditions)
        vectors = self.proj(conditions[target_positions]) if table is None else F.embedding(target_positions, table)
        return vectors.chunk(self.num_vectors, dim=-1)


def make_target_embeddings(config: AOGPTConfig) -> nn.Embedding | None:
    """The table of target positions that all blocks share; None where each has its own, or none is needed."""
    widths = {"adaln": config.target_embedding_size, "input": config.hidden_size, "shared": config.hidden_size}
    width = widths.get(config.target_injection)
    return None if width is None else nn.Embedding(config.max_position_embeddings, width)


def conditions_of(target_embeddings: nn.Embedding, length: int, device: torch.device) -> torch.Tensor:
    """What `TargetModulation` takes, (length, target_embedding_size), of the first `length` positions."""
    return F.silu(target_embeddings(torch.arange(length, device=device)))


def modulate(hidden_states: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(hidden_states + shift, hidden_states, scale)


class AOGPTBlock(GradientCheckpointingLayer):
    """Attention and MLP on the residual stream, both modulated and gated by the target under `"adaln"`."""

    def __init__(self, config: AOGPTConfig, layer_idx: int) -> None:
        super().__init__()
        self.input_norm = make_norm(config)
        self.attention = AOGPTAttention(config, layer_idx)
        self.post_attention_norm = make_norm(config)
        self.mlp = AOGPTMLP(config)
        self.modulation = TargetModulation(config, 6) if config.target_injection == "adaln" else None
        self.target_embeddings = (
            nn.Embedding(config.max_position_embeddings, config.hidden_size)
            if config.target_injection == "per_layer"
            else None
        )

    def forward(
        self,
        hidden_states: torch.Tensor,
        conditions: torch.Tensor | None,
        target_positions: torch.LongTensor,
        rotations: tuple[Rotation, Rotation] | None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        modulations: torch.Tensor | None = None,
        kept: slice = slice(None),
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """The hidden states of the rows that are `kept`; `modulations` is the table of the block's modulation."""
        attend = {
            "rotations": rotations,
            "attention_mask": attention_mask,
            "past_key_values": past_key_values,
            "kept": kept,
            **kwargs,
        }
        if self.modulation is None:
            if self.target_embeddings is not None:
                hidden_states = hidden_states + self.target_embeddings(target_positions)
            attended = self.attention(self.input_norm(hidden_states), **attend)[0]
            hidden_states = hidden_states[:, kept] + attended
            return hidden_states + self.mlp(self.post_attention_norm(hidden_states))

        shift, scale, *others = self.modulation(conditions, target_positions, modulations)
        gate, mlp_shift, mlp_scale, mlp_gate = (vectors[:, kept] for vectors in others)
        attended = self.attention(modulate(self.input_norm(hidden_states), shift, scale), **attend)[0]
        hidden_states = torch.addcmul(hidden_states[:, kept], gate, attended)
        transformed = self.mlp(modulate(self.post_attention_norm(hidden_states), mlp_shift, mlp_scale))
        return torch.addcmul(hidden_states, mlp_gate, transformed)


# ---------------------------------------------------------------------------------------------------------- models


# What transformers, its trainer, its `generate`, tokenizers and PEFT may hand to any model's forward.
COMMON_ARGUMENTS = frozenset(
    {
        *TransformersKwargs.__annotations__,
        *("num_items_in_batch", "token_type_ids", "return_dict", "use_cache", "tokenizer", "assistant_tokenizer"),
    }
)


class AOGPTPreTrainedModel(PreTrainedModel):
    config: AOGPTConfig
    config_class = AOGPTConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["AOGPTBlock"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": AOGPTBlock, "attentions": AOGPTAttention}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if not isinstance(module, (nn.Linear, nn.Embedding)):
            return super()._init_weights(module)
        std = self.config.initializer_range
        if getattr(module, "writes_to_residual", False):
            std /= (2 * self.config.num_hidden_layers) ** 0.5
        init.trunc_normal_(module.weight, std=std, a=-3 * std, b=3 * std)
        if getattr(module, "bias", None) is not None:
            init.zeros_(module.bias)

    def checked_ids(
        self, input_ids: torch.LongTensor, attention_mask: torch.Tensor | None = None, mask_allowed: bool = False
    ) -> torch.LongTensor:
        """
        The ids (batch, n) as int64, with 0 at padding, whatever stood there. Raises a `ValueError` unless they are a
        batch of text no longer than the position table, and the mask has their shape.
        """
        check_batch(input_ids)
        if attention_mask is not None:
            check_aligned(attention_mask, input_ids)
        length, longest = input_ids.shape[1], self.config.max_position_embeddings
        if not 1 <= length <= longest:
            raise ValueError(
                f"input_ids has {length} tokens per sequence, but this model takes 1 to {longest} "
                "(config.max_position_embeddings): cut or split the text, or train a model with a longer table."
            )
        input_ids = input_ids.long()
        if attention_mask is not None:
            input_ids = input_ids.masked_fill(attention_mask == 0, 0)
        self.check_text("input_ids", input_ids, also=self.config.mask_token_id if mask_allowed else None)
        return input_ids

    def checked_labels(
        self, labels: torch.LongTensor, input_ids: torch.LongTensor, attention_mask: torch.Tensor | None = None
    ) -> torch.LongTensor:
        """
        The labels (batch, n) as int64, with -100 at padding, whatever stood there. Raises a `ValueError` unless they
        have the shape of the ids, and are text or -100.
        """
        check_batch(labels, "labels")
        check_aligned(labels, input_ids, "labels")
        labels = labels.long()
        if attention_mask is not None:
            labels = labels.masked_fill(attention_mask == 0, -100)
        self.check_text("labels", labels, also=-100)
        return labels

    def may_look_at(self, values: torch.Tensor) -> bool:
        """
        Whether checks look at values: where that costs nothing much, so not in a compiled graph, nor on an accelerator
        in training, which would wait for it.
        """
        return not (torch.compiler.is_compiling() or values.is_meta or (self.training and not values.is_cpu))

    def check_text(self, name: str, ids: torch.LongTensor, also: int | None) -> None:
        """Raises a `ValueError` for ids that stand for no text and are not `also`."""
        if not self.may_look_at(ids):
            return
        wrong = (ids < 0) | (ids >= self.config.num_valid_tokens)
        if also is not None:
            wrong &= ids != also
        if wrong.any():
            given = ids[wrong][0].item()
            hint = ""
            if given == self.config.mask_token_id:
                hint = " That is the mask: generate() and AOGPTForMaskedLM fill it in, a likelihood needs whole text."
            raise ValueError(
                f"{name} holds {given}, but ids of text go from 0 to {self.config.num_valid_tokens - 1} "
                f"(config.num_valid_tokens).{hint}"
            )

    def loss_of(
        self,
        logits: torch.Tensor,
        labels: torch.LongTensor,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        """Mean over labels other than -100, in at least float32; or their sum over `num_items_in_batch`."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return fixed_cross_entropy(logits.flatten(0, 1), labels.flatten(), num_items_in_batch)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """
        As in transformers. New ids before the mask are text from then on; what `pad_to_multiple_of` adds is not.

        Raises:
            ValueError: If new ids come after the mask, or text, an encoder's mask or a special token loses its row.
        """
        resized, mask = copy.copy(self.config), self.config.mask_token_id
        resized.vocab_size = new_num_tokens or self.config.vocab_size
        if resized.vocab_size > max(self.config.vocab_size, mask + 1):
            raise ValueError(
                f"new_num_tokens={new_num_tokens} makes ids after the mask (config.mask_token_id={mask}), but ids of "
                "text end before it. Move the mask first, the tokenizer's and config.mask_token_id, behind all new "
                "tokens; rows that only pad the table come by pad_to_multiple_of."
            )
        if resized.vocab_size > self.config.vocab_size:
            resized.num_valid_tokens = min(resized.vocab_size, mask)
        resized.validate()
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.config.num_valid_tokens = resized.num_valid_tokens
        return embeddings

    def refuse_unknown(self, arguments: dict[str, object]) -> None:
        """Raises a `ValueError` for a misspelt argument of `forward`, which would have no effect."""
        unknown = [name for name, value in arguments.items() if value is not None and name not in COMMON_ARGUMENTS]
        if unknown:
            known = list(inspect.signature(type(self).forward).parameters)
            close = get_close_matches(unknown[0], known, n=1)
            raise ValueError(
                f"{type(self).__name__} does not take {', '.join(unknown)}."
                + (f" Is {close[0]} meant?" if close else "")
            )

    def masked_lm_output(
        self,
        logits: torch.Tensor,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None,
        labels: torch.LongTensor | None,
        output: ModelOutput,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """
        A masked language model's output: `logits` (batch, n, vocab_size) of the head stay at masked positions, without
        ids that are no text; at revealed ones all mass goes to the token itself.
        """
        is_masked = input_ids == self.config.mask_token_id
        never = torch.finfo(logits.dtype).min
        logits[..., self.config.num_valid_tokens :] = never
        certain = torch.full_like(logits, never).scatter(2, input_ids.masked_fill(is_masked, 0)[..., None], 0.0)
        logits = torch.where(is_masked[..., None], logits, certain)
        if labels is not None:
            labels = self.checked_labels(labels, input_ids, attention_mask)
            contradicted = (labels != -100) & ~is_masked & (labels != input_ids)
            if self.may_look_at(labels) and contradicted.any():
                raise ValueError(
                    "labels differ from revealed tokens, which have all mass on themselves: mask what is to be "
                    "predicted, or set the label to -100. (With DataCollatorForLanguageModeling: mask_replace_prob=1, "
                    "random_replace_prob=0.)"
                )
        return MaskedLMOutput(
            loss=None if labels is None else self.loss_of(logits, labels, **kwargs),
            logits=logits,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )


class AOGPTModel(AOGPTPreTrainedModel):
    """The decoder over rows, without a head."""

    def __init__(self, config: AOGPTConfig) -> None:
        super().__init__(config)
        length, width = config.max_position_embeddings, config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.start_embedding = nn.Embedding(1, width)
        self.position_embeddings = nn.Embedding(length + 1, width) if config.position_encoding == "learned" else None
        self.target_embeddings = make_target_embeddings(config)
        self.layers = nn.ModuleList(AOGPTBlock(config, layer_idx) for layer_idx in range(config.num_hidden_layers))
        self.modulation = TargetModulation(config, 2) if config.target_injection == "adaln" else None
        self.norm = make_norm(config)
        self.gradient_checkpointing = False
        self.post_init()

    def _embed(self, input_ids: torch.LongTensor, positions: torch.LongTensor) -> torch.Tensor:
        # Tables are called, not read, here and below: weights that are offloaded come when a module is called.
        start = self.start_embedding(torch.zeros_like(positions[:, :1]))
        embeddings = torch.where((positions < 0).unsqueeze(-1), start, self.embed_tokens(input_ids))
        if self.position_embeddings is not None:
            embeddings = embeddings + self.position_embeddings(positions + 1)
        return embeddings

    def tabulate_modulations(self, length: int, device: torch.device) -> tuple[torch.Tensor, ...] | None:
        """
        The modulation of targets 0 ... length - 1 in every layer and at the end, for many passes over the same
        positions: it depends on nothing else. None unless `config.target_injection` is `"adaln"`.
        """
        if self.modulation is None:
            return None
        conditions = conditions_of(self.target_embeddings, length, device)
        modules = (*(layer.modulation for layer in self.layers), self.modulation)
        return tuple(module.tabulate(conditions) for module in modules)

    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor,
        positions: torch.LongTensor,
        target_positions: torch.LongTensor,
        attention_mask: torch.BoolTensor | None = None,
        past_key_values: Cache | None = None,
        modulations: tuple[torch.Tensor, ...] | None = None,
        num_kept: int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPast:
        """
        Args:
            input_ids (`torch.LongTensor` of shape `(batch, rows)`): Token of each row; any valid id at a start row.
            positions (`torch.LongTensor` of shape `(batch, rows)`): Position of that token, -1 for a start row.
            target_positions (`torch.LongTensor` of shape `(batch, rows)`): Position that the row predicts.
            attention_mask (`torch.BoolTensor` of shape `(batch or 1, 1, rows, slots)`, *optional*): True where a row
                sees a slot; without it rows see those before them and themselves, and there must be no cache.
            past_key_values (`Cache`, *optional*): Anything with the `update` method of transformers' caches.
            modulations (`tuple[torch.Tensor, ...]`, *optional*): What [`AOGPTModel.tabulate_modulations`] gave for at
                least all target positions, so that no pass projects them anew.
            num_kept (`int`, *optional*): Return the last so many rows. Of the others the last layer then makes keys and
                values only.

        Returns:
            `BaseModelOutputWithPast` with `last_hidden_state` (batch, rows or num_kept, hidden_size).

        Raises:
            ValueError: If some rows are kept of several, without a mask that says what they see.
        """
        if num_kept is not None and attention_mask is None and num_kept != positions.shape[1]:
            raise ValueError(
                f"num_kept={num_kept} of {positions.shape[1]} rows needs an attention_mask: without one, what a row "
                "sees follows from its place among all rows."
            )
        hidden_states = self._embed(input_ids, positions)
        rotations = None
        if self.config.position_encoding == "rotary":
            dtype = hidden_states.dtype
            rotations = rotation_of(target_positions, self.config, dtype), rotation_of(positions, self.config, dtype)

        conditions, added = None, None
        if self.modulation is not None:
            if modulations is None:
                length = self.config.max_position_embeddings
                conditions = conditions_of(self.target_embeddings, length, positions.device)
        elif self.target_embeddings is not None:
            added = self.target_embeddings(target_positions)

        kept = slice(None) if num_kept is None else slice(-num_kept, None)
        for layer_idx, layer in enumerate(self.layers):
            if added is not None and (layer_idx == 0 or self.config.target_injection == "shared"):
                hidden_states = hidden_states + added
            hidden_states = layer(
                hidden_states,
                conditions,
                target_positions,
                rotations,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                modulations=None if modulations is None else modulations[layer_idx],
                kept=kept if layer_idx == len(self.layers) - 1 else slice(None),
                **kwargs,
            )

        hidden_states = self.norm(hidden_states)
        if self.modulation is not None:
            table = None if modulations is None else modulations[-1]
            hidden_states = modulate(hidden_states, *self.modulation(conditions, target_positions[:, kept], table))
        hidden_states = hidden_states.to(positions.device)  # of a model that is spread over devices, from the last
        return BaseModelOutputWithPast(last_hidden_state=hidden_states, past_key_values=past_key_values)


class ModelWithHead(AOGPTPreTrainedModel):
    """A model and its language-model head, which is one and the same in all views of a checkpoint."""

    model_class: type[AOGPTPreTrainedModel] = AOGPTModel
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: AOGPTConfig) -> None:
        super().__init__(config)
        self.model = self.model_class(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self.post_init()

    def apply_head(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits (..., vocab_size) of hidden states, and where these are, be the head on another device."""
        return self.lm_head(hidden_states).to(hidden_states.device)

    def save_pretrained(self, *arguments: Any, **options: Any) -> None:
        if self.can_generate():
            # Of a configuration with this mark transformers reads what its own models know, and no `num_steps`.
            self.generation_config._from_model_config = None
        super().save_pretrained(*arguments, **options)


class AOGPTForAnyOrderLM(ModelWithHead, AnyOrderGenerationMixin, AnyOrderLikelihoodMixin):
    """AO-GPT with its language-model head, predicting every token given those before it in an order."""

    _auto_class = "AutoModel"
    canvas_class = CachedDecoder

    def predict_in_order(
        self,
        input_ids: torch.LongTensor,
        orders: torch.LongTensor | None,
        attention_mask: torch.Tensor | None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[BaseModelOutputWithPast, torch.LongTensor]:
        """
        Checks the input and runs the rows of whole sequences.

        Returns the decoder's output, (batch, n, hidden_size) in order, and the orders (batch, n) that were used, in
        which padding comes last: so it is seen by nothing and needs no mask.
        """
        input_ids = self.checked_ids(input_ids, attention_mask)
        batch_size, length = input_ids.shape
        if orders is None:
            orders = left_to_right_orders(batch_size, length, device=input_ids.device)
        elif self.may_look_at(input_ids):
            check_orders(orders, batch_size, length)
        orders = orders.long()
        if attention_mask is None:
            positions = left_to_right_orders(batch_size, length, device=input_ids.device)
        else:
            positions = token_positions(attention_mask != 0)
            orders = group_order(orders, (attention_mask == 0).long())
        rows = rows_of(in_order(input_ids, orders), in_order(positions, orders))
        return self.model(**rows, **kwargs), orders

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor,
        orders: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """
        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Whole sequences.
            orders (`torch.LongTensor` of shape `(batch, n)`, *optional*): `orders[b, k]` is the position predicted at
                rank k. Left to right if not given.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding, anywhere, whatever stands
                there. Padding changes no other value, and is not counted in positions.
            labels (`torch.LongTensor` of shape `(batch, n)`, *optional*): What to predict, in place (no shift); -100
                and padding are left out.

        Returns:
            `MaskedLMOutput` with `logits` (batch, n, vocab_size), where `logits[b, i]` predicts `input_ids[b, i]` given
            the tokens before position i in `orders[b]`, and `loss`, the mean cross-entropy over labels in nats
            (Eq. 7 of the paper, per token). Hidden states, where asked for, are in order.

        Raises:
            ValueError: If an id is out of range, a sequence is too long, or an order is no permutation.
        """
        self.refuse_unknown(kwargs)
        output, orders = self.predict_in_order(input_ids, orders, attention_mask, **kwargs)
        logits = self.apply_head(in_place(output.last_hidden_state, orders))
        if labels is not None:
            labels = self.checked_labels(labels, input_ids, attention_mask)
        return MaskedLMOutput(
            loss=None if labels is None else self.loss_of(logits, labels, **kwargs),
            logits=logits,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )


class AOGPTForMaskedLM(ModelWithHead):
    """
    AO-GPT as a masked language model: all masked positions are predicted at once, each given the revealed tokens.

    The revealed tokens enter left to right: a decoder's prediction depends on the order of its context.
    """

    _auto_class = "AutoModelForMaskedLM"

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """
        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Tokens, with `config.mask_token_id` where they are
                hidden.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding, anywhere.
            labels (`torch.LongTensor` of shape `(batch, n)`, *optional*): What to predict, in place; -100 is left out.

        Returns:
            `MaskedLMOutput` with `logits` (batch, n, vocab_size): at masked positions those of q_{0|t}(. | x_t) (Eq. 5)
            over the valid tokens, at revealed ones all mass on the token itself. Hidden states, where asked for, are in
            order: revealed positions, masked ones, padding.

        Raises:
            ValueError: If an id is neither a token nor the mask, a sequence is too long, or a label differs from a
                revealed token.
        """
        self.refuse_unknown(kwargs)
        input_ids = self.checked_ids(input_ids, attention_mask, mask_allowed=True)
        is_masked = input_ids == self.config.mask_token_id
        is_token = tokens_of(input_ids, attention_mask)
        positions = token_positions(is_token)
        ranks = left_to_right_orders(*input_ids.shape, device=input_ids.device)
        orders = group_order(ranks, torch.where(is_token, is_masked.long(), 2))
        num_context = (is_token & ~is_masked).sum(dim=-1)
        rows = rows_of(in_order(input_ids, orders), in_order(positions, orders), num_context)
        output = self.model(**rows, attention_mask=query_mask(ranks, num_context, ranks.shape[1]), **kwargs)
        logits = self.apply_head(in_place(output.last_hidden_state, orders))
        return self.masked_lm_output(logits, input_ids, attention_mask, labels, output, **kwargs)


class AOGPTForCausalLM(ModelWithHead, GenerationMixin):
    """
    AO-GPT left to right with the usual shift, so that whatever works with a causal language model of transformers works
    with it: the stock `generate`, caches, pipelines, PEFT, evaluation harnesses.

    The start row is run again with every pass, in front of the new tokens, and kept out of the cache, which therefore
    holds exactly one entry per token, as the stock code expects.
    """

    _auto_class = "AutoModelForCausalLM"

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        """
        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Tokens, those after the cached ones where a cache is
                given.
            attention_mask (`torch.Tensor` of shape `(batch, cached + n)`, *optional*): 0 at padding, anywhere.
            position_ids (`torch.LongTensor` of shape `(batch, n)`, *optional*): Positions of the tokens; by default
                they are counted without padding.
            past_key_values (`Cache`, *optional*): A cache of transformers.
            labels (`torch.LongTensor` of shape `(batch, n)`, *optional*): Usually `input_ids`; shifted here.
            use_cache (`bool`, *optional*): Whether to fill and return a cache.
            logits_to_keep (`int` or `torch.Tensor`): Positions whose logits are computed: the last so many (0: all), or
                those named.

        Returns:
            `CausalLMOutputWithPast` with `logits[b, i]` predicting the token after position i. After the last position
            of the table there is none: logits there mean nothing. Ids that are no text have no mass. Attentions have a
            first row and slot for the start.

        Raises:
            ValueError: If an id is out of range, or a sequence is too long.
        """
        self.refuse_unknown(kwargs)
        is_of_tokens = attention_mask is not None and attention_mask.dim() == 2
        input_ids = self.checked_ids(input_ids, attention_mask[:, -input_ids.shape[1] :] if is_of_tokens else None)
        if labels is not None and not (isinstance(logits_to_keep, int) and logits_to_keep == 0):
            raise ValueError(f"labels need the logits of all positions, but logits_to_keep={logits_to_keep} is given.")
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        num_cached = 0 if past_key_values is None else past_key_values.get_seq_length()
        if position_ids is None:
            position_ids = self._positions(input_ids, attention_mask, num_cached)
        elif attention_mask is None and not torch.compiler.is_compiling() and (position_ids.diff(dim=-1) != 1).any():
            # Looked at on an accelerator in training as well: there texts are packed, and nothing else would tell.
            raise ValueError(
                "position_ids do not count up by one. Several texts packed into one sequence would see each other: "
                "give each a row of its own, and an attention_mask where rows are padded."
            )
        if self.may_look_at(position_ids):
            self._check_position(int(position_ids.max()))
        visible = self._visible(input_ids, attention_mask, past_key_values, num_cached)

        is_start = torch.full_like(input_ids[:, :1], -1)
        positions = torch.cat((is_start, position_ids.expand_as(input_ids)), dim=1)
        output = self.model(
            input_ids=torch.cat((torch.zeros_like(is_start), input_ids), dim=1),
            positions=positions,
            target_positions=(positions + 1).clamp(max=self.config.max_position_embeddings - 1),
            attention_mask=visible,
            past_key_values=None if past_key_values is None else StartRowCache(past_key_values),
            **kwargs,
        )
        hidden_states = output.last_hidden_state[:, 1:]
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.apply_head(hidden_states[:, kept])
        # The stock generate would draw what is no text.
        logits[..., self.config.num_valid_tokens :] = torch.finfo(logits.dtype).min
        loss = None
        if labels is not None:
            labels = self.checked_labels(labels, input_ids)
            loss = self.loss_of(logits, F.pad(labels[:, 1:], (0, 1), value=-100), **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=past_key_values,
            hidden_states=output.hidden_states and tuple(map(without_start_row, output.hidden_states)),
            attentions=output.attentions,
        )

    def prepare_inputs_for_generation(self, input_ids: torch.LongTensor, **kwargs: Any) -> dict[str, Any]:
        """As in transformers. Raises a `ValueError` where the next token would have no position."""
        length, mask = input_ids.shape[1], kwargs.get("attention_mask")
        if length >= self.config.max_position_embeddings:  # no sooner, as looking at a mask waits for an accelerator
            self._check_position(length if mask is None else int(mask.sum(dim=-1).max()))
        return super().prepare_inputs_for_generation(input_ids, **kwargs)

    def _positions(
        self, input_ids: torch.LongTensor, attention_mask: torch.Tensor | None, num_cached: int | torch.Tensor
    ) -> torch.LongTensor:
        length = input_ids.shape[1]
        if attention_mask is not None and attention_mask.dim() == 2:
            return token_positions(attention_mask != 0)[:, -length:]
        return num_cached + torch.arange(length, device=input_ids.device)[None]

    def _check_position(self, last: int) -> None:
        longest = self.config.max_position_embeddings
        if last >= longest:
            raise ValueError(
                f"A token at position {last} is beyond the table of {longest} positions "
                "(config.max_position_embeddings): generate less, or shorten the prompt."
            )

    def _visible(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None,
        past_key_values: Cache | None,
        num_cached: int | torch.Tensor,
    ) -> torch.BoolTensor | None:
        """Which slots (start row, cached and new tokens) each row (start row, new tokens) sees; None is causal."""
        length, device = input_ids.shape[1], input_ids.device
        num_slots = length if past_key_values is None else past_key_values.get_mask_sizes(length, 0)[0]
        is_of_tokens = attention_mask is not None and attention_mask.dim() == 2
        if is_of_tokens and attention_mask.shape[1] != num_cached + length:
            raise ValueError(
                f"attention_mask has {attention_mask.shape[1]} columns for {int(num_cached)} cached and {length} new "
                "tokens: it must have one for each of both."
            )
        if num_slots == length and not has_padding(attention_mask):
            return None
        if attention_mask is not None and not is_of_tokens:
            visible = attention_mask if attention_mask.dtype == torch.bool else attention_mask == 0
        else:
            rows = num_cached + torch.arange(length, device=device)
            visible = (torch.arange(num_slots, device=device) <= rows[:, None])[None, None]
            if is_of_tokens:
                kept = F.pad(attention_mask.bool(), (0, num_slots - attention_mask.shape[1]))
                visible = visible & kept[:, None, None, :]
        # The start row sees itself, and every row sees it.
        visible = F.pad(visible, (1, 0), value=True)
        start_row = F.pad(torch.zeros_like(visible[:, :, :1, 1:]), (1, 0), value=True)
        return torch.cat((start_row, visible), dim=2)


def without_start_row(states: torch.Tensor | None) -> torch.Tensor | None:
    """None stands for a layer whose hidden states were not asked for."""
    return None if states is None else states[:, 1:]


def has_padding(attention_mask: torch.Tensor | None) -> bool:
    """Whether a (batch, n) mask, if there is one, masks anything; yes where looking would break a compiled graph."""
    if attention_mask is None:
        return False
    return attention_mask.dim() != 2 or torch.compiler.is_compiling() or not attention_mask.all()


__all__ = ["AOGPTForAnyOrderLM", "AOGPTForCausalLM", "AOGPTForMaskedLM", "AOGPTModel", "AOGPTPreTrainedModel"]
