# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The arguments of `generate` that a generation config may hold: defaults, checks, and where each value comes from."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from inspect import signature
from numbers import Integral, Real

import torch
from transformers.generation import GenerationConfig, GenerationMixin

from .certainty import CERTAINTIES
from .sampling import TOP_P_RULES
from .schedule import REVEAL_RULES, SCHEDULES, SCORE_RULES

ORDERS = ("random", "left_to_right", *CERTAINTIES)
STRATEGIES = ("parallel", "speculative")
DRAFTS = ("model", "ngram")

# What a generation config may hold that is no wish about how to generate.
NEUTRAL_CONFIG_FIELDS = (
    "transformers_version",
    "_from_model_config",
    "bos_token_id",
    "output_attentions",
    "output_hidden_states",
    "use_cache",
)

# Arguments of transformers, and what they ask for that happens anyway.
NEUTRAL = {
    "use_cache": True,
    "num_beams": 1,
    "num_beam_groups": 1,
    "early_stopping": False,
    "length_penalty": 1.0,
    "diversity_penalty": 0.0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "penalty_alpha": 0.0,
    "guidance_scale": 1.0,
    "remove_invalid_values": False,
    "renormalize_logits": False,
    "output_scores": False,
    "output_logits": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "synced_gpus": False,
}

LEAST = {
    "max_length": 1,
    "max_new_tokens": 1,
    "num_steps": 1,
    "block_length": 1,
    "stride": 1,
    "window": 1,
    "top_k": 0,
    "draft_length": 2,
    "refine_rounds": 0,
    "refine_length": 1,
    "num_return_sequences": 1,
    "pad_token_id": 0,
}

FLAGS = ("do_sample", "stop_at_eos", "output_history", "return_dict_in_generate")


@dataclass
class AnyOrderGenerationSettings:
    """What is said of them is said in `generate`."""

    max_length: int | None = None
    max_new_tokens: int | None = None
    num_steps: int | None = None
    schedule: str = "linear"
    reveal: str = "bernoulli"
    entropy_bound: float = 0.1
    order: str | torch.LongTensor = "random"
    block_length: int | None = None
    stride: int | None = None
    window: int | None = None
    do_sample: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    top_p_rule: str = "inclusive"
    strategy: str = "parallel"
    draft: str = "model"
    draft_length: int = 4
    stop_at_eos: bool = False
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    refine_rounds: int = 0
    refine_length: int | None = None
    num_return_sequences: int = 1
    output_history: bool = False
    return_dict_in_generate: bool = False

    def __post_init__(self) -> None:
        self._check_values()
        self._check_order()
        self._check_reveal()
        self._check_strategy()
        if (self.refine_rounds > 0) != (self.refine_length is not None):
            raise ValueError(
                f"refine_rounds={self.refine_rounds} and refine_length={self.refine_length} go together: rounds, and "
                "how many tokens each hides and draws again."
            )

    @property
    def is_adaptive(self) -> bool:
        """Whether the model's certainty decides what is revealed next."""
        return isinstance(self.order, str) and self.order in CERTAINTIES

    def _check_values(self) -> None:
        if self.max_length is not None and self.max_new_tokens is not None:
            raise ValueError(
                f"max_length={self.max_length} and max_new_tokens={self.max_new_tokens} are both given; give one."
            )
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and not (is_integer(value) and value >= least):
                raise ValueError(f"{name}={value!r} must be an integer of at least {least}.")
        for name, allowed in (
            ("schedule", SCHEDULES),
            ("reveal", REVEAL_RULES),
            ("strategy", STRATEGIES),
            ("draft", DRAFTS),
            ("top_p_rule", TOP_P_RULES),
        ):
            _check_choice(name, getattr(self, name), allowed)
        for name in FLAGS:
            if not isinstance(value := getattr(self, name), bool):
                raise ValueError(f"{name}={value!r} must be True or False.")
        if not (_is_number(self.temperature) and 0 < self.temperature < float("inf")):
            raise ValueError(
                f"temperature={self.temperature!r} must be above 0 and finite; for the likeliest use do_sample=False."
            )
        if not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ValueError(f"top_p={self.top_p!r} must be above 0 and at most 1 (1: no truncation).")
        if not (_is_number(self.entropy_bound) and 0 <= self.entropy_bound < float("inf")):
            raise ValueError(f"entropy_bound={self.entropy_bound!r} must be at least 0 nats and finite.")

    def _check_order(self) -> None:
        if self.block_length is not None and self.stride is not None:
            raise ValueError(
                f"block_length={self.block_length} (contiguous blocks) and stride={self.stride} (strided ones) are "
                "both given; give one."
            )
        is_in_blocks = self.block_length is not None or self.stride is not None
        if isinstance(self.order, torch.Tensor):
            if is_in_blocks:
                raise ValueError("A given order says all: give neither block_length nor stride with it.")
        else:
            _check_choice("order", self.order, ORDERS, "or a (batch, n) tensor")
        if self.window is not None and not (self.is_adaptive or self.reveal == "entropy_bounded"):
            raise ValueError(
                f"window={self.window} says how many positions are candidates where the model's certainty decides: "
                f"with order={', '.join(map(repr, CERTAINTIES))} or reveal='entropy_bounded'."
            )
        is_forward = self.block_length is not None or (isinstance(self.order, str) and self.order == "left_to_right")
        if self.stop_at_eos and (not is_forward or self.stride is not None or self.refine_rounds):
            raise ValueError(
                "stop_at_eos needs text that grows from the left: order='left_to_right' or a block_length, and no "
                "refine_rounds."
            )

    def _check_reveal(self) -> None:
        if self.reveal == "entropy_bounded" and self.num_steps is not None:
            raise ValueError(
                "reveal='entropy_bounded' takes as many steps as entropy_bound makes it: leave num_steps out."
            )
        if self.reveal in SCORE_RULES:
            is_plain = not isinstance(self.order, torch.Tensor) and self.order == "random"
            if self.num_steps is None or not is_plain or self.block_length is not None or self.stride is not None:
                raise ValueError(
                    f"reveal={self.reveal!r} needs num_steps, and decides itself which positions are revealed: leave "
                    "order='random', without block_length and stride."
                )
            if self.refine_rounds:
                raise ValueError(f"reveal={self.reveal!r} begins with all hidden; it does not refine.")

    def _check_strategy(self) -> None:
        if self.strategy == "parallel":
            return
        if self.num_steps is not None or not self.do_sample:
            raise ValueError(
                "strategy='speculative' samples p(x | order) in as many steps as it needs: it takes neither num_steps "
                "nor do_sample=False. Give draft_length instead."
            )
        if self.is_adaptive or self.reveal not in ("bernoulli", "fixed"):
            raise ValueError(
                f"strategy='speculative' samples p(x | order), which order={self.order!r} with reveal={self.reveal!r} "
                "does not leave to be sampled: take order='random', 'left_to_right' or one of your own."
            )


def resolve_settings(config: GenerationConfig, given: dict[str, object]) -> AnyOrderGenerationSettings:
    """
    Settings that are `given`, then those of the config, then the defaults: a given None overrules the config's value.
    Others raise a `ValueError`, unless they ask for nothing: None, or what is `NEUTRAL`.
    """
    known = [field.name for field in fields(AnyOrderGenerationSettings)]
    unknown = _wishes(given, known)
    if unknown:
        name, way_out = unknown[0], _way_out(unknown[0], known)
        if name in NEUTRAL:
            raise ValueError(f"{name}={given[name]!r}: generate() knows {name}={NEUTRAL[name]} alone. {way_out}")
        raise ValueError(f"generate() does not take {', '.join(unknown)}. {way_out}")
    unused = _wishes(config.to_diff_dict(), (*known, *NEUTRAL_CONFIG_FIELDS))
    if unused:
        raise ValueError(f"The generation config sets {', '.join(unused)}, which this generate() does not know.")
    given = {name: value for name, value in given.items() if name in known}
    lengths = ("max_length", "max_new_tokens")
    says_length = any(given.get(name) is not None for name in lengths)
    values = {name: None if says_length and name in lengths else getattr(config, name, None) for name in known} | given
    settings = AnyOrderGenerationSettings(**{name: value for name, value in values.items() if value is not None})
    _check_is_used(given, settings)
    return settings


def _way_out(name: str, known: list[str]) -> str:
    if hasattr(GenerationConfig(), name) or name in signature(GenerationMixin.generate).parameters:
        return (
            "Leave it out; or take AutoModelForCausalLM, whose generate is transformers', left to right. (Penalties "
            "and bans of tokens can be given here too, as logits_processor.)"
        )
    close = get_close_matches(name, known, n=1)
    return f"Is {close[0]} meant?" if close else f"It takes {', '.join(known)}."


def _wishes(given: dict[str, object], known: Iterable[str]) -> list[str]:
    """Names that are not `known`, and ask for something."""
    others = {name: value for name, value in given.items() if name not in known and value is not None}
    return sorted(name for name, value in others.items() if name not in NEUTRAL or value != NEUTRAL[name])


def _check_is_used(given: dict[str, object], settings: AnyOrderGenerationSettings) -> None:
    """
    Raises a `ValueError` for an argument that asks for nothing without another. A generation config may hold such.
    """
    has_steps, is_speculative = settings.num_steps is not None, settings.strategy == "speculative"
    for name, is_used, needed in (
        ("eos_token_id", settings.stop_at_eos, "stop_at_eos=True"),
        ("draft", is_speculative, "strategy='speculative'"),
        ("draft_length", is_speculative, "strategy='speculative'"),
        ("entropy_bound", settings.reveal == "entropy_bounded", "reveal='entropy_bounded'"),
        ("schedule", has_steps, "num_steps"),
        ("reveal", has_steps or settings.reveal == "entropy_bounded", "num_steps"),
        ("top_p_rule", settings.top_p < 1, "a top_p below 1"),
        ("output_history", settings.return_dict_in_generate, "return_dict_in_generate=True"),
    ):
        value = given.get(name)
        if not (is_used or value is None or value is False):
            raise ValueError(f"{name}={value!r} says something with {needed} only: give that too, or leave {name} out.")


def is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_choice(name: str, value: object, allowed: tuple[str, ...], also: str = "") -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))} {also}".rstrip() + ".")
