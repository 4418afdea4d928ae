# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Fine-tuning on examples: what is context and what has a loss, orders, errors, and runs."""

import copy
import json
import re
import shutil
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from datasets import Dataset, Features, List, Value
from packaging import version
from peft import LoraConfig, PeftConfig, PeftModel, PrefixTuningConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AddedToken, AutoModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from common.data import Data, load_data, load_data_of_run
from common.data_arguments import DataArguments
from common.examples import EXAMPLE, ExampleError, _encode_batch, encode_example, format_example, make_examples
from common.models import load_merged
from common.tokenizers import train_tokenizer, vocabulary_arguments
from eval.infilling import Filler
from eval.zero_shot import ScoringArguments, zero_shot
from model_cards.publish import PublishArguments, stage
from modeling_aogpt import (
    AOGPTConfig,
    AOGPTForAnyOrderLM,
    DataCollatorForAnyOrderLM,
    MDMEncoderConfig,
    MDMEncoderForMaskedLM,
)
from modeling_aogpt.infill import encode_between_masks
from modeling_aogpt.loading import find_base, find_model, load_model, read_config
from tests.killed_runs import Trainer, find_differences, find_wrong_losses, run_with_kills
from tests.tokenizers_of_all_kinds import KINDS
from tests.training_runs import results, train
from training.arguments import TrainingArguments
from training.batches import rows_of_samples
from training.checkpoints import checkpoints_in
from training.conversion.causal_lm import convert
from training.conversion.export_causal_lm import export
from training.export_checkpoint import main as export_checkpoint
from training.lora import add_lora
from training.model import create_model
from training.optimization import trainable_weights

TEXT = "the user says hello and the assistant answers in a few words, then the user asks again about 12 cats\n"
MARKED = (
    "{% for m in messages %}{{ m.role + ':\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|endoftext|>' }}{% endgeneration %}{% else %}{{ m.content + '<|endoftext|>' }}"
    "{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}"
)
UNMARKED = re.sub(r"\{% (end)?generation %\}", "", MARKED)
CHAT = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "words"},
    {"role": "user", "content": "again"},
    {"role": "assistant", "content": "12 cats"},
]
CHAT_TEXT = (
    "user:\nhello<|endoftext|>\nassistant:\nwords<|endoftext|>\nuser:\nagain<|endoftext|>\n"
    "assistant:\n12 cats<|endoftext|>\n"
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    tokenizer = train_tokenizer([TEXT], 280)
    tokenizer.chat_template = MARKED
    return tokenizer


@pytest.fixture(scope="module")
def model_folder(tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model_folder(tmp_path_factory.mktemp("model"), tokenizer, target_injection="none")


def save_model_folder(folder: Path, tokenizer: PreTrainedTokenizerBase, **settings: Any) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
    config = AOGPTConfig(**vocabulary_arguments(tokenizer), **sizes, position_encoding="rotary", **settings)
    AOGPTForAnyOrderLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def encode(tokenizer: PreTrainedTokenizerBase, **values: Any) -> tuple[list[int], list[int], bool]:
    row = encode_example(json.dumps(values), tokenizer, None)
    return row["input_ids"], row["labels"], row["in_turns"]


def answers(ids: list[int], labels: list[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the texts of the answers, and check that labels are ids."""
    assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))
    return re.findall(r"\[\[(.*?)\]\]", format_example(ids, labels, tokenizer, colours=False), re.DOTALL)


# -------------------------------------------------------------------------------------------------------- examples


def test_end_of_text_follows_an_answer_that_contains_it() -> None:
    tokenizer = KINDS["byte-level"]()
    for completion, num_ends in ((" cat<|endoftext|> sat on", 2), (" cat<|endoftext|>", 1), (" cat", 1)):
        ids, labels, _ = encode(tokenizer, prompt="the", completion=completion)
        assert ids[-1] == labels[-1] == tokenizer.eos_token_id
        assert labels.count(tokenizer.eos_token_id) == num_ends


def test_only_the_answers_of_a_chat_have_labels(tokenizer: PreTrainedTokenizerBase) -> None:
    ids, labels, in_turns = encode(tokenizer, messages=CHAT)
    assert ids == tokenizer(CHAT_TEXT).input_ids
    assert answers(ids, labels, tokenizer) == ["words<|endoftext|>", "12 cats<|endoftext|>"]
    assert in_turns


PLAIN = (
    "{{ tools | tojson if tools else '' }}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}{% endgeneration %}{{ eos_token }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_of_chats_are_right_with_any_tokenizer(kind: str) -> None:
    """An answer may be the first token, or end with whitespace. The template ends answers outside of their marks."""
    tokenizer = KINDS[kind]()
    tokenizer.chat_template = PLAIN
    chat = [("assistant", "I"), ("user", " saw the cat"), ("assistant", " the cat \n"), ("user", " the")]
    chat.append(("assistant", " sat"))
    ids, labels, _ = encode(tokenizer, messages=[{"role": role, "content": text} for role, text in chat])
    given = [label for label in labels if label != -100]
    assert tokenizer.decode(given, skip_special_tokens=True).split() == ["I", "the", "cat", "sat"]
    assert given.count(tokenizer.eos_token_id) == 3
    assert labels[ids.index(tokenizer.eos_token_id) + 1] == -100  # the user's text


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_begins_where_the_prompt_of_a_generation_ends(kind: str) -> None:
    """A token of the first word must not include the space before it, which belongs to the prompt."""
    tokenizer = KINDS[kind]()
    before, after = "{% if m.role == 'assistant' %}{{ 'the: ' }}{% generation %}", "{{ eos_token }}{% endgeneration %}"
    tokenizer.chat_template = (
        f"{{% for m in messages %}}{before}{{{{ m.content }}}}{after}{{% else %}}{{{{ m.content }}}}{{% endif %}}"
        "{% endfor %}{% if add_generation_prompt %}{{ 'the: ' }}{% endif %}"
    )
    chat = [{"role": "user", "content": "I saw"}, {"role": "assistant", "content": "the cat"}]
    ids, labels, _ = encode(tokenizer, messages=chat)
    prompt = tokenizer.apply_chat_template(chat[:1], add_generation_prompt=True, tokenize=False)
    num_given = labels.count(-100)
    assert ids[:num_given] == tokenizer(prompt, add_special_tokens=False).input_ids
    assert ids[num_given:] == labels[num_given:]


def test_answers_end_with_the_special_token_after_their_mark() -> None:
    """In templates for several families of models, it is not end-of-text, and the next message begins with it."""
    tokenizer = KINDS["byte-level"]()
    tokenizer.add_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.chat_template = PLAIN.replace("{{ eos_token }}", "<|end|><|end|>")
    ids, labels, _ = encode(tokenizer, messages=[*CHAT[:2], *CHAT[:2]])
    assert answers(ids, labels, tokenizer) == ["words<|end|>", "words<|end|>", "<|endoftext|>"]
    tokenizer.chat_template = PLAIN.replace("{% endg", "<|end|>\n{% endg").replace("eos_token", "'<|end|>'")
    ids, labels, _ = encode(tokenizer, messages=CHAT[:2])
    assert answers(ids, labels, tokenizer) == ["words<|end|>\n", "<|endoftext|>"]


def test_answers_whose_end_is_not_learned_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, warnings = KINDS["byte-level"](), []
    monkeypatch.setattr("common.examples.logger.warning_once", warnings.append)
    for end, count in (("{{ eos_token }}", 0), ("", 1), ("\n\n", 2)):  # end-of-text is added at the end of the chat
        tokenizer.chat_template = PLAIN.replace("{{ eos_token }}", end)
        encode(tokenizer, messages=CHAT)
        assert len(warnings) == count
        warnings.clear()


def test_a_prompt_may_end_inside_a_marked_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates of thinking models end it with `<think>` and a line break, here with the first letter of "the"."""
    tokenizer, warnings = KINDS["byte-level"](), []
    monkeypatch.setattr("common.examples.logger.warning_once", warnings.append)
    think = "{{ 't' }}{% if loop.last %}{{ 'he ' }}{% endif %}"
    template = (
        "{% for m in messages %}{{ m.role + ':\n' }}{% if m.role == 'assistant' %}{% generation %}THINK"
        "{{ m.content + eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant:\nt' }}{% endif %}"
    )
    tokenizer.chat_template = template.replace("THINK", think)
    ids, labels, _ = encode(tokenizer, messages=CHAT)
    prompt = tokenizer.apply_chat_template(CHAT[:3], add_generation_prompt=True, tokenize=False)
    given = tokenizer(prompt, add_special_tokens=False).input_ids
    assert ids[: len(given)] == given
    assert answers(ids, labels, tokenizer)[1] == "the 12 cats<|endoftext|>"
    assert not warnings
    without_prompt = tokenizer.chat_template.replace("assistant:\nt", "")
    only_last = template.replace("THINK", "{% if loop.last %}{{ 'the ' }}{% endif %}")
    for wrong in (template.replace("THINK", ""), only_last, without_prompt):
        tokenizer.chat_template = wrong
        encode(tokenizer, messages=CHAT)
        assert warnings.pop().endswith("must start each answer with the text of `add_generation_prompt`.")


def test_a_chat_that_ends_with_the_user_has_no_end(tokenizer: PreTrainedTokenizerBase) -> None:
    ids, labels, _ = encode(tokenizer, messages=CHAT[:3])
    assert tokenizer.decode(ids).endswith("again<|endoftext|>\n")
    assert answers(ids, labels, tokenizer) == ["words<|endoftext|>"]


def test_an_answer_that_must_not_be_learned_is_an_error(tokenizer: PreTrainedTokenizerBase) -> None:
    for key, value in (("weight", 0), ("train", False), ("training", False), ("trainable", False)):
        with pytest.raises(ExampleError, match=f"`{key}` 0"):
            encode(tokenizer, messages=[CHAT[0], CHAT[1] | {key: value}, *CHAT[2:]])
        assert encode(tokenizer, messages=[CHAT[0] | {key: value}, *CHAT[1:]])  # the user's messages are not learned


@pytest.mark.parametrize("template", [MARKED, UNMARKED])
def test_a_message_that_the_template_leaves_out_is_an_error(template: str) -> None:
    tokenizer = KINDS["byte-level"]()
    tokenizer.chat_template = template.replace("{% for m in messages", "{% for m in messages if m.role != 'system'")
    chat = [*CHAT[:2], {"role": "system", "content": "again"}, *CHAT[2:]]
    assert encode(tokenizer, messages=[*CHAT[:2], {"role": "system", "content": " "}, *CHAT[2:]])
    with pytest.raises(ExampleError, match="leaves out message 2"):
        encode(tokenizer, messages=chat)
    tokenizer.chat_template = template.replace("m.content", "(m.content | upper)")
    assert encode(tokenizer, messages=chat)


@pytest.mark.parametrize("template", [MARKED, UNMARKED])
def test_values_of_messages_that_the_template_leaves_out_give_a_warning(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("modeling_aogpt.tokenization.logger.warning_once", warnings.append)
    tokenizer = KINDS["byte-level"]()
    tools, chat = [{"name": "cat"}], [CHAT[0], CHAT[1] | {"thinking": "again", "weight": 1, "name": ""}]
    for read, left_out in (
        ("", {"thinking", "tools"}),
        ("{% set enable_thinking = 1 %}{{ tools }}", {"thinking"}),
        ("{{ m.thinking }}", {"tools"}),
        ("{{ m }}{{ tools }}", set()),
    ):
        tokenizer.chat_template = template.replace("{{ m.content", read + "{{ m.content")
        for values in ({"messages": chat}, {"prompt": chat[:1], "completion": chat[1:]}):
            encode(tokenizer, tools=tools, **values)
            assert {warning.split("`")[1] for warning in warnings} == left_out
            warnings.clear()


@pytest.mark.parametrize("rstrip", [False, True])
def test_lost_whitespace_around_texts_gives_a_warning(rstrip: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("common.examples.logger.warning_once", warnings.append)
    tokenizer = KINDS["byte-level"]()
    tokenizer.add_special_tokens({"extra_special_tokens": [AddedToken("<|assistant|>", rstrip=rstrip)]})  # as in Phi-4
    tokenizer.chat_template = PLAIN.replace("{{ m.content", "{{ '<|assistant|>\n' + m.content")
    code = {"role": "assistant", "content": "    return x"}
    for values in (
        {"messages": [CHAT[0], code]},
        {"prompt": [CHAT[0]], "completion": [code]},
        {"prompt": "hello<|assistant|>", "completion": "\n\ncat"},
    ):
        ids, _, _ = encode(tokenizer, **values)
        assert ("<|assistant|>\n" in tokenizer.decode(ids)) == (not rstrip)
        assert len(warnings) == rstrip
        warnings.clear()
    encode(tokenizer, messages=CHAT[:2])  # only the template's own line break is lost
    assert not warnings
    tokenizer.chat_template = PLAIN.replace("m.content", "(m.content | trim)")
    encode(tokenizer, messages=[CHAT[0], code])
    assert "outer spaces" in warnings[0]


def test_thoughts_that_a_template_drops_give_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates like DeepSeek-R1's drop the thoughts of all answers, and those like Qwen3's of earlier ones."""
    warnings: list[str] = []
    monkeypatch.setattr("common.examples.logger.warning_once", warnings.append)
    tokenizer = KINDS["byte-level"]()
    answers = [{"role": "assistant", "content": f"<think>{thought}</think>cat"} for thought in ("a", "the")]
    for is_dropped, lengths in (("true", (2, 4)), ("not loop.last", (4,)), ("false", ())):
        drop = "{% if IS %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}"
        for marked in (PLAIN, re.sub(r"\{% (end)?generation %\}", "", PLAIN)):
            tokenizer.chat_template = marked.replace("{{ m.content }}", drop.replace("IS", is_dropped), 1)
            for length in (2, 4):
                chat = [CHAT[0], answers[0], CHAT[2], answers[1]][:length]
                for values in ({"messages": chat}, {"prompt": chat[:-1], "completion": chat[-1:]}):
                    encode(tokenizer, **values)
                    assert len(warnings) == (length in lengths)
                    assert all("thoughts" in warning for warning in warnings)
                    warnings.clear()


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizers_of_all_kinds_keep_texts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("common.examples.logger.warning_once", warnings.append)
    tokenizer = KINDS[kind]()
    encode(tokenizer, prompt="I saw a", completion=" cat (the un)")
    encode(tokenizer, prefix="I saw", middle=" the", suffix=" cat.")
    assert not warnings


@pytest.mark.parametrize("null", ["in tools", "in arguments", "in a message", "nowhere"])
def test_nulls_that_objects_lose_are_reported(null: str, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("common.examples.logger.warning_once", warnings.append)
    schema = {"type": "string", "default": None if null == "in tools" else ""}
    call = {"function": {"name": "f", "arguments": {"c": None if null == "in arguments" else ""}}}
    message = CHAT[1] | {"tool_calls": [call], "name": None if null == "in a message" else ""}
    row = {"prompt": [CHAT[:1]], "completion": [[message]], "tools": [[{"name": "f", "parameters": {"c": schema}}]]}
    (made,) = make_examples(Dataset.from_dict(row), tuple(row))[EXAMPLE]
    assert "null" not in made
    assert len(warnings) == (null in {"in tools", "in arguments"})


def test_tools_are_shown_without_the_nulls_of_parquet() -> None:
    tokenizer = KINDS["byte-level"]()
    tokenizer.chat_template = PLAIN
    shown, tools = {"a": "b"}, [{"name": "cat", "arguments": {"a": "b", "c": None}}]
    kinds = Features({"name": Value("string"), "arguments": dict.fromkeys("ac", Value("string"))})
    rows = Dataset.from_dict({"messages": [CHAT[:2]], "tools": [tools]}).cast_column("tools", List(kinds))
    (from_parquet,) = make_examples(rows, ("messages", "tools"))[EXAMPLE]
    # In JSON, the author has written the null.
    for given, arguments in ((json.loads(from_parquet)["tools"], shown), (json.dumps(tools), shown | {"c": None})):
        ids, _, _ = encode(tokenizer, messages=CHAT[:2], tools=given)
        assert json.loads(tokenizer.decode(ids).partition("hello")[0]) == [{"name": "cat", "arguments": arguments}]
    tokenizer.chat_template = {"default": MARKED, "tool_use": PLAIN}
    assert encode(tokenizer, messages=CHAT[:2], tools=tools)[0] == ids
    tokenizer.chat_template = "{{ messages[0].arguments | tojson }}" + PLAIN
    with pytest.raises(ExampleError, match=r"arguments.*object"):  # and not text in quotes
        encode(tokenizer, messages=[CHAT[0] | {"arguments": '{"a": 1}'}, CHAT[1]])


def test_without_marks_in_the_template_only_the_last_message_is_the_answer(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, **tokenizer.special_tokens_map)
    tokenizer.chat_template = UNMARKED
    for values in ({"messages": CHAT}, {"prompt": CHAT[:-1], "completion": CHAT[-1:]}):
        ids, labels, _ = encode(tokenizer, **values)
        assert ids == tokenizer(CHAT_TEXT).input_ids
        assert answers(ids, labels, tokenizer) == ["12 cats<|endoftext|>\n"]
        prompt = tokenizer.apply_chat_template(CHAT[:-1], add_generation_prompt=True, return_dict=True).input_ids
        assert ids[: len(prompt)] == prompt


def test_a_completion_follows_the_tokens_of_the_prompt(tokenizer: PreTrainedTokenizerBase) -> None:
    ids, labels, in_turns = encode(tokenizer, prompt="the user says hel", completion="lo")
    prompt = tokenizer("the user says hel").input_ids
    assert ids[: len(prompt)] == prompt  # although "hello" is one token
    assert labels[: len(prompt)] == [-100] * len(prompt)
    assert answers(ids, labels, tokenizer) == ["lo<|endoftext|>"]
    coloured = "\033[90mthe user says hel\033[0m\033[32mlo<|endoftext|>\033[0m"
    assert format_example(ids, labels, tokenizer, colours=True) == coloured
    assert in_turns


@pytest.mark.parametrize(
    ("prefix", "middle", "suffix"), [("the user ", "says", " hello"), ("hel", "lo", ""), ("", "a", "b")]
)
def test_the_text_around_a_gap_has_the_tokens_of_infill(
    tokenizer: PreTrainedTokenizerBase, prefix: str, middle: str, suffix: str
) -> None:
    ids, labels, in_turns = encode(tokenizer, prefix=prefix, suffix=suffix, middle=middle)
    before, after = encode_between_masks(f"{prefix}<|mask|>{suffix}", tokenizer)
    assert tokenizer.decode(ids) == prefix + middle + suffix
    assert [ids[: len(before)], ids[len(ids) - len(after) :]] == [before, after]
    assert [label == -100 for label in labels] == [
        not len(before) <= index < len(ids) - len(after) for index in range(len(ids))
    ]
    assert not in_turns


def test_the_start_token_is_left_out(tokenizer: PreTrainedTokenizerBase) -> None:
    row = encode_example(
        json.dumps({"prompt": "<|endoftext|>hello", "completion": "a"}), tokenizer, tokenizer.eos_token_id
    )
    assert tokenizer.decode(row["input_ids"]) == "helloa<|endoftext|>"


# ---------------------------------------------------------------------------------------------------------- orders


def draw(labels: list[int], in_turns: bool, seed: int, **settings: Any) -> list[int]:
    feature = {"input_ids": [7] * len(labels), "labels": labels, "in_turns": in_turns, "order_seed": seed}
    batch = DataCollatorForAnyOrderLM(pad_token_id=0, **settings)([feature, {"input_ids": [7] * 9}])
    assert batch["labels"][0].tolist() == labels + [-100] * (9 - len(labels))
    return batch["orders"][0].tolist()


def test_answers_follow_their_context() -> None:
    chat = [-100, -100, 7, 7, -100, 7, 7]
    for seed in range(5):
        assert draw(chat, True, seed, orders="gaps_last") == list(range(9))
        assert draw(chat, False, seed, orders="gaps_last") == [0, 1, 4, 2, 3, 5, 6, 7, 8]
        order = draw(chat, True, seed, orders="context_first", left_to_right_fraction=0.0)
        assert order[:2] + order[4:5] + order[7:] == [0, 1, 4, 7, 8]
        assert {*order[2:4]} == {2, 3}
        order = draw(chat, False, seed, orders="context_first", left_to_right_fraction=0.0)
        assert order[:3] == [0, 1, 4]
        assert {*order[3:7]} == {2, 3, 5, 6}
    assert len({tuple(draw(chat, True, seed, orders="context_first")) for seed in range(20)}) == 4


@pytest.mark.parametrize("in_turns", [False, True])
def test_an_example_may_have_no_context(in_turns: bool) -> None:
    for seed in range(5):
        assert draw([7] * 9, in_turns, seed, orders="gaps_last") == list(range(9))
        draw([7] * 9, in_turns, seed, orders="context_first")  # checks that all tokens have labels


# ------------------------------------------------------------------------------------------------------------ data


def write_rows(path: Path, rows: list[Any]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def load(corpus: str, tokenizer: Path, **options: Any) -> Data:
    options = {"packing": "documents", "sequence_length": 64, "validation_fraction": 0.3} | options
    return load_data(DataArguments([corpus], tokenizer=str(tokenizer), **options))


ROWS = [{"prompt": f"the user asks about {number} cats", "completion": f" words {number}"} for number in range(20)]


def test_examples_are_loaded_from_jsonl_and_parquet(model_folder: Path, tmp_path: Path, datasets_cache: None) -> None:
    data = load(write_rows(tmp_path / "examples.jsonl", ROWS), model_folder)
    Dataset.from_list(ROWS).to_parquet(tmp_path / "examples.parquet")
    again = load(str(tmp_path / "examples.parquet"), model_folder)
    assert data.train[:] == again.train[:]
    facts = data.facts
    assert facts["train"]["documents"] + facts["validation"]["documents"] == 20
    answers_of_train = [data.tokenizer.decode([t for t in row if t != -100]) for row in data.train["labels"]]
    known = {f"{row['completion']}<|endoftext|>" for row in ROWS}
    assert set(answers_of_train) < known
    assert data.validation["num_bytes"][:] == [
        len(data.tokenizer.decode([t for t in row if t != -100])) - len("<|endoftext|>") + 1
        for row in data.validation["labels"]
    ]
    assert data.mean_length == sum(map(len, data.train["input_ids"])) / len(data.train)


def test_numbers_that_json_changes_are_warned_of(
    model_folder: Path, tmp_path: Path, datasets_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("common.examples.logger.warning", warnings.append)
    for minima, count in (((0, 1), 0), ((0, 0.5), 1)):  # Arrow makes 0 and 0.5 two floats
        rows = [{"messages": CHAT, "tools": [{"minimum": minima[number % 2]}]} for number in range(40)]
        load(write_rows(tmp_path / f"{count}.jsonl", rows), model_folder, sequence_length=256)
        assert len(warnings) == count


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_an_answer_include_its_first_space(kind: str) -> None:
    examples = {"prompt": "I saw", "completion": " a cat"}, {"prefix": "I saw", "middle": " a", "suffix": " cat"}
    sizes = _encode_batch([*map(json.dumps, examples)], KINDS[kind](), list, None)["num_bytes"]
    assert sizes == [len(" a cat") + 1, len(" a")]  # a middle has no end


def test_each_end_of_an_answer_is_a_byte() -> None:
    tokenizer = KINDS["byte-level"]()
    tokenizer.chat_template = PLAIN
    one, two = ({"messages": CHAT[:2] * count} for count in (1, 2))
    sizes = _encode_batch([json.dumps(one), json.dumps(two)], tokenizer, list, None)["num_bytes"]
    assert sizes[1] == 2 * sizes[0]


def test_a_special_token_that_ends_an_answer_is_a_byte(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    tokenizer.chat_template = MARKED.replace("<|endoftext|>", "<|im_end|>")
    (size,) = _encode_batch([json.dumps({"messages": CHAT})], tokenizer, list, None)["num_bytes"]
    assert size == len("words") + 1 + len("12 cats") + 1 + 1  # the last one is end-of-text


def test_unknown_tokens_of_examples_are_reported(
    tmp_path: Path, datasets_cache: None, caplog: pytest.LogCaptureFixture
) -> None:
    KINDS["WordPiece"]().save_pretrained(tmp_path / "model")
    rows = [{"prompt": "a", "completion": f" {'b' * number} \u6771"} for number in range(1, 60)]
    load(write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "model")
    assert "because the tokenizer lacks characters" in caplog.text


def test_messages_without_loss_are_counted(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, datasets_cache: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    unmarked = copy.deepcopy(tokenizer)
    unmarked.chat_template = UNMARKED
    config = write_recipe(tmp_path, save_model_folder(tmp_path / "model", unmarked), [{"messages": CHAT}] * 4)
    held_out = write_rows(tmp_path / "held_out.jsonl", [{"messages": CHAT[:2]}])
    train(config, tmp_path / "run", f"--validation_files={held_out}")
    assert "4 messages of the assistant have no loss" in caplog.text


def test_examples_that_are_too_long_are_counted(
    model_folder: Path, tmp_path: Path, datasets_cache: None, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = write_rows(tmp_path / "examples.jsonl", [*ROWS, {"prompt": "a" * 80, "completion": "b"}] * 2)
    with pytest.raises(ValueError, match="drop_long_documents"):
        load(corpus, model_folder)
    data = load(corpus, model_folder, drop_long_documents=True, validation_fraction=0.5)
    assert data.facts["train"]["left_out_documents"] + data.facts["validation"]["left_out_documents"] == 2
    assert "longer than a sequence" in caplog.text


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"messages": CHAT}, {"messages": "hello"}], r"`messages` is list .* str in row 2 of .*second\.jsonl"),
        ([{"messages": CHAT}, {"messages": [{"role": "user"}]}], r"Row 2 of .*second\.jsonl.*`messages`"),
        ([{"messages": CHAT[:1]}], r"Row 1 of .*second\.jsonl.*answer"),
        ([{"prompt": "a", "completion": None}], r"Row 1 of .*second\.jsonl.*`completion`.*text.*None"),
        ([{"prompt": "a", "completion": ""}], r"answer"),
        ([{"prompt": "a <|mask|>", "completion": "b"}], r"mask token"),
        ([{"prefix": "a", "middle": None, "suffix": "c"}], r"`middle`.*None"),
        (
            [{"prefix": "a", "middle": "b<|endoftext|>", "suffix": ""}],
            r"Row 1 of .*second\.jsonl.*`middle`.*end-of-text",
        ),
    ],
)
def test_bad_examples_are_errors_that_name_the_row(
    model_folder: Path, tmp_path: Path, datasets_cache: None, rows: list[Any], message: str
) -> None:
    good = {
        "messages": [{"messages": [{**CHAT[0], "content": word}, CHAT[1]]} for word in TEXT.split()],
        "prompt": ROWS,
        "prefix": [{"prefix": word, "middle": " b", "suffix": "c"} for word in TEXT.split()],
    }
    write_rows(tmp_path / "first.jsonl", good[next(iter(rows[0]))])
    write_rows(tmp_path / "second.jsonl", rows)
    with pytest.raises(ValueError, match=message):
        load(str(tmp_path / "*.jsonl"), model_folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"packing": "packed"}, "packing"),
        ({"context_marks": "[]"}, "context_marks"),
        ({"packing": "packed", "streaming": True}, "streaming"),
        ({"tokenizer": None}, "init_from"),
    ],
)
def test_options_that_examples_do_not_support(
    model_folder: Path, tmp_path: Path, datasets_cache: None, options: dict[str, Any], message: str
) -> None:
    arguments = {"packing": "documents", "tokenizer": str(model_folder)} | options
    with pytest.raises(ValueError, match=message):
        load_data(DataArguments([write_rows(tmp_path / "examples.jsonl", ROWS)], **arguments))


# ------------------------------------------------------------------------------------------------------------ runs

RECIPE = """
packing: documents
sequence_length: 64
validation_fraction: 0.3
orders: gaps_last
max_steps: 6
batch_size: 4
learning_rate: 0.01
warmup_steps: 1
ema_decay: 0.5
eval_steps: 3
save_steps: 2
num_samples: 0
tracker: none
"""


def write_recipe(folder: Path, model: Path, rows: list[Any]) -> Path:
    corpus = write_rows(folder / "examples.jsonl", rows)
    (folder / "finetune.yaml").write_text(f"{RECIPE}\ninit_from: {model}\ncorpus: {corpus}")
    return folder / "finetune.yaml"


def test_run_learns_the_answers(
    model_folder: Path, tmp_path: Path, datasets_cache: None, capsys: pytest.CaptureFixture
) -> None:
    config = write_recipe(tmp_path, model_folder, ROWS)
    train(config, tmp_path / "whole")
    train(config, tmp_path / "passes", "--per_device_batch_size=1")
    assert "[[ words" in (shown := capsys.readouterr().err)
    assert "no loss" not in shown
    loss, again = (results(tmp_path / name)["loss_curve"]["loss"] for name in ("whole", "passes"))
    assert loss == pytest.approx(again)  # although the passes have other lengths
    (first, last) = results(tmp_path / "whole")["evaluations"]
    assert last["left_to_right"] < first["left_to_right"]
    sizes, count = load(str(tmp_path / "examples.jsonl"), model_folder).train["num_tokens"][:], last["step"] * 4
    assert len(set(sizes)) > 1
    samples = rows_of_samples([*range(count)], len(sizes), 0)
    assert results(tmp_path / "whole")["tokens"] == sum(sizes[row] for row in samples)
    assert load_data_of_run(tmp_path / "whole").facts == results(tmp_path / "whole")["corpus"]
    earlier = results(tmp_path / "whole")  # a run of an earlier version
    del earlier["corpus"]["held_out_ids"]
    (tmp_path / "whole/results.json").write_text(json.dumps(earlier))
    load_data_of_run(tmp_path / "whole")


def test_evaluation_scores_only_the_answers(model_folder: Path, tmp_path: Path, datasets_cache: None) -> None:
    gap = [{"prefix": "the user says", "middle": f" {word}", "suffix": " and"} for word in TEXT.split()]
    config = write_recipe(tmp_path, model_folder, gap)
    train(config, tmp_path / "run", "--learning_rate=1e-12", "--max_gap_length=3")
    assert read_config(tmp_path / "run" / "model").max_gap_length == 3
    data = load(str(tmp_path / "examples.jsonl"), model_folder)
    model = AOGPTForAnyOrderLM.from_pretrained(model_folder).eval()
    nats = 0.0
    for ids, labels in zip(data.validation["input_ids"], data.validation["labels"], strict=True):
        is_answer = torch.tensor([labels]) != -100
        nats -= float(model.log_likelihood(torch.tensor([ids]), targets=is_answer).log_likelihood)
    bits = nats / sum(data.validation["num_bytes"]) / torch.log(torch.tensor(2.0)).item()
    assert results(tmp_path / "run")["evaluations"][-1]["left_to_right"] == pytest.approx(bits, rel=1e-5)


def test_the_facts_of_a_run_depend_on_the_chat_template(
    model_folder: Path, tmp_path: Path, datasets_cache: None
) -> None:
    shutil.copytree(model_folder, tmp_path / "model")
    chats = [{"messages": [{"role": "user", "content": f"{number}"}, CHAT[1]]} for number in range(20)]
    corpus, template = write_rows(tmp_path / "chats.jsonl", chats), tmp_path / "model" / "chat_template.jinja"
    before = load(corpus, tmp_path / "model").facts
    template.write_text(template.read_text().replace(":", ";"))  # gives the same number of tokens
    after = load(corpus, tmp_path / "model").facts
    assert {name for name in before if before[name] != after[name]} == {"held_out_ids"}


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (ROWS, ("--orders=random",), "orders=gaps_last"),
        ([{"prefix": "a", "middle": "b", "suffix": "c"}] * 9, ("--orders=left_to_right",), "orders=gaps_last"),
        (ROWS, ("--max_gap_length=3", "--orders=gaps_last"), "max_gap_length"),
        ([{"prefix": "a", "middle": "b", "suffix": "c"}] * 9, ("--left_to_right_fraction=0.5",), "fraction.*no effect"),
        (
            [{"prefix": "a", "middle": "b", "suffix": "c"}] * 9,
            ("--distillation_weight=1", "--left_to_right_fraction=0.5"),
            "distillation_weight.*all context comes first",
        ),
        (ROWS, ("--lora_alpha=3",), "lora_alpha"),
        ([{"prompt": "a", "completion": "2024-01-01"}] * 9, (), "completion.*Parquet"),
        (ROWS, ("--quantization=int8",), "lora_rank"),
        (ROWS, ("--lora_rank=2", "--init_from=null"), "init_from"),
        (ROWS, ("--lora_rank=2", "--max_gap_length=3", "--orders=gaps_last"), "max_gap_length"),
        (ROWS, ("--lora_rank=2", "--lora_targets", "queries"), "lora_targets"),
        (ROWS, ("--lora_rank=2", "--lora_targets", "lm_head"), "lora_targets"),
    ],
)
def test_settings_that_cannot_be_used(
    model_folder: Path, tmp_path: Path, datasets_cache: None, rows: list[Any], options: tuple[str, ...], message: str
) -> None:
    (tmp_path / "validation.jsonl").write_text(json.dumps(dict.fromkeys(rows[0], "cats")))
    config = write_recipe(tmp_path, model_folder, rows)
    with pytest.raises(SystemExit, match=message):
        train(config, tmp_path / "run", f"--validation_files={tmp_path / 'validation.jsonl'}", *options)


# ------------------------------------------------------------------------------------------------------------ LoRA

LORA = ("--lora_rank=2", "--learning_rate=0.05")


def logits(model: Any) -> torch.Tensor:
    ids = torch.arange(8)[None]
    return model.eval()(ids, orders=torch.tensor([[3, 1, 0, 7, 2, 6, 5, 4]])).logits


def test_lora_trains_an_adapter(model_folder: Path, tmp_path: Path, datasets_cache: None) -> None:
    config = write_recipe(tmp_path, model_folder, ROWS)
    train(config, tmp_path / "run", *LORA, "--max_steps=30", "--logging_steps=5")
    state = load_file(checkpoints_in(tmp_path / "run")[-1])
    assert {name.partition(".")[0] for name in state} == {
        "weights",
        "average",
        "exp_avg",
        "exp_avg_sq",
        "step",
        "losses",
    }
    assert all("lora_" in name for name in state if name != "losses")
    adapter = tmp_path / "run" / "model"
    names = {path.name for path in adapter.iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json"} <= names - {"README.md"} == names
    assert PeftConfig.from_pretrained(adapter).base_model_name_or_path == str(model_folder)

    base = AutoModel.from_pretrained(model_folder)
    expected = logits(PeftModel.from_pretrained(base, adapter))
    assert not torch.allclose(expected, logits(AutoModel.from_pretrained(model_folder)), atol=1e-2)
    torch.testing.assert_close(logits(load_model(find_model(tmp_path / "run"))), expected)
    torch.testing.assert_close(logits(load_merged(adapter)), expected)
    losses = results(tmp_path / "run")["loss_curve"]["loss"]
    assert losses[-1] < losses[0]
    export_checkpoint([str(tmp_path / "run"), str(tmp_path / "again")])
    torch.testing.assert_close(logits(load_model(tmp_path / "again")), expected)
    with pytest.raises(SystemExit, match=r"init_from.*adapter"):  # it would be replaced by a new one
        train(config, tmp_path / "more", *LORA, f"--init_from={adapter}")


def test_an_adapter_learns_to_end_gaps(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, datasets_cache: None
) -> None:
    """The initial model must predict ends of gaps, because an adapter has no configuration of a model."""
    base = save_model_folder(tmp_path / "base", tokenizer, max_gap_length=3)
    words = sorted(set(TEXT.split()))
    gap = [
        {"prefix": f"{one} {other}", "middle": " a", "suffix": " and the user says words"}
        for one, other in product(words, words)
    ]
    config = write_recipe(tmp_path, base, gap)
    options = ("--lora_rank=8", "--learning_rate=0.03", "--max_steps=100", "--eval_steps=100", "--seed=1")
    train(config, tmp_path / "run", *options, "--max_gap_length=3")
    model = load_merged(find_model(tmp_path / "run"))
    text = f"{words[0]} {words[1]}{tokenizer.mask_token} and the user says words"
    output = model.infill(text, tokenizer=tokenizer, do_sample=False)
    assert output.texts == [text.replace(tokenizer.mask_token, " a")]
    assert output.log_probs.exp().item() > 0.5


def test_an_adapter_of_the_embeddings_contains_only_trained_weights(
    model_folder: Path, tmp_path: Path, datasets_cache: None
) -> None:
    config = write_recipe(tmp_path, model_folder, ROWS)
    train(config, tmp_path / "run", *LORA, "--lora_targets=embed_tokens")
    adapter = tmp_path / "run" / "model"
    names = {name.rpartition(".")[2] for name in load_file(adapter / "adapter_model.safetensors")}
    assert names == {"lora_embedding_A", "lora_embedding_B"}
    merged, ids = load_merged(adapter), torch.arange(280)[:, None]
    torch.testing.assert_close(merged(ids).logits, load_model(adapter)(ids).logits)
    weights = [model.model.embed_tokens.weight for model in (merged, load_model(model_folder))]
    assert not torch.allclose(*weights, atol=1e-2)


def test_killed_run_with_lora_ends_like_an_uninterrupted_one(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    config = write_recipe(tmp_path, model_folder, ROWS)
    trainer = Trainer([str(config), *LORA, "--max_steps=30", "--eval_steps=30"])
    uninterrupted = trainer.attempt(tmp_path / "uninterrupted")
    attempts = run_with_kills(trainer, tmp_path / "killed", kills=2, num_steps=30, seed=0)
    assert [attempt.killed for attempt in attempts] == [True, True, False]
    assert find_wrong_losses(uninterrupted.losses, attempts) == []
    assert find_differences(tmp_path / "uninterrupted", tmp_path / "killed") == []
    adapters = (load_file(tmp_path / name / "model/adapter_model.safetensors") for name in ("uninterrupted", "killed"))
    assert all(torch.equal(*pair) for pair in zip(*map(dict.values, adapters), strict=True))


@pytest.mark.parametrize("target_injection", ["none", "adaln"])
@pytest.mark.parametrize(("quantization", "library"), [("int8", "torchao"), ("nf4", "bitsandbytes")])
def test_quantized_weights_have_gradients_and_runs_resume(
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quantization: str,
    library: str,
    target_injection: str,
) -> None:
    bitsandbytes = pytest.importorskip(library)
    model_folder = save_model_folder(tmp_path / "base", tokenizer, target_injection=target_injection)
    training = TrainingArguments(init_from=str(model_folder), lora_rank=2, quantization=quantization)
    model = create_model(read_config(model_folder), training, SimpleNamespace(distributed_type="NO", device="cpu"))
    reference = load_model(model_folder)
    add_lora(reference, training)
    for name, module in reference.named_modules():
        if name.endswith("base_layer"):
            weight = model.get_submodule(name).weight
            if quantization == "nf4":
                weight = bitsandbytes.functional.dequantize_4bit(weight, weight.quant_state)
            else:
                weight = weight.dequantize()
            assert 0 < (weight - module.weight).abs().max() < 0.5 * module.weight.abs().max()
            module.weight.data = weight
    reference.load_state_dict(
        {name: weight.detach() for name, weight in trainable_weights(model).items()}, strict=False
    )
    gradients = []
    for one in (model, reference):
        with torch.no_grad():
            logits(one)  # an evaluation comes before
        ids = torch.arange(8)[None]
        one.train()(ids, labels=ids).loss.backward()
        gradients.append([weight.grad for weight in trainable_weights(one).values()])
    torch.testing.assert_close(*gradients)

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    config = write_recipe(tmp_path, model_folder, ROWS)
    trainer = Trainer([str(config), *LORA, f"--quantization={quantization}", "--max_steps=20"])
    trainer.attempt(tmp_path / "uninterrupted")
    run_with_kills(trainer, tmp_path / "killed", kills=1, num_steps=20, seed=0)
    assert find_differences(tmp_path / "uninterrupted", tmp_path / "killed") == []
    changed = logits(load_model(find_model(tmp_path / "killed")))
    assert not torch.allclose(changed, logits(load_model(model_folder)), atol=1e-2)


@pytest.mark.parametrize("options", [LORA, ("--distillation_weight=1",)])
def test_the_base_model_must_not_change(
    model_folder: Path, tmp_path: Path, datasets_cache: None, options: tuple[str, ...]
) -> None:
    shutil.copytree(model_folder, tmp_path / "base")
    config = write_recipe(tmp_path, tmp_path / "base", ROWS)
    train(config, tmp_path / "run", *options)
    if options is LORA:
        settings, text = tmp_path / "base/config.json", (tmp_path / "base/config.json").read_text()
        settings.write_text(json.dumps(json.loads(text) | {"norm_eps": 0.5}))
        with pytest.raises(SystemExit, match=r"init_from.*norm_eps"):
            export_checkpoint([str(tmp_path / "run"), str(tmp_path / "again")])
        settings.write_text(text)
    model = AutoModel.from_pretrained(tmp_path / "base")
    model.lm_head.weight.data.add_(1.0)
    model.save_pretrained(tmp_path / "base")
    (tmp_path / "run" / "results.json").unlink()
    with pytest.raises(SystemExit, match=r"init_from.*weights"):
        train(config, tmp_path / "run", *options)


@pytest.mark.parametrize("target", ["embed_tokens", "lm_head"])
def test_an_adapter_of_one_of_two_tied_weights_is_merged_into_this_one(
    target: str, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    base = load_model(save_model_folder(tmp_path / "base", tokenizer, tie_word_embeddings=True, lm_head_bias=False))
    tuned = get_peft_model(base, LoraConfig(r=2, target_modules=[target], init_lora_weights=False))
    tuned.save_pretrained(tmp_path / "adapter")
    expected = logits(tuned)
    load_merged(tmp_path / "adapter").save_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(load_model(tmp_path / "merged")), expected)
    other = load_model(tmp_path / "base")
    other.resize_token_embeddings(pad_to_multiple_of=128)
    other.save_pretrained(tmp_path / "base")
    for load in (load_merged, load_model):
        with pytest.raises(ValueError, match=r"base.* vocabulary"):
            load(tmp_path / "adapter")


def test_peft_cannot_train_tokens_of_a_head_with_a_bias(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    base = load_model(save_model_folder(tmp_path / "base", tokenizer))
    base.lm_head.bias.data.fill_(1.0)
    expected = logits(base)
    tokens = {"embed_tokens": [1], "lm_head": [1]}
    tuned = get_peft_model(base, LoraConfig(r=2, target_modules=["o_proj"], trainable_token_indices=tokens))
    with pytest.raises(ValueError, match="omit the head's bias"):
        logits(tuned)
    with tuned.disable_adapter():
        torch.testing.assert_close(logits(tuned), expected)
    tuned.merge_adapter()
    torch.testing.assert_close(logits(tuned), expected)


def test_replicated_layers_are_not_merged(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    folder = save_model_folder(tmp_path / "base", tokenizer)
    config = LoraConfig(r=2, target_modules=["o_proj"], layer_replication=[[0, 1], [0, 1]])
    get_peft_model(load_model(folder), config).save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match=r"adapter replicates"):
        load_merged(tmp_path / "adapter")


def test_virtual_tokens_and_revisions_of_bases_are_not_supported(tmp_path: Path) -> None:
    PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2).save_pretrained(tmp_path)
    for load in (load_merged, load_model):
        with pytest.raises(ValueError, match=f"^{tmp_path} has virtual tokens"):
            load(tmp_path)
    LoraConfig(base_model_name_or_path="me/base", init_lora_weights="pissa_niter_4").save_pretrained(tmp_path)
    for load in (load_merged, load_model):  # PEFT would subtract other random matrices from the base model
        with pytest.raises(ValueError, match=rf"^{tmp_path} needs .*base"):
            load(tmp_path)
    LoraConfig(base_model_name_or_path="me/base", revision="v1").save_pretrained(tmp_path)
    for load in (load_merged, load_model):  # they would use the newest revision
        with pytest.raises(ValueError, match=rf"^{tmp_path} needs revision v1 "):
            load(tmp_path)
    LoraConfig(base_model_name_or_path=str(tmp_path), revision="v1").save_pretrained(tmp_path)
    assert find_base(tmp_path) == str(tmp_path)  # as the message says


@pytest.mark.skipif(
    version.parse(transformers.__version__) < version.parse("5.20"),
    reason="old versions of Transformers do not load modules that an adapter contains whole",
)
def test_new_target_injection_is_trained_whole(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, datasets_cache: None
) -> None:
    folder = save_model_folder(tmp_path / "base", tokenizer, target_injection="adaln", target_embedding_size=4)
    train(write_recipe(tmp_path, folder, ROWS), tmp_path / "run", *LORA, "--orders=context_first")
    adapter = tmp_path / "run" / "model"
    names = load_file(adapter / "adapter_model.safetensors").keys()
    assert {"base_model.model.model.target_embeddings.weight", "base_model.model.model.modulation.proj.weight"} < names
    torch.testing.assert_close(logits(load_model(adapter)), logits(load_merged(adapter)))


@pytest.mark.parametrize("target", ["modulation", "target_embeddings", "proj", "norm"])
def test_modules_that_lora_cannot_change_are_refused(target: str, tiny_model: AOGPTForAnyOrderLM) -> None:
    training = TrainingArguments(init_from="base", lora_rank=2, lora_targets=["q_proj", target])
    with pytest.raises(ValueError, match=f"must be of down_proj, .*, q_proj, .* but not {target}"):
        add_lora(tiny_model, training)


def test_the_embedding_of_noise_levels_is_trained_whole() -> None:
    sizes = {"vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = MDMEncoderForMaskedLM(MDMEncoderConfig(**sizes, target_injection="sigma", position_encoding="rotary"))
    add_lora(model, TrainingArguments(init_from="base", lora_rank=2))
    names = {name for name in trainable_weights(model) if "sigma_embedding" in name}
    assert len(names) == 4
    assert not any("lora" in name for name in names)


def test_an_adapter_of_a_converted_model_is_merged_exported_and_published(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, datasets_cache: None
) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    special = {"bos_token_id": 0, "eos_token_id": 0, "max_position_embeddings": 64}
    source = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes, **special)).bfloat16()
    source.save_pretrained(tmp_path / "source")
    tokenizer.save_pretrained(tmp_path / "source")
    convert(str(tmp_path / "source"), tmp_path / "base")
    config = write_recipe(tmp_path, tmp_path / "base", ROWS)
    train(config, tmp_path / "run", *LORA, "--lora_targets", "q_proj", "up_proj")
    adapter, ids = tmp_path / "run" / "model", torch.arange(1, 9)[None]
    assert {tensor.dtype for tensor in load_file(adapter / "adapter_model.safetensors").values()} == {torch.float32}
    assert load_model(adapter, dtype="auto").dtype == torch.bfloat16
    assert load_model(adapter).generation_config.is_left_to_right  # the answers were, as in the base model
    train(config, tmp_path / "random", *LORA, "--orders=context_first")
    assert not load_model(tmp_path / "random" / "model").generation_config.is_left_to_right
    assert not load_merged(tmp_path / "random" / "model").generation_config.is_left_to_right

    expected = load_merged(adapter, dtype="auto").float()(ids).logits
    exported = export(str(adapter), tmp_path / "exported").float()
    start = torch.zeros(1, 1).long()
    torch.testing.assert_close(exported(torch.cat((start, ids[:, :-1]), 1)).logits, expected, rtol=1e-4, atol=1e-5)
    stage(tmp_path / "run", "me/model", tmp_path / "repository", PublishArguments(license="mit"))
    published = AutoModel.from_pretrained(tmp_path / "repository").float()
    torch.testing.assert_close(published(ids).logits, expected)
    card = (tmp_path / "repository" / "README.md").read_text()
    assert "before they were rounded to bfloat16" in card
    assert "max_length=64, return_tensors" not in card  # examples are not padded
    assert "padding included" not in card
    assert "held out, answers only | bits per byte" in card
    assert Filler.of_model(published, str(adapter), 4).padded_length is None
    texts = write_rows(tmp_path / "texts.jsonl", [{"text": "the user"}, {"text": "asks about cats"}])
    scores = zero_shot(str(adapter), ScoringArguments(text_file=[texts]))
    assert scores["datasets"]["text files"]["packing"] == "packed"
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    scored = PublishArguments(license="mit", results=[tmp_path / "scores.json"])
    stage(tmp_path / "run", "me/model", tmp_path / "scored", scored)
    assert "texts.jsonl" in (tmp_path / "scored" / "README.md").read_text()
