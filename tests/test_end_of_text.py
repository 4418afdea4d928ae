# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Generation with `stop_at_eos`."""

import pytest
import torch
from transformers import GenerationConfig

from modeling_aogpt import AnyOrderGenerationOutput, AOGPTForAnyOrderLM
from tests.references import chi_square, random_model, seeded
from tests.test_streaming import RecordingStreamer

pytestmark = pytest.mark.usefixtures("large_chunks")

EOS, PAD = 7, 9


def model_with_eos(extra_bias: float = 1.5) -> AOGPTForAnyOrderLM:
    """Return a model that often generates EOS, or always with a large `extra_bias`."""
    model = random_model(initializer_range=0.2)
    with torch.no_grad():
        model.lm_head.bias[EOS] += extra_bias
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = EOS, PAD
    return model


def check_ends(output: AnyOrderGenerationOutput, block_length: int) -> list[int]:
    """Check that sequences end with the block of their first EOS, and return their lengths."""
    lengths = []
    for ids, steps, logprobs in zip(output.sequences, output.unmasking_steps, output.token_logprobs, strict=True):
        columns = (ids == EOS).nonzero().flatten().tolist()
        length = (columns[0] // block_length + 1) * block_length if columns else 12
        assert (ids[length:] == PAD).all()
        assert (steps[length:] == -1).all()
        assert (logprobs[length:] == 0).all()
        assert (steps[:length] >= 0).all()
        assert (logprobs[:length] < 0).all()
        lengths.append(length)
    return lengths


@pytest.mark.parametrize(
    "arguments",
    [
        {"order": "left_to_right"},
        {"order": "left_to_right", "num_steps": 5},
        {"order": "left_to_right", "strategy": "speculative"},
        {"order": "left_to_right", "strategy": "speculative", "draft": "prompt_lookup"},
        {"order": "left_to_right", "block_length": 3},
    ],
)
def test_tokens_after_the_first_eos_are_padding(arguments: dict) -> None:
    output = model_with_eos().generate(
        num_return_sequences=50, stop_at_eos=True, generator=seeded(), return_dict_in_generate=True, **arguments
    )
    lengths = check_ends(output, block_length=1)
    assert min(lengths) < 5 < max(lengths)


@pytest.mark.parametrize(
    "arguments", [{}, {"order": "confidence"}, {"num_steps": 6}, {"strategy": "speculative", "draft_length": 5}]
)
def test_in_blocks_a_sequence_ends_with_the_block_of_eos(arguments: dict) -> None:
    """Tokens after EOS in its block stay, since tokens before it may have been drawn given them."""
    output = model_with_eos().generate(
        num_return_sequences=50, block_length=4, generator=seeded(), return_dict_in_generate=True, **arguments
    )
    assert set(check_ends(output, block_length=4)) == {4, 8, 12}
    assert any((ids == EOS).nonzero()[0] % 4 != 3 for ids in output.sequences if (ids == EOS).any())


@pytest.mark.parametrize(
    "arguments",
    [
        {"order": "left_to_right"},
        {"order": "left_to_right", "strategy": "speculative"},
        {"block_length": 3},
        {"block_length": 4, "order": "confidence"},
        {"block_length": 4, "strategy": "speculative"},
    ],
)
def test_log_probabilities_do_not_depend_on_erased_tokens(arguments: dict) -> None:
    """They are those of the returned sequences in the returned orders."""
    model = model_with_eos()
    inputs = torch.tensor([[3, 1, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11]]).expand(40, -1)
    output = model.generate(
        inputs, stop_at_eos=True, generator=seeded(), output_history=True, return_dict_in_generate=True, **arguments
    )
    is_generated = output.unmasking_steps >= 0
    assert not is_generated.all()
    context = torch.zeros_like(is_generated)
    context[:, :2] = True
    replayed = model.log_likelihood(
        output.sequences, targets=is_generated, context=context, orders=output.orders, context_orders=output.orders
    )
    torch.testing.assert_close(output.token_logprobs, replayed.token_log_likelihood, rtol=0, atol=1e-10)
    scores = model.log_likelihood(output.sequences, output.orders, attention_mask=context | is_generated)
    scores = scores.token_log_likelihood.where(~context, 0)
    torch.testing.assert_close(output.token_logprobs, scores, rtol=0, atol=1e-10)
    for step, sequences in enumerate(output.history):
        assert torch.equal(sequences, inputs.where(context | (output.unmasking_steps >= step), sequences))


@pytest.mark.parametrize("arguments", [{"order": "left_to_right"}, {"block_length": 4}])
def test_sequences_end_by_default_if_eos_is_known(arguments: dict) -> None:
    model = model_with_eos(100)
    end = 4 if "block_length" in arguments else 1
    assert (model.generate(**arguments)[0, end:] == PAD).all()
    assert model.generate(stop_at_eos=False, **arguments).tolist() == [[EOS] * 12]
    model.generation_config.eos_token_id = None
    assert model.generate(**arguments).tolist() == [[EOS] * 12]
    assert (model.generate(eos_token_id=EOS, **arguments)[0, end:] == PAD).all()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"order": "confidence"},
        {"stride": 3, "order": "left_to_right"},
        {"unmasking": "threshold", "threshold": 0.2, "order": "left_to_right"},
    ],
)
def test_orders_that_do_not_grow_from_the_left_never_end_early(arguments: dict) -> None:
    assert model_with_eos(100).generate(**arguments).tolist() == [[EOS] * 12]


def test_sequences_with_given_text_after_a_mask_do_not_end_by_default() -> None:
    inputs = torch.tensor([[3, 11, 11, 2], [3, 2, 11, 11]])
    filled = model_with_eos(100).generate(inputs, order="left_to_right")
    assert filled.tolist() == [[3, EOS, EOS, 2], [3, 2, EOS, PAD]]


def test_stopping_does_not_change_the_distribution_of_the_text() -> None:
    model = model_with_eos()
    arguments = {"order": "left_to_right", "max_length": 6}
    stopped = model.generate(num_return_sequences=4000, generator=seeded(), **arguments)
    whole = model.generate(num_return_sequences=40_000, stop_at_eos=False, generator=seeded(1), **arguments)
    first_eos = [((ids == EOS).cumsum(1) == 0).sum(1).bincount(minlength=7).double() for ids in (stopped, whole)]
    assert chi_square(first_eos[0], first_eos[1] / 40_000) < 1


def test_no_pass_follows_the_end_of_the_last_sequence() -> None:
    model = model_with_eos(100)
    output = model.generate(order="left_to_right", stop_at_eos=True, return_dict_in_generate=True)
    assert output.num_forward_passes == 1
    assert output.sequences.tolist() == [[EOS] + [PAD] * 11]


@pytest.mark.parametrize(
    "arguments",
    [
        {"order": "left_to_right", "num_steps": 4},
        {"order": "left_to_right", "strategy": "speculative"},
        {"block_length": 4, "num_steps": 3},
        {"block_length": 3, "order": "confidence"},
    ],
)
def test_tokens_drawn_after_the_end_are_neither_streamed_nor_in_the_history(arguments: dict) -> None:
    """Such tokens may be drawn in the same step as EOS."""
    inputs = torch.tensor([[1, 11, 11, 11, 11, 3, 11, 11, 11]]).expand(8, -1)
    streamer = RecordingStreamer()
    output = model_with_eos().generate(
        inputs,
        stop_at_eos=True,
        streamer=streamer,
        output_history=True,
        generator=seeded(),
        return_dict_in_generate=True,
        **arguments,
    )
    streamed = torch.cat(streamer.final, dim=1)
    assert torch.equal(streamed, output.sequences[:, : streamed.shape[1]])
    assert (output.sequences[:, streamed.shape[1] :] == PAD).all()
    assert ((output.history[-1] == output.sequences) | ((output.sequences == PAD) & (output.history[-1] == 11))).all()
    assert (output.unmasking_steps[inputs == 11] == -1).any()


def test_padding_after_the_last_eos_is_not_streamed() -> None:
    model, streamer = model_with_eos(100), RecordingStreamer()
    inputs = torch.tensor([[1, 11, 11, 11], [1, 11, 2, 11]])
    model.generate(inputs, order="left_to_right", stop_at_eos=True, streamer=streamer)
    assert torch.cat(streamer.final, dim=1).tolist() == [[1, EOS, PAD], [1, EOS, 2]]
    assert streamer.drafts == []  # the first step ends both sequences, so no position is masked after it
    assert streamer.ended


def test_ended_sequences_do_not_delay_the_stream_of_others() -> None:
    """They are streamed as padding, as in Transformers."""
    model, streamer = model_with_eos(100), RecordingStreamer()
    inputs = torch.tensor([[11, 11, 11, 11, 11], [1, 2, 3, 11, 11]])
    model.generate(inputs, order="left_to_right", stop_at_eos=True, streamer=streamer)
    assert [part.tolist() for part in streamer.final] == [[[], []], [[EOS, PAD, PAD, PAD], [1, 2, 3, EOS]]]

    model, streamer = model_with_eos(), RecordingStreamer()
    arguments = {"order": "left_to_right", "stop_at_eos": True, "num_return_sequences": 3, "generator": seeded(1)}
    sequences = model.generate(streamer=streamer, **arguments)
    assert torch.equal(torch.cat(streamer.final, dim=1), sequences[:, : len(streamer.final) - 1])
    assert {part.shape[1] for part in streamer.final[1:]} == {1}
    assert len({row.index(EOS) for row in sequences.tolist() if EOS in row}) > 1


def test_prompt_tokens_after_eos_are_kept() -> None:
    model, mask = model_with_eos(100), 11
    inputs = torch.tensor([[EOS, mask, mask, 3, mask]])
    filled = model.generate(inputs, order="left_to_right", stop_at_eos=True)
    assert filled.tolist() == [[EOS, EOS, PAD, 3, PAD]]


def test_eos_comes_from_the_given_generation_config_then_from_the_model() -> None:
    model = model_with_eos()
    config = GenerationConfig(stop_at_eos=True, order="left_to_right", eos_token_id=3, pad_token_id=4)
    with torch.no_grad():
        model.lm_head.bias[3] += 100
    assert model.generate(generation_config=config).tolist() == [[3] + [4] * 11]
    model.generation_config.eos_token_id = None
    assert model.generate(generation_config=config).tolist() == [[3] + [4] * 11]
    model.config.eos_token_id, model.config.pad_token_id = 3, 5
    model.generation_config.pad_token_id = None
    assert model.generate(stop_at_eos=True, order="left_to_right").tolist() == [[3] + [5] * 11]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "`stop_at_eos` needs text that is generated"),
        ({"stride": 2}, "`stop_at_eos` needs text that is generated"),
        ({"order": "left_to_right", "stride": 2}, "`stop_at_eos` needs text that is generated"),
        ({"order": "left_to_right", "refine_rounds": 1, "refine_length": 1}, "`stop_at_eos` needs text .* remove"),
        ({"order": "left_to_right"}, "`stop_at_eos`, `min_length` and"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_model().generate(stop_at_eos=True, **arguments)


@pytest.mark.parametrize("order", ["left_to_right", "random", "confidence"])
def test_min_length_and_min_new_tokens_forbid_eos_at_early_positions(order: str) -> None:
    model = model_with_eos(100)
    inputs = torch.tensor([[3, 1, 11, 11, 11, 11, 11, 11]])
    common = {"order": order, "stop_at_eos": False} if order == "left_to_right" else {"order": order}
    for arguments, first in (
        ({"min_length": 5}, 5),
        ({"min_new_tokens": 4}, 6),
        ({"min_length": 5, "min_new_tokens": 1}, 5),
    ):
        filled = model.generate(inputs, **arguments, **common)[0]
        assert (filled[2:first] != EOS).all()
        assert (filled[first:] == EOS).all()
    padded = torch.nn.functional.pad(inputs, (2, 0))
    filled = model.generate(padded, attention_mask=torch.tensor([[0, 0] + [1] * 8]), min_length=5, **common)[0, 2:]
    assert (filled == EOS).nonzero().flatten().tolist() == [5, 6, 7]
    with pytest.raises(ValueError, match="`min_length` and `min_new_tokens` need the id"):
        random_model().generate(min_length=3)


@pytest.mark.parametrize("pad", [14, 16])
def test_padding_is_in_the_vocabulary_and_is_not_the_mask(pad: int) -> None:
    model = random_model(vocab_size=16, num_valid_tokens=11, mask_token_id=14)
    arguments = {"order": "left_to_right", "stop_at_eos": True, "eos_token_id": [4, 5]}
    assert model.generate(pad_token_id=15, **arguments).shape == (1, 12)
    with pytest.raises(ValueError, match=f"0 to 15, and not the mask id, but is {pad}"):
        model.generate(pad_token_id=pad, **arguments)
