# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Configurations of AO-GPT models and of encoder-only masked diffusion models."""

from copy import deepcopy
from typing import Any

from transformers import PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.utils import logging

from .validation import check_choice, check_flag, check_integer, check_mask_id, check_number, is_id, is_integer, suggest

AUTO_MAP = {
    "AutoConfig": "configuration_aogpt.AOGPTConfig",
    "AutoModel": "modeling_aogpt.AOGPTForAnyOrderLM",
    "AutoModelForMaskedLM": "modeling_aogpt.AOGPTForMaskedLM",
    "AutoModelForCausalLM": "modeling_aogpt.AOGPTForCausalLM",
}
ENCODER_AUTO_MAP = {
    "AutoConfig": "configuration_aogpt.MDMEncoderConfig",
    "AutoModel": "modeling_mdm_encoder.MDMEncoderForMaskedLM",
    "AutoModelForMaskedLM": "modeling_mdm_encoder.MDMEncoderForMaskedLM",
}

# Upper limits of sizes, far above the sizes of any real model. Without them, a damaged or malicious config.json could
# make the program allocate too much memory.
MAX_SIZES = {
    "vocab_size": 2**22,
    "hidden_size": 2**16,
    "num_hidden_layers": 2**10,
    "num_attention_heads": 2**10,
    "num_key_value_heads": 2**10,
    "head_dim": 2**12,
    "intermediate_size": 2**19,
    "max_position_embeddings": 2**22,
    "target_embedding_size": 2**16,
    "num_valid_tokens": 2**22,
}
# Types of rotary frequencies, and the parameters that each of them needs.
ROPE_TYPES = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}

# Names that `rope_parameters` may contain. Some of them have an effect only with certain types.
ROPE_PARAMETERS = (
    *("rope_type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    *("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "partial_rotary_factor"),
)

# Number of GPT-2's tokens, and number of entries to which the released models pad the embedding table.
GPT2_VOCAB_SIZE, GPT2_PADDED_VOCAB_SIZE = 50257, 50304


def as_list(ids: object) -> list:
    """Return `ids` as a list. Fields such as `eos_token_id` contain one id or a list of ids."""
    return ids if isinstance(ids, list) else [ids]


class AOGPTConfig(PreTrainedConfig):
    r"""Configuration of an AO-GPT model (arXiv 2506.19935), or of a sigma-GPT model, the paper's baseline.

    The input of these models is a sequence of rows. A row consists of a token, its position, and a target, which is the
    position that the row predicts.

    The defaults are the settings of AO-GPT small. A sigma-GPT differs by `norm="layernorm", qk_norm=False,
    target_injection="input", tie_word_embeddings=True, lm_head_bias=False`.

    Args:
        vocab_size (`int`, defaults to 50304): Number of entries of the token embedding table.
        hidden_size (`int`, defaults to 768): Width of the hidden states.
        num_hidden_layers (`int`, defaults to 12): Number of layers, each with attention and an MLP.
        num_attention_heads (`int`, defaults to 12): Number of attention heads.
        num_key_value_heads (`int`, *optional*): Number of key-value heads (grouped-query attention). It must divide
            `num_attention_heads`. Defaults to `num_attention_heads`.
        head_dim (`int`, *optional*): Width of an attention head; defaults to `hidden_size` / `num_attention_heads`.
        intermediate_size (`int`, *optional*): Width of the MLP; defaults to four times `hidden_size`.
        gated_mlp (`bool`, defaults to `False`): Whether the MLP is act(gate(x)) * up(x), as in Llama.
        max_position_embeddings (`int`, defaults to 1024): Largest allowed number of tokens in a sequence.
        target_injection (`str`, defaults to `"adaln"`): How the model uses the target of a row (appendix B and Figure 7
            of the paper). `"adaln"`: shifts, scales and gates of every layer are computed from a target embedding
            (AO-GPT). `"input"`: a target embedding is added to the input of the first layer (sigma-GPT). `"shared"`:
            the same target embedding is added to the input of every layer. `"per_layer"`: like `"shared"`, but with a
            separate embedding table for each layer. `"none"`: only rotary positions depend on the target.
        target_embedding_size (`int`, defaults to 128): Width of the target embedding with `target_injection="adaln"`.
            With other values of `target_injection`, the width is `hidden_size`.
        position_encoding (`str`, defaults to `"learned"`): `"learned"`: learned absolute position embeddings, as in
            the released models. `"rotary"`: if p is the target, attention queries are rotated by p - 1, and keys by the
            position of the row's token. In left-to-right order, both are the current token's position, as in Llama.
        rope_parameters (`dict`, *optional*): Rotary frequencies as in Transformers: `rope_type` (`"default"`,
            `"linear"`, `"dynamic"`, `"yarn"` or `"llama3"`), `rope_theta` (defaults to 10000.0) and the other
            parameters of this `rope_type`. `"dynamic"` gives the same frequencies as `"default"`, because it changes
            them only for sequences longer than `max_position_embeddings`, which are not allowed.
        no_rope_layers (`list[int]`, *optional*): Indices of layers without rotary positions, as in SmolLM3.
        norm (`str`, defaults to `"rmsnorm"`): Kind of all norms over `hidden_size`: `"rmsnorm"` or `"layernorm"`.
        norm_eps (`float`, defaults to 1e-5): Epsilon of all norms.
        qk_norm (`bool`, defaults to `True`): Whether to apply an RMS norm to the queries and keys of each head.
        attention_bias (`bool`, defaults to `True`): Whether the projections of queries, keys and values have biases.
        attention_output_bias (`bool`, defaults to `True`): Whether the output projection of attention has a bias.
        mlp_bias (`bool`, defaults to `True`): Whether the MLP has biases.
        norm_weight (`bool`, defaults to `True`): Whether norms over `hidden_size` have weights.
        norm_bias (`bool`, defaults to `True`): Whether layer norms have biases. They need `norm_weight=True`.
        lm_head_bias (`bool`, defaults to `True`): Whether the output head has a bias.
        tie_word_embeddings (`bool`, defaults to `False`): Whether the output head and token embeddings share weights.
        hidden_act (`str`, defaults to `"gelu"`): Activation of the MLP, by its name in Transformers. `"gelu"` is the
            exact GELU, without the tanh approximation.
        initializer_range (`float`, defaults to 0.02): Standard deviation of the normal distribution from which weights
            are initialized. The distribution is truncated at three standard deviations. For the output projections of
            attention and MLP, the standard deviation is divided by sqrt(2 `num_hidden_layers`).
        num_valid_tokens (`int`, *optional*): Number of ids that stand for text: 0 ... `num_valid_tokens` - 1. Higher
            ids are the mask, or only pad the embedding table. They are never sampled. Defaults to 50257 if `vocab_size`
            is 50304 (GPT-2's padded table), otherwise to `vocab_size`.
        mask_token_id (`int`, *optional*): Id that marks a masked position, which is still to be filled in. Defaults to
            `num_valid_tokens`. The decoder never embeds this id, so it may be `vocab_size` or higher.
        start_token_id (`int`, *optional*): Id of a token. Its embedding is used for the first row, which has no token.
            If a text begins with this token, the token stands for the first row and is not part of the text. By
            default, the first row has a learned embedding of its own, which no token stands for.
        max_gap_length (`int`, *optional*): Largest length of a gap whose end the model can predict, with end-of-text.
            `infill` then needs no search for the length. Set by training with `max_gap_length`.
        source_config (`dict`, *optional*): Configuration of the causal language model from which this model was
            converted. It is used to convert this model back. It includes the Hub name (`_name_or_path`) and the
            `license` of the causal language model, if they are known. For a converted encoder, it contains only
            `model_type`, `_name_or_path` and `license` of the source.

    Raises:
        ValueError: If a value is not allowed, or values contradict each other.

    Examples:
        >>> config = AOGPTConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4)
        >>> config.head_dim, config.mask_token_id
        (64, 50257)
    """

    model_type = "aogpt"
    keys_to_ignore_at_inference = ["cache", "past_key_values"]
    base_model_tp_plan = {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.q_norm": "replicated_with_grad_allreduce",
        "layers.*.self_attn.k_norm": "replicated_with_grad_allreduce",
        "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.mlp.gate_proj": "colwise",
        "layers.*.mlp.up_proj": "colwise",
        "layers.*.mlp.down_proj": "rowwise",
    }
    choices = {
        "target_injection": ("adaln", "input", "shared", "per_layer", "none"),
        "position_encoding": ("learned", "rotary"),
        "norm": ("rmsnorm", "layernorm"),
    }

    vocab_size: int = GPT2_PADDED_VOCAB_SIZE
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    gated_mlp: bool = False
    max_position_embeddings: int = 1024
    target_injection: str = "adaln"
    target_embedding_size: int = 128
    position_encoding: str = "learned"
    rope_parameters: dict[str, Any] | None = None
    no_rope_layers: list[int] | None = None
    norm: str = "rmsnorm"
    norm_eps: float = 1e-5
    qk_norm: bool = True
    attention_bias: bool = True
    attention_output_bias: bool = True
    mlp_bias: bool = True
    norm_weight: bool = True
    norm_bias: bool = True
    lm_head_bias: bool = True
    tie_word_embeddings: bool = False
    hidden_act: str = "gelu"
    initializer_range: float = 0.02
    num_valid_tokens: int | None = None
    mask_token_id: int | None = None
    start_token_id: int | None = None
    max_gap_length: int | None = None
    source_config: dict[str, Any] | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        for name, value in kwargs.items():  # Transformers keeps them, too
            is_known = hasattr(type(self), name) or name in ("rope_theta", "use_cache")
            if isinstance(value, int | float) and not is_known:
                logging.get_logger(__name__).warning(f"AOGPTConfig ignores `{name}`.{suggest(name, vars(self))}")
        given = kwargs | {"rope_parameters": self.rope_parameters}
        for name in ("rope_parameters", "rope_theta", "rope_scaling"):
            if given.get(name) is not None and self.position_encoding == "learned":
                raise ValueError(f"`{name}` has no effect without `position_encoding='rotary'`. Change one of them.")
        if not isinstance(self.rope_parameters, dict | None):
            raise ValueError(f"`rope_parameters` must be a dictionary or None, but is {self.rope_parameters!r}.")
        rope = [*(self.rope_parameters or {}).items(), ("rope_theta", kwargs.get("rope_theta"))]
        self.rope_parameters = deepcopy(self.rope_parameters)  # Transformers adds missing values to it
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            for name in ("hidden_size", "num_attention_heads"):
                check_integer(name, getattr(self, name), most=MAX_SIZES[name])
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    f"`hidden_size` ({self.hidden_size}) must be a multiple of `num_attention_heads` "
                    f"({self.num_attention_heads}). Change one of them, or set `head_dim`."
                )
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        if self.num_valid_tokens is None:
            padded = self.vocab_size == GPT2_PADDED_VOCAB_SIZE
            self.num_valid_tokens = GPT2_VOCAB_SIZE if padded else self.vocab_size
        if self.mask_token_id is None:
            self.mask_token_id = self.num_valid_tokens
        super().__post_init__(**kwargs)
        if self.position_encoding == "learned":
            self.rope_parameters = None
        elif any(value not in (None, self.rope_parameters.get(name)) for name, value in rope):
            logging.get_logger(__name__).warning(
                "`rope_parameters`, `rope_theta` and `rope_scaling` contradict each other. AOGPTConfig uses "
                f"{self.rope_parameters}. Remove the other values."
            )
        # One checkpoint serves every Auto class. `auto_map` is always reset here: Transformers adds the name of the
        # repository to class names that it reads from the Hub, but they must be saved without this prefix.
        self.auto_map = dict(AUTO_MAP)
        for name, value in vars(self).items():
            if is_integer(value):
                setattr(self, name, int(value))  # integers of NumPy cannot be written to config.json
        self.validate()

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the contents of config.json. Leave out a default mask id that has no entry in the token table."""
        settings = super().to_diff_dict()
        # If the code of this package is not loaded, AutoTokenizer reads config.json, and would warn about this id.
        if settings.get("mask_token_id") == self.num_valid_tokens == self.vocab_size:
            del settings["mask_token_id"]
        return settings

    def validate(self) -> None:
        """Raise a `ValueError` if a value is not allowed.

        Transformers calls this method before saving. It replaces the checks of Transformers, which would warn about a
        mask id that is not in the token embedding table.
        """
        if self.model_type != type(self).model_type:
            raise ValueError(
                f"The configuration has model_type {self.model_type!r}, but {type(self).__name__} needs "
                f"{type(self).model_type!r}. Load the model with the class that its config.json names in `auto_map`."
            )
        for name, allowed in self.choices.items():
            check_choice(name, getattr(self, name), allowed)
        for name, largest in MAX_SIZES.items():
            check_integer(name, getattr(self, name), most=largest)
        check_integer("mask_token_id", self.mask_token_id, least=0, most=MAX_SIZES["vocab_size"])
        for name in ("norm_eps", "initializer_range"):
            check_number(name, getattr(self, name), above_zero=True)
        for name, kind in AOGPTConfig.__annotations__.items():
            if kind is bool:
                check_flag(name, getattr(self, name))
        if self.hidden_act not in ACT2FN:
            raise ValueError(f"`hidden_act` must be an activation in Transformers' ACT2FN, but is {self.hidden_act!r}.")
        for name in ("bos_token_id", "eos_token_id", "pad_token_id", "start_token_id"):
            value = getattr(self, name)
            values = value if name == "eos_token_id" and isinstance(value, list) else [value]
            if not all(token is None or is_id(token, self.vocab_size) for token in values):
                raise ValueError(
                    f"`{name}` must be an id of the vocabulary, 0 to {self.vocab_size - 1}, or None, but is {value!r}."
                )
        if self.max_gap_length is not None:
            check_integer("max_gap_length", self.max_gap_length)
            if self.eos_token_id is None:
                raise ValueError("`max_gap_length` needs `eos_token_id`, which ends a gap. Set both, or remove both.")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"`num_attention_heads` ({self.num_attention_heads}) must be a multiple of `num_key_value_heads` "
                f"({self.num_key_value_heads}). Change one of them."
            )
        self._validate_rotary()
        if self.num_valid_tokens > self.vocab_size:
            raise ValueError(
                f"`num_valid_tokens` ({self.num_valid_tokens}) exceeds `vocab_size` ({self.vocab_size}). Change one "
                "of them."
            )
        check_mask_id(self)
        if self.tie_word_embeddings and self.lm_head_bias:
            raise ValueError("`tie_word_embeddings=True` needs a head without a bias. Set `lm_head_bias=False`.")

    def _validate_rotary(self) -> None:
        if self.position_encoding == "learned":
            if self.rope_parameters is not None:
                raise ValueError("`rope_parameters` needs `position_encoding='rotary'`. Set both, or none of them.")
            if self.no_rope_layers is not None or (self.target_injection == "none" and self.model_type == "aogpt"):
                raise ValueError(
                    "`no_rope_layers` and `target_injection='none'` need `position_encoding='rotary'`, but "
                    "`position_encoding` is 'learned'. Set `position_encoding='rotary'`."
                )
            return
        if self.head_dim % 2:
            raise ValueError(
                f"`position_encoding='rotary'` needs an even `head_dim`, but `head_dim` is {self.head_dim}. Change "
                "`head_dim`, or `hidden_size` and `num_attention_heads`, or set `position_encoding='learned'`."
            )
        parameters = self.rope_parameters or {}
        check_number("rope_parameters['rope_theta']", parameters.get("rope_theta"), above_zero=True)
        if parameters.get("rope_type") not in [*ROPE_TYPES] or parameters.get("partial_rotary_factor", 1.0) != 1.0:
            raise ValueError(
                f"`rope_parameters` is {parameters!r}. Its `rope_type` must be one of "
                f"{', '.join(map(repr, ROPE_TYPES))}, and its `partial_rotary_factor`, if any, must be 1."
            )
        for name in parameters:
            check_choice("name in rope_parameters", name, (*ROPE_PARAMETERS, "type"))  # "type" is an older "rope_type"
        for name in ROPE_TYPES[parameters["rope_type"]]:
            check_number(f"rope_parameters[{name!r}]", parameters.get(name), above_zero=True)
        layers = self.no_rope_layers
        is_list = isinstance(layers, list) and all(is_id(layer, self.num_hidden_layers) for layer in layers)
        if layers is not None and not is_list:
            raise ValueError(
                f"`no_rope_layers` must be a list of indices of layers, 0 to {self.num_hidden_layers - 1}, or None, "
                f"but is {layers!r}."
            )


class MDMEncoderConfig(AOGPTConfig):
    r"""Configuration of an encoder-only masked diffusion model, in which every position attends to all positions.

    With the defaults, the encoder has the layers and target embeddings of AO-GPT small, but full attention. The
    published encoders have these settings:

    * RADD (arXiv 2406.03736): `target_injection="none", position_encoding="rotary", norm="layernorm", qk_norm=False,
      attention_bias=False, attention_output_bias=False, hidden_act="gelu_pytorch_tanh"`;
    * SEDD (arXiv 2310.16834): the settings of RADD, but with `target_injection="sigma"` and `norm_bias=False`;
    * MDLM (arXiv 2406.07524), after conversion: the settings of RADD;
    * LLaDA (arXiv 2502.09992) and Dream, after conversion: `target_injection="none", position_encoding="rotary"` and
      the settings of a Llama or Qwen2; for Dream, also `shift_predictions=True`.

    Args:
        target_injection (`str`, defaults to `"adaln"`): How the model uses the target of a row, which is the position
            of the row's own token (except with `shift_predictions`). Besides the values of [`AOGPTConfig`] (`"none"`
            for RADD), `"sigma"` is allowed: shifts, scales and gates of every layer are computed from the noise level
            of the sequence (SEDD).
        target_embedding_size (`int`, defaults to 128): Width of the target embedding with `target_injection="adaln"`,
            or of the noise-level embedding with `target_injection="sigma"`.
        num_valid_tokens (`int`, *optional*): Number of ids that stand for text: 0 ... `num_valid_tokens` - 1. Defaults
            to 50257 if `vocab_size` is 50304 (GPT-2's padded table). Otherwise, it defaults to `vocab_size` - 1, and
            the last id is the mask id.
        mask_token_id (`int`, *optional*): Id that marks a masked position, which is still to be filled in. Defaults to
            `num_valid_tokens`. The encoder embeds this id, so it must be below `vocab_size`.
        shift_predictions (`bool`, defaults to `False`): Whether each position is predicted by the row of the position
            before it, as in Dream (arXiv 2508.15487). The first position is predicted by its own row. This needs
            `target_injection="none"`.
        kwargs: Other arguments of [`AOGPTConfig`].

    Raises:
        ValueError: If a value is not allowed, or values contradict each other.

    Examples:
        >>> config = MDMEncoderConfig(vocab_size=101)
        >>> config.num_valid_tokens, config.mask_token_id
        (100, 100)
    """

    model_type = "mdm_encoder"
    choices = AOGPTConfig.choices | {"target_injection": (*AOGPTConfig.choices["target_injection"], "sigma")}

    shift_predictions: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        if self.num_valid_tokens is None and self.vocab_size != GPT2_PADDED_VOCAB_SIZE:
            self.num_valid_tokens = self.vocab_size - 1
        super().__post_init__(**kwargs)
        self.auto_map = dict(ENCODER_AUTO_MAP)

    def validate(self) -> None:
        """Raise a `ValueError` if a value is not allowed."""
        super().validate()
        if self.start_token_id is not None:
            raise ValueError(f"`start_token_id` ({self.start_token_id}) has no effect in an encoder. Remove it.")
        check_flag("shift_predictions", self.shift_predictions)
        if self.shift_predictions and self.target_injection != "none":
            raise ValueError(
                f"`shift_predictions` needs `target_injection='none'`, but `target_injection` is "
                f"{self.target_injection!r}. Change one of them."
            )
        if self.mask_token_id >= self.vocab_size:
            raise ValueError(
                f"`mask_token_id` ({self.mask_token_id}) must be in the token table of an encoder. Choose a value from "
                f"`num_valid_tokens` ({self.num_valid_tokens}) to `vocab_size` - 1 ({self.vocab_size - 1}), or raise "
                "`vocab_size`."
            )
