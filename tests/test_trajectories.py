# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""`trajectory_log_probs`: log-probabilities of generated tokens in given orders and steps, with gradients."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from modeling_aogpt import AOGPTForAnyOrderLM, likelihood
from modeling_aogpt.orders import index_by_rank, random_orders, step_rows
from tests.references import Enumeration, cut_order, ragged_inputs, random_encoder, random_model, seeded
from tests.test_end_of_text import model_with_eos

ARCHITECTURES = [
    {},
    {"position_encoding": "rotary", "target_injection": "none"},
    {"position_encoding": "rotary", "target_injection": "per_layer", "num_key_value_heads": 1},
]
GENERATIONS = [
    {},
    {"order": "left_to_right", "num_steps": 5},
    {"num_steps": 1},
    {"num_steps": 4, "unmasking": "fixed_count"},
    {"num_steps": 6, "block_length": 4},
    {"num_steps": 6, "stride": 3},
    {"num_steps": 4, "schedule": "cosine", "order": "confidence"},
    {"num_steps": 3, "order": "margin", "block_length": 6},
    {"unmasking": "threshold", "threshold": 0.3},
    {"unmasking": "entropy_bound", "entropy_bound": 2.0, "order": "entropy", "window": 5},
]


def reference(
    model: AOGPTForAnyOrderLM, ids: torch.LongTensor, order: torch.LongTensor, steps: torch.LongTensor
) -> torch.Tensor:
    """Return the log-probabilities (n,) of a sequence without padding, by one pass over it for each generated token."""
    result = torch.zeros(len(ids), dtype=torch.float64)
    for column in (steps >= 0).nonzero().flatten().tolist():
        before = [other for other in order.tolist() if steps[other] < steps[column]]
        rest = [other for other in range(len(ids)) if other not in (*before, column)]
        logits = model(ids[None], orders=torch.tensor([[*before, column, *rest]])).logits[0, column]
        scores = logits[: model.config.num_valid_tokens].log_softmax(dim=-1)
        result = result + scores[ids[column]] * torch.eye(len(ids), dtype=torch.float64)[column]
    return result


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("arguments", GENERATIONS)
def test_log_probabilities_equal_those_of_generate(architecture: dict, arguments: dict) -> None:
    model = random_model(**architecture)
    padding = {"inputs": ragged_inputs(), "attention_mask": torch.ones(3, 12)}
    padding["attention_mask"][:2, [0, 3, 11]] = 0
    for inputs in ({"inputs": ragged_inputs(), "num_return_sequences": 2}, padding):
        output = model.generate(**inputs, generator=seeded(), return_dict_in_generate=True, **arguments)
        result = model.trajectory_log_probs(
            output.sequences, output.orders, output.unmasking_steps, inputs.get("attention_mask")
        )
        assert result.dtype == torch.float64
        torch.testing.assert_close(result, output.token_logprobs, rtol=0, atol=1e-10)


def test_padding_may_be_anywhere_in_an_order() -> None:
    model, mask = random_model(), torch.ones(3, 12)
    mask[:, [0, 3, 11]] = 0
    output = model.generate(
        ragged_inputs(), attention_mask=mask, num_steps=3, generator=seeded(), return_dict_in_generate=True
    )
    orders = output.orders.roll(2, dims=1)  # two of the three padding positions come first
    result = model.trajectory_log_probs(output.sequences, orders, output.unmasking_steps, mask)
    torch.testing.assert_close(result, output.token_logprobs, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "arguments",
    [
        {"order": "left_to_right"},
        {"order": "left_to_right", "num_steps": 5},
        {"block_length": 4, "num_steps": 6},
        {"block_length": 3, "order": "confidence"},
    ],
)
def test_padding_after_end_of_text_is_ignored(arguments: dict) -> None:
    """Its id is that of the mask here, which no other token may have."""
    model = model_with_eos()
    output = model.generate(num_return_sequences=20, generator=seeded(), return_dict_in_generate=True, **arguments)
    assert (output.unmasking_steps < 0).any()
    sequences = output.sequences.masked_fill(output.unmasking_steps < 0, model.config.mask_token_id)
    result = model.trajectory_log_probs(sequences, output.orders, output.unmasking_steps)
    torch.testing.assert_close(result, output.token_logprobs, rtol=0, atol=1e-10)


def test_padding_of_prompts_needs_its_mask() -> None:
    """Without the mask, it would count in positions."""
    model, inputs = random_model(), torch.tensor([[0, 0, 5, 7], [1, 2, 3, 4]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    output = model.generate(
        inputs, attention_mask=mask, max_new_tokens=4, generator=seeded(), return_dict_in_generate=True
    )
    trajectory = output.sequences, output.orders, output.unmasking_steps
    with pytest.raises(ValueError, match="attention_mask"):
        model.trajectory_log_probs(*trajectory)
    result = model.trajectory_log_probs(*trajectory, torch.cat((mask, torch.ones_like(mask)), dim=1))
    torch.testing.assert_close(result, output.token_logprobs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("draft", ["model", "prompt_lookup"])
def test_ranks_are_the_steps_of_speculative_decoding(draft: str) -> None:
    arguments = {"strategy": "speculative", "draft": draft, "block_length": 4, "num_return_sequences": 8}
    model = model_with_eos()
    output = model.generate(**arguments, generator=seeded(), return_dict_in_generate=True)
    steps = output.orders.argsort(dim=-1).masked_fill(output.unmasking_steps < 0, -1)
    result = model.trajectory_log_probs(output.sequences, output.orders, steps)
    torch.testing.assert_close(result, output.token_logprobs, rtol=0, atol=1e-10)


def make_trajectory(model: AOGPTForAnyOrderLM) -> tuple[torch.LongTensor, torch.LongTensor, torch.LongTensor]:
    inputs = ragged_inputs()
    inputs[inputs == 11] = model.config.mask_token_id
    output = model.generate(inputs, num_steps=3, generator=seeded(), return_dict_in_generate=True)
    return output.sequences, output.orders, output.unmasking_steps


def gradients(model: torch.nn.Module, value: torch.Tensor) -> list[torch.Tensor]:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.autograd.grad(value, parameters)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("checkpoints", [False, True])
def test_gradients_are_those_of_one_pass_per_token(
    architecture: dict, checkpoints: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likelihood, "ROWS_PER_HEAD_CALL", 4)
    model = random_model(**architecture).train()
    trajectory = make_trajectory(model)
    weights = torch.randn(3, 12, dtype=torch.float64, generator=seeded())
    expected = torch.stack([reference(model, *values) for values in zip(*trajectory, strict=True)])
    if checkpoints:
        model.gradient_checkpointing_enable()
    result = model.trajectory_log_probs(*trajectory)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-10)
    for gradient, correct in zip(
        gradients(model, (result * weights).sum()), gradients(model, (expected * weights).sum()), strict=True
    ):
        torch.testing.assert_close(gradient, correct, rtol=1e-8, atol=1e-10)


def test_logits_are_not_kept_for_the_backward_pass() -> None:
    model, shapes = random_model(vocab_size=101), []
    trajectory = make_trajectory(model)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        shapes.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.trajectory_log_probs(*trajectory).sum().backward()
    assert shapes
    assert not any(shape[-1:] == (101,) for shape in shapes)


def test_probabilities_of_all_sequences_sum_to_one() -> None:
    model = random_model(vocab_size=3, max_position_embeddings=4)
    order, counts = (2, 0, 3, 1), [2, 1, 1]
    enumeration = Enumeration(model, 4)
    sequences = torch.tensor(enumeration.sequences)
    steps = torch.tensor([0, 2, 0, 1]).expand_as(sequences)
    result = model.trajectory_log_probs(sequences, torch.tensor(order).expand_as(sequences), steps).sum(dim=1).exp()
    torch.testing.assert_close(result, enumeration.of_groups(cut_order(order, counts)), rtol=0, atol=1e-10)
    assert result.sum().item() == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([[0, 1, 2, 3, 4]], 5),  # a causal chain
        ([[0, 0, 0, 0, 0]], 5),  # the chain has one row
        ([[-1, 0, 0, 1, 1]], 4 + 2),
        ([[-1, 0, 0, 1, 1], [0, 1, 2, -1, -1]], 4 + 2),
        ([[0, 0, 0, 0, 1]], 5 + 3),
        ([[-1, -1, -1, -1, -1]], 1),
    ],
)
def test_number_of_rows(steps: list[list[int]], expected: int) -> None:
    steps = torch.tensor(steps)
    rows, mask, ranks, is_predicted = step_rows(torch.zeros_like(steps), torch.zeros_like(steps), steps)
    assert rows["input_ids"].shape[1] == ranks.shape[1] == expected < 2 * 5
    is_causal = mask is None or torch.equal(mask, torch.ones_like(mask).tril())
    assert is_causal == (steps.tolist() in ([[0, 1, 2, 3, 4]], [[-1] * 5]))
    for row, selected, step in zip(ranks, is_predicted, steps, strict=True):
        assert row[selected].sort().values.tolist() == (step >= 0).nonzero().flatten().tolist()


def test_adapters_and_autocast() -> None:
    model = random_model()
    trajectory = make_trajectory(model)
    expected = model.trajectory_log_probs(*trajectory)
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"]))
    result = adapted.trajectory_log_probs(*trajectory)
    torch.testing.assert_close(result, expected)
    assert any(gradient.any() for gradient in gradients(adapted, result.sum()))
    model = random_model().float()
    with torch.autocast("cpu", torch.bfloat16):
        result = model.trajectory_log_probs(*trajectory)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=1.0)
    assert all(gradient.isfinite().all() for gradient in gradients(model, result.sum()))


def test_errors() -> None:
    model = random_model()
    sequences, orders, steps = make_trajectory(model)
    with pytest.raises(ValueError, match=r"unmasking_steps.*decrease"):
        model.trajectory_log_probs(sequences, orders, index_by_rank(steps, orders))
    with pytest.raises(ValueError, match=r"unmasking_steps.*decrease"):  # a given token between generated tokens
        model.trajectory_log_probs(sequences, random_orders(3, 12, seeded()), steps)
    with pytest.raises(ValueError, match=r"unmasking_steps.*attention_mask"):
        model.trajectory_log_probs(sequences, orders, steps, torch.zeros(3, 12))
    with pytest.raises(ValueError, match="unmasking_steps"):
        model.trajectory_log_probs(sequences, orders, steps[:, 1:])
    with pytest.raises(ValueError, match="orders"):
        model.trajectory_log_probs(sequences, orders * 0, steps)
    with pytest.raises(ValueError, match="mask"):
        model.trajectory_log_probs(ragged_inputs(), orders, steps)
    with pytest.raises(AttributeError, match="trajectory_log_probs"):
        random_encoder().trajectory_log_probs(sequences, orders, steps)
