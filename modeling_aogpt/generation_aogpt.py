# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Parallel any-order generation. It knows two verbs: *query* the positions that come next in the order, given all that is
revealed, and *commit* tokens to them. What is queried when is data, drawn before the first pass (`schedule.py`).
"""

from dataclasses import dataclass, fields
from difflib import get_close_matches
from numbers import Integral

import torch
from transformers.generation import GenerationConfig, GenerationMixin
from transformers.utils import ModelOutput

from .cached_decoder import CachedDecoder
from .orders import check_orders, group_order, in_order, in_place, left_to_right_orders, random_orders, token_positions
from .sampling import choose_tokens, make_warpers
from .schedule import REVEAL_RULES, SCHEDULES, draw_reveal_steps
from .speculative import SpeculativeSampler

ORDERS = ("random", "left_to_right")
STRATEGIES = ("parallel", "speculative")

# What a generation config may hold that is no wish about how to generate.
NEUTRAL_CONFIG_FIELDS = (
    "transformers_version",
    "_from_model_config",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "output_attentions",
    "output_hidden_states",
    "use_cache",
)


@dataclass
class AnyOrderGenerationOutput(ModelOutput):
    """
    What `generate(..., return_dict_in_generate=True)` returns, everything in place.

    Args:
        sequences (`torch.LongTensor` of shape `(batch, n)`): The filled sequences.
        orders (`torch.LongTensor` of shape `(batch, n)`): The order in which tokens entered the context: given tokens,
            then generated ones, then padding.
        reveal_steps (`torch.LongTensor` of shape `(batch, n)`): The step, from 0, at which each position was revealed;
            -1 for given tokens and padding.
        token_logprobs (`torch.Tensor` of shape `(batch, n)`): Log-probability, in nats, of each generated token under
            the (tempered, truncated) distribution it was chosen from; 0 for given tokens and padding.
        num_forward_passes (`int`): Passes of the decoder.
        num_rows (`int`): Rows computed, over all passes and sequences.
        acceptance_rate (`float`): Of `strategy="speculative"`: the share of drafts that were kept, the first of each
            round, which always is, left out.
    """

    sequences: torch.LongTensor | None = None
    orders: torch.LongTensor | None = None
    reveal_steps: torch.LongTensor | None = None
    token_logprobs: torch.FloatTensor | None = None
    num_forward_passes: int | None = None
    num_rows: int | None = None
    acceptance_rate: float | None = None


@dataclass
class AnyOrderGenerationSettings:
    """The arguments of `generate` that a generation config may hold, with their defaults."""

    max_length: int | None = None
    max_new_tokens: int | None = None
    num_steps: int | None = None
    schedule: str = "linear"
    reveal: str = "bernoulli"
    order: str | torch.LongTensor = "random"
    do_sample: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    strategy: str = "parallel"
    draft_length: int = 4
    num_return_sequences: int = 1
    return_dict_in_generate: bool = False

    def __post_init__(self) -> None:
        if self.max_length is not None and self.max_new_tokens is not None:
            raise ValueError(
                f"max_length={self.max_length} and max_new_tokens={self.max_new_tokens} are both given; give one."
            )
        for name, least in (
            ("max_length", 1),
            ("max_new_tokens", 1),
            ("num_steps", 1),
            ("draft_length", 2),
            ("num_return_sequences", 1),
        ):
            value = getattr(self, name)
            if value is not None and not (_is_integer(value) and value >= least):
                raise ValueError(f"{name}={value!r} must be an integer of at least {least}.")
        for name, allowed in (("schedule", SCHEDULES), ("reveal", REVEAL_RULES)):
            _check_choice(name, getattr(self, name), allowed)
        _check_choice("strategy", self.strategy, STRATEGIES)
        if self.strategy == "speculative" and (self.num_steps is not None or not self.do_sample):
            raise ValueError(
                "strategy='speculative' samples p(x | order) in as many steps as it needs: it takes neither num_steps "
                "nor do_sample=False. Give draft_length instead."
            )
        if not isinstance(self.order, torch.Tensor):
            _check_choice("order", self.order, ORDERS, "or a (batch, n) tensor")
        if not 0 < self.temperature < float("inf"):
            raise ValueError(
                f"temperature={self.temperature!r} must be above 0 and finite; for the likeliest use do_sample=False."
            )
        if not (_is_integer(self.top_k) and self.top_k >= 0):
            raise ValueError(f"top_k={self.top_k!r} must be an integer of at least 0 (0: no truncation).")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p!r} must be above 0 and at most 1 (1: no truncation).")


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_choice(name: str, value: object, allowed: tuple[str, ...], also: str = "") -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))} {also}".rstrip() + ".")


class AnyOrderGenerationMixin(GenerationMixin):
    """`generate` for models that predict tokens in any order."""

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.LongTensor | None = None,
        *,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        generation_config: GenerationConfig | None = None,
        **kwargs: object,
    ) -> torch.LongTensor | AnyOrderGenerationOutput:
        """
        Fills the masked positions of `inputs`, or makes whole sequences, revealing several positions per forward pass.

        The result is a sample of the reverse process (Eq. 5) on the grid of `schedule` with `num_steps` steps:
        positions of one step are drawn independently given all that was revealed before. Arguments that are not given
        come from `generation_config`, which defaults to the model's own, and then from the defaults below.

        Args:
            inputs (`torch.LongTensor` of shape `(batch, l)`, *optional*): Tokens, with `config.mask_token_id` where
                they are to be filled. Without it, generation is unconditional. Also taken as `input_ids`.
            attention_mask (`torch.Tensor` of shape `(batch, l)`, *optional*): 0 at padding, anywhere; padding is
                neither seen nor filled nor counted in positions.
            generator (`torch.Generator`, *optional*): Makes the result reproducible.
            generation_config (`GenerationConfig`, *optional*): Holds any of the following.
            max_length (`int`, *optional*): Extends the inputs with masks to this length; the length of unconditional
                sequences (default: `config.max_position_embeddings`).
            max_new_tokens (`int`, *optional*): Extends the inputs by so many masks.
            num_steps (`int`, *optional*): Steps T of the reverse process. Without it positions are revealed one at a
                time, which samples p(x | order) exactly, and `schedule` and `reveal` have nothing to choose.
            schedule (`str`): `"linear"` (default) or `"cosine"`, see [`masked_fractions`].
            reveal (`str`): `"bernoulli"` (default): each position draws its own reveal step (Lemma 4.1); `"fixed"`: the
                same number each time, see [`draw_reveal_steps`].
            order (`str` or `torch.LongTensor` of shape `(batch * num_return_sequences, n)`): `"random"` (default),
                `"left_to_right"`, or one given order per returned sequence. Given tokens enter the context first, in
                the order's order.
            do_sample (`bool`): Draw tokens (default) or take the likeliest.
            temperature (`float`): Above 0. Divides the logits.
            top_k (`int`): Draw from the k likeliest tokens only; 0 (default) from all.
            top_p (`float`): Draw from the likeliest tokens that together reach this probability; 1 (default) from all.
            strategy (`str`): `"parallel"` (default), as above, or `"speculative"`: draws from p(x | order) exactly, as
                without `num_steps`, but in fewer passes, by drafting several tokens and verifying them.
            draft_length (`int`): Tokens that are drafted at once, at least 2 (default: 4).
            num_return_sequences (`int`): Samples for each input; the batch of unconditional generation.
            return_dict_in_generate (`bool`): Return an [`AnyOrderGenerationOutput`] instead of the ids.

        Returns:
            `torch.LongTensor` (batch * num_return_sequences, n), or an [`AnyOrderGenerationOutput`].

        Raises:
            ValueError: For an argument that is unknown or out of range, ids that are neither tokens nor the mask,
                sequences longer than the model takes, nothing to fill, or a model whose logits are not finite.
        """
        if inputs is not None and input_ids is not None:
            raise ValueError("Both inputs and input_ids are given; they are two names of one argument.")
        settings = self._resolve_settings(generation_config, kwargs)
        inputs = input_ids if inputs is None else inputs
        was_training = self.training
        self.eval()  # gradient checkpointing, in training mode, would take the cache away
        try:
            output = self._generate(inputs, attention_mask, settings, generator)
        finally:
            self.train(was_training)
        return output if settings.return_dict_in_generate else output.sequences

    def _generate(
        self,
        inputs: torch.LongTensor | None,
        attention_mask: torch.Tensor | None,
        settings: AnyOrderGenerationSettings,
        generator: torch.Generator | None,
    ) -> AnyOrderGenerationOutput:
        ids, is_padding = self._prepare_canvas(inputs, attention_mask, settings)
        is_hidden = (ids == self.config.mask_token_id) & ~is_padding

        orders = self._draw_orders(settings.order, ids, generator)
        orders = group_order(orders, torch.where(is_padding, 2, is_hidden.long()))
        positions = in_order(token_positions(~is_padding), orders)
        num_hidden = is_hidden.sum(dim=-1).cpu()
        num_given = (~is_hidden & ~is_padding).sum(dim=-1).cpu()

        warpers = make_warpers(settings.temperature, settings.top_k, settings.top_p)
        decoder = CachedDecoder(self, in_order(ids, orders), positions, num_given)
        if settings.strategy == "speculative":
            sampler = SpeculativeSampler(decoder, num_given + num_hidden, settings.draft_length, warpers, generator)
            sampler.run()
            acceptance = sampler.num_accepted / max(sampler.num_drafts, 1)
            return self._describe(decoder, orders, sampler.reveal_steps, sampler.token_logprobs, acceptance)

        one_at_a_time = settings.num_steps is None
        num_steps = int(num_hidden.max()) if one_at_a_time else settings.num_steps
        reveal = "fixed" if one_at_a_time else settings.reveal
        steps = draw_reveal_steps(num_hidden, num_steps, settings.schedule, reveal, generator)

        token_logprobs = torch.zeros(ids.shape, dtype=torch.float64, device=ids.device)
        reveal_steps = torch.full_like(ids, -1)
        for step in range(num_steps):
            num_queries = (steps == step).sum(dim=-1)
            if not num_queries.any():
                continue  # nobody drew this step: it costs nothing
            logits, where = decoder.query(num_queries)
            tokens, token_logprobs[where] = choose_tokens(logits, warpers, settings.do_sample, generator)
            decoder.commit(tokens, where)
            reveal_steps[where] = step
        return self._describe(decoder, orders, reveal_steps, token_logprobs)

    def _describe(
        self,
        decoder: CachedDecoder,
        orders: torch.LongTensor,
        reveal_steps: torch.LongTensor,
        token_logprobs: torch.Tensor,
        acceptance_rate: float | None = None,
    ) -> AnyOrderGenerationOutput:
        """The output, from steps and log-probabilities in order."""
        if not torch.isfinite(token_logprobs).all():
            raise ValueError(
                "The model's logits are not finite (NaN or infinity), so there is no distribution to draw from. Check "
                f"the weights, and the dtype they were loaded in ({self.dtype})."
            )
        return AnyOrderGenerationOutput(
            sequences=in_place(decoder.ids, orders),
            orders=orders,
            reveal_steps=in_place(reveal_steps, orders),
            token_logprobs=in_place(token_logprobs, orders),
            num_forward_passes=decoder.num_forward_passes,
            num_rows=decoder.num_rows,
            acceptance_rate=acceptance_rate,
        )

    def _resolve_settings(
        self, generation_config: GenerationConfig | None, given: dict[str, object]
    ) -> AnyOrderGenerationSettings:
        known = [field.name for field in fields(AnyOrderGenerationSettings)]
        unknown = sorted(set(given) - set(known))
        if unknown:
            close = get_close_matches(unknown[0], known, n=1)
            raise ValueError(
                f"generate() does not take {', '.join(unknown)}."
                + (f" Is {close[0]} meant?" if close else f" It takes {', '.join(known)}.")
            )
        config = self.generation_config if generation_config is None else generation_config
        unused = sorted(config.to_diff_dict().keys() - {*known, *NEUTRAL_CONFIG_FIELDS})
        if unused:
            raise ValueError(f"The generation config sets {', '.join(unused)}, which this generate() does not know.")
        values = {name: given.get(name) for name in known}
        lengths_given = values["max_length"] is not None or values["max_new_tokens"] is not None
        for name in known:
            if values[name] is None and not (lengths_given and name in ("max_length", "max_new_tokens")):
                values[name] = getattr(config, name, None)
        return AnyOrderGenerationSettings(**{name: value for name, value in values.items() if value is not None})

    def _prepare_canvas(
        self,
        inputs: torch.LongTensor | None,
        attention_mask: torch.Tensor | None,
        settings: AnyOrderGenerationSettings,
    ) -> tuple[torch.LongTensor, torch.BoolTensor]:
        """Ids (batch, n), extended by masks and repeated for every returned sequence, and where they are padding."""
        longest, mask = self.config.max_position_embeddings, self.config.mask_token_id
        if inputs is None:
            if attention_mask is not None:
                raise ValueError("attention_mask is given without inputs; unconditional sequences have no padding.")
            length = settings.max_new_tokens or settings.max_length or longest
            inputs = torch.full((1, 0), mask, dtype=torch.long)
        else:
            if inputs.dim() != 2 or len(inputs) == 0:
                raise ValueError(
                    f"inputs has shape {tuple(inputs.shape)}, but must be (batch, length) with batch >= 1."
                )
            length = settings.max_length or inputs.shape[1] + (settings.max_new_tokens or 0)
        # The weights of an offloaded model are nowhere; its inputs stay where they are.
        inputs = inputs.to(inputs.device if self.device.type == "meta" else self.device, torch.long)
        num_added = length - inputs.shape[1]
        if num_added < 0:
            raise ValueError(
                f"max_length={length} is shorter than the inputs, which have {inputs.shape[1]} tokens; raise it, or "
                "give max_new_tokens."
            )
        ids = torch.nn.functional.pad(inputs, (0, num_added), value=mask)
        self.check_ids(ids, mask_allowed=True)
        is_padding = torch.zeros_like(ids, dtype=torch.bool)
        if attention_mask is not None:
            if attention_mask.shape != inputs.shape:
                raise ValueError(
                    f"attention_mask has shape {tuple(attention_mask.shape)}, but inputs {tuple(inputs.shape)}."
                )
            is_padding[:, : inputs.shape[1]] = attention_mask.to(ids.device) == 0
        if not ((ids == mask) & ~is_padding).any():
            raise ValueError(
                f"Nothing to generate: inputs holds no mask (id {mask}). Put it where tokens are to be filled in, or "
                "give max_new_tokens or max_length to extend the inputs."
            )
        repeats = settings.num_return_sequences
        return ids.repeat_interleave(repeats, dim=0), is_padding.repeat_interleave(repeats, dim=0)

    def _draw_orders(
        self, order: str | torch.LongTensor, ids: torch.LongTensor, generator: torch.Generator | None
    ) -> torch.LongTensor:
        if isinstance(order, torch.Tensor):
            check_orders(order, *ids.shape)
            return order.to(ids.device)
        if order == "random":
            return random_orders(*ids.shape, generator=generator, device=ids.device)
        return left_to_right_orders(*ids.shape, device=ids.device)
