# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Defaults and checks of the arguments of a run that depend on other arguments."""

from pathlib import Path

from common.data_arguments import DataArguments
from modeling_aogpt.configuration_aogpt import MAX_SIZES
from modeling_aogpt.data_collator import OrderDistribution
from modeling_aogpt.validation import check_fraction
from training.architecture import Architecture, build_config
from training.arguments import TrainingArguments, order_settings


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
        raise ValueError(
            "`prepare_only` and `streaming` are both set, but a streamed corpus cannot be prepared, because nothing is "
            "cached. Remove one of the two."
        )
    if data.sequence_length > model["max_position_embeddings"]:
        raise ValueError(
            f"`sequence_length` must be at most `max_position_embeddings` ({model['max_position_embeddings']}), but is "
            f"{data.sequence_length}. Decrease `sequence_length`"
            + (
                ", or increase `max_position_embeddings`."
                if training.init_from is None
                else f". The model in {training.init_from} does not support longer sequences."
            )
        )
    for name in ("block_length", "stride", "min_context"):
        value = getattr(training, name)
        if value is not None and value >= data.sequence_length:
            raise ValueError(
                f"`{name}` must be below `sequence_length` ({data.sequence_length}), but is {value}. Decrease `{name}`."
            )
    if training.output_dir == Path():
        raise ValueError("`output_dir` is empty, or the working folder. Set it to a folder for this run only.")
    if data.tokenizer is not None and Path(data.tokenizer).resolve() == (training.output_dir / "tokenizer").resolve():
        raise ValueError(
            f"`tokenizer` ({data.tokenizer}) is the folder to which the run writes its tokenizer. Copy it to another "
            "folder, or choose another `output_dir`."
        )
    if training.output_dir.exists() and not training.output_dir.is_dir():
        raise ValueError(f"`output_dir` ({training.output_dir}) is a file. Set it to a folder.")
    _check_learning_rate(training)
    if data.context_marks is not None and model["architecture"] == "encoder":
        raise ValueError(
            "`context_marks` needs `architecture=decoder`, because an encoder is trained on whole documents. Remove "
            "`context_marks`, or set `architecture=decoder`."
        )
    _check_objective(model, training)
    # The configuration checks the architecture. The vocabulary is not known yet, so any `start_token_id` is accepted.
    build_config(model, vocab_size=MAX_SIZES["vocab_size"], num_valid_tokens=1)


def _check_learning_rate(training: TrainingArguments) -> None:
    """Raise a `ValueError` if the schedule of the learning rate is not possible."""
    if not 0 <= training.warmup_steps < training.max_steps:
        raise ValueError(
            f"`warmup_steps` must be at least 0 and below `max_steps` ({training.max_steps}), but is "
            f"{training.warmup_steps}. Change `warmup_steps` or `max_steps`."
        )
    if training.decay_steps is not None:
        if training.learning_rate_schedule != "warmup_stable_decay":
            raise ValueError(
                "`decay_steps` has no effect without `learning_rate_schedule=warmup_stable_decay`. Set both, or remove "
                "`decay_steps`."
            )
        if training.warmup_steps + training.decay_steps > training.max_steps:
            raise ValueError(
                f"`warmup_steps` ({training.warmup_steps}) and `decay_steps` ({training.decay_steps}) are together "
                f"more than `max_steps` ({training.max_steps}). Decrease one of them."
            )
    if not 0 <= training.final_learning_rate <= training.learning_rate:
        raise ValueError(
            f"`final_learning_rate` must be between 0 and `learning_rate` ({training.learning_rate}), but is "
            f"{training.final_learning_rate}."
        )


def _check_objective(model: Architecture, training: TrainingArguments) -> None:
    """Raise a `ValueError` if the objective cannot be used with the architecture or the settings of the orders."""
    objective = training.objective
    if objective != "any_order" and model["architecture"] == "decoder":
        raise ValueError(
            f"`objective` must be any_order for a decoder, but is {objective}. Set `objective=any_order`, or "
            "`architecture=encoder`."
        )
    if objective == "score_entropy" and model["target_injection"] != "sigma":
        raise ValueError(
            f"`target_injection` must be sigma for `objective=score_entropy`, but is {model['target_injection']}. Set "
            "`target_injection=sigma`, because the score depends on the noise level."
        )
    kind, final_fraction = order_settings(training), training.final_left_to_right_fraction
    distribution = OrderDistribution(**kind, left_to_right_fraction=training.left_to_right_fraction)
    if final_fraction is not None:
        check_fraction("final_left_to_right_fraction", final_fraction)
    if training.left_to_right_steps is not None:
        if final_fraction is None:
            raise ValueError(
                "`left_to_right_steps` has no effect without `final_left_to_right_fraction`. Set the fraction, or "
                "remove `left_to_right_steps`."
            )
        if training.left_to_right_steps > training.max_steps:
            raise ValueError(
                f"`left_to_right_steps` ({training.left_to_right_steps}) must be at most `max_steps` "
                f"({training.max_steps}). Decrease `left_to_right_steps`."
            )
    if training.orders in ("context_first", "gaps_last") and model["architecture"] == "encoder":
        raise ValueError(
            f"`orders={training.orders}` needs a decoder, because an encoder is always trained with a random context. "
            "Remove `orders`, or use a decoder (`architecture=decoder`)."
        )
    draws_orders = distribution != OrderDistribution(left_to_right_fraction=0.0) or final_fraction is not None
    if objective != "any_order" and draws_orders:
        raise ValueError(
            f"`objective={objective}` masks random positions, so settings of orders have no effect. Remove `orders`, "
            "`block_length`, `stride`, `left_to_right_fraction` and `final_left_to_right_fraction`."
        )
