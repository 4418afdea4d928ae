# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import torch

from common.files import read_json
from eval.infill_lengths import Gap, LengthFinder, evaluate, main, make_gaps
from modeling_aogpt import AOGPTForAnyOrderLM
from tests.references import random_model
from tests.training_runs import train, write_config

MASK, EOS = 11, 0


@pytest.fixture
def model() -> AOGPTForAnyOrderLM:
    model = random_model()
    model.config.eos_token_id = EOS
    return model


def test_gaps_leave_a_part_of_the_document() -> None:
    documents = [[1], [2, 3], [4, 5, 6, 7, 8, 9]] * 50
    gaps = make_gaps(documents, 90, max_gap=4, seed=0)
    assert len(gaps) == 90
    assert {gap.length for gap in gaps if len(gap.ids) == 2} == {1}
    assert {gap.length for gap in gaps if len(gap.ids) == 6} == {1, 2, 3, 4}
    assert all(0 <= gap.start <= len(gap.ids) - gap.length for gap in gaps)
    assert Gap([4, 5, 6, 7], 1, 2).with_masks(3, MASK) == [4, MASK, MASK, MASK, 7]
    assert make_gaps(documents, 90, 4, seed=0) == gaps != make_gaps(documents, 90, 4, seed=1)


def test_fillings_are_scored_in_total_or_per_token(model: AOGPTForAnyOrderLM) -> None:
    finder, gap = LengthFinder(model, padded_length=8, max_length=4, seed=0), Gap([3, 1, 4, 5], 1, 2)
    totals = []
    for count in range(1, 5):
        ids = torch.tensor([[3, *[MASK] * count, 5, *[EOS] * (6 - count)]])
        output = model.generate(ids, order="confidence", do_sample=False, return_dict_in_generate=True)
        totals.append(output.token_logprobs.sum().item())
    assert finder.by_filling(gap, per_token=False) == 1 + totals.index(max(totals))
    means = [total / count for count, total in enumerate(totals, 1)]
    assert finder.by_filling(gap, per_token=True) == 1 + means.index(max(means))


def test_a_gap_is_restored_with_the_original_tokens(model: AOGPTForAnyOrderLM) -> None:
    finder = LengthFinder(model, padded_length=8, max_length=4, seed=0)
    ids = torch.tensor([[3, MASK, MASK, 5, *[EOS] * 4]])
    filled = model.generate(ids, order="confidence", do_sample=False)[0, :4].tolist()
    assert finder.is_restored(Gap(filled, 1, 2), 2)
    assert not finder.is_restored(Gap(filled, 1, 2), 3)
    other = [filled[0], (filled[1] + 1) % 11, *filled[2:]]
    assert not finder.is_restored(Gap(other, 1, 2), 2)
    results = evaluate(finder, [Gap(filled, 1, 2), Gap(other, 1, 2)])
    assert results["known"] == {"length": 1.0, "restored": 0.5}
    assert results["always 1"] == {"length": 0.0, "restored": 0.0}


@pytest.mark.usefixtures("datasets_cache")
def test_report_of_a_run(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    train(write_config(tmp_path), run)
    main([str(run), "--num_documents", "5", "--max_length", "3", "--output_dir", str(out)])
    results = read_json(out / "results.json", ("methods",), "eval/infill_lengths.py")
    assert results["gaps"] == 5
    assert "| text around the gap | " in (out / "report.md").read_text()
