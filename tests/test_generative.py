# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from PIL import Image
from transformers import PreTrainedTokenizerFast

from common.hardware import versions
from common.tokenizers import train_tokenizer
from eval.generative import GenerativeArguments, generative, main
from eval.journal import make_generator
from eval.judging import Judge, Sample, distinct, make_samples, unigram_entropy
from eval.tables import GENERATIVE, generative_table
from modeling_aogpt import AnyOrderGenerationConfig, AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.tokenization import load_tokenizer
from tests.references import causal_nats, make_run, random_encoder, save_judge
from tests.several_processes import run_in_two_processes

pytestmark = pytest.mark.usefixtures("datasets_cache")


@pytest.fixture
def arguments(judge: str, tmp_path: Path) -> GenerativeArguments:
    return GenerativeArguments(
        tmp_path / "out", steps=[4, 12], top_p=[1.0, 0.5], num_samples=5, batch_size=2, judge=judge
    )


def perplexity(judge: str, ids: list[int]) -> float:
    return math.exp(causal_nats(judge, ids) / (len(ids) - 1))


def test_perplexity_of_samples(judge: str) -> None:
    sequences = [[1, 2, 3, 4], [5], [6, 7], [], [*range(13), 0]]
    expected = [perplexity(judge, ids[:12]) for ids in (sequences[0], sequences[2], sequences[4])]
    found = Judge(judge, torch.device("cpu")).perplexity(sequences, batch_size=2)
    first, second, third = (pytest.approx(value, rel=1e-5) for value in expected)
    assert found["perplexities"] == [first, None, second, None, third]
    assert (found["unjudged"], found["truncated"]) == (2, 1)
    assert found["mean"] == pytest.approx(np.mean(expected), rel=1e-5)
    assert found["mean_standard_error"] == pytest.approx(np.std(expected, ddof=1) / 3**0.5, rel=1e-4)
    assert found["pooled"] == pytest.approx(math.exp(np.average(np.log(expected), weights=[3, 1, 11])), rel=1e-5)
    with pytest.raises(ValueError, match="needs a sample of at least two tokens"):
        Judge(judge, torch.device("cpu")).perplexity([[1], []], batch_size=2)


def test_diversity_of_samples() -> None:
    samples = [[1, 2, 1, 2], [3, 3, 3, 3], [1, 1, 1, 2]]
    quarter = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert [unigram_entropy(ids) for ids in samples] == pytest.approx([math.log(2), 0, quarter])
    # The bigrams are 12, 21, 33 and 11. The trigrams are 121, 212, 333, 111 and 112.
    assert [distinct(samples, n) for n in (1, 2, 3, 5)] == [3 / 12, 4 / 9, 5 / 6, None]
    assert (unigram_entropy([]), distinct([], 1)) == (0, None)


def test_judge_with_another_tokenizer_encodes_the_text(
    judge: str, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    other = train_tokenizer(["ab abc"] * 9, 258)
    samples = [Sample([0, 1, 13, 2], "ab<eos>c")]
    tokenizer = load_tokenizer(judge)
    assert Judge(judge, torch.device("cpu")).encode(samples, tokenizer) == [[0, 1, 13, 2]]
    found = Judge(save_judge(tmp_path / "other", other), torch.device("cpu")).encode(samples, tokenizer)
    assert found == [other("ab<|endoftext|>c")["input_ids"]]
    assert other.eos_token_id in found[0]


def test_padding_is_left_out(tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    def make(sequences: list[list[int]], eos: int | list[int], pad: int | None) -> list[list[int]]:
        config = AOGPTConfig(eos_token_id=eos, pad_token_id=pad)
        return [sample.ids for sample in make_samples(sequences, tiny_tokenizer, config)]

    assert make([[1, 13, 2, 13, 13, 13], [1, 2], [13, 13]], 13, None) == [[1, 13, 2, 13], [1, 2], [13]]
    assert make([[1, 13, 7, 7], [1, 5, 7], [7, 7], [2, 7, 1]], [13, 5], 7) == [[1, 13], [1, 5], [7], [2, 7, 1]]
    assert make([[1, 5, 13, 13], [1, 13, 13]], [13, 5], 13) == [[1, 5], [1, 13]]


def test_settings_of_the_model_do_not_change_samples(
    folder: str, arguments: GenerativeArguments, tmp_path: Path
) -> None:
    arguments = replace(arguments, steps=[4], top_p=[1.0])
    (before,) = generative([folder], arguments)
    config = AnyOrderGenerationConfig.from_pretrained(folder)
    config.top_k, config.repetition_penalty, config.do_sample = 1, 2.0, False
    config.save_pretrained(folder)
    (after,) = generative([folder], replace(arguments, output_dir=tmp_path / "again"))
    assert after["entropies"] == before["entropies"]


def test_suppressed_tokens_of_the_model_are_not_sampled(folder: str, arguments: GenerativeArguments) -> None:
    config, suppressed = AnyOrderGenerationConfig.from_pretrained(folder), [1, 2, 3]
    config.suppress_tokens = suppressed
    config.save_pretrained(folder)
    generative([folder], replace(arguments, steps=[4], top_p=[1.0]))
    (path,) = arguments.output_dir.rglob("steps-*.jsonl")
    samples = map(json.loads, path.read_text().splitlines()[1:])
    assert not {token for sample in samples for token in sample["ids"]}.intersection(suppressed)


def test_grid(folder: str, arguments: GenerativeArguments, judge: str, capsys: pytest.CaptureFixture) -> None:
    output = arguments.output_dir
    options = ["--steps", "4", "12", "--top_p", "1.0", "0.5", "--num_samples", "5", "--batch_size", "2"]
    main([folder, "--output_dir", str(output), *options, "--judge", judge])
    results = json.loads((output / "results.json").read_text())["cells"]
    assert [(cell["cell"]["top_p"], cell["cell"]["steps"]) for cell in results] == [
        (1, 4),
        (1, 12),
        (0.5, 4),
        (0.5, 12),
    ]
    files = sorted(output.glob("samples/*/*.jsonl"))
    assert len(files) == 4
    for cell in results:
        (file,) = (
            path for path in files if f"steps-{cell['cell']['steps']}_top-p-{cell['cell']['top_p']}_" in path.name
        )
        samples = [json.loads(line) for line in file.read_text().splitlines()[1:]]
        assert len(samples) == len({tuple(sample["ids"]) for sample in samples}) == 5
        expected = [perplexity(judge, sample["ids"]) for sample in samples]
        assert cell["perplexity"]["perplexities"] == pytest.approx(expected, rel=1e-5)
        shares = [np.bincount(sample["ids"]) / len(sample["ids"]) for sample in samples]
        entropies = [-(share[share > 0] * np.log(share[share > 0])).sum() for share in shares]
        assert cell["entropy"] == pytest.approx(np.mean(entropies))
        different = {id for sample in samples for id in sample["ids"]}
        assert cell["distinct_1"] == len(different) / sum(len(sample["ids"]) for sample in samples)
        # Three batches. A step without positions takes no pass, so this is an upper bound.
        assert 3 <= cell["num_forward_passes"] <= 3 * cell["cell"]["steps"]
    table = (output / "table.md").read_text().splitlines()
    assert all(line in capsys.readouterr().out for line in table[:1])
    for average in ("mean", "pooled"):
        row = [
            f"{cell['perplexity'][average]:.1f} ± {cell['perplexity'][f'{average}_standard_error']:.1f}"
            f" / {cell['entropy']:.2f}"
            for cell in results
        ]
        assert f"| 1.0, 1.0 | **{folder}** | {row[0]} | {row[1]} |" in table
        assert f"| 0.5, 1.0 | **{folder}** | {row[2]} | {row[3]} |" in table
    assert Image.open(output / "frontier.png").size[0] > 800


def test_cell_is_sampled_with_its_settings(
    folder: str, arguments: GenerativeArguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, judges, generate = [], [], AOGPTForAnyOrderLM.generate

    def record(self: AOGPTForAnyOrderLM, **options: Any) -> Any:
        seen.append(
            options | {"dtype": str(self.dtype).removeprefix("torch."), "seed": options["generator"].initial_seed()}
        )
        return generate(self, **options)

    monkeypatch.setattr(AOGPTForAnyOrderLM, "generate", record)
    monkeypatch.setattr("eval.generative.Judge", lambda *given: judges.append(Judge(*given)) or judges[-1])
    requested = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_p_rule": "exclusive",
        "schedule": "cosine",
        "unmasking": "fixed_count",
        "seed": 7,
        "dtype": "bfloat16",
    }
    order = {"order": "confidence", "block_length": 3}
    settings = requested | {"temperature": [0.5], "top_p": [0.9], "steps": [3], "num_samples": 3, "length": 9} | order
    (found,) = generative([folder], replace(arguments, **settings))
    assert len(seen) == 2
    for options, number, start in zip(seen, (2, 1), (0, 2), strict=True):
        expected = requested | {"num_steps": 3, "max_length": 9, "num_return_sequences": number}
        expected["seed"] = make_generator(7, start).initial_seed()
        assert {name: options[name] for name in expected} == expected
        assert {name: getattr(options["generation_config"], name) for name in order} == order
    assert judges[0].scorer.model.dtype == torch.bfloat16
    assert found["num_forward_passes"] == 2 * 3


def test_default_length_is_that_of_the_run(folder: str, arguments: GenerativeArguments) -> None:
    make_run(folder, 6)
    for given, expected in ((None, 6), (9, 9)):
        settings = {"output_dir": arguments.output_dir / str(given), "steps": [4], "top_p": [1.0], "length": given}
        (found,) = generative([folder], replace(arguments, **settings))
        assert found["cell"]["length"] == expected


def test_the_samplers_of_sedd_are_for_sedd(
    folder: str, arguments: GenerativeArguments, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    options = {"unmasking": "analytic", "steps": [3], "top_p": [], "temperature": [1.0]}
    with pytest.raises(ValueError, match=r"`unmasking` \(analytic\) needs a SEDD model"):
        generative([folder], replace(arguments, **options))
    sedd = random_encoder(vocab_size=17, target_injection="sigma", position_encoding="rotary").float()
    sedd.save_pretrained(tmp_path / "sedd")
    tiny_tokenizer.save_pretrained(tmp_path / "sedd")
    (found,) = generative([str(tmp_path / "sedd")], replace(arguments, **options))
    assert found["cell"]["unmasking"] == "analytic"
    assert found["num_forward_passes"] <= 3 * 3


def test_settings() -> None:
    assert GenerativeArguments(Path("out")).settings() == [(1.0, 1.0), (0.95, 0.9), (0.95, 0.7)]
    assert GenerativeArguments(Path("out"), top_p=[0.9, 1.0], temperature=[0.5]).settings() == [(0.9, 0.5), (1.0, 0.5)]
    with pytest.raises(ValueError, match="`top_p_rule` has no effect without a value of"):
        GenerativeArguments(Path("out"), top_p_rule="exclusive", temperature=[0.9])


def stop_at(number: int, patch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Make a call of `generate` fail, as if the run were stopped. Return the list of the arguments of all calls."""
    calls, generate = [], AOGPTForAnyOrderLM.generate

    def counted(self: AOGPTForAnyOrderLM, **options: Any) -> Any:
        calls.append(options)
        if len(calls) == number:
            raise KeyboardInterrupt
        return generate(self, **options)

    patch.setattr(AOGPTForAnyOrderLM, "generate", counted)
    return calls


def test_finished_cells_are_judged_but_not_sampled_again(
    folder: str,
    arguments: GenerativeArguments,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = stop_at(5, monkeypatch)  # in the second cell
    with pytest.raises(KeyboardInterrupt):
        generative([folder], arguments)
    results = generative([folder], arguments)
    assert len(calls) == 5 + 2 + 2 * 3
    other = save_judge(tmp_path / "other", train_tokenizer(["ab abc"] * 9, 258), longest=6)
    again = generative([folder], replace(arguments, judge=other))
    assert len(calls) == 5 + 2 + 2 * 3
    assert [cell["entropy"] for cell in again] == [cell["entropy"] for cell in results]
    assert again[0]["perplexity"]["mean"] != results[0]["perplexity"]["mean"]
    assert again[0]["perplexity"]["truncated"] > results[0]["perplexity"]["truncated"] == 0
    with pytest.raises(ValueError, match=r"generated with another value of num_samples\. Set another"):
        generative([folder], replace(arguments, num_samples=6))


def test_published_rows_are_shown_for_the_same_judge() -> None:
    whole = {"unjudged": 0, "truncated": 0}
    cells = [
        {
            "cell": {"model": "ours", "top_p": 0.95, "temperature": 0.9, "steps": steps},
            "judge": judge,
            "perplexity": {"mean": 30.0, "mean_standard_error": 1.25 if steps > 64 else None} | whole,
            "entropy": 5.0,
        }
        for judge in ["openai-community/gpt2-large"]
        for steps in (64, 100, 1024)
    ]
    table = generative_table(cells).splitlines()
    published = GENERATIVE[0.95, 0.9]["AO-GPT"]
    assert f"| 0.95, 0.9 | AO-GPT medium (published) | {published[0]} |  | {published[-1]} |" in table
    assert table[-1] == "| 0.95, 0.9 | **ours** | 30.0 / 5.00 | 30.0 ± 1.2 / 5.00 | 30.0 ± 1.2 / 5.00 |"
    remarked = {"pooled": 30.0, "pooled_standard_error": 0.5, "unjudged": 2, "truncated": 1}
    table = generative_table([cell | {"perplexity": remarked} for cell in cells], "pooled")
    assert "| 30.0 ± 0.5 (2 samples not judged, 1 sample truncated by the judge) / 5.00 |" in table
    assert "published" not in table
    assert "published" not in generative_table([cell | {"judge": "gpt2"} for cell in cells])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": 0}, "`num_samples` must be at least 1, but is 0"),
        ({"steps": [4, 0]}, "`num_steps` must be an integer of at least 1, but is 0"),
        ({"top_p": [1.0, 1.5]}, "`top_p` must be a number above 0"),
        ({"length": 13}, "`length` must be at most 12, the `max_position_embeddings` of .*, but is 13"),
        ({"judge": "nowhere"}, "The judge 'nowhere' cannot be loaded from the Hub or a folder"),
    ],
)
def test_bad_input_is_an_error_before_sampling(
    folder: str, arguments: GenerativeArguments, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        generative([folder], replace(arguments, **changes))
    assert not arguments.output_dir.exists()


def test_models_that_cannot_be_sampled(folder: str, judge: str, arguments: GenerativeArguments) -> None:
    with pytest.raises(ValueError, match="no model 'nowhere'"):
        generative([folder, "nowhere"], arguments)
    with pytest.raises(ValueError, match="is a model of type 'gpt2', not a model of"):
        generative([folder, judge], arguments)
    assert not arguments.output_dir.exists()


def test_a_tokenizer_that_does_not_match_is_an_error(
    folder: str, arguments: GenerativeArguments, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    tiny_tokenizer.add_special_tokens({"mask_token": "<another>"})
    tiny_tokenizer.save_pretrained(folder)
    with pytest.raises(ValueError, match="its mask has the id 17, but the mask of the model has the id 16"):
        generative([folder], arguments)
    assert not arguments.output_dir.exists()


def test_samples_of_other_weights_are_not_reused(
    folder: str, arguments: GenerativeArguments, tiny_model: AOGPTForAnyOrderLM
) -> None:
    (first, *_) = generative([folder], arguments)
    tiny_model.save_pretrained(folder)  # the same weights
    assert generative([folder], arguments)[0] == first
    torch.nn.init.normal_(tiny_model.lm_head.weight)
    tiny_model.generation_config.order = "left_to_right"
    tiny_model.save_pretrained(folder)
    with pytest.raises(ValueError, match=r"generated with another value of configs, weights\. Set another"):
        generative([folder], arguments)


def test_results_record_versions_and_hardware(folder: str, arguments: GenerativeArguments) -> None:
    (found, *_) = generative([folder], replace(arguments, steps=[4], top_p=[1.0]))
    assert found["versions"] == versions()
    assert found["hardware"]["num_threads"] == torch.get_num_threads()
    assert found["judge_weights"] not in (None, found["cell"]["weights"])


def test_samples_are_generated_on_the_cpu_of_a_mac(
    folder: str, arguments: GenerativeArguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU of a Mac has no float64."""
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: torch.device("mps"))
    accelerator = create_autospec(Accelerator, side_effect=InterruptedError)
    monkeypatch.setattr("common.processes.Accelerator", accelerator)
    with pytest.raises(InterruptedError):
        generative([folder], arguments)
    accelerator.assert_called_once_with(cpu=True)


def test_two_processes_continue_a_stopped_run_with_the_results_of_one(
    folder: str, arguments: GenerativeArguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [folder, "--judge", arguments.judge, "--steps", "4", "12", "--top_p", "1.0", "0.5", "--num_samples", "5"]
    one, two = ([*options, "--batch_size", "2", "--output_dir", str(tmp_path / name)] for name in ("one", "two"))
    main(one)
    with monkeypatch.context() as patch:
        stop_at(5, patch)
        with pytest.raises(KeyboardInterrupt):
            main(two)
    run_in_two_processes("eval/generative.py", *two, cache=tmp_path / "cache")
    names = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.jsonl"))
    samples = [[(tmp_path / run / name).read_text().split("\n", 1)[1] for name in names] for run in ("one", "two")]
    assert len(names) == 4
    assert samples[0] == samples[1]
    assert (tmp_path / "one/table.md").read_text() == (tmp_path / "two/table.md").read_text()
    cells = (json.loads((tmp_path / run / "results.json").read_text())["cells"] for run in ("one", "two"))
    for expected, cell in zip(*cells, strict=True):
        assert cell["hardware"]["num_processes"] == 2
        changing = {"seconds", "hardware"}
        assert {key: cell[key] for key in cell.keys() - changing} == {
            key: expected[key] for key in cell.keys() - changing
        }
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == sorted(
        path.name for path in (tmp_path / "one").iterdir()
    )  # no unfinished batches are left


def test_the_mask_token_does_not_make_tokenizers_different(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["ab abc"] * 9, 258)
    folder = save_judge(tmp_path / "judge", tokenizer)
    content = json.loads((tmp_path / "judge/tokenizer.json").read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "<|mask|>"]
    (tmp_path / "judge/tokenizer.json").write_text(json.dumps(content))
    plain = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "judge/tokenizer.json"), eos_token="<|endoftext|>")
    plain.save_pretrained(folder)
    judge, ids = Judge(folder, torch.device("cpu")), tokenizer.convert_tokens_to_ids(["a", "b"])
    assert judge.encode([Sample(ids, "ab")], tokenizer) == [ids]  # not the id of "ab"
    judge.tokenizer.eos_token = None
    samples, other = [Sample([], "a<|endoftext|>b")], train_tokenizer(["xy xyz"] * 9, 258)
    assert judge.encode(samples, other) == [judge.tokenizer("a\nb").input_ids]
