# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Defaults and checks of the arguments of a run that depend on other arguments."""

from pathlib import Path

from common.data import Data
from common.data_arguments import DataArguments
from modeling_aogpt.configuration_aogpt import MAX_SIZES
from modeling_aogpt.data_collator import OrderDistribution
from modeling_aogpt.loading import read_config
from modeling_aogpt.validation import check_number
from training.architecture import Architecture, build_config
from training.arguments import TrainingArguments, order_settings

# Pairs of keys: the value of the first must be "below" or "at most" that of the second.
LIMITS = (
    ("sequence_length", "at most", "max_position_embeddings"),
    *((name, "below", "sequence_length") for name in ("block_length", "stride", "min_context", "max_context")),
    ("warmup_steps", "below", "max_steps"),
    ("final_learning_rate", "at most", "learning_rate"),
    ("left_to_right_steps", "at most", "max_steps"),
)


def set_defaults(model: Architecture, data: DataArguments, training: TrainingArguments) -> None:
    """Set the defaults that depend on other values."""
    if training.left_to_right_fraction is None:
        default = OrderDistribution(**order_settings(training)).left_to_right_fraction
        training.left_to_right_fraction = default if model["architecture"] == "decoder" else 0.0
    if training.left_to_right_steps is None and training.final_left_to_right_fraction is not None:
        training.left_to_right_steps = max(round(0.3 * training.max_steps), 1)
    if training.final_learning_rate is None:
        training.final_learning_rate = training.learning_rate / 10
    if training.decay_steps is None and training.learning_rate_schedule == "warmup_stable_decay":
        training.decay_steps = max(training.max_steps // 10, 1)
    if model["max_position_embeddings"] is None:
        model["max_position_embeddings"] = data.sequence_length


def check_arguments(model: Architecture, data: DataArguments, training: TrainingArguments) -> None:
    """Raise a `ValueError` if a value is not allowed or values contradict each other."""
    if training.prepare_only and data.streaming:
        raise ValueError("`prepare_only` has no effect with `streaming`, which caches nothing. Remove one of the two.")
    values = model | vars(data) | vars(training)
    for name, relation, limit_name in LIMITS:
        value, limit = values[name], values[limit_name]
        if value is not None and (value > limit or (value == limit and relation == "below")):
            is_fixed = limit_name == "max_position_embeddings" and training.init_from
            advice = f"Decrease `{name}`." if is_fixed else "Change one of them."
            raise ValueError(f"`{name}` must be {relation} `{limit_name}` ({limit}), but is {value}. {advice}")
    if training.max_gap_length is not None and data.context_marks is not None:
        raise ValueError("`max_gap_length` cannot be combined with `context_marks`. Remove one of them.")
    has_gaps = training.left_to_right_fraction != 1 or training.final_left_to_right_fraction not in (None, 1)
    if training.max_gap_length is not None and not has_gaps:
        raise ValueError("`left_to_right_fraction` must be below 1 with `max_gap_length`. Otherwise, no text has gaps.")
    if data.context_marks is not None and model["architecture"] == "encoder":
        raise ValueError("`context_marks` needs a decoder. Remove it, or set `architecture=decoder`.")
    longest = read_config(training.init_from).max_gap_length if training.lora_rank else training.max_gap_length
    if training.max_gap_length not in (None, longest):  # an adapter keeps the configuration
        raise ValueError(f"With `lora_rank`, `max_gap_length` must be that of the initial model, {longest}. Change it.")
    if training.distillation_weight and (training.init_from is None or model["architecture"] == "encoder"):
        raise ValueError("`distillation_weight` needs an initial decoder. Set `init_from`, or remove the weight.")
    if training.keep_best == "left_to_right" and model["architecture"] == "encoder":
        raise ValueError("`keep_best=left_to_right` needs a decoder. Set `keep_best=any_order`.")
    if training.output_dir == Path():
        raise ValueError("`output_dir` is empty, or the working folder. Set it to a folder for this run only.")
    if data.tokenizer is not None and Path(data.tokenizer).resolve() == (training.output_dir / "tokenizer").resolve():
        raise ValueError(f"`tokenizer` ({data.tokenizer}) is where the run writes its own. Change `output_dir`.")
    warmup, decay = training.warmup_steps, training.decay_steps
    if decay is not None and warmup + decay > training.max_steps:
        raise ValueError(
            f"`warmup_steps` ({warmup}) and `decay_steps` ({decay}) are together more than `max_steps` "
            f"({training.max_steps}). Decrease one of them."
        )
    if training.left_to_right_steps is not None and training.final_left_to_right_fraction is None:
        raise ValueError("`left_to_right_steps` has no effect without `final_left_to_right_fraction`. Set both.")
    _check_objective(model, training)
    # The configuration checks the architecture. The vocabulary is not known yet, so any `start_token_id` is accepted.
    build_config(model, vocab_size=MAX_SIZES["vocab_size"], num_valid_tokens=1)


def check_examples(data: Data, model: Architecture, training: TrainingArguments) -> None:
    """Raise a `ValueError` if the corpus has examples or texts that cannot be learned as the arguments say."""
    has_turns = data.has_examples and data.validation[0]["in_turns"]
    if training.distillation_weight and not _has_left_to_right_sequences(data, training, has_turns):
        raise ValueError(
            "`distillation_weight` has no effect without left-to-right sequences in which all context comes first. "
            "Set `left_to_right_fraction` or other `orders`, or remove `distillation_weight`."
        )
    if not data.has_examples:
        return
    if training.max_gap_length is not None and has_turns:
        raise ValueError(f"`max_gap_length` needs gaps, but {data.arguments.name} has prompts. Remove it.")
    is_fixed = not has_turns and training.orders == "gaps_last" and not training.max_gap_length
    if is_fixed and (training.left_to_right_fraction or training.final_left_to_right_fraction):
        raise ValueError("`left_to_right_fraction` has no effect on texts with gaps and `orders=gaps_last`. Remove it.")
    if model["architecture"] == "encoder":
        raise ValueError(f"{data.arguments.name} has examples, which need `architecture=decoder`.")
    allowed = ("gaps_last", "context_first") + ("left_to_right",) * has_turns
    if training.orders not in allowed:
        raise ValueError(
            f"`orders` must be one of {', '.join(allowed)} for these examples, whose context comes before the answers, "
            f"but is {training.orders}. Set `orders=gaps_last` to predict answers from left to right, or "
            "`orders=context_first` to predict them in random orders."
        )


def _has_left_to_right_sequences(data: Data, training: TrainingArguments, has_turns: bool) -> bool:
    """Return whether some sequences are predicted from left to right, with all of their context at the beginning."""
    is_left_to_right = training.orders == "left_to_right" or (has_turns and training.orders == "gaps_last")
    if not (is_left_to_right or training.left_to_right_fraction or training.final_left_to_right_fraction):
        return False
    if has_turns or training.max_gap_length or training.orders not in ("context_first", "gaps_last"):
        return True
    contexts = ([label == -100 for label in row] for row in data.validation[:1000].get("labels", [[]]))
    return any(is_context == sorted(is_context, reverse=True) for is_context in contexts)


def _check_objective(model: Architecture, training: TrainingArguments) -> None:
    """Raise a `ValueError` if the objective cannot be used with the architecture or the settings of the orders."""
    objective, final_fraction = training.objective, training.final_left_to_right_fraction
    if objective != "any_order" and model["architecture"] == "decoder":
        raise ValueError(f"`objective={objective}` needs `architecture=encoder`. Set it, or `objective=any_order`.")
    if objective == "score_entropy" and model["target_injection"] != "sigma":
        raise ValueError(
            f"`target_injection` must be sigma for `objective=score_entropy`, but is {model['target_injection']}. Set "
            "`target_injection=sigma`, because the score depends on the noise level."
        )
    if training.orders in ("context_first", "gaps_last") and model["architecture"] == "encoder":
        raise ValueError(f"`orders={training.orders}` needs `architecture=decoder`. Set it, or remove `orders`.")
    distribution = OrderDistribution(**order_settings(training), left_to_right_fraction=training.left_to_right_fraction)
    if final_fraction is not None:
        check_number("final_left_to_right_fraction", final_fraction, most=1)
    draws_orders = distribution != OrderDistribution(left_to_right_fraction=0.0) or final_fraction is not None
    if objective != "any_order" and draws_orders:
        raise ValueError(
            f"`objective={objective}` masks random positions, so settings of orders have no effect. Remove `orders`, "
            "`block_length`, `stride`, `left_to_right_fraction` and `final_left_to_right_fraction`."
        )
