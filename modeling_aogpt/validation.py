# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Checks of arguments and of the inputs of models."""

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral, Real

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import TransformersKwargs, logging

from .devices import is_readable

logger = logging.get_logger(__name__)

# Arguments that every `forward` must accept, because PEFT or the trainer and pipelines of Transformers may pass them to
# any model.
COMMON_FORWARD_ARGUMENTS = (
    *("output_hidden_states", "output_attentions", "output_router_logits", "num_items_in_batch"),
    *("return_dict", "use_cache", "tokenizer", "assistant_tokenizer"),
)


# Names of other projects and methods (docs/names.md), mapped to the right name, or to "" to suggest nothing.
OTHER_NAMES = {
    **{"gen_length": "max_new_tokens", "max_new_tokens": "max_tokens", "remasking": "order"},
    **dict.fromkeys(("stride_length", "editing_threshold", "right_shift_logits", "mask_id", "mask_token_id"), ""),
}


def is_integer(value: object) -> bool:
    """Return whether `value` is an integer and not a boolean."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_id(value: object, num_ids: int) -> bool:
    """Return whether `value` is an integer from 0 to `num_ids` - 1."""
    return is_integer(value) and 0 <= value < num_ids


def is_number(value: object) -> bool:
    """Return whether `value` is a real number and not a boolean."""
    return isinstance(value, Real) and not isinstance(value, bool)


def suggest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean ...?" with the name in `known` that is most similar to `name`, or "" if none is similar."""
    known = list(known)
    while name in OTHER_NAMES and name not in known:
        name = OTHER_NAMES[name]
    close = get_close_matches(name, known, n=1)
    return f" Did you mean `{close[0]}`?" if close else ""


def remove_token_types(arguments: dict[str, object]) -> None:
    """Remove `token_type_ids`, which some tokenizers return. Warn if they mark a second text, which has no effect."""
    types = arguments.pop("token_type_ids", None)
    if types is not None and is_readable(types := torch.as_tensor(types)) and types.any():
        logger.warning_once("`token_type_ids` have no effect: the model reads a pair of texts as one text.")


def suggest_arguments(method: Callable) -> Callable:
    """Decorate a method so that its error for an unknown argument suggests the argument with the most similar name."""
    known = [name for name in inspect.signature(method).parameters if name != "self"]

    @functools.wraps(method)
    def wrapper(*arguments: object, **options: object) -> object:
        remove_token_types(options)
        for name in options:
            if name not in known:
                hint = " Use `generator=torch.Generator().manual_seed(0)`." if name == "seed" else suggest(name, known)
                raise TypeError(f"`{method.__name__}` got the unknown argument `{name}`.{hint}")
        return method(*arguments, **options)

    return wrapper


def check_choice(name: str, value: object, allowed: Iterable[str], alternative: str = "") -> None:
    """Raise a `ValueError` unless `value` is an `allowed` string. The message lists them, followed by `alternative`."""
    if not isinstance(value, str) or value not in allowed:
        choices = ", ".join(map(repr, allowed)) + alternative
        raise ValueError(f"`{name}` must be one of {choices}, but is {value!r}.")


def check_integer(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Raise a `ValueError` unless `value` is a 64-bit integer from `least` to `most`, if that is given."""
    if not is_integer(value) or not least <= value <= (sys.maxsize if most is None else most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"`{name}` must be an integer {allowed}, but is {value!r}.")


def check_number(name: str, value: object, most: float = math.inf, above_zero: bool = False) -> None:
    """Raise a `ValueError` unless `value` is a finite number from 0 to `most`. With `above_zero`, 0 is not allowed."""
    largest = min(most, sys.float_info.max)  # integers may be larger than all floats
    is_allowed = is_number(value) and 0 <= value <= largest and not (above_zero and value == 0)
    if not is_allowed:
        limits = f"{'above' if above_zero else 'at least'} 0 and {'finite' if most == math.inf else f'at most {most}'}"
        raise ValueError(f"`{name}` must be a number {limits}, but is {value!r}.")


def check_flag(name: str, value: object) -> None:
    """Raise a `ValueError` unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False, but is {value!r}.")


def check_even(name: str, value: object) -> None:
    """Raise a `ValueError` unless `value` is an even integer of at least 2."""
    check_integer(name, value, least=2)
    if value % 2:
        raise ValueError(f"`{name}` must be even, but is {value}. The draws are made in pairs. Use {value + 1}.")


def check_tensor(name: str, value: object) -> None:
    """Raise a `TypeError` unless `value` is a tensor."""
    if not isinstance(value, torch.Tensor):
        advice = "Use torch.tensor(...) for numbers, or call the tokenizer with return_tensors='pt'."
        if isinstance(value, Mapping):  # such as the output of a tokenizer
            advice = "Unpack it with **, to pass its tensors by name."
        raise TypeError(f"`{name}` must be a torch.Tensor, but has type {type(value).__name__}. {advice}")


def check_batch(name: str, ids: torch.Tensor) -> None:
    """Raise a `ValueError` unless `ids` are integers of shape (batch, n) with at least one sequence."""
    check_tensor(name, ids)
    if ids.dim() != 2 or ids.shape[0] == 0:
        raise ValueError(f"`{name}` must have shape (batch, n) with batch >= 1, but has shape {tuple(ids.shape)}.")
    check_integer_dtype(name, ids)


def check_aligned(name: str, values: torch.Tensor, input_ids: torch.Tensor) -> None:
    """Raise an error unless `values` is a tensor with the shape of `input_ids`."""
    check_tensor(name, values)
    if values.shape != input_ids.shape:
        raise ValueError(
            f"`{name}` must have one value per token, that is, shape {tuple(input_ids.shape)}, but has shape "
            f"{tuple(values.shape)}."
        )


def check_integer_dtype(name: str, values: torch.Tensor) -> None:
    """Raise a `ValueError` unless `values` are integers."""
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"`{name}` must hold integers, but has dtype {values.dtype}. Use {name}.long().")


def check_orders(name: str, orders: torch.Tensor, batch_size: int, length: int) -> None:
    """Raise a `ValueError` unless `orders` are `batch_size` permutations of 0 ... length - 1."""
    check_tensor(name, orders)
    if tuple(orders.shape) != (batch_size, length):
        raise ValueError(
            f"`{name}` must have one order for each (returned) sequence, that is, shape ({batch_size}, {length}), but "
            f"has shape {tuple(orders.shape)}."
        )
    check_integer_dtype(name, orders)
    is_wrong = (orders.long().sort(dim=-1).values != torch.arange(length, device=orders.device)).any(dim=-1)
    if is_wrong.any():
        index = int(is_wrong.nonzero()[0])
        given = ", ".join(map(str, orders[index, :16].tolist())) + (", ..." if length > 16 else "")
        raise ValueError(
            f"`{name}[{index}]` must contain each position from 0 to {length - 1} exactly once, but is [{given}]. "
            f"torch.randperm({length}) makes a random order."
        )


def check_finite(log_likelihood: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise a `ValueError` if `log_likelihood` (batch,) contains a value that is not finite."""
    if (is_wrong := ~log_likelihood.isfinite()).any():
        raise ValueError(
            f"The log-likelihood of sequence {int(is_wrong.nonzero()[0])} is not finite. Check the weights and "
            f"the dtype in which they were loaded ({dtype})."
        )


# ------------------------------------------------------------------------------------------------- inputs of a model


def find_tokens(input_ids: torch.LongTensor, attention_mask: torch.Tensor | None) -> torch.BoolTensor:
    """Return a boolean tensor (batch, n), False at padding. Raise a `ValueError` if mask values are not 0 or 1."""
    if attention_mask is None:
        return torch.ones_like(input_ids, dtype=torch.bool)
    is_token = attention_mask != 0
    # The usual masks of integers are not read on an accelerator, because the CPU would have to wait for it.
    is_checked = attention_mask.is_floating_point() or (attention_mask.is_cpu and attention_mask.dtype != torch.bool)
    if is_checked and is_readable(attention_mask) and (is_wrong := is_token != attention_mask).any():
        raise ValueError(
            f"`attention_mask` must be 0 at padding and 1 at tokens, but contains {attention_mask[is_wrong][0]}. If it "
            "is additive (0 at tokens), use `attention_mask == 0`. If it numbers packed texts, pass each as a sequence."
        )
    return is_token


def start_mask(
    config: PreTrainedConfig, input_ids: torch.LongTensor, attention_mask: torch.Tensor | None
) -> torch.BoolTensor:
    """Return a boolean tensor (batch, n) that is True where a sequence begins with the model's start token.

    This token stands for the start row, which the model adds to each sequence, so it is not text.
    """
    is_token = find_tokens(input_ids, attention_mask)
    if config.start_token_id is None:
        return torch.zeros_like(is_token)
    is_token = is_token.to(input_ids.device)
    return is_token & (is_token.cumsum(dim=-1) == 1) & (input_ids == config.start_token_id)


def token_mask(
    config: PreTrainedConfig, input_ids: torch.LongTensor, attention_mask: torch.Tensor | None
) -> torch.BoolTensor:
    """Return a boolean tensor (batch, n) that is True at tokens of text.

    It is False at padding and at the start token of a sequence (see [`start_mask`]), which is treated like padding.
    """
    is_token = find_tokens(input_ids, attention_mask)
    if config.start_token_id is None:
        return is_token
    return is_token.to(input_ids.device) & ~start_mask(config, input_ids, attention_mask)


def should_validate(model: PreTrainedModel, values: torch.Tensor) -> bool:
    """Return whether to check the values of a tensor. In training, the CPU would have to wait for an accelerator."""
    return is_readable(values) and (values.is_cpu or not model.training)


def check_text_ids(model: PreTrainedModel, name: str, ids: torch.LongTensor, also_allowed: int | None = None) -> None:
    """Raise a `ValueError` if `ids` contain a value that is neither an id of text nor `also_allowed`."""
    if not should_validate(model, ids):
        return
    config = model.config
    is_wrong = (ids < 0) | (ids >= config.num_valid_tokens)
    if also_allowed is not None:
        is_wrong &= ids != also_allowed
    if is_wrong.any():
        given, hint = ids[is_wrong][0].item(), ""
        if given == config.mask_token_id:
            hint = (
                " This id is the mask. generate() and masked language models accept masked positions, but training "
                "and likelihoods need unmasked text."
            )
        elif given >= config.num_valid_tokens and name != "labels":
            hint = f" The mask of this model has the id {config.mask_token_id}. Use a tokenizer with this mask id."
        raise ValueError(
            f"`{name}` contains the id {given}, but ids of text must be at least 0 and below "
            f"{config.num_valid_tokens} (config.num_valid_tokens).{hint}"
        )


def check_mask_id(config: PreTrainedConfig) -> None:
    """Raise a `ValueError` unless `config.mask_token_id` is an integer above all ids of text."""
    if not is_integer(config.mask_token_id) or config.mask_token_id < config.num_valid_tokens:
        raise ValueError(
            f"`mask_token_id` must be at least `num_valid_tokens` ({config.num_valid_tokens}), the first id that is "
            f"not text, but is {config.mask_token_id!r}."
        )


def prepare_input_ids(
    model: PreTrainedModel,
    input_ids: torch.LongTensor,
    attention_mask: torch.Tensor | None = None,
    allow_mask: bool = False,
) -> torch.LongTensor:
    """Check that `input_ids` (batch, n) are ids of text or, with `allow_mask`, masks. Return int64, 0 at padding."""
    check_batch("input_ids", input_ids)
    if attention_mask is not None:
        check_aligned("attention_mask", attention_mask, input_ids)
    config, length, most = model.config, input_ids.shape[1], model.config.max_position_embeddings
    if length == most + 1 and config.start_token_id is not None and is_readable(input_ids):  # it needs no position
        length = max(most, int(token_mask(config, input_ids, attention_mask).sum(dim=-1).max()))
    if not 1 <= length <= most:
        raise ValueError(
            f"`input_ids` has {length} tokens per sequence (with padding), but this model takes 1 to {most} "
            "(config.max_position_embeddings). Truncate or split the text, or use a model for longer sequences."
        )
    if allow_mask:
        check_mask_id(config)
    input_ids = input_ids.long()
    if attention_mask is not None:
        input_ids = input_ids.masked_fill(~find_tokens(input_ids, attention_mask), 0)
    check_text_ids(model, "input_ids", input_ids, config.mask_token_id if allow_mask else None)
    return input_ids


def prepare_labels(
    model: PreTrainedModel,
    labels: torch.LongTensor,
    input_ids: torch.LongTensor,
    attention_mask: torch.Tensor | None = None,
) -> torch.LongTensor:
    """Check that `labels` (batch, n) are ids of text or -100. Return int64, -100 at padding and start tokens."""
    check_batch("labels", labels)
    check_aligned("labels", labels, input_ids)
    labels = labels.long()
    if attention_mask is not None or model.config.start_token_id is not None:
        labels = labels.masked_fill(~token_mask(model.config, input_ids, attention_mask), -100)
    check_text_ids(model, "labels", labels, also_allowed=-100)
    return labels


def check_forward_arguments(model: PreTrainedModel, arguments: dict[str, object]) -> None:
    """Raise a `ValueError` if `arguments` contains one that `forward` does not support."""
    remove_token_types(arguments)
    for name, value in arguments.items():
        if value is None or name in COMMON_FORWARD_ARGUMENTS:
            continue
        method = f"{type(model).__name__}.forward"
        if name in TransformersKwargs.__annotations__:
            raise ValueError(
                f"{method} does not support the argument `{name}`. Remove it. (Put each text into its own sequence, "
                "and mark padding with `attention_mask`.)"
            )
        known = inspect.signature(type(model).forward).parameters
        raise ValueError(f"{method} got the unknown argument `{name}`.{suggest(name, known)}")


def check_needs_targets(targets: object, **others: object) -> None:
    """Raise a `ValueError` if any of the arguments `others` is given without `targets`."""
    for name, value in others.items():
        if value is not None and targets is None:
            raise ValueError(f"`{name}` has no effect without `targets`. Set `targets`, or remove `{name}`.")


def prepare_targets(
    config: PreTrainedConfig,
    input_ids: torch.LongTensor,
    targets: torch.Tensor,
    context: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
) -> tuple[torch.BoolTensor, torch.BoolTensor]:
    """Check `targets` and `context` (by default, all other tokens), and return them as two boolean tensors (batch, n).

    A sequence without targets gets no context. A start token (see [`start_mask`]) is neither target nor context.
    """
    check_batch("input_ids", input_ids)
    check_aligned("targets", targets, input_ids)
    for name, values in (("context", context), ("attention_mask", attention_mask)):
        if values is not None:
            check_aligned(name, values, input_ids)
    is_target = targets != 0
    is_token = find_tokens(input_ids, attention_mask)
    is_context = is_token & ~is_target if context is None else context != 0
    for is_wrong, problem in (
        (is_target & is_context, "is in both `targets` and `context`. Remove it from one of them."),
        ((is_target | is_context) & ~is_token, "is padding, so it must be 0 in both `targets` and `context`."),
    ):
        if is_wrong.any():
            sequence, column = is_wrong.nonzero()[0].tolist()
            raise ValueError(f"Column {column} of sequence {sequence} {problem}")
    if not is_target.any():
        raise ValueError("`targets` selects no position. Set it to True at the positions to score.")
    is_text = token_mask(config, input_ids, attention_mask)
    is_target = is_target & is_text
    return is_target, is_context & is_text & is_target.any(dim=-1, keepdim=True)
