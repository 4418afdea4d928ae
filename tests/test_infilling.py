# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import math
import sys
from pathlib import Path

import pytest
import torch

from common.files import read_json
from eval.infilling import BEFORE, Filler, Gap, evaluate, main, make_gaps
from modeling_aogpt import AOGPTForAnyOrderLM
from tests.references import random_model
from tests.training_runs import train, write_config

MASK, EOS = 11, 0


@pytest.fixture
def model() -> AOGPTForAnyOrderLM:
    return random_model(eos_token_id=EOS)


def test_gaps_leave_a_part_of_the_document() -> None:
    documents = [[1], [2, 3], [4, 5, 6, 7, 8, 9]] * 50
    gaps = make_gaps(documents, 90, max_gap=4, seed=0)
    assert len(gaps) == 90
    assert {gap.length for gap in gaps if len(gap.ids) == 2} == {1}
    assert {gap.length for gap in gaps if len(gap.ids) == 6} == {1, 2, 3, 4}
    assert all(0 <= gap.start <= len(gap.ids) - gap.length for gap in gaps)
    assert Gap([4, 5, 6, 7], 1, 2).with_tokens([MASK] * 3) == [4, MASK, MASK, MASK, 7]
    assert make_gaps(documents, 90, 4, seed=0) == gaps != make_gaps(documents, 90, 4, seed=1)


class Words:
    """A tokenizer with a word for each id."""

    def decode(self, ids: list[int]) -> str:
        return " ".join(f"w{token}" for token in ids)


@pytest.mark.parametrize("padded_length", [8, None])
def test_fillings_are_compared_per_token(model: AOGPTForAnyOrderLM, padded_length: int | None) -> None:
    filler, gap, fillings = Filler(model, padded_length, max_length=4), Gap([3, 1, 4, 5], 1, 2), []
    for count in range(1, 5):
        ids = torch.tensor([[3, *[MASK] * count, 5, *[EOS] * ((padded_length or count + 2) - count - 2)]])
        output = model.generate(ids, order="confidence", do_sample=False, return_dict_in_generate=True)
        fillings.append((output.token_logprobs.sum().item() / count, output.sequences[0, 1 : count + 1].tolist()))
    assert filler.by_filling(gap) == max(fillings)[1]
    assert filler.with_known_length(gap) == fillings[1][1]


def test_left_to_right_does_not_see_the_text_after_the_gap(model: AOGPTForAnyOrderLM) -> None:
    filler, fillings, nats = Filler(model, 8, max_length=4), set(), {}
    for after in (5, 6, 7, 8):
        gap = Gap([3, 1, 4, after], 1, 2)
        fillings.add(tuple(filler.from_text_before(gap)))
        for only_before in (True, False):
            nats.setdefault(only_before, set()).add(round(filler.nats(gap, only_before), 5))
    assert len(fillings) == len(nats[True]) == 1
    assert len(nats[False]) == 4
    expected = -model.log_likelihood(torch.tensor([[3, 1, 4]]), orders="left_to_right").token_log_likelihood[0, 1:]
    assert nats[True] == {round(expected.sum().item(), 5)}


def test_scores_of_fillings(model: AOGPTForAnyOrderLM) -> None:
    filler = Filler(model, 8, max_length=4)
    ids = torch.tensor([[3, MASK, MASK, 5, *[EOS] * 4]])
    filled = model.generate(ids, order="confidence", do_sample=False)[0, :4].tolist()
    other = [filled[0], filled[1], (filled[2] + 1) % 11, filled[3]]
    results = evaluate(filler, [Gap(filled, 1, 2), Gap(other, 1, 2)], Words())
    known = results["known length"]
    assert (known["length"], known["exact"], known["rouge"]) == (1.0, 0.5, 0.75)  # half of the words of the second
    num_bytes = sum(len(Words().decode(ids[1:3])) for ids in (filled, other))
    nats = filler.nats(Gap(filled, 1, 2), False) + filler.nats(Gap(other, 1, 2), False)
    assert known["bits_per_byte"] == pytest.approx(nats / math.log(2) / num_bytes)
    assert results["length by the filled gap"]["bits_per_byte"] is None
    assert list(evaluate(filler, [Gap(filled, 1, 2)], Words(), "left_to_right")) == [BEFORE]


@pytest.mark.usefixtures("datasets_cache")
def test_report_of_runs(tmp_path: Path) -> None:
    config, out = write_config(tmp_path), tmp_path / "out"
    train(config, tmp_path / "decoder")
    train(config, tmp_path / "encoder", "--architecture", "encoder", "--objective", "masked_diffusion")
    train(config, tmp_path / "packed", "--packing", "packed")
    folders = [str(tmp_path / name) for name in ("decoder", "encoder", "packed")]
    main([*folders, "--num_documents", "5", "--max_length", "3", "--max_gap", "2", "--output_dir", str(out)])
    results = read_json(out / "results.json", ("runs",), "eval/infilling.py")["runs"]
    assert [len(methods) for methods in results.values()] == [4, 1, 4]
    assert f"| {folders[1]} | known length | 100.0% |" in (out / "report.md").read_text()


def test_missing_rouge_score_is_named(model: AOGPTForAnyOrderLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(ValueError, match="pip install rouge-score"):
        evaluate(Filler(model, 8, 4), [Gap([1, 2, 3], 1, 1)], Words())
