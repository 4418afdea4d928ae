# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Speed against quality. No test asserts a time."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerFast, set_seed

from common import data as common_data
from eval.benchmarks import speed_quality, study_scores
from eval.benchmarks.speed_quality import Point, SpeedQualityArguments, choose_length, compare, judge_samples, main
from eval.judging import Judge, Sample, unigram_entropy, without_padding
from modeling_aogpt import AOGPTForAnyOrderLM, MDMEncoderForMaskedLM
from tests.references import causal_nats, make_run, random_encoder


def save(folder: Path, model: AOGPTForAnyOrderLM | MDMEncoderForMaskedLM, tokenizer: PreTrainedTokenizerFast) -> str:
    model.float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_report(
    tiny_model: AOGPTForAnyOrderLM,
    tiny_tokenizer: PreTrainedTokenizerFast,
    judge: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    models = [
        save(tmp_path / "decoder", tiny_model, tiny_tokenizer),
        save(tmp_path / "encoder", random_encoder(vocab_size=17), tiny_tokenizer),
        judge,
    ]
    options = "--steps 2 99 --contenders decoder speculative --num_samples 5 --batch_size 2 --device cpu"
    main([*models, "--judge", judge, *options.split(), "--output_dir", str(tmp_path / "out")])
    report = json.loads((tmp_path / "out/speed_quality.json").read_text())
    found = [(point["model"], point["contender"], point["num_steps"]) for point in report["points"]]
    decoder, encoder, causal = models
    assert found == [
        (decoder, "decoder", 2),
        (decoder, "decoder", 12),  # not more steps than tokens
        (decoder, "speculative", None),
        (encoder, "encoder", 2),
        (encoder, "encoder", 12),
        (causal, "causal LM", None),
    ]
    assert all(len(point["all_seconds"]) == 3 for point in report["points"])
    assert report["length"] == 12
    assert report["judge"] == judge
    assert report["reference"] is None
    assert (tmp_path / "out/speed_quality.png").stat().st_size > 10_000
    assert "judge | causal LM | own |" in capsys.readouterr().out


def test_quality_is_that_of_the_timed_samples(
    tiny_model: AOGPTForAnyOrderLM,
    tiny_tokenizer: PreTrainedTokenizerFast,
    judge: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, drawn = save(tmp_path / "run/model", tiny_model, tiny_tokenizer), []

    def record(*arguments: Any) -> tuple[float, torch.LongTensor]:
        _, ids = time_generation(*arguments)
        drawn.extend(ids.tolist())
        return 6.0 * len(ids) if len(drawn) > 2 else 99.0, ids  # the first round is slow

    time_generation = speed_quality.time_generation
    monkeypatch.setattr(speed_quality, "time_generation", record)
    arguments = SpeedQualityArguments(
        tmp_path / "out", judge, [4], ["decoder"], num_samples=6, batch_size=2, length=8, device="cpu"
    )
    (point,) = compare([folder], arguments)["points"]
    assert point["seconds"] == 6.0  # median per sequence
    kept = [ids if 13 not in ids[-1:] else without_padding(ids, 13) for ids in drawn]
    assert len(drawn) == 6
    tokens = sum(len(ids) - 1 for ids in kept)
    assert point["perplexity"] == pytest.approx(math.exp(sum(causal_nats(judge, ids) for ids in kept) / tokens))
    for seed in (0, 1):
        compare([folder], replace(arguments, seed=seed))
    assert drawn[:6] == drawn[6:12] != drawn[12:]
    make_run(folder, 6)
    assert choose_length([folder], None) == 6
    with pytest.raises(ValueError, match="`length` must be between 1 and 12 for these models, but is 13"):
        compare([folder], SpeedQualityArguments(tmp_path, judge, length=13, device="cpu"))


def test_a_last_round_with_fewer_sequences_does_not_count() -> None:
    point = Point("model", "contender", 4, None, None, seconds=[8.0, 12.0, 4.0, 3.0], counts=[4, 4, 4, 1])
    assert point.seconds_per_sequence() == 2.0


def test_standard_errors(judge: str, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    """Compare them with the spread of results when samples are drawn again with replacement."""
    set_seed(0)
    samples = [Sample(torch.randint(13, (length,)).tolist(), "") for length in (3, 5, 8, 12, 1) * 12]
    found = judge_samples(samples, tiny_tokenizer, Judge(judge, torch.device("cpu")))
    counts = np.array([len(sample.ids) - 1 for sample in samples])
    nats = np.array([causal_nats(judge, sample.ids) if len(sample.ids) > 1 else 0.0 for sample in samples])
    assert found["perplexity"] == pytest.approx(math.exp(nats.sum() / counts.sum()), rel=1e-5)
    redrawn = np.random.default_rng(0).integers(len(samples), size=(4000, len(samples)))
    perplexities = np.exp(nats[redrawn].sum(1) / counts[redrawn].sum(1))
    assert found["perplexity_error"] == pytest.approx(perplexities.std(), rel=0.1)
    entropies = np.array([unigram_entropy(sample.ids) for sample in samples])
    assert found["entropy"] == pytest.approx(entropies.mean())
    assert found["entropy_error"] == pytest.approx(entropies[redrawn].mean(1).std(), rel=0.1)
    assert found["unjudged"] == sum(len(sample.ids) < 2 for sample in samples)
    alone = judge_samples(samples[:1], tiny_tokenizer, Judge(judge, torch.device("cpu")))
    assert alone["perplexity_error"] is None
    assert alone["entropy_error"] is None


def test_held_out_text_is_judged(
    tiny_model: AOGPTForAnyOrderLM,
    tiny_tokenizer: PreTrainedTokenizerFast,
    judge: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = save(tmp_path / "run/model", tiny_model, tiny_tokenizer)
    rows = [[index, 2, 3, 13, 13] for index in range(6)]
    held_out = SimpleNamespace(validation=Dataset.from_dict({"input_ids": rows}))
    finished = {"arguments": {"tokenizer": None, "corpus": ["names"]}}
    for module in (study_scores, common_data):
        monkeypatch.setattr(module, "read_finished_run", lambda run: finished)
    monkeypatch.setattr(common_data, "load_data", lambda arguments: held_out)
    monkeypatch.setattr(common_data, "check_data_of_run", lambda *arguments: None)
    common_data.load_data_once.cache_clear()
    arguments = SpeedQualityArguments(tmp_path, judge, [1], ["decoder"], tmp_path / "run", num_samples=3, device="cpu")
    for length, judged in ((3, [2, 3]), (5, [2, 3, 13])):  # without padding
        report = compare([folder], replace(arguments, length=length))
        nats = sum(causal_nats(judge, [index, *judged]) for index in (0, 2, 4))  # spread over the text
        assert report["reference"]["perplexity"] == pytest.approx(math.exp(nats / (3 * len(judged))))
    with pytest.raises(ValueError, match=r"have at most 5 tokens, but `length` is 12\. Set `length` to 5 or less"):
        compare([folder], arguments)
    speed_quality.draw(report, tmp_path / "picture.png")
    assert speed_quality.format_table(report).splitlines()[-1].startswith("| held-out text |")
    report["reference"] |= {"unjudged": 2, "truncated": 3}
    remark = "(2 samples not judged, 3 samples truncated by the judge)"
    assert remark in speed_quality.format_table(report).splitlines()[-1]


def test_unknown_contenders_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`contenders` must be one of 'decoder', .* but is 'encoder'\."):
        SpeedQualityArguments(tmp_path, contenders=["decoder", "encoder"])
