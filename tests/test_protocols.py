# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import json
import lzma
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from torch.utils.data import BatchSampler, DistributedSampler
from transformers import GPT2Config, PreTrainedConfig, PreTrainedTokenizerFast

from common.encoding import encode_documents
from eval.detokenizers import detokenize_lambada, detokenize_lm1b, detokenize_ptb, detokenize_wikitext
from eval.protocols import EVALUATION_SETS, cut_into_sequences, load_texts, published_precisions, released_subset
from modeling_aogpt import AOGPTConfig

pytestmark = pytest.mark.usefixtures("datasets_cache")


@pytest.mark.parametrize(
    ("detokenize", "text", "expected"),
    [
        (detokenize_wikitext, " = Valkyria Chronicles III = \n", " = Valkyria Chronicles III =\n"),
        (detokenize_wikitext, " = = = Early years = = = \n", " === Early years ===\n"),
        (
            detokenize_wikitext,
            " It cost 1 @,@ 000 @.@ 5 ( in the mid @-@ 1990s ) ; the boys ' club 's \" best \" one : 20 ° N . \n",
            " It cost 1,000.5 (in the mid-1990s); the boys'club's \"best\" one: 20°N.\n",
        ),
        (detokenize_wikitext, "", ""),
        (detokenize_ptb, "mr. <unk> 's shares do n't cost $ N N N N", "mr. ?'s shares don't cost $1 1 1 N"),
        (detokenize_ptb, "the banks ' no. # N and\\/or", "the banks' no. #1 and/or"),
        (detokenize_lm1b, "He said : \" It 's $ 5 , is n't it ? \"", "He said: \"It's $5, is n't it?\""),
        (detokenize_lm1b, "See http : / / a.com ( or [ b ] ) now .", "See http://a.com (or [b]) now."),
        (detokenize_lm1b, "Yes ! No ? Mr . A / B ; the end !", "Yes! No? Mr. A/B; the end!"),
        (detokenize_lambada, " “ Well , ” she said \n", '\n" Well , " she said'),
    ],
)
def test_detokenizers(detokenize: Any, text: str, expected: str) -> None:
    assert detokenize(text) == expected


def documents(num_rows: int, tokens_per_row: int = 2) -> Dataset:
    rows = [[row] * (tokens_per_row - 1) + [-1] for row in range(num_rows)]
    return Dataset.from_dict({"input_ids": rows, "num_tokens": [len(row) for row in rows], "token_bytes": rows})


def test_the_published_protocol_drops_the_remainder_of_each_worker() -> None:
    # 20 rows for 8 workers: four get 3 rows (6 ids), four get 2 rows (4 ids). Sequences have 5 ids.
    sequences = cut_into_sequences(documents(20), 5, "published")
    assert [sequence["input_ids"] for sequence in sequences] == [
        [row, -1, row + 1, -1, row + 2] for row in (0, 3, 6, 9)
    ]
    assert {sequence["num_tokens"] for sequence in sequences} == {5}


def test_the_published_protocol_drops_the_remainder_of_each_batch_of_1000_rows() -> None:
    # 8012 rows: four workers get 1002, four get 1001. 1000 rows fill 285 sequences of 7 ids, the rest fills none.
    sequences = cut_into_sequences(documents(8012), 7, "published")
    assert len(sequences) == 8 * 285
    firsts = [sequence["input_ids"][0] for sequence in sequences[::285]]
    assert firsts == [0, 1002, 2004, 3006, 4008, 5009, 6010, 7011]


@pytest.mark.parametrize("num_processes", [2, 4, 8])
def test_the_released_subset_is_that_of_a_distributed_sampler(num_processes: int) -> None:
    sequences = range(1001)
    scored = set()
    for rank in range(num_processes):
        sampler = DistributedSampler(sequences, num_replicas=num_processes, rank=rank)
        batches = list(BatchSampler(sampler, 8, drop_last=False))[: 16 // num_processes]
        scored.update(chain.from_iterable(batches))
    assert released_subset("lambada", 1001) == sorted(scored)
    assert len(scored) == 128


def test_the_released_subset_of_ptb_and_of_small_sets_is_all_of_them() -> None:
    assert released_subset("ptb", 300) == list(range(300))
    assert released_subset("lambada", 100) == list(range(100))


@pytest.mark.parametrize(
    ("config", "left_to_right", "any_order"),
    [
        (AOGPTConfig(), "bf16", "no"),
        (AOGPTConfig(target_injection="input"), "bf16", "bf16"),
        (GPT2Config(), "no", "no"),
    ],
)
def test_precisions_are_those_of_the_released_scripts(
    config: PreTrainedConfig, left_to_right: str, any_order: str
) -> None:
    precisions = {"left_to_right": left_to_right, "any_order": any_order, "ensemble": "no"}
    assert published_precisions(config) == precisions


def test_the_clean_protocol_drops_nothing() -> None:
    sequences = cut_into_sequences(documents(20), 6, "clean")
    assert list(chain.from_iterable(sequence["input_ids"] for sequence in sequences)) == list(
        chain.from_iterable(documents(20)["input_ids"])
    )
    assert [sequence["num_tokens"] for sequence in sequences] == [6] * 6 + [4]


def test_text_that_is_shorter_than_a_sequence() -> None:
    assert len(cut_into_sequences(documents(3), 1024, "clean")) == 1
    with pytest.raises(ValueError, match=r"has only 6 tokens\. .* None of these parts"):
        cut_into_sequences(documents(3), 1024, "published")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    files = {
        "lambada/lambada_test.jsonl": json.dumps({"text": "“ a b ”"}) + "\n" + json.dumps({"text": "c"}) + "\n",
        "wikitext-2-raw/wiki.train.raw": " \n = a = \n \n b @-@ c . \n",
        "wikitext-103-raw/wiki.valid.raw": " d \n",
        "ptb/ptb.test.txt": " a <unk> \n b N N c \n",
        "lm1b/news.en.heldout-00000-of-00050": "b . \n",
        "lm1b/news.en.heldout-00001-of-00050": "a , b . \n",
    }
    for name, text in files.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("name", "split", "texts"),
    [
        ("lambada", None, ['\n" a b "', "\nc"]),
        ("wikitext2", None, ["", " = a =\n", "", " b-c.\n"]),
        ("wikitext103", "validation", [" d\n"]),
        ("ptb", None, ["a ?", "b 1 1 c"]),
        ("lm1b", None, ["b .", "a, b."]),
    ],
)
def test_local_files_have_the_same_rows_as_the_hub(
    data_dir: Path, name: str, split: str | None, texts: list[str]
) -> None:
    assert load_texts(name, str(data_dir), split)["text"][:] == texts


def test_compressed_local_files(data_dir: Path) -> None:
    path = data_dir / "ptb/ptb.test.txt"
    (data_dir / "ptb/ptb.test.txt.xz").write_bytes(lzma.compress(path.read_bytes()))
    path.unlink()
    assert load_texts("ptb", str(data_dir))["text"][:] == ["a ?", "b 1 1 c"]


def test_every_row_ends_with_end_of_text(data_dir: Path, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    tiny_tokenizer.add_special_tokens({"mask_token": "<mask>"})
    rows = encode_documents(load_texts("lambada", str(data_dir)), tiny_tokenizer, with_token_bytes=True)
    assert [ids[-1] for ids in rows["input_ids"]] == [tiny_tokenizer.eos_token_id] * 2
    assert rows["num_bytes"][:] == [len('\n" a b "') + 1, len("\nc") + 1]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("wikitext", {}, "`name` must be one of 'lambada', 'wikitext2', .* but is 'wikitext'"),
        ("ptb", {"data_dir": "nowhere"}, r"nowhere/ptb/ptb\.test\.txt .* does not exist.*`data_dir`"),
        ("ptb", {"split": "valid"}, "`split` must be one of 'train', 'validation', 'test' for ptb, but is 'valid'"),
        (
            "ptb",
            {"split": "train"},
            r"/ptb/ptb\.train\.txt \(the train split of ptb\) does not exist, .* set another `split`",
        ),
        ("lm1b", {"split": "train"}, "With `data_dir`, lm1b has only the split 'test', but `split` is 'train'"),
        ("ptb", {"content": ""}, "ptb.test.txt is empty"),
        ("ptb", {"content": " \n\n"}, r"\(the test split of ptb\) contains no text"),
        ("lambada", {"content": "a b c"}, "cannot be read as json"),
        ("lambada", {"content": '{"body": "a"}\n'}, "no column 'text'"),
    ],
)
def test_bad_data_folders(data_dir: Path, name: str, changes: dict[str, str], message: str) -> None:
    if "content" in changes:
        (data_dir / EVALUATION_SETS[name].local.format(split="test")).write_text(changes.pop("content"))
    arguments = {"data_dir": str(data_dir)} | changes
    with pytest.raises(ValueError, match=message):
        load_texts(name, **arguments)


def test_error_without_a_network_names_the_local_files() -> None:
    with pytest.raises(ValueError, match=r"ptb could not be loaded from the Hub .* set `data_dir` to a folder"):
        load_texts("ptb")


def test_unexpected_number_of_rows_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Dataset.from_dict({"sentence": ["a", "b"]})
    monkeypatch.setattr("eval.protocols.load_dataset", lambda *_, **__: rows)
    with pytest.raises(ValueError, match="must have 3761 documents, but 2 were loaded"):
        load_texts("ptb")
