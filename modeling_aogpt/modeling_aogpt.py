# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""AO-GPT: a decoder-only language model that predicts tokens in any order (arXiv 2506.19935).

The input of the decoder is a batch of rows. A row consists of a token, its position, and the target position, which the
row predicts (see `orders.py`).
"""

import copy
import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache
from transformers.loss.loss_utils import fixed_cross_entropy
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, MaskedLMOutput
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, can_return_tuple, logging
from transformers.utils.import_utils import is_torch_greater_or_equal
from transformers.utils.output_capturing import capture_outputs

from .causal import CACHE_NAME, CausalGenerationMixin, prepare_causal_inputs
from .configuration_aogpt import AOGPTConfig
from .cuda_graphs import has_hooks
from .decoding_state import CachedDecodingState
from .devices import is_readable, mask_for_kernels, product_dtype, uses_autocast, without_cudnn_attention
from .generation import AnyOrderGenerationMixin
from .generation_config import AnyOrderGenerationConfig
from .infill import AnyOrderInfillingMixin
from .likelihood import AnyOrderLikelihoodMixin
from .orders import (
    branch_mask,
    branch_rows,
    group_orders,
    index_by_position,
    index_by_rank,
    left_to_right_orders,
    parallel_queries,
    token_positions,
)
from .validation import (
    check_batch,
    check_forward_arguments,
    check_integer,
    check_orders,
    find_tokens,
    prepare_input_ids,
    prepare_labels,
    should_validate,
    start_mask,
    token_mask,
)

logger = logging.get_logger(__name__)

Frequencies = tuple[torch.Tensor, float]  # rotary frequencies (head_dim / 2,), factor that scales cosines and sines
Rotation = tuple[torch.Tensor, torch.Tensor]  # cosines and sines (batch, 1, rows, head_dim)

# Largest number of logits in memory at a time. A matrix product is efficient on an accelerator if it has a few thousand
# rows. With GPT-2's vocabulary, 2**28 logits are 5,000 rows, and take 1 GiB in float32.
LOGITS_PER_CHUNK = {"cpu": 2**25, "accelerator": 2**28}
# The vocabulary is padded to a multiple of this: on accelerators, matrix products of odd width are far slower.
WIDTH_MULTIPLE = {"cpu": 1, "accelerator": 64}

# Largest number of rows for which a pass looks up modulations and rotations of all layers at once, and multiplies by
# joint weights. In larger passes, operations take longer, so their number matters less. On a CPU, the modulations of
# more rows would not fit in its cache.
MAX_JOINT_ROWS = {"cpu": 2**4, "accelerator": 2**10}
# Largest size of joint weights. With larger ones, products take longer, so their number matters less.
MAX_JOINT_BYTES = 2**30

# SEDD embeds a noise level with `NUM_SINUSOIDS` cosines and sines. The longest wavelength is nearly 2 pi `MAX_PERIOD`.
NUM_SINUSOIDS, MAX_PERIOD = 256, 10000.0

# Whether a compiled graph may contain other graphs. Older versions of PyTorch cannot split such a graph, as DDP needs.
GATHERS_GRADIENTS = is_torch_greater_or_equal("2.13", accept_dev=True)

Loss = Literal["cross_entropy", "score_entropy"]

# Methods of AOGPTForAnyOrderLM. If another decoder class lacks a method that the user calls, the error recommends
# AOGPTForAnyOrderLM.
ANY_ORDER_METHODS = ("generate", "encode_text", "infill", "log_likelihood", "trajectory_log_probs")


# ------------------------------------------------------------------------------------------------------------ layers


def make_norm(config: AOGPTConfig) -> nn.Module:
    """Return the norm over `config.hidden_size` that `config.norm` names: a layer norm or an RMS norm."""
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.hidden_size, eps=config.norm_eps, elementwise_affine=config.norm_weight)
    has_bias = config.norm_weight and config.norm_bias
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, elementwise_affine=config.norm_weight, bias=has_bias)


def compute_frequencies(config: AOGPTConfig, device: torch.device) -> Frequencies:
    """Return the rotary frequencies (head_dim / 2,) in float32, and the factor that scales cosines and sines."""
    rope_type = config.rope_parameters["rope_type"]
    if rope_type != "default":
        return ROPE_INIT_FUNCTIONS[rope_type](config, device)
    exponents = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32) / config.head_dim
    return 1.0 / config.rope_parameters["rope_theta"] ** exponents, 1.0


def compute_rotation(indices: torch.LongTensor, frequencies: torch.Tensor, factor: float) -> Rotation:
    """Return the float32 cosines and sines (batch, 1, rows, head_dim) for rotary `indices` (batch, rows)."""
    angles = (indices[:, None, :, None].float() * frequencies).repeat(1, 1, 1, 2)
    return angles.cos() * factor, angles.sin() * factor


def rotate(states: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Return attention queries or keys (batch, heads, rows, head_dim), rotated by `rotation`, in their own dtype."""
    cos, sin = rotation
    first, second = states.chunk(2, dim=-1)
    return (states * cos + torch.cat((-second, first), dim=-1) * sin).to(states.dtype)


class JointProjection(NamedTuple):
    """Parameters with which a single product computes attention queries, keys and values."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    norm_weight: torch.Tensor | None  # (heads + key heads, head_dim), of the norms of queries and keys


class JointRotation(NamedTuple):
    """Values with which an addition and two products rotate attention queries and keys together."""

    is_query: torch.BoolTensor  # (heads + key heads,)
    table: torch.Tensor  # (n, 2 * head_dim): cosines and signed sines of all indices
    weights: torch.Tensor | None  # (layers, 1, 1, heads + key heads, 2 * head_dim): weights of their norms

    def look_up(self, targets: torch.LongTensor, tokens: torch.LongTensor, num_layers: int) -> list[Rotation]:
        """Return the factors (batch, rows, heads + key heads, head_dim) of [`AOGPTAttention.project`], by layer."""
        rotation = F.embedding(torch.where(self.is_query, targets[..., None], tokens[..., None]), self.table)
        layers = [rotation] * num_layers if self.weights is None else rotation * self.weights
        return [values.chunk(2, dim=-1) for values in layers]


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention output (batch, rows, heads, head_dim) and attention weights (batch, heads, rows, slots)."""
    if attention_mask is None:
        rows = torch.arange(query.shape[2], device=query.device)
        attention_mask = rows[:, None] >= rows
    key, value = (states.repeat_interleave(module.num_key_value_groups, dim=1) for states in (key, value))
    scores = query @ key.transpose(2, 3) * scaling
    scores = scores.masked_fill(~attention_mask, float("-inf"))
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    return (weights @ value).transpose(1, 2), weights


class AOGPTAttention(nn.Module):
    """Grouped-query attention between rows."""

    def __init__(self, config: AOGPTConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = config.model_type == "aogpt"  # encoders have full attention
        self.scaling = config.head_dim**-0.5
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.has_rotary = layer_idx not in (config.no_rope_layers or ())
        query_size = config.num_attention_heads * config.head_dim
        key_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, key_size, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, key_size, bias=config.attention_bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=config.attention_output_bias)
        self.o_proj.writes_to_residual = True
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps) if config.qk_norm else nn.Identity()

    def join_projections(self) -> JointProjection:
        """Return copies of the parameters of the projections and norms of queries, keys and values."""
        layers, config = (self.q_proj, self.k_proj, self.v_proj), self.config
        norms = (self.q_norm, config.num_attention_heads), (self.k_norm, config.num_key_value_heads)
        return JointProjection(
            torch.cat([layer.weight for layer in layers]),
            torch.cat([layer.bias for layer in layers]) if config.attention_bias else None,
            torch.cat([norm.weight.expand(heads, -1) for norm, heads in norms]) if config.qk_norm else None,
        )

    def project(self, hidden_states: torch.Tensor, joint: JointProjection, rotation: Rotation | None) -> torch.Tensor:
        """Return queries, keys and values (batch, rows, heads + 2 * key heads, head_dim), normalized and rotated.

        `rotation` are factors of each head and of the head with swapped halves (see [`JointRotation`]). They contain
        the weights of the norms.
        """
        config = self.config
        states = F.linear(hidden_states, joint.weight, joint.bias).unflatten(-1, (-1, config.head_dim))
        num_rotated = config.num_attention_heads + config.num_key_value_heads
        rotated = normalized = states[:, :, :num_rotated]
        if config.qk_norm:  # normalizing the values, too, avoids a copy
            normalized = F.rms_norm(states, (config.head_dim,), eps=config.norm_eps)[:, :, :num_rotated]
        if rotation is not None and self.has_rotary:
            swapped = normalized.roll(config.head_dim // 2, dims=-1)
            torch.addcmul(normalized * rotation[0], swapped, rotation[1], out=rotated)
        elif config.qk_norm:
            torch.mul(normalized, joint.norm_weight, out=rotated)
        return states

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Call the attention function of the configuration (see [`eager_attention_forward`])."""
        implementation = self.config._attn_implementation
        if mask is not None and implementation != "eager":
            implementation = "sdpa"  # other kernels support only causal and padding masks
        attention: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        # Training repeats the same shapes, so cuDNN's execution plans are reused.
        allows_cudnn = (torch.is_grad_enabled() and mask is None) or torch.compiler.is_compiling()
        with nullcontext() if allows_cudnn else without_cudnn_attention(query.device):
            return attention(self, query, key, value, mask, scaling=self.scaling, **kwargs)

    def forward(
        self,
        hidden_states: torch.Tensor,
        rotations: tuple[Rotation, Rotation] | Rotation | None,
        attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        kept: slice = slice(None),
        joint: JointProjection | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return attention output (batch, kept rows, hidden_size) and weights of the rows in the slice `kept`.

        `rotations` are the rotations of attention queries and of keys or, with `joint`, that of [`project`].
        """
        if joint is None:
            heads = (-1, self.config.head_dim)
            query = self.q_proj(hidden_states[:, kept]).unflatten(-1, heads)  # (batch, kept rows, heads, head_dim)
            key = self.k_proj(hidden_states).unflatten(-1, heads)  # (batch, rows, key heads, head_dim)
            value = self.v_proj(hidden_states).unflatten(-1, heads)
            # Normalize before the transpose, while the data is contiguous; afterwards it takes twice as long.
            query = self.q_norm(query).transpose(1, 2)  # (batch, heads, kept rows, head_dim)
            key = self.k_norm(key).transpose(1, 2)  # (batch, key heads, rows, head_dim)
            value = value.transpose(1, 2)
            if rotations is not None and self.has_rotary:
                target_rotation, token_rotation = rotations
                query = rotate(query, tuple(values[:, :, kept] for values in target_rotation))
                key = rotate(key, token_rotation)
            if cache is not None:
                key, value = cache.update(key, value, self.layer_idx)  # (batch, key heads, slots, head_dim)
        else:
            states = self.project(hidden_states, joint, rotations).transpose(1, 2)
            query = states[:, : self.config.num_attention_heads, kept]
            key, value = cache.update_jointly(states[:, self.config.num_attention_heads :], self.layer_idx)
        is_packed = getattr(cache, "places", None) is not None  # see `AnyOrderCache`
        if is_packed:
            query = cache.unpack(query)
        elif attention_mask is not None:
            attention_mask = attention_mask[:, :, kept]  # (batch or 1, 1, kept rows or 1, slots)
        output, weights = self.attend(query, key, value, attention_mask, **kwargs)
        if is_packed:
            output = cache.pack(output, len(hidden_states[0, kept]))
        return self.o_proj(output.flatten(2)), weights  # (batch, kept rows, hidden_size)


class AOGPTMLP(nn.Module):
    """MLP of a layer, with a gate if `config.gated_mlp` is True."""

    def __init__(self, config: AOGPTConfig) -> None:
        super().__init__()
        sizes = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(*sizes, bias=config.mlp_bias) if config.gated_mlp else None
        self.up_proj = nn.Linear(*sizes, bias=config.mlp_bias)
        self.act_fn = ACT2FN[config.hidden_act]
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self.down_proj.writes_to_residual = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the output of the MLP (batch, rows, hidden_size)."""
        if self.gate_proj is None:
            return self.down_proj(self.act_fn(self.up_proj(hidden_states)))
        return self.down_proj(self.act_fn(self.gate_proj(hidden_states)) * self.up_proj(hidden_states))


class TargetModulation(nn.Module):
    """Linear layer of adaptive layer norm (adaLN): maps target embeddings to `num_vectors` shifts, scales and gates."""

    def __init__(self, config: AOGPTConfig, num_vectors: int) -> None:
        super().__init__()
        self.num_vectors = num_vectors
        self.proj = nn.Linear(config.target_embedding_size, num_vectors * config.hidden_size)

    def forward(
        self,
        targets: torch.LongTensor,
        conditions: torch.Tensor | None,
        table: torch.Tensor | None = None,
        ranks: torch.LongTensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Return `num_vectors` tensors (batch, rows, hidden_size): the projected condition of each row.

        `targets` (batch, rows) are indices into `conditions` (n, target_embedding_size): embeddings of targets or noise
        levels, after SiLU. `table` contains vectors of all targets (vectors, n, hidden_size) or of all rows (vectors,
        batch, rows, hidden_size), to avoid computing them again. `ranks` (batch, rows) are the inverse permutations of
        `targets`, if these are permutations.
        """
        if table is not None:
            return tuple(table if table.dim() == 4 else look_up_vectors(table, targets))
        # While exporting, the choice must not depend on the size of the batch, which may be dynamic.
        if torch.compiler.is_exporting() or targets.numel() > conditions.shape[0]:
            # The batch has more rows than there are targets, so project each target only once. For 256 sequences of 16
            # rows, forward and backward passes then take a sixth of the time.
            table = self.proj(conditions)
            if ranks is not None and GATHERS_GRADIENTS and torch.compiler.is_compiling():
                # By default, the graph would save these tensors, which are larger than all other results of a layer.
                return checkpoint(_Gather.apply, table, targets, ranks, self.num_vectors, use_reentrant=False)
        vectors = self.proj(conditions[targets]) if table is None else F.embedding(targets, table)
        return vectors.chunk(self.num_vectors, dim=-1)


class SigmaEmbedding(nn.Module):
    """SEDD's embedding of noise levels: sinusoids followed by an MLP."""

    def __init__(self, config: AOGPTConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(NUM_SINUSOIDS, config.target_embedding_size)
        self.down_proj = nn.Linear(config.target_embedding_size, config.target_embedding_size)

    def forward(self, sigma: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the embedding (batch, target_embedding_size) of noise levels (batch,), computed in `dtype`."""
        half = NUM_SINUSOIDS // 2
        sigma = sigma.to(torch.promote_types(dtype, torch.float32))
        exponents = torch.arange(half, device=sigma.device, dtype=sigma.dtype) / half
        angles = sigma[:, None] * MAX_PERIOD**-exponents
        sinusoids = torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype)
        return self.down_proj(F.silu(self.up_proj(sinusoids)))


class _Gather(torch.autograd.Function):
    """Gather the rows `targets` of each chunk of a table. The gradient is a gather and a sum instead of a scatter."""

    @staticmethod
    def forward(
        ctx: Any, table: torch.Tensor, targets: torch.LongTensor, ranks: torch.LongTensor, num_chunks: int
    ) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(ranks)
        ctx.num_unused = len(table) - ranks.shape[1]
        return tuple(chunk[targets] for chunk in table.chunk(num_chunks, dim=-1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (ranks,) = ctx.saved_tensors
        sequences = torch.arange(len(ranks), device=ranks.device)[:, None]
        sums = torch.cat([gradient[sequences, ranks].sum(dim=0) for gradient in gradients], dim=-1)
        return F.pad(sums, (0, 0, 0, ctx.num_unused)), None, None, None


def look_up_vectors(table: torch.Tensor, targets: torch.LongTensor) -> torch.Tensor:
    """Return the vectors (vectors, batch, rows, hidden_size) of `targets` in a table (vectors, n, hidden_size).

    The values of each vector are contiguous, because operations with strided vectors can take longer on a GPU.
    """
    num_vectors, num_targets = table.shape[:2]
    first_rows = torch.arange(0, num_vectors * num_targets, num_targets, device=table.device)
    return F.embedding(first_rows[:, None, None] + targets, table.flatten(0, 1))


def modulate(
    norm: nn.Module, hidden_states: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor, is_folded: bool
) -> torch.Tensor:
    """Return `norm(hidden_states) * (1 + scale) + shift`. With `is_folded`, the arguments come from [`fold_norm`]."""
    if not is_folded:
        normalized = norm(hidden_states)
        return add_product(normalized + shift, normalized, scale)
    normalize = F.rms_norm if isinstance(norm, nn.RMSNorm) else F.layer_norm
    return add_product(shift, normalize(hidden_states, norm.normalized_shape, eps=norm.eps), scale)


def fold_norm(norm: nn.Module, shift: torch.Tensor, scale: torch.Tensor) -> None:
    """Add 1 to `scale`, and include the weight and bias of the norm in `scale` and `shift`, in place."""
    weight, bias = norm.weight, getattr(norm, "bias", None)
    if bias is not None:
        torch.addcmul(shift + bias, scale, bias, out=shift)
    if weight is None:
        scale.add_(1)
    else:
        torch.addcmul(weight, scale, weight, out=scale)


def is_plain(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Return whether `module` is exactly one of `kinds`, with weights of its own and without hooks."""
    return (
        type(module) in kinds
        and all(type(weight) is nn.Parameter and not weight.is_meta for weight in module.parameters())
        and "forward" not in vars(module)
        and not has_hooks(module)
    )


def add_product(total: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return `total + one * other`."""
    device = total.device.type
    if not uses_autocast(device):
        return torch.addcmul(total, one, other)
    # On GPUs, autocast would copy all arguments to float32, and keep the copies for the backward pass.
    with torch.autocast(device, enabled=False):
        return torch.addcmul(total, one, other)


class AOGPTLayer(GradientCheckpointingLayer):
    """Layer of attention and MLP, with norms, residual connections, and modulations by target or noise level."""

    def __init__(self, config: AOGPTConfig, layer_idx: int) -> None:
        super().__init__()
        self.input_layernorm = make_norm(config)
        self.self_attn = AOGPTAttention(config, layer_idx)
        self.post_attention_layernorm = make_norm(config)
        self.mlp = AOGPTMLP(config)
        self.modulation = TargetModulation(config, 6) if config.target_injection in ("adaln", "sigma") else None
        has_table = config.target_injection == "per_layer"
        self.target_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size) if has_table else None

    def forward(
        self,
        hidden_states: torch.Tensor,
        targets: torch.LongTensor,
        conditions: torch.Tensor | None = None,
        table: torch.Tensor | None = None,
        ranks: torch.LongTensor | None = None,
        kept: slice = slice(None),
        **kwargs: Any,
    ) -> torch.Tensor:
        """Return the hidden states of the rows in `kept`. See [`TargetModulation`] for the other arguments."""
        if self.modulation is None:
            if self.target_embeddings is not None:
                hidden_states = hidden_states + self.target_embeddings(targets)
            attention_output, _ = self.self_attn(self.input_layernorm(hidden_states), kept=kept, **kwargs)
            hidden_states = hidden_states[:, kept] + attention_output
            return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))

        is_folded = table is not None
        shift, scale, *others = self.modulation(targets, conditions, table, ranks)
        gate, mlp_shift, mlp_scale, mlp_gate = (vectors[:, kept] for vectors in others)
        attention_input = modulate(self.input_layernorm, hidden_states, shift, scale, is_folded)
        attention_output, _ = self.self_attn(attention_input, kept=kept, **kwargs)
        hidden_states = add_product(hidden_states[:, kept], gate, attention_output)
        mlp_input = modulate(self.post_attention_layernorm, hidden_states, mlp_shift, mlp_scale, is_folded)
        return add_product(hidden_states, mlp_gate, self.mlp(mlp_input))


# ----------------------------------------------------------------------------------------------------------------- loss


def head_loss(
    hidden_states: torch.Tensor,
    head: nn.Linear,
    targets: torch.LongTensor,
    weights: torch.Tensor,
    loss: Loss = "cross_entropy",
    num_ids: int | None = None,
) -> torch.Tensor:
    """Return the weighted sum of the losses of N positions, as a scalar in float32 (or float64 for float64 inputs).

    The forward pass computes the logits of one chunk of positions at a time. It also computes the gradients of the loss
    with respect to hidden states and head. Logits are neither kept nor computed twice.

    For logits = head(hidden_states), the number V of ids, and Z = logsumexp(logits), the loss of a position is

    * `"cross_entropy"`: Z - logits[target];
    * `"score_entropy"`: exp(Z) / V - 1 - (logits[target] - log V). This is the score entropy divided by the true ratio
      of probabilities (arXiv 2310.16834, section 3.2). According to the predicted ratios, the log-probability of an id
      is its logit minus log V. If these probabilities sum to 1 (Z = log V), the loss is the cross-entropy.

    Args:
        hidden_states (`torch.Tensor` of shape `(N, hidden_size)`): Inputs of the head.
        head (`nn.Linear`): Head, with or without bias.
        targets (`torch.LongTensor` of shape `(N,)`): Target id of each position.
        weights (`torch.Tensor` of shape `(N,)`): Weight of the loss of each position. The weights get no gradient.
        loss (`str`, defaults to `"cross_entropy"`): `"cross_entropy"` or `"score_entropy"`.
        num_ids (`int`, *optional*): V. Only the first V outputs of the head are used. Defaults to all.
    """
    inputs = hidden_states, head.weight, head.bias
    if not torch.is_grad_enabled():  # `ctx.needs_input_grad` ignores `torch.no_grad`, so detach the inputs
        inputs = (None if tensor is None else tensor.detach() for tensor in inputs)
    return _HeadLoss.apply(*inputs, targets, weights, loss, num_ids or len(head.weight))


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.LongTensor,
        weights: torch.Tensor,
        loss: Loss,
        num_ids: int,
    ) -> torch.Tensor:
        dtype = _matmul_dtype(hidden_states)
        exact = torch.promote_types(dtype, torch.float32)
        kind = "cpu" if hidden_states.device.type == "cpu" else "accelerator"
        vocab_size = len(weight)
        padding = -vocab_size % WIDTH_MULTIPLE[kind]
        with torch.autocast(hidden_states.device.type, enabled=False):
            table = F.pad(weight.to(dtype), (0, 0, 0, padding))
            offsets = None if bias is None else F.pad(bias.to(dtype), (0, padding))
            needs_grad = ctx.needs_input_grad[:3]
            grad_hidden, grad_weight, grad_bias = (
                torch.zeros_like(tensor, dtype=exact if index else None) if needed else None
                for index, (tensor, needed) in enumerate(zip((hidden_states, weight, bias), needs_grad, strict=True))
            )
            total = torch.zeros((), dtype=exact, device=hidden_states.device)
            # The gradients are stored divided by `unit`, a number close to the mean weight. Without the division,
            # gradients with weights of 1 / N would underflow in float16, because the loss scale is applied only in the
            # backward pass. The unit is a power of two, so the division does not round.
            mean = (weights.to(exact).sum() / max(len(weights), 1)).clamp(min=torch.finfo(exact).tiny)
            unit = mean / mean.frexp().mantissa
            num_chunks = math.ceil(len(targets) / max(LOGITS_PER_CHUNK[kind] // len(table), 1))
            chunk_size = math.ceil(len(targets) / max(num_chunks, 1)) or 1
            for first in range(0, len(targets), chunk_size):
                chunk = slice(first, first + chunk_size)
                states, ids, scale = hidden_states[chunk].to(dtype), targets[chunk, None], weights[chunk].to(exact)
                logits = F.linear(states, table, offsets)
                chunk_total, grad_logits = differentiate_chunk(logits, ids, scale, unit, loss, num_ids, any(needs_grad))
                total += chunk_total
                if grad_hidden is not None:
                    grad_hidden[chunk] = grad_logits @ table
                if grad_weight is not None:
                    grad_weight += (grad_logits.t() @ states)[:vocab_size]
                if grad_bias is not None:
                    grad_bias += grad_logits.sum(dim=0)[:vocab_size]
        ctx.save_for_backward(unit, grad_hidden, grad_weight, grad_bias)
        ctx.dtypes = [tensor if tensor is None else tensor.dtype for tensor in (hidden_states, weight, bias)]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        unit, *gradients = ctx.saved_tensors
        gradients = (
            None if gradient is None else gradient.mul_(grad_total * unit).to(dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return *gradients, None, None, None, None


def differentiate_chunk(
    logits: torch.Tensor,
    ids: torch.LongTensor,
    scale: torch.Tensor,
    unit: torch.Tensor,
    loss: Loss,
    num_ids: int,
    needs_grad: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weighted loss of a chunk of positions, and its gradient (positions, width) divided by `unit`.

    `logits` (positions, width) may be overwritten. `ids` (positions, 1) are targets, `scale` (positions,) weights.
    """
    # A compiled graph would copy inputs to overwrite them, and write float32 logits to memory for `scatter_add_`.
    is_compiled = torch.compiler.is_compiling()
    dtype, logits = logits.dtype, logits.to(scale.dtype, copy=is_compiled)
    if logits.shape[1] > num_ids:
        logits[:, num_ids:] = -math.inf
    target_logits = logits.gather(1, ids)[:, 0]
    largest = logits.amax(dim=-1)
    sums = logits.sub_(largest[:, None]).exp_().sum(dim=-1)  # overwrites the logits
    log_sums = sums.log() + largest
    if loss == "cross_entropy":
        losses, factors = log_sums - target_logits, sums.reciprocal()
    else:
        log_ids = math.log(num_ids)
        losses = (log_sums - log_ids).exp() - 1 - (target_logits - log_ids)
        factors = (largest - log_ids).exp()
    total = (losses * scale).sum()
    if not needs_grad:
        return total, None
    scale = scale / unit
    grad_logits = logits.mul_((factors * scale)[:, None])
    if is_compiled:
        is_target = torch.arange(logits.shape[1], device=ids.device) == ids
        grad_logits = torch.where(is_target, grad_logits - scale[:, None], grad_logits)
    else:
        grad_logits.scatter_add_(1, ids, -scale[:, None])
    return total, grad_logits.to(dtype)


def _matmul_dtype(hidden_states: torch.Tensor) -> torch.dtype:
    """Return the dtype of matrix products: of autocast, or else of `hidden_states`. On a CPU, use at least float32."""
    dtype = product_dtype(hidden_states.device, hidden_states.dtype)
    return torch.promote_types(dtype, torch.float32) if hidden_states.is_cpu else dtype


# ------------------------------------------------------------------------------------------------------------ models


class AOGPTPreTrainedModel(PreTrainedModel):
    """Base class of all models, with weight initialization and resizing of the token embedding table."""

    config: AOGPTConfig
    config_class = AOGPTConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["AOGPTLayer"]
    _skip_keys_device_placement = ["cache", "past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": AOGPTLayer, "attentions": AOGPTAttention}

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

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the token embedding table, as in Transformers.

        With `new_num_tokens`, all ids below the mask id become ids of text. Entries that `pad_to_multiple_of` adds do
        not. An encoder embeds the mask, so after a change of `config.mask_token_id`, copy the embedding of the old mask
        id to the new one.

        Args:
            new_num_tokens (`int`, *optional*): New number of entries of the table.
            pad_to_multiple_of (`int`, *optional*): Round the number of entries up to a multiple of this number.
            mean_resizing (`bool`): Whether to initialize new entries from the mean of the old entries.

        Raises:
            ValueError: If `new_num_tokens` adds ids above the mask id, or if the new table would lack an id of text, a
                special token, or the mask of an encoder.
        """
        resized, mask = copy.copy(self.config), self.config.mask_token_id
        resized.vocab_size = self.config.vocab_size if new_num_tokens is None else new_num_tokens
        if resized.vocab_size > max(self.config.vocab_size, mask + 1):
            raise ValueError(
                f"`new_num_tokens` ({new_num_tokens}) adds ids above the mask id (config.mask_token_id={mask}), but "
                "ids of text must be below the mask id. First add a mask token with a higher id to the tokenizer, with "
                "`add_special_tokens({'mask_token': '<|mask_2|>'})`, and set config.mask_token_id to this id. Or use "
                "`pad_to_multiple_of` to add entries that are not text."
            )
        if new_num_tokens is not None:  # also if the new table is smaller, because the old one had unused entries
            resized.num_valid_tokens = max(self.config.num_valid_tokens, min(new_num_tokens, mask))
        resized.validate()
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.config.num_valid_tokens = resized.num_valid_tokens
        return embeddings


class Precomputed(NamedTuple):
    """Values that forward passes share, made by [`AOGPTStack.precompute`]."""

    frequencies: Frequencies | None = None  # None without rotary positions
    conditions: torch.Tensor | None = None  # (n, target_embedding_size): inputs of `TargetModulation`, if it is used
    # (vectors, n, hidden_size): modulations of all targets for all layers and the final norm, with the weights of their
    # norms; instead of `conditions`
    table: torch.Tensor | None = None
    projections: tuple[JointProjection, ...] | None = None  # see `join_projections`
    rotation: JointRotation | None = None  # with `projections` and rotary positions
    has_starts: bool = True  # whether there may be start rows


class AOGPTStack(AOGPTPreTrainedModel):
    """Base class of the decoder and the encoder, which have the same embeddings, layers and final norm."""

    def __init__(self, config: AOGPTConfig) -> None:
        config.validate()  # `from_pretrained` may have changed it
        super().__init__(config)
        is_decoder, injection = config.model_type == "aogpt", config.target_injection
        length, width = config.max_position_embeddings, config.hidden_size
        num_positions = length + 1 if is_decoder else length  # the start row has a position, too
        target_widths = {"adaln": config.target_embedding_size, "input": width, "shared": width}
        has_start, has_positions = is_decoder and config.start_token_id is None, config.position_encoding == "learned"
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.start_embedding = nn.Embedding(1, width) if has_start else None
        self.position_embeddings = nn.Embedding(num_positions, width) if has_positions else None
        self.target_embeddings = nn.Embedding(length, target_widths[injection]) if injection in target_widths else None
        self.sigma_embedding = SigmaEmbedding(config) if injection == "sigma" else None
        self.layers = nn.ModuleList(AOGPTLayer(config, layer_idx) for layer_idx in range(config.num_hidden_layers))
        self.modulation = TargetModulation(config, 2) if injection in ("adaln", "sigma") else None
        self.norm = make_norm(config)
        self.post_init()

    def precompute(self, device: torch.device, num_targets: int | None = None) -> Precomputed:
        """Compute values that passes share. For many passes, include modulations of the first `num_targets` targets."""
        frequencies = compute_frequencies(self.config, device) if self.config.position_encoding == "rotary" else None
        if self.config.target_injection != "adaln":
            return Precomputed(frequencies)
        length = self.config.max_position_embeddings if num_targets is None else num_targets
        conditions = F.silu(self.target_embeddings(torch.arange(length, device=device)))
        modules = [(layer.modulation, layer.input_layernorm, layer.post_attention_layernorm) for layer in self.layers]
        modules.append((self.modulation, self.norm))
        kinds = nn.RMSNorm, nn.LayerNorm
        if num_targets is None or not all(is_plain(norm, kinds) for _, *norms in modules for norm in norms):
            return Precomputed(frequencies, conditions)
        table, end = None, 0
        with torch.no_grad():
            for module, *norms in modules:
                vectors = module.proj(conditions)
                parts = vectors.chunk(module.num_vectors, dim=-1)
                for index, norm in enumerate(norms):
                    fold_norm(norm, *parts[3 * index : 3 * index + 2])
                if table is None:
                    num_vectors = sum(module.num_vectors for module, *_ in modules)
                    table = vectors.new_empty(num_vectors, length, self.config.hidden_size)
                start, end = end, end + module.num_vectors
                torch.stack(parts, out=table[start:end])
        return Precomputed(frequencies, None, table)

    @torch.no_grad()
    def join_projections(self, precomputed: Precomputed, num_positions: int) -> Precomputed:
        """Add copies of weights with which passes of few rows need fewer operations, unless they would be large.

        They need a quarter of the memory of the layers, or less.
        """
        config, attentions = self.config, [layer.self_attn for layer in self.layers]
        modules = [module for item in attentions for module in item.children() if module is not item.o_proj]
        num_bytes = sum(weight.nbytes for module in modules for weight in module.parameters())
        is_joinable = all(is_plain(module, (nn.Linear, nn.RMSNorm, nn.Identity)) for module in modules)
        if not is_joinable or num_bytes > MAX_JOINT_BYTES:
            return precomputed
        projections, rotation = tuple(attention.join_projections() for attention in attentions), None
        if precomputed.frequencies is not None:
            device = precomputed.frequencies[0].device
            heads = torch.arange(config.num_attention_heads + config.num_key_value_heads, device=device)
            indices = torch.arange(num_positions + 1, device=device)
            cos, sin = (values[0, 0] for values in compute_rotation(indices[None], *precomputed.frequencies))
            first, second = sin.chunk(2, dim=-1)
            weights = None
            if config.qk_norm:
                weights = torch.stack([projection.norm_weight for projection in projections])[:, None, None]
                weights = torch.cat((weights, weights.roll(config.head_dim // 2, dims=-1)), dim=-1)
            table = torch.cat((cos, -first, second), dim=-1)
            rotation = JointRotation(heads < config.num_attention_heads, table, weights)
        return precomputed._replace(projections=projections, rotation=rotation)

    def run_layers(
        self,
        hidden_states: torch.Tensor,
        targets: torch.LongTensor,
        rotary_indices: tuple[torch.LongTensor, torch.LongTensor],
        precomputed: Precomputed,
        ranks: torch.LongTensor | None = None,
        kept: slice = slice(None),
        attention_mask: torch.BoolTensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Return last hidden states (batch, kept rows, hidden_size) of the rows in `kept`, on the device of `targets`.

        `targets` (batch, rows) are indices of target embeddings or conditions. `rotary_indices` are the indices of
        attention queries and of keys, both (batch, rows). For rows that are not kept, the last layer computes only keys
        and values. `attention_mask` (batch or 1, 1, rows or 1, slots) is True where a row attends to a slot.
        """
        frequencies, conditions, table, projections, rotation, _ = precomputed
        num_layers, most = len(self.layers), MAX_JOINT_ROWS["cpu" if targets.is_cpu else "accelerator"]
        is_small = (table is not None or projections is not None) and targets.numel() <= most
        tables = [None] * (num_layers + 1)
        if table is not None:
            vectors = look_up_vectors(table, targets) if is_small else table
            tables = vectors.split([owner.modulation.num_vectors for owner in (*self.layers, self)])
        if projections is None or not is_small:
            projections = [None] * num_layers
            rotations = frequencies and tuple(compute_rotation(indices, *frequencies) for indices in rotary_indices)
            rotations = [rotations] * num_layers
        else:
            rotations = rotation.look_up(*rotary_indices, num_layers) if rotation else [None] * num_layers
        if attention_mask is not None and self.config._attn_implementation != "eager":
            attention_mask = mask_for_kernels(attention_mask, product_dtype(hidden_states.device, hidden_states.dtype))
        injection, last = self.config.target_injection, num_layers - 1
        added = self.target_embeddings(targets) if injection in ("input", "shared") else None
        for layer_idx, layer in enumerate(self.layers):
            if injection == "shared" or (injection == "input" and layer_idx == 0):
                hidden_states = hidden_states + added.to(hidden_states.device)
            hidden_states = layer(
                hidden_states,
                targets,
                conditions,
                tables[layer_idx],
                ranks,
                kept if layer_idx == last else slice(None),
                rotations=rotations[layer_idx],
                joint=projections[layer_idx],
                attention_mask=attention_mask,
                **kwargs,
            )
        if self.modulation is None:
            return self.norm(hidden_states).to(targets.device)
        last_table = tables[-1][:, :, kept] if table is not None and is_small else tables[-1]
        vectors = self.modulation(targets[:, kept], conditions, last_table, ranks)
        vectors = (vector.to(hidden_states.device) for vector in vectors)
        return modulate(self.norm, hidden_states, *vectors, table is not None).to(targets.device)


class AOGPTModel(AOGPTStack):
    """Decoder without a head. Its input is a batch of rows (see `orders.py`).

    Examples:
        >>> config = AOGPTConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> rows = {  # start row, token 5 at position 2, token 6 at position 0; they predict positions 2, 0 and 1
        ...     "input_ids": torch.tensor([[0, 5, 6]]),
        ...     "positions": torch.tensor([[-1, 2, 0]]),
        ...     "target_positions": torch.tensor([[2, 0, 1]]),
        ... }
        >>> AOGPTModel(config)(**rows).last_hidden_state.shape
        torch.Size([1, 3, 32])
    """

    def _embed(self, input_ids: torch.LongTensor, positions: torch.LongTensor, has_starts: bool = True) -> torch.Tensor:
        if has_starts and self.start_embedding is None:
            input_ids = input_ids.masked_fill(positions < 0, self.config.start_token_id)
        embeddings = self.embed_tokens(input_ids)
        if has_starts and self.start_embedding is not None:
            # The embedding is called, not indexed, because its hooks load offloaded weights.
            start = self.start_embedding(torch.zeros_like(input_ids[:1, :1]))
            embeddings = torch.where(positions[..., None] < 0, start, embeddings)
        if self.position_embeddings is not None:
            embeddings = embeddings + self.position_embeddings(positions + 1)
        return embeddings

    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor,
        positions: torch.LongTensor | None = None,
        target_positions: torch.LongTensor | None = None,
        attention_mask: torch.BoolTensor | None = None,
        cache: Cache | None = None,
        precomputed: Precomputed | None = None,
        num_kept: int | None = None,
        ranks: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Run the decoder on a batch of rows.

        Without `positions` and `target_positions`, `input_ids` are texts, which are read from left to right after an
        added start row. As in the decoders of Transformers, the hidden state at a token predicts the next token.
        Libraries that apply the head themselves, such as TRL, call the decoder like this. `attention_mask`, `cache` and
        `position_ids` are then those of [`AOGPTForCausalLM`], and the last hidden states are NaN where its logits are.
        Hidden states of layers include the start row.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, rows)`): Token of each row; ignored in a start row.
            positions (`torch.LongTensor` of shape `(batch, rows)`): Position of the token, or -1 in a start row.
            target_positions (`torch.LongTensor` of shape `(batch, rows)`): Position that the row predicts.
            attention_mask (`torch.BoolTensor` of shape `(batch or 1, 1, rows, slots)`, *optional*): True where a row
                attends to a slot, that is, to a cached or new row. By default, attention is causal. If `cache` is not
                empty, a mask is required, unless there is a single row that attends to all slots.
            cache (`Cache`, *optional*): Any object with the `update` method of Transformers' caches.
            precomputed (`Precomputed`, *optional*): Result of [`precompute`]. It must cover all target positions. By
                default, it is computed.
            num_kept (`int`, *optional*): Number of rows to return, counted from the last row. For the other rows, the
                last layer computes only keys and values. Defaults to all rows.
            ranks (`torch.LongTensor` of shape `(batch, rows)`, *optional*): Inverse permutations of the target
                positions, if these are the permutations of 0 to rows - 1, and all rows are returned. Training of a
                compiled model then needs less time and memory.
            kwargs: Other arguments that Transformers may pass to any model, such as `output_hidden_states`.

        Returns:
            `BaseModelOutput` with `last_hidden_state` (batch, rows or num_kept, hidden_size).

        Raises:
            ValueError: If `num_kept` is not between 1 and the number of rows, or is less than this number without an
                `attention_mask`; or if an argument is unknown.
        """
        if "orders" in kwargs:
            raise ValueError(
                "`AOGPTModel.forward` has no `orders`: it reads texts from left to right. Call the whole model. TRL's "
                "SFTTrainer calls the decoder, so make a subclass of it with `compute_loss = Trainer.compute_loss`."
            )
        num_tokens, is_beyond = 0, None  # of texts
        if positions is None and target_positions is None:
            num_tokens, position_ids = input_ids.shape[1], kwargs.pop("position_ids", None)
            rows, _, is_beyond = prepare_causal_inputs(self, input_ids, attention_mask, position_ids, cache)
            input_ids, positions, target_positions, attention_mask, cache = rows.values()
            if self.config.vocab_size > self.config.num_valid_tokens and not torch.compiler.is_compiling():
                logger.warning_once(
                    "If a library applies the head itself, as TRL does, ids that are not text get probability. Call "
                    "`model.resize_token_embeddings(model.config.num_valid_tokens)`, then save and load the model."
                )
        check_forward_arguments(self, kwargs)
        if num_kept is not None:
            check_integer("num_kept", num_kept, most=positions.shape[1])
            if attention_mask is None and num_kept != positions.shape[1]:
                raise ValueError(f"`num_kept={num_kept}` of {positions.shape[1]} rows needs an `attention_mask`.")
        precomputed = precomputed or self.precompute(target_positions.device)
        hidden_states = self.run_layers(
            self._embed(input_ids, positions, precomputed.has_starts),
            target_positions,
            # Attention queries are rotated by target - 1, and keys by the token's position. Both are increased by 1, so
            # that the start row (position -1) has index 0, like the start token of a Llama.
            rotary_indices=(target_positions, positions + 1),
            precomputed=precomputed,
            ranks=ranks,
            kept=slice(None) if num_kept is None else slice(-num_kept, None),
            attention_mask=attention_mask,
            cache=cache,
            **kwargs,
        )
        hidden_states = hidden_states[:, -num_tokens:]
        if is_beyond is not None:
            hidden_states = hidden_states.masked_fill(is_beyond[..., None], torch.nan)
        return BaseModelOutput(last_hidden_state=hidden_states)


class AOGPTWithHead(AOGPTPreTrainedModel):
    """Base class of models with a language-model head. All subclasses for decoders load the same model folders."""

    model_class: type[AOGPTStack] = AOGPTModel
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _has_checked_count = False

    def __init__(self, config: AOGPTConfig) -> None:
        super().__init__(config)
        self.model = self.model_class(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self.post_init()
        if isinstance(self, AnyOrderGenerationMixin):  # Transformers before 5.13 does not use generation_config_class
            self.generation_config = AnyOrderGenerationConfig.from_model_config(config)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if name not in ANY_ORDER_METHODS or self.model_class is not AOGPTModel:
                raise
            message = f"{type(self).__name__} has no `{name}`. Load the model folder with AutoModel."
            raise AttributeError(message) from error

    def warn_if_starts_count(self, is_counted: torch.BoolTensor, num_items_in_batch: object) -> None:
        """Warn if start tokens, which have no loss, count in `num_items_in_batch`. Read only the first batch."""
        if num_items_in_batch is None or self._has_checked_count or not is_readable(is_counted):
            return
        self._has_checked_count = True
        if is_counted.any():
            logger.warning_once(
                "The Trainer counts start tokens as labels, but they have no loss, so the loss becomes too small. "
                "Set their labels to -100. DataCollatorForAnyOrderLM does so if it gets `start_token_id`."
            )

    def apply_head(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return logits (..., vocab_size) on the device of `hidden_states`, even if the head is on another device."""
        tuned = getattr(self.lm_head, "token_adapter", None)  # of PEFT's `trainable_token_indices`
        if tuned is not None and self.config.lm_head_bias and not (tuned.merged or tuned.disable_adapters):
            raise ValueError("PEFT's `trainable_token_indices` omit the head's bias. Use `modules_to_save` instead.")
        return self.lm_head(hidden_states).to(hidden_states.device)

    def compute_loss(
        self,
        logits: torch.Tensor,
        labels: torch.LongTensor,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        """Return the mean cross-entropy over labels other than -100, in at least float32.

        Labels are not shifted. The sum is divided by `num_items_in_batch`, by default the number of labels.
        """
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return fixed_cross_entropy(logits.flatten(0, 1), labels.flatten(), num_items_in_batch)

    def compute_loss_of_states(
        self,
        hidden_states: torch.Tensor,
        labels: torch.LongTensor,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Return the loss of [`compute_loss`] for `hidden_states` (batch, n, hidden_size). Compute logits in chunks."""
        device = self.lm_head.weight.device
        labels = labels.flatten().to(device)
        is_label = labels != -100
        count = is_label.sum() if num_items_in_batch is None else num_items_in_batch
        count = count.to(device) if isinstance(count, torch.Tensor) else count
        states = hidden_states.flatten(0, 1).to(device)
        weights = is_label.to(torch.promote_types(states.dtype, torch.float32)) / count
        loss = head_loss(states, self.lm_head, labels.masked_fill(~is_label, 0), weights)
        return loss.to(hidden_states.device)

    def make_masked_lm_output(
        self,
        logits: torch.Tensor,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None,
        labels: torch.LongTensor | None,
        output: ModelOutput,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """Return the output of a masked language model, in which given tokens have probability 1."""
        is_masked = input_ids == self.config.mask_token_id
        lowest = torch.finfo(logits.dtype).min
        logits[..., self.config.num_valid_tokens :] = lowest
        certain = torch.full_like(logits, lowest).scatter(2, input_ids.masked_fill(is_masked, 0)[..., None], 0.0)
        logits = torch.where(is_masked[..., None], logits, certain)
        if labels is not None:
            labels = prepare_labels(self, labels, input_ids, attention_mask)
            is_contradicted = (labels != -100) & ~is_masked & (labels != input_ids)
            if should_validate(self, labels) and is_contradicted.any():
                raise ValueError(
                    "`labels` differ from `input_ids` at unmasked positions. Mask these positions, or set their "
                    "labels to -100. With DataCollatorForLanguageModeling, set mask_replace_prob=1 and "
                    "random_replace_prob=0."
                )
        loss = None if labels is None else self.compute_loss(logits, labels, **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=output.hidden_states, attentions=output.attentions
        )


class AOGPTForAnyOrderLM(AOGPTWithHead, AnyOrderGenerationMixin, AnyOrderInfillingMixin, AnyOrderLikelihoodMixin):
    """AO-GPT with a language-model head. It predicts every token given the tokens before it in a given order.

    Examples:
        >>> config = AOGPTConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> model = AOGPTForAnyOrderLM(config)
        >>> input_ids, orders = torch.tensor([[5, 6, 7]]), torch.tensor([[2, 0, 1]])
        >>> output = model(input_ids, orders, labels=input_ids)
        >>> output.logits.shape  # position 1 is last in the order: logits[0, 1] predicts 6, given 7 and 5
        torch.Size([1, 3, 100])
    """

    _auto_class = "AutoModel"
    decoding_state_class = CachedDecodingState

    def forward_by_rank(
        self,
        input_ids: torch.LongTensor,
        orders: torch.LongTensor | None,
        attention_mask: torch.Tensor | None,
        has_start_tokens: bool = True,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[BaseModelOutput, torch.LongTensor]:
        """Check the inputs of [`forward`], and run the decoder on one row for each rank.

        If `has_start_tokens` is False, a start token at the beginning of a sequence is text.

        Returns:
            The output of the decoder, with `last_hidden_state` (batch, n, hidden_size) by rank, and the orders (batch,
            n) that were used. In these orders, padding and start tokens (see [`start_mask`]) are last. Because
            attention is causal, no token then attends to them, and no attention mask is needed.
        """
        input_ids = prepare_input_ids(self, input_ids, attention_mask)
        if orders is None:
            orders = left_to_right_orders(*input_ids.shape, device=input_ids.device)
        elif should_validate(self, input_ids):
            check_orders("orders", orders, *input_ids.shape)
        has_start_tokens &= self.config.start_token_id is not None
        is_given = find_tokens(input_ids, attention_mask)
        is_token = token_mask(self.config, input_ids, attention_mask) if has_start_tokens else is_given
        orders = orders.long()
        if attention_mask is not None or has_start_tokens:
            orders = group_orders(orders, (~is_token).long())
        ids, positions = index_by_rank(input_ids, orders), index_by_rank(token_positions(is_token), orders)
        rows = branch_rows(ids, positions, torch.zeros_like(ids))
        if GATHERS_GRADIENTS and self.training and attention_mask is None and self.config.start_token_id is None:
            rows["ranks"] = rows["target_positions"].argsort(dim=-1)
        return self.model(**rows, **kwargs), orders

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor,
        orders: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        skip_logits: bool = False,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """Predict every token given the tokens before it in an order.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Whole sequences.
            orders (`torch.LongTensor` of shape `(batch, n)`, *optional*): `orders[b, k]` is the column of `input_ids`
                that is predicted at rank k. Defaults to left to right.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding. Padding may be anywhere. It
                does not change the logits of tokens and is not counted in positions.
            labels (`torch.LongTensor` of shape `(batch, n)`, *optional*): Ids to predict, by position (not shifted).
                -100 and padding are ignored.
            skip_logits (`bool`, defaults to `False`): Return the loss without the logits. This saves most of the
                memory of training. The loss then allows only one backward pass. Ignored without `labels`, or if the
                head is not a plain linear layer (for example, with LoRA, hooks or tensor parallelism) or is offloaded.
            kwargs: Other arguments that Transformers may pass to any model, such as `output_hidden_states`.

        Returns:
            `MaskedLMOutput` with `logits` (batch, n, vocab_size) and `loss`. `logits[b, i]` predicts `input_ids[b, i]`
            given the tokens that precede it in `orders[b]`. A start token (`config.start_token_id`) at the beginning of
            a sequence has probability 1, and no loss. The loss is the mean cross-entropy of the labels in nats, that
            is, Eq. 7 of the paper per token. The loss normalizes probabilities over all `config.vocab_size` ids.
            [`log_likelihood`] normalizes them over the ids of text. Hidden states, if requested, are indexed by rank.
            The pipeline "feature-extraction" gives `logits`. Embeddings are the last of the requested hidden states.

        Raises:
            ValueError: If an id is out of range, a sequence is too long, or an order is not a permutation.
        """
        check_forward_arguments(self, kwargs)
        if self.training and labels is not None and orders is None and not torch.compiler.is_compiling():
            logger.warning_once(
                "The model is trained only left to right, because it gets `labels` without `orders`. "
                "DataCollatorForAnyOrderLM draws orders. For left-to-right training, set its `orders='left_to_right'`."
            )
        output, orders = self.forward_by_rank(input_ids, orders, attention_mask, **kwargs)
        if labels is not None:
            given, labels = labels, prepare_labels(self, labels, input_ids, attention_mask)
            is_start = start_mask(self.config, input_ids, attention_mask)
            self.warn_if_starts_count(is_start & (given != -100), kwargs.get("num_items_in_batch"))
        if skip_logits and labels is not None and is_plain(self.lm_head, (nn.Linear,)):
            labels, logits = index_by_rank(labels, orders), None
            loss = self.compute_loss_of_states(output.last_hidden_state, labels, kwargs.get("num_items_in_batch"))
        else:
            logits = self.apply_head(index_by_position(output.last_hidden_state, orders))
            loss = None if labels is None else self.compute_loss(logits, labels, **kwargs)
            if (start := self.config.start_token_id) is not None:  # after the loss, which has no part in this
                is_start = start_mask(self.config, input_ids, attention_mask)
                logits.masked_fill_(is_start[..., None], torch.finfo(logits.dtype).min)
                logits[..., start].masked_fill_(is_start, 0.0)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=output.hidden_states, attentions=output.attentions
        )


class AOGPTForMaskedLM(AOGPTWithHead):
    """AO-GPT as a masked language model. It predicts all masked positions at once, each given the unmasked tokens.

    The decoder reads the unmasked tokens from left to right. In another order, the predictions would be different. This
    class has no `generate`, so its `save_pretrained` does not write `generation_config.json`.

    Do not set `label_smoothing_factor` of the `Trainer`. It adds the log-probabilities of all ids, and ids that are not
    text have probability 0, so the loss would be infinite.

    Examples:
        >>> config = AOGPTConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> model = AOGPTForMaskedLM(config)
        >>> model(torch.tensor([[5, config.mask_token_id, 7]])).logits.shape
        torch.Size([1, 3, 100])
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
        """Predict all masked positions.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Tokens; `config.mask_token_id` at masked positions.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding. Padding may be anywhere.
            labels (`torch.LongTensor` of shape `(batch, n)`, *optional*): Ids to predict, by position; -100 and padding
                are ignored. An unmasked position adds 0 to the loss, but counts in the mean.
            kwargs: Other arguments that Transformers may pass to any model, such as `output_hidden_states`.

        Returns:
            `MaskedLMOutput` with `logits` (batch, n, vocab_size). At masked positions, the softmax of the logits is the
            predicted distribution q_{0|t}(. | x_t) over ids of text (Eq. 5). At unmasked positions, the given token has
            probability 1. Hidden states, if requested, are in another order: first unmasked positions, then masked
            positions, then padding.

        Raises:
            ValueError: If an id is neither an id of text nor the mask id, if a sequence is too long, or if a label
                differs from an unmasked token.
        """
        check_forward_arguments(self, kwargs)
        input_ids = prepare_input_ids(self, input_ids, attention_mask, allow_mask=True)
        is_masked = input_ids == self.config.mask_token_id
        is_token = token_mask(self.config, input_ids, attention_mask)
        orders = left_to_right_orders(*input_ids.shape, device=input_ids.device)
        orders = group_orders(orders, torch.where(is_token, is_masked.long(), 2))
        ids, positions = index_by_rank(input_ids, orders), index_by_rank(token_positions(is_token), orders)
        num_context = (is_token & ~is_masked).sum(dim=-1)
        branches = parallel_queries(num_context, torch.full_like(num_context, ids.shape[1]), ids.shape[1])
        output = self.model(**branch_rows(ids, positions, branches), attention_mask=branch_mask(branches), **kwargs)
        logits = self.apply_head(index_by_position(output.last_hidden_state, orders))
        return self.make_masked_lm_output(logits, input_ids, attention_mask, labels, output, **kwargs)


class AOGPTForCausalLM(AOGPTWithHead, CausalGenerationMixin):
    """AO-GPT as a causal language model. It predicts from left to right, and shifts labels as in Transformers.

    It works with Transformers' tools for causal models: the standard `generate`, caches, pipelines, PEFT (except prompt
    tuning, which needs `inputs_embeds`) and evaluation harnesses. Every forward pass also runs the start row, before
    the new tokens. The start row is not stored in the cache, so the cache has one entry per token, as Transformers
    expects. If a text begins with the start token (`config.start_token_id`), this token is the start row.

    Before you train with `label_smoothing_factor` or TRL, remove ids that are not text, with which losses are infinite
    or wrong: call `model.resize_token_embeddings(model.config.num_valid_tokens)`, then save and load the model.

    Examples:
        >>> config = AOGPTConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> model = AOGPTForCausalLM(config)
        >>> model.generate(torch.tensor([[5, 6]]), max_new_tokens=3).shape
        torch.Size([1, 5])
    """

    _auto_class = "AutoModelForCausalLM"

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        cache: Cache | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        """Predict the token after each position.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Tokens; with a cache, those after the cached ones.
            attention_mask (`torch.Tensor` of shape `(batch, cached + n)`, *optional*): 0 at padding. Padding may be
                anywhere. Alternatively, a mask of shape `(batch or 1, 1, n, keys)` selects the cached and new tokens to
                which each token attends: they are True in a boolean mask, and 0 in a floating-point mask. It must be
                causal.
            position_ids (`torch.LongTensor` of shape `(batch, n)`, *optional*): Positions of the tokens. By default,
                positions are counted from 0 without padding. A start token counts, as in Transformers.
            cache (`Cache`, *optional*): A Transformers cache.
            labels (`torch.LongTensor` of shape `(batch, n)`, *optional*): Ids to predict, usually `input_ids`. This
                method shifts them: `labels[b, i + 1]` is predicted at position i. -100 is ignored. As
                in Transformers, padding is not ignored, so set its labels to -100.
            use_cache (`bool`, *optional*): Whether to create and return a cache if `cache` is not given.
                Defaults to `False`.
            logits_to_keep (`int` or `torch.Tensor`): If an integer, compute logits only for this number of last
                positions (0 means all). If a tensor, compute logits only for the positions with these indices.
            past_key_values (`Cache`, *optional*): The name of `cache` in Transformers before 5.24.
            kwargs: Other arguments that Transformers may pass to any model, such as `output_hidden_states`.

        Returns:
            `CausalLMOutputWithPast`. `logits[b, i]` predicts the token that follows `input_ids[b, i]`. Ids that are not
            text have probability 0. The model has no position to predict after the last one, so these logits are NaN
            (except in training mode, and with `target_injection="none"`, where they are those of the source model). In
            attention weights, the first row and the first column belong to the start row.

        Raises:
            ValueError: If an id is out of range, if a sequence is too long, or if another argument is not allowed.
        """
        check_forward_arguments(self, kwargs)
        check_batch("input_ids", input_ids)
        if labels is not None and not (isinstance(logits_to_keep, int) and logits_to_keep == 0):
            raise ValueError(
                f"`labels` need the logits of all positions, but `logits_to_keep` is {logits_to_keep}. Remove `labels` "
                "or `logits_to_keep`."
            )
        if past_key_values is not None:
            if cache is not None:
                raise ValueError("`cache` and `past_key_values` are two names of one argument. Remove one of them.")
            if CACHE_NAME == "cache" and not torch.compiler.is_compiling():
                warnings.warn("`past_key_values` is deprecated in Transformers. Use `cache` instead.", FutureWarning, 2)
            cache = past_key_values
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        inputs = prepare_causal_inputs(self, input_ids, attention_mask, position_ids, cache)
        output = self.model(**inputs.rows, **kwargs)
        length = input_ids.shape[1]
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.apply_head(output.last_hidden_state[:, -length:][:, kept])
        # Otherwise, Transformers' `generate` could sample ids that are not text.
        logits[..., self.config.num_valid_tokens :] = torch.finfo(logits.dtype).min
        loss = None
        if labels is not None:
            labels = prepare_labels(self, labels, input_ids)
            if inputs.is_start is not None:
                self.warn_if_starts_count(inputs.is_start & (labels != -100), kwargs.get("num_items_in_batch"))
                labels = labels.masked_fill(inputs.is_start, -100)
            loss = self.compute_loss(logits, F.pad(labels[:, 1:], (0, 1), value=-100), **kwargs)
        if inputs.is_beyond is not None:  # after the loss, which has no part in this
            logits.masked_fill_(inputs.is_beyond[:, kept, None], torch.nan)
        hidden_states = output.hidden_states and tuple(
            None if states is None else states[:, -length:] for states in output.hidden_states
        )
        states = {CACHE_NAME: cache, "hidden_states": hidden_states, "attentions": output.attentions}
        return CausalLMOutputWithPast(loss=loss, logits=logits, **states)


# With `label_smoothing_factor`, the `Trainer` shifts the labels only for the classes in this table.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(AOGPTConfig.model_type, AOGPTForCausalLM.__name__)
