# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Settings of any-order generation: typed fields with defaults, and the checks of their values."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from inspect import signature
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.generation import GenerationConfig, GenerationMixin
from transformers.utils import logging

from .orders import ORDER_NAMES, Orders
from .sampling import TOP_P_RULES
from .unmasking import ADAPTIVE_UNMASKING, CERTAINTY_MEASURES, DRAFTS, SCHEDULES, SCORE_UNMASKING, UNMASKING
from .validation import check_choice, check_flag, check_integer, check_number, is_integer, is_number, suggest

logger = logging.get_logger(__name__)

# Lowest temperature. Dividing logits by a much lower temperature would overflow in float64.
MIN_TEMPERATURE = 1e-6

# Arguments of `generate` that are not fields of its configuration.
CALL_ARGUMENTS = (
    *("inputs", "input_ids", "attention_mask", "generator", "logits_processor", "streamer", "generation_config"),
)

# Fields of Transformers' `GenerationConfig` that are accepted with any value, because `generate` does not use them.
IGNORED_FIELDS = ("transformers_version", "bos_token_id")

# Settings of Transformers that this package does not support. Each is accepted only with this value, at which it has no
# effect. Entries that are also fields of AnyOrderGenerationConfig are not used.
NO_OP_VALUES = {
    **GenerationConfig._get_default_generation_params(),
    "length_penalty": 1.0,
    "penalty_alpha": 0.0,
    "guidance_scale": 1.0,
    "output_logits": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "renormalize_logits": False,
    "synced_gpus": False,
    "use_cache": True,
}

TRANSFORMERS_FIELDS = frozenset((*GenerationConfig().to_dict(), *NO_OP_VALUES))


class AnyOrderGenerationConfig(GenerationConfig):
    """Settings of [`~AnyOrderGenerationMixin.generate`]. Every field can also be passed to `generate` as an argument.

    The configuration is saved in `generation_config.json` with the model, and loaded with it.

    Args:
        max_length (`int`, *optional*): Length of the returned sequences, including the inputs. Masks are appended to
            shorter inputs. Defaults to the length of the inputs, or to `config.max_position_embeddings` without inputs.
        max_new_tokens (`int`, *optional*): Number of masks to append to the inputs.
        num_steps (`int`, *optional*): Number of steps T of the reverse diffusion process (Eq. 5). By default, positions
            are unmasked one at a time, which samples p(x | order) exactly.
        schedule (`str`, defaults to `"linear"`): Grid of diffusion times for `num_steps`: `"linear"` or `"cosine"` (see
            [`~unmasking.masked_fractions`]).
        unmasking (`str`, defaults to `"bernoulli"`): Rule that decides which positions a step unmasks. Four rules apply
            only with `num_steps`. With `"bernoulli"`, the step of each position is drawn independently (Lemma 4.1).
            With `"fixed_count"`, the schedule gives the number of positions per step without randomness. `"euler"` and
            `"analytic"` are the samplers of SEDD, and work only for SEDD (see [`~unmasking.ScoreUnmasking`]). Two rules
            apply only without `num_steps`. With `"entropy_bound"`, each step unmasks as many positions as are nearly
            independent (see [`~unmasking.EntropyBoundUnmasking`]). With `"threshold"`, each step unmasks all positions
            whose likeliest token has at least the probability `threshold`, or the first position of the order if there
            is no such position.
        entropy_bound (`float`, defaults to 0.1): Bound on the dependence between the tokens of a step, in nats, for
            `unmasking="entropy_bound"`. It holds at temperature 1 and without truncation, because entropies are
            computed before temperature and truncation are applied.
        threshold (`float`, defaults to 0.9): Smallest probability of the likeliest token for `unmasking="threshold"`.
        order (`str`, *optional*): Order in which positions are unmasked: `"random"`, `"left_to_right"` or an adaptive
            order. The adaptive orders `"confidence"`, `"margin"` and `"entropy"` predict all masked positions in each
            step and first unmask the positions with the highest confidence, the highest margin or the lowest entropy
            (see `CERTAINTY_MEASURES`). `generate` also takes a tensor (batch * num_return_sequences, n). The default is
            `"left_to_right"` if a prompt without masks is continued one token at a time or with
            `strategy="speculative"`, without blocks and refinement. Otherwise, it is `"confidence"` with
            `unmasking="threshold"`, and `"random"` with other rules.
        block_length (`int`, *optional*): Fill in contiguous blocks of this length one after another, from left to
            right. `order` applies within each block. The first block starts at position 0, even if a prompt is there.
        stride (`int`, *optional*): Like `block_length`, but with strided blocks: first the positions 0, stride, 2
            stride, ..., then 1, stride + 1, ...
        window (`int`, *optional*): Number of masked positions that a step predicts: with an adaptive order, the first
            masked positions of the text; with another order and `"entropy_bound"` or `"threshold"`, the first masked
            positions of the order. The step can unmask only these positions. If `num_steps` requires a step to unmask
            more positions than `window`, it predicts as many as it unmasks. Defaults to all masked positions of the
            block.
        do_sample (`bool`, defaults to `True`): Whether to draw tokens. Otherwise, the likeliest token is taken.
        temperature (`float`, defaults to 1.0): Number that divides the logits.
        top_k (`int`, defaults to 0): Draw only from this number of likeliest tokens. 0 means all tokens.
        top_p (`float`, defaults to 1.0): Draw only from the smallest number of likeliest tokens whose total
            probability reaches this value.
        top_p_rule (`str`, defaults to `"inclusive"`): Whether the token at which the total probability crosses `top_p`
            is kept (`"inclusive"`, as in Transformers) or not (`"exclusive"`, as in the released code and for Table 1
            of the paper).
        min_p (`float`, defaults to 0.0): Draw only from tokens with at least this fraction of the probability of the
            likeliest token.
        repetition_penalty (`float`, defaults to 1.0): Factor by which tokens that the text already contains are
            penalized, as in Transformers. 1 means no penalty. It works in any order.
        no_repeat_ngram_size (`int`, defaults to 0): Size of n-grams that must not occur twice, counted in the text up
            to each generated token. 0 means no such limit. Other values need generation from left to right, one token
            at a time, without refinement.
        bad_words_ids (`list[list[int]]`, *optional*): Sequences of tokens that must not be generated. Sequences of
            several tokens have the same requirements as `no_repeat_ngram_size`. An end-of-text token can be one of the
            sequences. (In Transformers, it would be ignored.)
        suppress_tokens (`list[int]`, *optional*): Tokens that must not be generated.
        min_length (`int`, defaults to 0): Number of positions at the beginning of the text, including the prompt, at
            which no end-of-text token is generated.
        min_new_tokens (`int`, defaults to 0): Number of masked positions, counted from the left, at which no
            end-of-text token is generated.
        strategy (`str`, defaults to `"parallel"`): `"parallel"`, or `"speculative"` (only for decoders), which drafts
            several tokens and verifies them in one pass. It samples p(x | order) exactly, as generation of one token at
            a time does, but usually takes fewer passes.
        draft (`str`, defaults to `"model"`): Source of drafts for `"speculative"`: `"model"` (parallel predictions of
            the model itself) or `"prompt_lookup"` (n-grams of the unmasked text, without a forward pass).
        draft_length (`int`, defaults to 4): Largest number of tokens to draft at once. It must be at least 2.
        stop_at_eos (`bool`, *optional*): Whether to end a sequence at the first generated end-of-text token and replace
            the generated tokens after it by padding. With `block_length` and an order other than left to right, the
            sequence ends with the block of this token. `True` requires `order="left_to_right"` (without `stride` and
            `unmasking="threshold"`) or `block_length`, and no refinement. If these requirements are met and an
            end-of-text id is known, the default is `True` for sequences that continue a prompt or are generated as a
            whole, and `False` if given tokens are to the right of a mask.
        eos_token_id (`int` or `list[int]`, *optional*): Ids of end-of-text tokens. Defaults to the ids of the model.
        pad_token_id (`int`, *optional*): Id of the padding after an end-of-text token. Defaults to the padding id of
            the model, or to the first of `eos_token_id`.
        refine_rounds (`int`, defaults to 0): Number of rounds of refinement. A round re-masks `refine_length` generated
            tokens of each sequence and draws them again given all other tokens.
        refine_length (`int`, *optional*): Number of tokens to re-mask in each round.
        refine_selection (`str`, defaults to `"neighbours"`): Tokens to re-mask: `"neighbours"`, neighbouring tokens at
            a random place (block-Gibbs sampling); or `"least_likely"`, the tokens with the lowest `token_logprobs`,
            that is, those that had the lowest probability when they were drawn. The choice then depends on the tokens,
            so a round changes the distribution of the sequences.
        num_return_sequences (`int`, defaults to 1): Number of samples for each input.
        output_history (`bool`, defaults to `False`): Whether to return the sequences after every step.
        return_dict_in_generate (`bool`, defaults to `False`): Whether to return an [`AnyOrderGenerationOutput`].
        kwargs: Other fields of Transformers' `GenerationConfig`. They are stored, but `generate` raises an error if one
            of them would have an effect.

    Raises:
        ValueError: If a name is unknown, a value is not allowed, or values contradict each other.

    Examples:
        >>> config = AnyOrderGenerationConfig(num_steps=8, unmasking="fixed_count")
        >>> config.schedule
        'linear'
        >>> AnyOrderGenerationConfig(num_step=8)
        Traceback (most recent call last):
        ...
        ValueError: Unknown generation setting `num_step`. Did you mean `num_steps`?
    """

    max_length: int | None = None
    max_new_tokens: int | None = None
    num_steps: int | None = None
    schedule: str = "linear"
    unmasking: str = "bernoulli"
    entropy_bound: float = 0.1
    threshold: float = 0.9
    order: str | torch.LongTensor | None = None
    block_length: int | None = None
    stride: int | None = None
    window: int | None = None
    do_sample: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    top_p_rule: str = "inclusive"
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: list[list[int]] | None = None
    suppress_tokens: list[int] | None = None
    min_length: int = 0
    min_new_tokens: int = 0
    strategy: str = "parallel"
    draft: str = "model"
    draft_length: int = 4
    stop_at_eos: bool | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    refine_rounds: int = 0
    refine_length: int | None = None
    refine_selection: str = "neighbours"
    num_return_sequences: int = 1
    output_history: bool = False
    return_dict_in_generate: bool = False

    def __init__(self, **kwargs: Any) -> None:
        for name in kwargs:
            is_internal = name.startswith("_")  # some versions of Transformers add such names when loading
            if name not in FIELDS and name not in TRANSFORMERS_FIELDS and not is_internal:
                hint = suggest(name, FIELDS) or " See AnyOrderGenerationConfig for its settings."
                raise ValueError(f"Unknown generation setting `{name}`.{hint}")
        kwargs.pop("_from_model_config", None)
        super().__init__(**FIELDS | {name: value for name, value in kwargs.items() if value is not None})

    @classmethod
    def from_model_config(cls, model_config: PreTrainedConfig) -> "AnyOrderGenerationConfig":
        """Return the default settings with the ids of special tokens of a model configuration."""
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        return cls(**{name: getattr(model_config, name) for name in names})

    @classmethod
    def from_generation_config(cls, config: GenerationConfig) -> "AnyOrderGenerationConfig":
        """Convert a generation config to this class. A config that already has this class is returned unchanged.

        Raises:
            TypeError: If `config` is not a generation config.
            ValueError: As in the constructor.
        """
        if isinstance(config, cls):
            return config
        if not isinstance(config, GenerationConfig):
            raise TypeError(f"`generation_config` must be a GenerationConfig, but has type {type(config).__name__}.")
        settings = config.to_diff_dict()
        if isinstance(getattr(config, "order", None), torch.Tensor):  # `to_dict` may have made it a list
            settings["order"] = config.order
        return cls(**settings)

    def __setattr__(self, name: str, value: object) -> None:
        if is_number(value):  # numbers of NumPy could not be saved as JSON
            value = int(value) if is_integer(value) else float(value)
        elif name == "order" and isinstance(value, list):  # from `to_dict`
            value = torch.tensor(value)
        super().__setattr__(name, value)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields. An order that is a tensor becomes nested lists."""
        return {
            name: value.tolist() if isinstance(value, torch.Tensor) else value
            for name, value in super().to_dict().items()
        }

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults. An order that is a tensor becomes nested lists.

        With several samples, `do_sample` is always included. Its default in Transformers is False, which does not allow
        several samples.
        """
        defaults, included = type(self)().to_dict(), {"transformers_version"}
        if self.num_return_sequences > 1:
            included.add("do_sample")
        return {
            name: value
            for name, value in self.to_dict().items()
            if name in included or name not in defaults or value != defaults[name]
        }

    @property
    def orders(self) -> Orders:
        """Return the orders that `order`, `block_length` and `stride` describe. If `order` is None, they are random."""
        kind = "random" if self.order is None else self.order
        return Orders(kind, self.block_length, self.stride, "order", (*ORDER_NAMES, *CERTAINTY_MEASURES))

    @property
    def certainty(self) -> str | None:
        """Return the name of the certainty measure of an adaptive `order`. If `order` is not adaptive, return None."""
        return self.order if isinstance(self.order, str) and self.order in CERTAINTY_MEASURES else None

    @property
    def is_left_to_right(self) -> bool:
        """Return whether positions are filled in from left to right, with or without contiguous blocks."""
        # With a threshold, a position may be filled in before a position to its left.
        return self.orders.is_left_to_right and self.unmasking != "threshold"

    @property
    def unmasks_one_by_one(self) -> bool:
        """Return whether each token is drawn given all tokens before it in the order."""
        return self.num_steps is None and self.unmasking not in ADAPTIVE_UNMASKING

    @property
    def draws_positions(self) -> bool:
        """Return whether random numbers decide which positions a step unmasks or a round of refinement re-masks."""
        has_random_steps = (self.num_steps or 1) > 1 and self.unmasking == "bernoulli"
        has_random_rounds = self.refine_rounds > 0 and self.refine_selection == "neighbours"
        return self.orders.is_random or has_random_steps or has_random_rounds

    @property
    def uses_eos(self) -> bool:
        """Return whether `eos_token_id` has an effect."""
        return self.may_stop_at_eos or self.min_length > 0 or self.min_new_tokens > 0

    @property
    def may_stop_at_eos(self) -> bool:
        """Return whether sequences may end early, if an end-of-text id is known."""
        return self.can_stop_at_eos and self.stop_at_eos is not False

    @property
    def can_stop_at_eos(self) -> bool:
        """Return whether `stop_at_eos` is possible: left to right or in contiguous blocks, and without refinement."""
        return (self.is_left_to_right or self.block_length is not None) and not self.refine_rounds

    def with_arguments(self, arguments: dict[str, Any], is_continuation: bool = False) -> "AnyOrderGenerationConfig":
        """Return a validated copy with the `arguments` of `generate`, and with the default order if none is set.

        An argument that is None restores the default of its field. `is_continuation` is True if the inputs contain no
        masks, so that `generate` only continues the inputs.
        """
        for name, value in arguments.items():
            if name not in FIELDS and _has_effect(name, value):
                raise ValueError(_describe_unsupported(name, value))
        config = copy.copy(self)
        arguments = {name: value for name, value in arguments.items() if name in FIELDS}
        if any(arguments.get(name) is not None for name in ("max_length", "max_new_tokens")):
            config.max_length = config.max_new_tokens = None
        for name, value in arguments.items():
            setattr(config, name, value)
        config = config._with_defaults()
        if config.order is None:
            is_plain = not config.orders.has_blocks and not config.refine_rounds
            continues = is_continuation and is_plain and config.unmasks_one_by_one
            default = "confidence" if config.unmasking == "threshold" else "random"
            config.order = "left_to_right" if continues else default
        config.validate()
        config._check_supported()
        config._check_effects(arguments)
        return config

    def validate(self, strict: bool = False, user_set_attributes: set[str] | None = None) -> None:
        """Raise a `ValueError` if a value is not allowed, or if values contradict each other.

        Transformers calls this method when a configuration is made, changed by `update` or, with `strict`, saved.
        """
        if strict and isinstance(self.order, torch.Tensor):
            raise ValueError(
                "`order` is a tensor, which cannot be saved. Set `order` of the configuration to None, and pass the "
                "tensor to `generate`."
            )
        config = self._with_defaults()
        for name, check in CHECKS.items():
            if (value := getattr(config, name)) is not None:
                check(name, value)
        for message in config._conflicts():
            raise ValueError(message)
        if strict and config.num_return_sequences > 1 and not config.do_sample:
            raise ValueError(
                f"`num_return_sequences` ({config.num_return_sequences}) with `do_sample=False` cannot be saved, "
                "because Transformers does not load it. Pass `num_return_sequences` to `generate` instead."
            )

    def _with_defaults(self) -> "AnyOrderGenerationConfig":
        """Return a copy in which fields that are None, that is, unset, have their defaults."""
        config = copy.copy(self)
        for name, default in FIELDS.items():
            if getattr(config, name) is None:
                setattr(config, name, default)
        return config

    def _conflicts(self) -> Iterator[str]:
        """Yield a message for each setting that contradicts another one."""
        orders, unmasking = self.orders, self.unmasking  # `orders` checks `order`, `block_length` and `stride`
        if self.max_length is not None and self.max_new_tokens is not None:
            yield (
                f"`max_length` ({self.max_length}) and `max_new_tokens` ({self.max_new_tokens}) are set. Remove one."
            )
        if self.temperature < MIN_TEMPERATURE and (self.temperature or self.do_sample):
            yield (
                f"`temperature` must be at least {MIN_TEMPERATURE}, but is {self.temperature}. Set `do_sample=False` "
                "to take the likeliest tokens."
            )
        if (self.refine_rounds > 0) != (self.refine_length is not None):
            yield (
                f"`refine_rounds` ({self.refine_rounds}) and `refine_length` ({self.refine_length}) have an effect "
                "only together. Set both, or remove both."
            )
        if self.window is not None and self.certainty is None and unmasking not in ADAPTIVE_UNMASKING:
            yield (
                f"`window` has no effect without an adaptive `order` ({', '.join(map(repr, CERTAINTY_MEASURES))}) or "
                f"an adaptive `unmasking` ({', '.join(map(repr, ADAPTIVE_UNMASKING))}). Set one, or remove `window`."
            )
        if self.stop_at_eos and self.order is not None and not self.can_stop_at_eos:
            yield (
                "`stop_at_eos` needs text that is generated from left to right or in blocks of `block_length`, without "
                "refinement. Set `order='left_to_right'` (without `stride` and `unmasking='threshold'`) or "
                "`block_length`, and remove `refine_rounds`."
            )
        if unmasking in ADAPTIVE_UNMASKING and self.num_steps is not None:
            yield (
                f"`num_steps` ({self.num_steps}) cannot be combined with `unmasking={unmasking!r}`, which takes as "
                "many steps as it needs. Remove `num_steps`."
            )
        if unmasking in SCORE_UNMASKING and (self.num_steps is None or not orders.is_uniform or self.refine_rounds):
            yield (
                f"`unmasking={unmasking!r}` needs `num_steps`. It chooses positions itself, among all of them, so it "
                "allows only `order='random'`, without blocks and refinement. Set `num_steps` and `order='random'`, "
                "and remove `block_length`, `stride` and `refine_rounds`."
            )
        if self.strategy == "speculative":
            for name, is_wrong in (
                ("num_steps", self.num_steps is not None),
                ("do_sample", not self.do_sample),
                ("unmasking", unmasking not in ("bernoulli", "fixed_count")),
                ("order", self.certainty is not None),
            ):
                if is_wrong:
                    yield (
                        "`strategy='speculative'` draws exact samples of p(x | order) in as many steps as it needs, so "
                        f"it cannot be combined with `{name}={getattr(self, name)!r}`. Remove `{name}` or `strategy`."
                    )

    def _check_supported(self) -> None:
        """Raise a `ValueError` if a setting has an effect in Transformers, but is not supported here."""
        for name, value in super().to_dict().items():  # does not read the values of an order tensor
            if name not in FIELDS and name not in IGNORED_FIELDS and _has_effect(name, value):
                raise ValueError(f"The generation config cannot be used. {_describe_unsupported(name, value)}")

    def _check_effects(self, arguments: dict[str, Any]) -> None:
        """Raise a `ValueError` for an argument of a call that has no effect without another argument.

        As in Transformers, sampling settings with `do_sample=False` only give a warning.
        """
        has_steps, is_speculative = self.num_steps is not None, self.strategy == "speculative"
        for name, has_effect, needed in (
            ("eos_token_id", self.uses_eos, "`stop_at_eos`, `min_length` or `min_new_tokens`"),
            ("draft", is_speculative, "`strategy='speculative'`"),
            ("draft_length", is_speculative, "`strategy='speculative'`"),
            *((name, self.unmasking == name, f"`unmasking={name!r}`") for name in ADAPTIVE_UNMASKING),
            ("schedule", has_steps, "`num_steps`"),
            ("refine_selection", self.refine_rounds > 0, "`refine_rounds` above 0"),
            ("unmasking", has_steps or self.unmasking in ADAPTIVE_UNMASKING, "`num_steps`"),
            ("top_p_rule", self.top_p < 1, "`top_p` below 1"),
            ("output_history", self.return_dict_in_generate, "`return_dict_in_generate=True`"),
        ):
            value = arguments.get(name)
            if not has_effect and value is not None and value is not False:  # 0 is a value, too
                raise ValueError(f"`{name}` has no effect without {needed}. Set {needed}, or remove `{name}`.")
        for name in ("temperature", "top_k", "top_p", "min_p"):
            if not self.do_sample and arguments.get(name) not in (None, 0, FIELDS[name]):
                logger.warning_once(f"`{name}` has no effect with `do_sample=False`. Remove one of them.")


def _check_tokens(name: str, value: object) -> None:
    """Raise a `ValueError` unless `value` is a list of token ids, or for `bad_words_ids`, a list of such lists."""
    has_lists = name == "bad_words_ids"
    lists = value if has_lists and isinstance(value, list) else [value]
    kind, types = ("a list of lists of token ids", list) if has_lists else ("a list of token ids", (list, tuple))
    if not all(isinstance(ids, types) and all(map(is_integer, ids)) for ids in lists):
        raise ValueError(f"`{name}` must be {kind}, but is {value!r}.")


# Functions that check the value of a field, by its name. Other fields are checked elsewhere.
CHECKS: dict[str, Callable[[str, object], None]] = {
    **dict.fromkeys(("max_length", "max_new_tokens", "num_steps", "window"), check_integer),
    **dict.fromkeys(("refine_length", "num_return_sequences"), check_integer),
    **dict.fromkeys(("top_k", "refine_rounds", "pad_token_id"), partial(check_integer, least=0)),
    **dict.fromkeys(("no_repeat_ngram_size", "min_length", "min_new_tokens"), partial(check_integer, least=0)),
    "draft_length": partial(check_integer, least=2),
    "schedule": partial(check_choice, allowed=SCHEDULES),
    "unmasking": partial(check_choice, allowed=UNMASKING),
    "strategy": partial(check_choice, allowed=("parallel", "speculative")),
    "draft": partial(check_choice, allowed=DRAFTS),
    "top_p_rule": partial(check_choice, allowed=TOP_P_RULES),
    "refine_selection": partial(check_choice, allowed=("neighbours", "least_likely")),
    **dict.fromkeys(("do_sample", "stop_at_eos", "output_history", "return_dict_in_generate"), check_flag),
    **dict.fromkeys(("temperature", "entropy_bound"), check_number),
    "repetition_penalty": partial(check_number, above_zero=True),
    "top_p": partial(check_number, most=1, above_zero=True),
    **dict.fromkeys(("min_p", "threshold"), partial(check_number, most=1)),
    **dict.fromkeys(("suppress_tokens", "bad_words_ids"), _check_tokens),
}

# Names of the fields, with their default values.
FIELDS = {name: getattr(AnyOrderGenerationConfig, name) for name in AnyOrderGenerationConfig.__annotations__}


def _has_effect(name: str, value: object) -> bool:
    is_empty = isinstance(value, list) and not value  # such as an empty `StoppingCriteriaList`
    return value is not None and not is_empty and not (name in NO_OP_VALUES and value == NO_OP_VALUES[name])


def _describe_unsupported(name: str, value: object) -> str:
    """Return the error message for an argument of `generate` that is not a field."""
    if name == "seed":
        return f"`generate` takes no `seed`. Use `generator=torch.Generator().manual_seed({value!r})`."
    if name in ("output_scores", "output_logits"):
        return (
            f"`generate` does not support `{name}={value!r}`. Set `return_dict_in_generate=True` to get "
            "`token_logprobs`. For logits of masked positions, call the model that AutoModelForMaskedLM loads."
        )
    if name not in TRANSFORMERS_FIELDS and name not in signature(GenerationMixin.generate).parameters:
        hint = suggest(name, (*FIELDS, *CALL_ARGUMENTS)) or " See AnyOrderGenerationConfig for its arguments."
        return f"`generate` got the unknown argument `{name}`.{hint}"
    allowed = f" Only {NO_OP_VALUES[name]!r} is allowed." if name in NO_OP_VALUES else ""
    shown = f"`{name}={value!r}`" if isinstance(value, bool | int | float | str) else f"`{name}`"
    return (
        f"`generate` does not support {shown}.{allowed} Remove `{name}`, or load the model with AutoModelForCausalLM "
        "to use Transformers' `generate` (left to right). Processors that penalize or forbid tokens can also be passed "
        "as `logits_processor`."
    )
