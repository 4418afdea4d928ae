# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from transformers import GenerationConfig

from tests.references import chi_square, random_model
from tests.test_streaming import Recorder

pytestmark = pytest.mark.usefixtures("large_chunks")

EOS, PAD = 7, 9


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model_that_ends() -> torch.nn.Module:
    model = random_model(initializer_range=0.2)
    with torch.no_grad():
        model.lm_head.bias[EOS] += 1.5
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = EOS, PAD
    return model


@pytest.mark.parametrize(
    "arguments",
    [
        {"order": "left_to_right"},
        {"order": "left_to_right", "num_steps": 5},
        {"order": "left_to_right", "strategy": "speculative"},
        {"order": "left_to_right", "strategy": "speculative", "draft": "ngram"},
        {"block_length": 3},
        {"block_length": 4, "order": "confidence"},
    ],
)
def test_nothing_is_generated_after_the_end(arguments: dict) -> None:
    output = model_that_ends().generate(
        num_return_sequences=50, stop_at_eos=True, generator=seeded(), return_dict_in_generate=True, **arguments
    )
    lengths = []
    for ids, steps, logprobs in zip(output.sequences, output.reveal_steps, output.token_logprobs, strict=True):
        ends = (ids == EOS).nonzero().flatten().tolist()
        length = ends[0] + 1 if ends else 12
        assert (ids[length:] == PAD).all()
        assert (steps[length:] == -1).all()
        assert (logprobs[length:] == 0).all()
        assert (steps[:length] >= 0).all()
        assert (logprobs[:length] < 0).all()
        lengths.append(length)
    assert min(lengths) < 5 < max(lengths)


def test_what_comes_before_the_end_is_distributed_as_without_stopping() -> None:
    model = model_that_ends()
    arguments = {"order": "left_to_right", "max_length": 6}
    stopped = model.generate(num_return_sequences=4000, stop_at_eos=True, generator=seeded(), **arguments)
    whole = model.generate(num_return_sequences=40_000, generator=seeded(1), **arguments)
    first_end = [((ids == EOS).cumsum(1) == 0).sum(1).bincount(minlength=7).double() for ids in (stopped, whole)]
    assert chi_square(first_end[0], first_end[1] / 40_000) < 1


def test_passes_end_with_the_last_sequence() -> None:
    model = model_that_ends()
    with torch.no_grad():
        model.lm_head.bias[EOS] += 100
    output = model.generate(order="left_to_right", stop_at_eos=True, return_dict_in_generate=True)
    assert output.num_forward_passes == 1
    assert output.sequences.tolist() == [[EOS] + [PAD] * 11]


@pytest.mark.parametrize(
    "arguments",
    [
        {"order": "left_to_right", "num_steps": 4},
        {"order": "left_to_right", "strategy": "speculative"},
        {"block_length": 4, "num_steps": 3},
        {"block_length": 4, "order": "confidence"},
    ],
)
def test_what_is_drawn_behind_the_end_is_never_shown(arguments: dict) -> None:
    """A step may reveal it at once with the end, or, within a block, before."""
    inputs = torch.tensor([[1, 11, 11, 11, 11, 3, 11, 11, 11]]).expand(8, -1)
    streamer = Recorder()
    output = model_that_ends().generate(
        inputs,
        stop_at_eos=True,
        streamer=streamer,
        output_history=True,
        generator=seeded(),
        return_dict_in_generate=True,
        **arguments,
    )
    put = torch.cat(streamer.final, dim=1)
    assert torch.equal(put, output.sequences[:, : put.shape[1]])
    assert (output.sequences[:, put.shape[1] :] == PAD).all()
    assert ((output.history[-1] == output.sequences) | ((output.sequences == PAD) & (output.history[-1] == 11))).all()
    assert (output.reveal_steps[inputs == 11] == -1).any()


def test_padding_behind_the_end_is_not_put() -> None:
    model, streamer = model_that_ends(), Recorder()
    with torch.no_grad():
        model.lm_head.bias[EOS] += 100
    inputs = torch.tensor([[1, 11, 11, 11], [1, 11, 2, 11]])
    model.generate(inputs, order="left_to_right", stop_at_eos=True, streamer=streamer)
    assert torch.cat(streamer.final, dim=1).tolist() == [[1, EOS, PAD], [1, EOS, 2]]
    assert streamer.ended


def test_text_is_put_while_others_go_on() -> None:
    """What ended shows padding, as in transformers, and keeps nobody's text back."""
    model, streamer = model_that_ends(), Recorder()
    with torch.no_grad():
        model.lm_head.bias[EOS] += 100
    inputs = torch.tensor([[11, 11, 11, 11, 11], [1, 2, 3, 11, 11]])
    model.generate(inputs, order="left_to_right", stop_at_eos=True, streamer=streamer)
    assert [part.tolist() for part in streamer.final] == [[[], []], [[EOS, PAD, PAD, PAD], [1, 2, 3, EOS]]]

    model, streamer = model_that_ends(), Recorder()
    arguments = {"order": "left_to_right", "stop_at_eos": True, "num_return_sequences": 3, "generator": seeded(1)}
    sequences = model.generate(streamer=streamer, **arguments)
    assert torch.equal(torch.cat(streamer.final, dim=1), sequences[:, : len(streamer.final) - 1])
    assert {part.shape[1] for part in streamer.final[1:]} == {1}
    assert len({row.index(EOS) for row in sequences.tolist() if EOS in row}) > 1


def test_given_tokens_stay_where_they_are() -> None:
    model, mask = model_that_ends(), 11
    with torch.no_grad():
        model.lm_head.bias[EOS] += 100
    inputs = torch.tensor([[EOS, mask, mask, 3, mask]])
    filled = model.generate(inputs, order="left_to_right", stop_at_eos=True)
    assert filled.tolist() == [[EOS, EOS, PAD, 3, PAD]]


def test_the_generation_config_at_hand_names_the_end() -> None:
    model = model_that_ends()
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
        ({}, "stop_at_eos needs text that grows from the left"),
        ({"stride": 2}, "stop_at_eos needs text that grows from the left"),
        ({"order": "left_to_right", "stride": 2}, "stop_at_eos needs text that grows from the left"),
        ({"order": "left_to_right", "refine_rounds": 1, "refine_length": 1}, "and no refine_rounds"),
        ({"order": "left_to_right"}, "needs the id of end-of-text"),
    ],
)
def test_refuses(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_model().generate(stop_at_eos=True, **arguments)
