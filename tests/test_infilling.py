# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import gzip
import json
import math
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from aogpt.texts import decode_after, lacks_space
from common.files import read_json
from common.tokenizers import train_tokenizer
from eval.estimates import wilson_interval
from eval.infilling import (
    BEFORE,
    PREDICTED,
    Filler,
    Gap,
    evaluate,
    fill_in,
    find_sentences,
    main,
    make_gaps,
    make_sentence_gaps,
)
from eval.journal import Journal
from modeling_aogpt import AOGPTForAnyOrderLM
from modeling_aogpt.infill import encode_between_masks
from modeling_aogpt.tokenization import add_mask_token, load_tokenizer
from tests.references import random_model
from tests.several_processes import run_in_two_processes
from tests.tokenizers_of_all_kinds import KINDS
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
    assert len(make_gaps(documents, 200, 4, seed=0)) == 100
    numbered = [[number, number] for number in range(9)]
    assert [gap.ids[0] for gap in make_gaps(numbered, 3, 4, seed=0)] == [0, 3, 6]  # evenly spaced
    with pytest.raises(ValueError, match="No held-out document has two tokens"):
        make_gaps([[3], [1]], 3, 4, seed=0)


@pytest.fixture
def words() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a word of three bytes, such as " wb", for each id. Only end-of-text has no blank."""
    vocabulary = {"<eos>": EOS} | {f"▁w{chr(ord('a') + token)}": token for token in range(1, 11)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary)), eos_token="<eos>")


@pytest.fixture(scope="module")
def single_bytes() -> PreTrainedTokenizerBase:
    """Return a tokenizer with a token for each byte, and end-of-text."""
    return train_tokenizer(["ab"], 257)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two three! (Four?) 5.5 six. Seven", [" Two three!", " (Four?)", " 5.5 six."]),
        ("if a:\n    b\n\n\tc.d\n\u00e9\ne", ["    b", "\tc.d", "\u00e9"]),
        ("One. Two.", []),
        ("One.\n" + "x" * 21 + "\ny", []),  # too long
    ],
)
def test_sentences_between_two_others(text: str, sentences: list[str], single_bytes: PreTrainedTokenizerBase) -> None:
    ids = single_bytes.encode(text)
    spans = find_sentences(ids, 20, single_bytes)
    assert [single_bytes.decode(ids[start : start + length]) for start, length in spans] == sentences
    assert len(make_sentence_gaps([ids] * 3, 2, 20, 0, single_bytes)) == 2 if spans else True


def test_sentences_have_only_whole_tokens() -> None:
    tokenizer = train_tokenizer(["a\n  bb cc\n  bb"] * 9, 262)
    ids = tokenizer.encode("a\n  bb cc\n  bb")
    assert [tokenizer.decode([token]) for token in ids] == ["a", "\n ", " bb", " cc", "\n ", " bb"]
    assert find_sentences(ids, 4, tokenizer) == [(2, 2)]
    ended = [*ids[:3], tokenizer.eos_token_id, *ids[3:]]  # end-of-text also ends a sentence
    assert find_sentences(ended, 4, tokenizer) == [(2, 1), (4, 1)]


def test_text_without_sentences_is_refused(single_bytes: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ValueError, match="No held-out document has a sentence of at"):
        make_sentence_gaps([single_bytes.encode("One. Two. Three.")], 1, 3, 0, single_bytes)


def test_models_trained_with_gaps_last_fill_them_in_from_left_to_right(
    model: AOGPTForAnyOrderLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate, orders = model.generate, []

    def record(*args: Any, **kwargs: Any) -> Any:
        orders.append(kwargs["order"] if "order" in kwargs else kwargs["generation_config"].order)
        return generate(*args, **kwargs)

    monkeypatch.setattr(model, "generate", record)
    filler, gap = Filler(model, 8, max_length=4, orders="gaps_last"), Gap([3, 1, 4, 5], 1, 2)
    for fill in filler.methods().values():
        fill(gap)
    assert set(orders) == {"left_to_right"}


@pytest.mark.parametrize("padded_length", [8, None])
def test_gaps_of_known_and_of_unknown_length(model: AOGPTForAnyOrderLM, padded_length: int | None) -> None:
    filler, gap, fillings = Filler(model, padded_length, max_length=4), Gap([3, 1, 4, 5], 1, 2), []
    for count in range(1, 5):
        ids = torch.tensor([[3, *[MASK] * count, 5, *[EOS] * ((padded_length or count + 2) - count - 2)]])
        settings = {"order": "confidence", "do_sample": False, "suppress_tokens": [EOS] if padded_length else None}
        fillings.append(model.generate(ids, **settings)[0, 1 : count + 1].tolist())
    whole = model.infill(torch.tensor([3, MASK, 5]), range(1, 5), padded_length)
    model.generation_config.update(repetition_penalty=5.0, num_steps=1)  # of the model; they have no effect here
    assert filler.with_unknown_length(gap) == fillings[int(whole.lengths) - 1]
    assert filler.with_known_length(gap) == fillings[1]


@pytest.mark.parametrize("padded_length", [8, None])
def test_suppressed_tokens_of_the_model_are_not_filled_in(model: AOGPTForAnyOrderLM, padded_length: int | None) -> None:
    gap, text = Gap([3, 1, 4, 5], 1, 2), set(range(1, MASK))
    filled = {token for fill in Filler(model, padded_length, 4).methods().values() for token in fill(gap)}
    model.generation_config.suppress_tokens = sorted(filled & text)
    for fill in Filler(model, padded_length, 4).methods().values():
        assert filled.isdisjoint({*fill(gap)} & text)


@pytest.mark.parametrize("padded_length", [8, None])
def test_models_with_several_ends_of_text_are_padded_with_the_first(padded_length: int | None) -> None:
    one, several = (random_model(eos_token_id=eos) for eos in (EOS, [EOS, 5]))
    gap = Gap([3, 1, 4, 2], 1, 2)
    fillers = [Filler(model, padded_length, max_length=3) for model in (one, several)]
    assert fillers[0].nats(gap, only_before=False) == fillers[1].nats(gap, only_before=False)
    for fill in fillers[1].methods().values():
        assert padded_length is None or not {EOS, 5}.intersection(fill(gap))


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


def test_left_to_right_continues_after_end_of_text(model: AOGPTForAnyOrderLM) -> None:
    """In packed text, a gap can contain the end of a text and the start of the next one."""
    filler, gap = Filler(model, None, max_length=4), Gap([3, 1, 4, 1, 5, 9], 1, 4)
    filled = filler.from_text_before(gap)
    model.config.eos_token_id = model.generation_config.eos_token_id = filled[1]
    assert filled[2:] != [filled[1]] * 2
    assert filler.from_text_before(gap) == filled


def evaluate_with(filler: Filler, gaps: list[Gap], tokenizer: PreTrainedTokenizerBase) -> dict[str, dict[str, Any]]:
    return evaluate(fill_in(filler, gaps, Journal()), gaps, tokenizer)


def test_scores_of_fillings(model: AOGPTForAnyOrderLM, words: PreTrainedTokenizerFast) -> None:
    filler = Filler(model, 8, max_length=4)
    ids = torch.tensor([[3, MASK, MASK, 5, *[EOS] * 4]])
    filled = model.generate(ids, order="confidence", do_sample=False)[0, :4].tolist()
    other = [filled[0], filled[1], (filled[2] + 1) % 11, filled[3]]
    results = evaluate_with(filler, [Gap(filled, 1, 2), Gap(other, 1, 2)], words)
    known = results["known length"]
    assert known["exact"] == 0.5
    num_bytes = sum(1 if token == EOS else 3 for ids in (filled, other) for token in ids[1:3])
    nats = filler.nats(Gap(filled, 1, 2), False) + filler.nats(Gap(other, 1, 2), False)
    assert known["bits_per_byte"] == pytest.approx(nats / math.log(2) / num_bytes)
    assert known["exact_interval"] == wilson_interval(0.5, 2)
    assert known["bits_per_byte_standard_error"] >= 0
    assert "bits_per_byte" not in results["length by the whole text"]
    assert list(evaluate_with(Filler(model, 8, 4, "left_to_right"), [Gap(filled, 1, 2)], words)) == [BEFORE]


def test_the_end_of_a_gap_counts_if_the_model_predicts_it() -> None:
    model = random_model(eos_token_id=EOS, max_gap_length=4)  # also if longer gaps are allowed
    filler, gap = Filler(model, None, 8, "gaps_last"), Gap([3, 1, 4, 5], 1, 2)
    output = model.infill(torch.tensor([3, MASK, 5]), range(1, 5), do_sample=False)
    filled = filler.methods()[PREDICTED](gap)
    assert filled == output.sequences[0, 1:-1].tolist()
    assert filler.nats_with_end(Gap([3, *filled, 5], 1, len(filled))) == pytest.approx(-output.log_probs.item())


def score(fillings: list[tuple[Gap, list[int]]], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Evaluate fillings of gaps of known length whose original tokens have one bit each."""
    remaining = [ids for _, ids in fillings]
    filler = SimpleNamespace(
        methods=lambda: {"known length": lambda gap: remaining.pop(0)},
        nats=lambda gap, only_before: gap.length * math.log(2),
    )
    return evaluate_with(filler, [gap for gap, _ in fillings], tokenizer)["known length"]


def test_the_fraction_of_right_lengths_is_that_of_chosen_lengths(
    model: AOGPTForAnyOrderLM, words: PreTrainedTokenizerFast
) -> None:
    gaps = [Gap([3, 1, 4, 5], 1, length) for length in (2, 1, 2, 2)]
    results = evaluate_with(Filler(model, 8, max_length=1), gaps, words)
    assert results["length by the whole text"]["length"] == 0.25  # a single length is tried
    assert "length" not in results["known length"]


def test_gaps_that_cut_characters_have_the_bytes_of_their_tokens(single_bytes: PreTrainedTokenizerBase) -> None:
    ids = [*single_bytes.encode("é🙂"), EOS]
    gaps = [(Gap(ids, 1, 2), [5, 5]), (Gap(ids, 3, 1), [5]), (Gap(ids, 5, 2), [5, 5])]
    assert score(gaps, single_bytes)["bits_per_byte"] == pytest.approx(1)


def test_matches_are_exact_if_the_bytes_are(single_bytes: PreTrainedTokenizerBase) -> None:
    _, last, letter = ids = single_bytes.encode("éa")
    first, end = Gap([last, letter], 0, 1), Gap([letter, last], 1, 1)  # incomplete characters in packed text
    assert score([(first, [last - 1])], single_bytes)["exact"] == score([(end, [ids[0]])], single_bytes)["exact"] == 0
    assert score([(first, [last]), (end, [last])], single_bytes)["exact"] == 1
    merges = train_tokenizer(["éa"] * 9, 259)
    (whole,), parts = merges.encode("éa"), [*merges.encode("é"), *merges.encode("a")]
    assert score([(Gap([whole, letter], 0, 1), parts)], merges)["exact"] == 1


@pytest.mark.usefixtures("datasets_cache")
def test_report_of_runs_on_text_that_is_not_ascii(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, out = write_config(tmp_path), tmp_path / "out"
    documents = [f"{first}{second}{end}" for first in "бдгкт" for second in "аео漢" for end in ("м", "μα", "字", "🙂л")]
    (tmp_path / "words.txt").write_text("\n".join(documents))
    sizes = ("--vocab_size", "257", "--sequence_length", "12")  # each token is a byte
    train(config, tmp_path / "decoder", *sizes)
    train(config, tmp_path / "encoder", *sizes, "--architecture", "encoder", "--objective", "masked_diffusion")
    train(config, tmp_path / "packed", *sizes, "--packing", "packed")
    train(config, tmp_path / "rival", *sizes, "--orders", "left_to_right")
    nats = Filler.nats

    def one_bit_per_token(filler: Filler, gap: Gap, only_before: bool) -> float:
        assert math.isfinite(nats(filler, gap, only_before))
        return gap.length * math.log(2)

    monkeypatch.setattr(Filler, "nats", one_bit_per_token)
    *folders, packed = (str(tmp_path / name) for name in ("decoder", "encoder", "rival", "packed"))
    options = ["--num_documents=5", "--max_length=3", "--max_gap=2"]
    with pytest.raises(SystemExit, match=r"must have the same gaps, but those of \S+packed differ from those of"):
        main([*folders, packed, *options, f"--output_dir={out}"])
    main([*folders, *options, f"--output_dir={out}"])
    main([packed, *options, f"--output_dir={tmp_path / 'packed_out'}"])
    results, of_packed = (
        read_json(folder / "results.json", ("runs",), "eval/infilling.py")["runs"]
        for folder in (out, tmp_path / "packed_out")
    )
    with pytest.raises(SystemExit, match=r"only 2 of the 12 tokens of a sequence of \S+packed would be left"):
        main([packed, *options, "--max_length=10"])
    assert [len(methods) for methods in (results | of_packed).values()] == [3, 1, 1, 3]
    methods = [scores for methods in (results | of_packed).values() for scores in methods.values()]
    scores = [scores for scores in methods if "bits_per_byte" in scores]
    assert [score["bits_per_byte"] for score in scores] == pytest.approx([1] * 6)
    assert [score["bits_per_byte_standard_error"] for score in scores] == pytest.approx([0] * 6, abs=1e-6)
    exact = results[folders[1]]["known length"]["exact"]
    line = re.escape(f"| {folders[1]} | known length | 5 |  | {exact:.1%} (")
    assert re.search(rf"^{line}.*\) \| 1\.000 ± 0\.000 \|$", (out / "report.md").read_text(), re.MULTILINE)


@pytest.mark.usefixtures("datasets_cache")
def test_report_of_sentences(tmp_path: Path) -> None:
    config, folder = write_config(tmp_path), tmp_path / "decoder"
    documents = [f"{first}{second}. Bb. Cc." for first in "abcdefg" for second in "abcdefg"]
    (tmp_path / "words.txt").write_text("\n".join(documents))
    train(config, folder, "--vocab_size", "257", "--sequence_length", "14")
    command = [str(folder), "--sentences", "--num_documents", "2", "--output_dir", str(tmp_path / "out")]
    main([*command, "--max_gap", "4", "--max_length", "4"])
    report = (tmp_path / "out" / "report.md").read_text()
    assert "A gap is a whole sentence or line of at most 4 tokens." in report
    assert "| known length | 2 |" in report
    with pytest.raises(SystemExit, match="`max_length` \\(3\\) must be at least"):
        main([*command, "--max_gap", "4", "--max_length", "3"])


ROWS = [
    {
        "task_id": "t/0",
        "entry_point": "f",
        "prompt": "def ",
        "suffix": "b c\n",
        "canonical_solution": "aa",
        "test": "x",
    },
    {"task_id": "t/1", "entry_point": "f", "prompt": "d" * 40, "suffix": "", "canonical_solution": " e\n", "test": "x"},
    {"task_id": "t/2", "prefix": "", "suffix": " b" * 30, "middle": "f"},
]


@pytest.fixture
def coder(tmp_path: Path) -> AOGPTForAnyOrderLM:
    """Write a model with the tokens " a", " b" and all bytes, and the file of `ROWS`. Return the model."""
    tokenizer = train_tokenizer([" a b"] * 9, 259)
    ids = {"mask_token_id": tokenizer.mask_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = random_model(vocab_size=tokenizer.mask_token_id, max_position_embeddings=16, **ids).float()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode()))
    return model


def test_samples_of_a_file(coder: AOGPTForAnyOrderLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = load_tokenizer("model")
    main(["model", "--file", "rows.jsonl.gz", "--max_length", "3", "--output_dir", "out"])
    before, after = tokenizer("def").input_ids, tokenizer("b c\n").input_ids  # the space belongs to the gap
    (filled,) = coder.infill(
        torch.tensor([*before, coder.config.mask_token_id, *after]), range(1, 4), order="confidence", do_sample=False
    ).sequences.tolist()
    lines = Path("out/samples/model/length-by-the-whole-text.jsonl").read_text().splitlines()
    samples = {sample["task_id"]: sample["completion"] for sample in map(json.loads, lines)}
    assert list(samples) == ["t/0", "t/1", "t/2"]
    assert samples["t/0"] == tokenizer.decode(filled[3 : len(filled) - 4], skip_special_tokens=True).removeprefix(" ")
    results = read_json(Path("out/results.json"), ("runs",), "eval/infilling.py")["runs"]["model"]
    solutions = ["aa", " e\n", "f"]
    exact = sum(one == other for one, other in zip(samples.values(), solutions, strict=True)) / 3
    assert results["length by the whole text"]["exact"] == exact
    assert [scores["cut"] for scores in results.values()] == [2] * 3  # all but the first text
    assert "| 3 (2 with cut text) |" in Path("out/report.md").read_text()
    monkeypatch.setattr(Filler, "with_unknown_length", lambda self, gap: gap.removed)
    main(["model", "--file", "rows.jsonl.gz", "--max_length", "3", "--output_dir", "all"])
    lines = Path("all/samples/model/length-by-the-whole-text.jsonl").read_text().splitlines()
    assert [json.loads(line)["completion"] for line in lines] == solutions
    for name in ("a/b", "a-b"):
        shutil.copytree("model", name)
    main(["a/b", "a-b", "--file", "rows.jsonl.gz", "--max_length", "3", "--output_dir", "two"])
    assert len([*Path("two/samples").iterdir()]) == 2
    for name, length in (("a/b", "3"), ("a-b", "3"), ("a-b", "2"), ("a-b", "2")):
        main([name, "--file", "rows.jsonl.gz", "--max_length", length])
    assert len([*Path("runs/infilling").glob("*/results.json")]) == 3


@pytest.mark.parametrize("spaces", [" ", "  ", "    "])
@pytest.mark.parametrize("kind", ["byte-level", "WordPiece", "characters"])
def test_a_space_before_a_gap_is_not_repeated_or_lost(kind: str, spaces: str) -> None:
    tokenizer = add_mask_token(KINDS[kind]())
    first, _ = encode_between_masks(f"the{spaces}{tokenizer.mask_token}.", tokenizer)
    has_space = lacks_space(first, f"the{spaces}", tokenizer)
    for text in ("cat", " cat") if kind == "characters" else ("cat",):
        ids = tokenizer(text if kind != "byte-level" else f" {text}", add_special_tokens=False).input_ids
        assert decode_after(first, ids, tokenizer, has_space) == text


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_after_a_special_token_has_no_added_space(kind: str) -> None:
    tokenizer = add_mask_token(KINDS[kind]())
    tokenizer.add_special_tokens({"additional_special_tokens": ["[/INST]"]})
    for prompt in ("a[/INST]", "[/INST]"):
        for text in ("cat sat", "the cat"):
            before = tokenizer(prompt, add_special_tokens=False).input_ids
            ids = tokenizer(prompt + text, add_special_tokens=False).input_ids[len(before) :]
            assert decode_after(before, ids, tokenizer) == text


def test_a_tokenizer_that_loses_bytes_is_refused(coder: AOGPTForAnyOrderLM, tmp_path: Path) -> None:
    words = Tokenizer(models.WordPiece({"[UNK]": 0, "f": 1, "##f": 2, "a": 3}, unk_token="[UNK]"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", eos_token="[EOS]")
    add_mask_token(tokenizer).save_pretrained(tmp_path / "model")
    ids = dict.fromkeys(("num_valid_tokens", "mask_token_id"), tokenizer.mask_token_id)
    coder.config.update(ids | {"eos_token_id": tokenizer.eos_token_id})
    coder.config.save_pretrained(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text('{"prefix": "a", "suffix": " a", "middle": " ff"}')
    with pytest.raises(SystemExit, match="lossless tokenizer"):
        main([str(tmp_path / "model"), "--file", str(tmp_path / "rows.jsonl"), "--output_dir", str(tmp_path / "out")])


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"prompt": "a", "suffix": "b"}', "`middle` must be text"),
        ('{"prompt": "a", "suffix": "b", "canonical_solution": ""}', "needs an answer"),
        ('{"prompt": "a", "suffix": "b", "canonical_solution": "cccccccccccccccc"}', "16 tokens .* no room"),
        ("[1]", "'list' object"),
        ("{", "Expecting"),
    ],
)
@pytest.mark.usefixtures("coder")
def test_rows_that_cannot_be_used(row: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text(json.dumps(ROWS[0]) + "\n" + row)
    with pytest.raises(SystemExit, match=f"Row 2 of rows.jsonl cannot be used: .*{problem}"):
        main(["model", "--file", "rows.jsonl", "--output_dir", "out"])
    with pytest.raises(SystemExit, match="`max_gap` has no effect"):
        main(["model", "--file", "rows.jsonl", "--max_gap", "3"])


@pytest.mark.usefixtures("coder")
def test_a_tokenizer_that_does_not_match_is_an_error(tmp_path: Path) -> None:
    model, file, out = (str(tmp_path / name) for name in ("model", "rows.jsonl.gz", "out"))
    train_tokenizer([" a b c"] * 9, 260).save_pretrained(model)
    with pytest.raises(SystemExit, match="its mask has the id 260, but the mask of the model has the id 259"):
        main([model, "--file", file, "--output_dir", out])


@pytest.mark.usefixtures("coder", "datasets_cache")
def test_two_processes_continue_a_stopped_run_with_the_results_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [str(tmp_path / "model"), "--file", str(tmp_path / "rows.jsonl.gz"), "--max_length", "3", "--output_dir"]
    one, two = tmp_path / "one", tmp_path / "two"
    main([*command, str(one)])
    add, calls = Journal.add, []

    def stop(self: Journal, *added: Any) -> None:
        calls.append(add(self, *added))
        if len(calls) == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", stop)
        with pytest.raises(KeyboardInterrupt):
            main([*command, str(two)])
    (written,) = two.glob(".unfinished-*/process-0.jsonl")
    assert len(written.read_text().split()) > 4
    run_in_two_processes("eval/infilling.py", *command, two, cache=tmp_path / "cache")
    names = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(two) for path in two.rglob("*") if path.is_file())
    assert len(names) == 5
    for name in names:  # kernels of other processes can round differently
        texts = [
            re.sub(r"\d\.\d+", lambda number: f"{float(number[0]):.4f}", (run / name).read_text()) for run in (two, one)
        ]
        assert texts[0].replace(str(two), str(one)) == texts[1]


@pytest.mark.usefixtures("coder", "datasets_cache")
def test_finished_gaps_of_another_configuration_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "remove", lambda self: None)  # as if stopped before the results were written
    monkeypatch.chdir(tmp_path)
    command = ["model", "--file", "rows.jsonl.gz", "--output_dir", "out"]
    main(command)
    (tmp_path / "model/generation_config.json").write_text("{}")
    for _ in range(2):
        main(command)
        assert len([*tmp_path.glob("out/.unfinished-*")]) == 2
