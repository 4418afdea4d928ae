# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Streamers and the history of a generation."""

import re

import pytest
import torch
import transformers
from transformers import PreTrainedTokenizerFast, TextStreamer
from transformers.generation import BaseStreamer

from modeling_aogpt import AOGPTForAnyOrderLM
from tests.references import random_model, seeded

MASK = 11


class RecordingStreamer(BaseStreamer):
    """Streamer that records all calls."""

    def __init__(self) -> None:
        self.final, self.drafts, self.ended = [], [], False

    def put(self, value: torch.LongTensor) -> None:
        assert value.device.type == "cpu"
        self.final.append(value)

    def put_draft(self, value: torch.LongTensor) -> None:
        self.drafts.append((sum(part.shape[1] for part in self.final), value))

    def end(self) -> None:
        self.ended = True


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_steps": 3},
        {"order": "left_to_right"},
        {"order": "confidence"},
        {"strategy": "speculative"},
        {"refine_rounds": 2, "refine_length": 2},
    ],
)
def test_streamed_parts_add_up_to_the_result(arguments: dict) -> None:
    inputs = torch.tensor([[1, 2, MASK, MASK, 3, MASK, MASK, MASK]]).expand(2, -1)
    streamer = RecordingStreamer()
    output = random_model().generate(
        inputs, streamer=streamer, output_history=True, generator=seeded(), return_dict_in_generate=True, **arguments
    )
    assert streamer.ended
    assert streamer.final[0].tolist() == [[1, 2]] * 2
    assert torch.equal(torch.cat(streamer.final, dim=1), output.sequences)
    for (num_final, draft), state in zip(streamer.drafts, output.history[1:], strict=False):
        assert torch.equal(draft, state[:, num_final:])
    assert torch.equal(output.history[0], inputs)
    assert torch.equal(output.history[-1], output.sequences)


@pytest.mark.parametrize("arguments", [{"num_steps": 5, "unmasking": "fixed_count"}, {"strategy": "speculative"}])
def test_history_agrees_with_the_unmasking_steps(arguments: dict) -> None:
    output = random_model().generate(
        num_return_sequences=3, output_history=True, generator=seeded(), return_dict_in_generate=True, **arguments
    )
    for step, state in enumerate(output.history):
        assert torch.equal(state, output.sequences.masked_fill(output.unmasking_steps >= step, MASK))
    assert len(output.history) == output.unmasking_steps.max() + 2
    if "num_steps" in arguments:
        assert len(output.history) == 6


def test_history_has_masks_at_remasked_positions() -> None:
    """Each of two rounds re-masks 3 positions and unmasks them one at a time."""
    output = random_model().generate(
        refine_rounds=2, refine_length=3, output_history=True, generator=seeded(), return_dict_in_generate=True
    )
    num_masked = (output.history == MASK).sum(dim=(1, 2)).tolist()
    assert num_masked == [*range(12, -1, -1), 2, 1, 0, 2, 1, 0]


def test_left_to_right_text_is_streamed_token_by_token() -> None:
    streamer = RecordingStreamer()
    random_model().generate(torch.tensor([[1, 2]]), max_new_tokens=3, order="left_to_right", streamer=streamer)
    assert [part.shape[1] for part in streamer.final] == [2, 1, 1, 1]


def test_other_types_are_errors() -> None:
    with pytest.raises(TypeError, match="`streamer` must have the methods `put` and"):
        random_model().generate(streamer="x")
    with pytest.raises(TypeError, match="`logits_processor` must be a list of"):
        random_model().generate(logits_processor=[None])
    with pytest.raises(TypeError, match=r"`generator` must be a torch.Generator, but"):
        random_model().log_likelihood(torch.tensor([[1, 2]]), generator=0)


def test_refinement_streams_no_final_token_before_the_end() -> None:
    streamer = RecordingStreamer()
    random_model().generate(max_length=5, order="left_to_right", streamer=streamer, refine_rounds=1, refine_length=2)
    assert [part.shape[1] for part in streamer.final] == [0, 5]


@pytest.mark.parametrize("name", ["TextStreamer", "TextDiffusionStreamer"])
@pytest.mark.parametrize("order", ["left_to_right", "random"])
def test_streamers_of_transformers_print_the_text(
    order: str,
    name: str,
    tiny_model: AOGPTForAnyOrderLM,
    tiny_tokenizer: PreTrainedTokenizerFast,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not hasattr(transformers, name):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    streamer = getattr(transformers, name)(tiny_tokenizer)
    inputs = torch.tensor([[0, 1, 16, 16, 16, 16]])
    ids = tiny_model.generate(inputs, order=order, streamer=streamer, generator=seeded())
    printed = capsys.readouterr().out
    assert ("\033[33m" in printed) == (name == "TextDiffusionStreamer")
    final = re.sub("\0337.*?\0338\033\\[J", "", printed)  # drafts and the codes that erase them
    assert final.split() == tiny_tokenizer.decode(ids[0]).split()


def test_prompt_can_be_skipped(
    tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast, capsys: pytest.CaptureFixture[str]
) -> None:
    streamer = TextStreamer(tiny_tokenizer, skip_prompt=True)
    ids = tiny_model.generate(torch.tensor([[0, 1, 16]]), streamer=streamer, generator=seeded())
    assert capsys.readouterr().out.strip() == tiny_tokenizer.decode(ids[0, 2:])
