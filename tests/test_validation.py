# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import pytest
import torch
from transformers import BatchEncoding

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.validation import (
    check_aligned,
    check_batch,
    check_choice,
    check_even,
    check_finite,
    check_forward_arguments,
    check_integer,
    check_orders,
    check_tensor,
    check_text_ids,
    is_integer,
    is_number,
    prepare_input_ids,
    prepare_labels,
    prepare_targets,
    should_validate,
    suggest,
    token_mask,
)
from tests.references import random_model


@pytest.fixture
def model() -> AOGPTForAnyOrderLM:
    """A model of 11 ids of text, with the mask 13 in a token table of 16 rows, and 12 positions."""
    return random_model(vocab_size=16, num_valid_tokens=11, mask_token_id=13)


# ------------------------------------------------------------------------------------------------------------ numbers


def test_booleans_are_not_numbers() -> None:
    assert [is_integer(value) for value in (3, 3.0, True, "3", None)] == [True, False, False, False, False]
    assert [is_number(value) for value in (3, 3.5, True, "3", None)] == [True, True, False, False, False]


@pytest.mark.parametrize("value", [1, 0, -1, True, 2.0, "2", None])
def test_an_integer_below_the_least_value_is_an_error(value: object) -> None:
    check_integer("num_steps", 2, least=2)
    with pytest.raises(ValueError, match="`num_steps` must be an integer of at least 2"):
        check_integer("num_steps", value, least=2)


def test_an_odd_number_of_stratified_draws_is_an_error() -> None:
    check_even("num_times", 4)
    with pytest.raises(ValueError, match=r"`num_times` must be even, but is 3\. The"):
        check_even("num_times", 3)
    with pytest.raises(ValueError, match="`num_times` must be an integer of at least 2"):
        check_even("num_times", 0)


@pytest.mark.parametrize("value", ["linaer", None, ["linear"], torch.zeros(2)])
def test_a_value_that_is_not_a_choice_is_an_error(value: object) -> None:
    check_choice("schedule", "linear", ("linear", "cosine"))
    with pytest.raises(ValueError, match="`schedule` must be one of 'linear', 'cosine'"):
        check_choice("schedule", value, ("linear", "cosine"), " or a tensor")


def test_a_close_name_is_suggested() -> None:
    assert suggest("order", ["input_ids", "orders"]) == " Did you mean `orders`?"
    assert suggest("xyz", ["input_ids", "orders"]) == ""
    assert suggest("gen_length", ["min_new_tokens", "max_tokens"]) == " Did you mean `max_tokens`?"  # in a server
    assert suggest("mask_id", ["unmasking"]) == ""


# ------------------------------------------------------------------------------------------------------------ tensors


@pytest.mark.parametrize("value", [[1, 2], None, 3])
def test_a_value_that_is_not_a_tensor_is_an_error(value: object) -> None:
    message = rf"`orders` must be a torch\.Tensor, but has type {type(value).__name__}\. Use torch\.tensor"
    for check in (check_tensor, check_batch):
        with pytest.raises(TypeError, match=message):
            check("orders", value)
    with pytest.raises(TypeError, match=r"has type BatchEncoding\. Unpack it with \*\*"):
        check_tensor("orders", BatchEncoding({"input_ids": torch.zeros(1, 3)}))
    with pytest.raises(TypeError, match=message):
        check_orders("orders", value, 1, 3)
    with pytest.raises(TypeError, match=message):
        check_aligned("orders", value, torch.zeros(1, 3))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.zeros(0, 3).long(), r"`ids` must have shape \(batch, n\) with batch"),
        (torch.zeros(3).long(), r"but has shape \(3,\)"),
        (torch.ones(1, 3).bool(), "`ids` must hold integers, but has dtype"),
        (torch.zeros(1, 3), "`ids` must hold integers, but has dtype"),
    ],
)
def test_a_tensor_that_is_not_a_batch_of_integers_is_an_error(ids: torch.Tensor, message: str) -> None:
    check_batch("ids", torch.zeros(2, 3, dtype=torch.int32))
    with pytest.raises(ValueError, match=message):
        check_batch("ids", ids)


@pytest.mark.parametrize("shape", [(3, 2), (1, 3), (2, 4), (6,)])
def test_a_tensor_that_would_be_broadcast_or_cut_is_an_error(shape: tuple[int, ...]) -> None:
    check_aligned("labels", torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="`labels` must have one value per token, that"):
        check_aligned("labels", torch.zeros(shape), torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        (torch.tensor([[0, 1, 2], [0, 2, 2]]), r"`orders\[1\]` must contain each position from"),
        (torch.tensor([[0, 1, 2], [1, 2, 3]]), r"`orders\[1\]` must contain each position"),
        (torch.tensor([[0, 1, 2]]), r"`orders` must have .* shape \(2, 3\), but has"),
        (torch.zeros(2, 3), "`orders` must hold integers, but has dtype"),
    ],
)
def test_orders_that_are_not_permutations_are_errors(orders: torch.Tensor, message: str) -> None:
    check_orders("orders", torch.tensor([[2, 0, 1], [0, 1, 2]], dtype=torch.int32), 2, 3)
    with pytest.raises(ValueError, match=message):
        check_orders("orders", orders, 2, 3)


def test_only_the_beginning_of_a_long_wrong_order_is_shown() -> None:
    with pytest.raises(ValueError, match=r"but is \[0(, 0){15}, \.\.\.\]"):
        check_orders("orders", torch.zeros(1, 20, dtype=torch.long), 1, 20)


def test_a_log_likelihood_that_is_not_finite_is_an_error() -> None:
    check_finite(torch.zeros(3), torch.float32)
    for value in (float("nan"), float("-inf")):
        scores = torch.tensor([0.0, 1.0, value])
        with pytest.raises(ValueError, match="The log-likelihood of sequence 2 is not"):
            check_finite(scores, torch.bfloat16)


# ------------------------------------------------------------------------------------------------- inputs of a model


def test_values_are_not_checked_where_that_would_force_a_sync(
    model: AOGPTForAnyOrderLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu, on_meta = torch.zeros(1, 2), torch.zeros(1, 2, device="meta")
    for training in (False, True):
        model.train(training)
        assert should_validate(model, on_cpu)
        assert not should_validate(model, on_meta)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not should_validate(model, on_cpu)


def test_ids_that_are_not_text_are_errors(model: AOGPTForAnyOrderLM) -> None:
    check_text_ids(model, "labels", torch.tensor([[0, 10]]))
    check_text_ids(model, "labels", torch.tensor([[0, 10, -100]]), also_allowed=-100)
    for id in (-1, 11, 12, 16):
        with pytest.raises(ValueError, match=rf"`labels` contains the id {id}, but .* below 11 .*tokens\)\.$"):
            check_text_ids(model, "labels", torch.tensor([[0, id]]), also_allowed=-100)
    with pytest.raises(ValueError, match=r"`labels` contains the id 13, .* This id is"):
        check_text_ids(model, "labels", torch.tensor([[0, 13]]))


def test_input_ids_are_converted_to_int64_with_zeros_at_padding(model: AOGPTForAnyOrderLM) -> None:
    ids = prepare_input_ids(model, torch.tensor([[-1, 3, 13, 99]]).int(), torch.tensor([[0, 1, 1, 0]]), allow_mask=True)
    assert ids.dtype == torch.int64
    assert ids.tolist() == [[0, 3, 13, 0]]
    with pytest.raises(ValueError, match="This id is the mask"):
        prepare_input_ids(model, torch.tensor([[3, 13]]))
    for length in (0, 13):
        with pytest.raises(ValueError, match=f"`input_ids` has {length} tokens per sequence"):
            prepare_input_ids(model, torch.zeros(1, length, dtype=torch.long))


def test_labels_are_converted_to_int64_and_ignored_at_padding(model: AOGPTForAnyOrderLM) -> None:
    ids, mask = torch.zeros(1, 4, dtype=torch.long), torch.tensor([[0, 1, 1, 1]])
    labels = prepare_labels(model, torch.tensor([[99, 3, -100, 10]]).int(), ids, mask)
    assert labels.dtype == torch.int64
    assert labels.tolist() == [[-100, 3, -100, 10]]
    with pytest.raises(ValueError, match="`labels` contains the id 99"):
        prepare_labels(model, torch.tensor([[99, 3, -100, 10]]), ids)


def test_unknown_arguments_of_forward_are_errors(model: AOGPTForAnyOrderLM) -> None:
    check_forward_arguments(model, {"unknown": None, "use_cache": True, "output_attentions": True})
    message = r"AOGPTForAnyOrderLM\.forward got the unknown"
    with pytest.raises(ValueError, match=message):
        check_forward_arguments(model, {"use_cache": True, "label": 1})
    with pytest.raises(ValueError, match=r"does not support the argument `seq_idx`\."):
        check_forward_arguments(model, {"seq_idx": torch.zeros(1, 2)})
    with pytest.raises(ValueError, match=r"the unknown argument `xyz`\.$"):
        check_forward_arguments(model, {"xyz": 1})


def test_token_mask_is_true_at_tokens_but_a_first_start_token() -> None:
    ids, mask = torch.zeros(1, 4, dtype=torch.long), torch.tensor([[0.0, 1.0, 1.0, 1.0]])
    config = AOGPTConfig()
    assert token_mask(config, ids, None).tolist() == [[True] * 4]
    assert token_mask(config, ids, mask).tolist() == [[False, True, True, True]]
    config.start_token_id = 0
    assert token_mask(config, ids, None).tolist() == [[False, True, True, True]]
    assert token_mask(config, ids, mask).tolist() == [[False, False, True, True]]


def test_a_sequence_without_targets_has_no_context() -> None:
    ids, targets = torch.zeros(2, 4, dtype=torch.long), torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0]])
    is_target, is_context = prepare_targets(
        AOGPTConfig(), ids, targets, None, torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    )
    assert is_target.tolist() == [[False, True, False, False], [False] * 4]
    assert is_context.tolist() == [[True, False, True, False], [False] * 4]


@pytest.mark.parametrize(("training", "is_cpu"), [(False, False), (False, True), (True, False), (True, True)])
def test_values_on_accelerators_are_checked_except_in_training(training: bool, is_cpu: bool) -> None:
    values = SimpleNamespace(is_meta=False, is_cpu=is_cpu, is_cuda=False)
    assert should_validate(SimpleNamespace(training=training), values) == (is_cpu or not training)


@pytest.mark.parametrize("is_recording", [False, True])
def test_values_are_not_read_while_a_cuda_graph_is_recorded(
    is_recording: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_recording)
    values = SimpleNamespace(is_meta=False, is_cpu=False, is_cuda=True)
    assert should_validate(SimpleNamespace(training=False), values) != is_recording
    assert should_validate(SimpleNamespace(training=False), torch.zeros(1))
