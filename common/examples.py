# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Examples for fine-tuning: chats, prompts with completions, and texts with a gap. The columns show which kind.

Every example becomes one sequence. The context is given, and has the label -100. The answers are predicted. An example
is a row of a dataset. Until it is encoded, it is one string of JSON, which is split and hashed like a document.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache, partial
from itertools import chain, groupby, pairwise
from typing import Any

from datasets import Dataset, Features, Sequence, Value
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging
from transformers.utils.chat_template_utils import render_jinja_template

from common.caching import versioned
from common.encoding import special_ids, warn_of_unknown
from modeling_aogpt import tokenization
from modeling_aogpt.infill import encode_parts, words_include_space

logger = logging.get_logger(__name__)

EXAMPLE = "example"  # column with examples as JSON
KINDS = (("messages",), ("prompt", "completion"), ("prefix", "suffix", "middle"))
NULLS = "Objects lose nulls, which Arrow may have added. To keep them, save `tools` as a string of JSON, chats as text."
MESSAGES = 'a list of messages such as {"role": "user", "content": "Hello"}'
QUOTED_ARGUMENTS = re.compile(r'"arguments": ("[{](?:[^"\\]|\\.)*")')  # JSON in a string of JSON
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")  # the mark of an answer in a chat template
WEIGHTS = ("weight", "train", "training", "trainable")  # keys of other tools: 0 or False leaves out a message
GREY, GREEN, RESET = "\033[90m", "\033[32m", "\033[0m"

Parts = list[tuple[str, bool]]  # consecutive parts of a text, and whether each is an answer
Encoded = tuple[list[int], list[bool]]  # ids of a text, and whether each is part of an answer


class ExampleError(ValueError):
    """Error in an example. The arguments are the example as JSON, and a sentence about the problem."""


def find_example_columns(features: Collection[str], text_column: str) -> tuple[str, ...] | None:
    """Return the columns of the examples in a dataset, or None if it has documents instead."""
    kind = None if text_column in features else next((kind for kind in KINDS if set(kind).issubset(features)), None)
    return (*kind, "tools") if kind in KINDS[:2] and "tools" in features else kind


def make_examples(dataset: Dataset, columns: tuple[str, ...]) -> Dataset:
    """Return a dataset of examples in the column `EXAMPLE`. Raise a `ValueError` if a column has dates."""
    for column in columns:
        kind = str(dataset.features[column])
        if re.search(r"Value\('(time|date)", kind):  # JSON has no type for dates
            raise ValueError(f"`{column}` must hold text, but holds dates ({kind}). Save it as text, in Parquet.")
        if "Value('float" in kind:  # 2.5 in one row makes 2 in another a float
            logger.warning(f"`{column}` has floats ({kind}). If some were integers, save them inside a string of JSON.")
    return dataset.map(
        versioned(_to_json),
        batched=True,
        fn_kwargs={"features": {column: dataset.features[column] for column in columns}},
        remove_columns=dataset.column_names,
        features=Features({EXAMPLE: Value("string")}),
        desc="Reading examples",
    )


def _to_json(rows: dict[str, list], features: dict[str, Any]) -> dict[str, list[str]]:
    columns = ([_drop_padding(value, feature) for value in rows[name]] for name, feature in features.items())
    values = (dict(zip(features, row, strict=True)) for row in zip(*columns, strict=True))
    return {EXAMPLE: [json.dumps(row, ensure_ascii=False) for row in values]}


def _drop_padding(value: Any, feature: Any) -> Any:
    """Return a value without the nulls that Arrow adds for keys of other rows. Keep JSON as it is."""
    if isinstance(value, dict) and isinstance(feature, dict):
        if None in value.values() and "role" not in feature:  # templates read a null of a message as a missing key
            logger.warning_once(NULLS)
        return {key: _drop_padding(item, feature[key]) for key, item in value.items() if item is not None}
    inner = getattr(feature, "feature", None)
    return [_drop_padding(item, inner) for item in value] if isinstance(value, list) else value


def encode_examples(
    examples: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    select: Callable[[Iterable[str]], list[str]],
    start_token_id: int | None = None,
    num_workers: int | None = None,
) -> Dataset:
    """Return a dataset of `input_ids`, `labels`, `in_turns`, `num_unlearned`, `num_tokens` and `num_bytes`.

    `labels` are -100 in the context. `in_turns` is described in [`DataCollatorForAnyOrderLM`]. `num_unlearned` counts
    the messages of the assistant in a chat that have no loss. `num_bytes` is the number of UTF-8 bytes of the answers.
    A special token, such as end-of-text, counts as one byte. A start token at the beginning of a chat is left out,
    because the model adds it. Raise an `ExampleError` if an example does not have the expected form.
    """
    numbers = Sequence(Value("int32"))
    columns = {"input_ids": numbers, "labels": numbers, "in_turns": Value("bool"), "num_unlearned": Value("int64")}
    encoded = examples.map(
        versioned(_encode_batch, tokenization),
        batched=True,
        input_columns=EXAMPLE,
        remove_columns=examples.column_names,
        features=Features(columns | {"num_tokens": Value("int64"), "num_bytes": Value("int64")}),
        fn_kwargs={"tokenizer": tokenizer, "select": select, "start_token_id": start_token_id},
        num_proc=num_workers,
        desc="Tokenizing",
    )
    warn_of_unknown(encoded.with_format("numpy")[:1000]["input_ids"], tokenizer)
    return encoded


def _encode_batch(
    examples: list[str], tokenizer: PreTrainedTokenizerBase, select: Callable, start_token_id: int | None
) -> dict[str, list]:
    rows = [encode_example(example, tokenizer, start_token_id) for example in select(examples)]
    special = special_ids(tokenizer)
    return {
        **{name: [row[name] for row in rows] for name in ("input_ids", "labels", "in_turns", "num_unlearned")},
        "num_tokens": [len(row["input_ids"]) for row in rows],
        "num_bytes": [_count_bytes(row["input_ids"], row["labels"], tokenizer, special) for row in rows],
    }


def _count_bytes(ids: list[int], labels: list[int], tokenizer: PreTrainedTokenizerBase, special: set[int]) -> int:
    """Return the number of bytes of the answers. Decoded without its context, an answer could lose its first space."""
    total = before = end = 0
    for is_context, run in groupby(label == -100 for label in labels):
        end += len(list(run))
        size = len(tokenizer.decode(ids[:end], skip_special_tokens=True).encode())
        total, before = total + (0 if is_context else size - before), size
    return total + sum(label in special for label in labels)


def encode_example(example: str, tokenizer: PreTrainedTokenizerBase, start_token_id: int | None) -> dict[str, Any]:
    """Return a row (see `encode_examples`). Add end-of-text to an answer without it, but not to a gap."""
    values = json.loads(example)
    try:
        tools = values.pop("tools", None)
        tools = (json.loads(tools) if isinstance(tools, str) else tools) or None
        if "middle" in values:
            ids, is_answer = _encode(_split_gap(values, tokenizer), tokenizer)
            if (tokenizer.eos_token_id, True) in zip(ids, is_answer, strict=True):
                raise ValueError(f"`middle` must have no end-of-text ({tokenizer.eos_token}). Move it to `suffix`.")
        elif "messages" in values:
            ids, is_answer = _encode_chat(_check_messages("messages", values["messages"]), tools, tokenizer)
        else:
            ids, is_answer = _encode(_split_completion(**values, tools=tools, tokenizer=tokenizer), tokenizer)
        decoded = tokenizer.decode(ids)
        if any(quoted in decoded for quoted in QUOTED_ARGUMENTS.findall(example)):
            raise ValueError("The chat template quotes the `arguments` of a tool call, which are text. Use an object.")
        if not any(is_answer) or tokenizer.mask_token_id in ids:
            raise ValueError(f"It needs an answer, and must not contain the mask token ({tokenizer.mask_token}).")
    except Exception as error:  # chat templates raise errors of their own
        raise ExampleError(example, str(error)) from error
    texts = [one["content"] for value in values.values() if isinstance(value, list) for one in value] or values.values()
    lost = [text for text in texts if text not in decoded]  # spaces inside texts may differ
    if any(text.strip() in decoded or "".join(text.split()) not in "".join(decoded.split()) for text in lost):
        logger.warning_once("Texts lose parts, such as thoughts or outer spaces. Change the template or tokenizer.")
    if ids[0] == start_token_id and not is_answer[0]:
        ids, is_answer = ids[1:], is_answer[1:]
    labels = [token if answer else -100 for token, answer in zip(ids, is_answer, strict=True)]
    # A chat template may put a newline after the end-of-text of an answer. A chat may also end with another message.
    last_role = values["messages"][-1]["role"] if "messages" in values else "assistant"
    if "middle" not in values and last_role == "assistant" and tokenizer.eos_token_id not in labels[-2:]:
        ids, labels = [*ids, tokenizer.eos_token_id], [*labels, tokenizer.eos_token_id]
    num_answers = sum(message["role"] == "assistant" for message in values.get("messages", ()))
    num_unlearned = max(num_answers - sum(is_learned for is_learned, _ in groupby(is_answer)), 0)
    return {"input_ids": ids, "labels": labels, "in_turns": "middle" not in values, "num_unlearned": num_unlearned}


def _encode(parts: Parts, tokenizer: PreTrainedTokenizerBase) -> Encoded:
    """Return the ids of a text, and whether each is part of an answer. No token is in two parts."""
    encoded = encode_parts([text for text, _ in parts], tokenizer)
    is_answer = [answer for (_, answer), ids in zip(parts, encoded, strict=True) for _ in ids]
    return [token for ids in encoded for token in ids], is_answer


def _encode_chat(messages: list[dict[str, str]], tools: list | None, tokenizer: PreTrainedTokenizerBase) -> Encoded:
    """Encode a chat, as `_encode` does. If the template has no generation marks, the last message is the answer."""
    template = tokenizer.get_chat_template(tools=tools)
    if not GENERATION.search(template):
        if messages[-1]["role"] != "assistant":
            raise ValueError(f"The last message must be of the assistant, but is of {messages[-1]['role']!r}.")
        return _encode(_split_completion(messages[:-1], messages[-1:], tools, tokenizer), tokenizer)
    # Before Transformers 5.24, the masks of `apply_chat_template` are wrong for some answers, such as a first token.
    (text,), (spans,) = render_jinja_template(
        [messages], tools, chat_template=template, return_assistant_tokens_mask=True, **tokenizer.special_tokens_map
    )
    tokenization.check_chat(messages, tokenizer, tools)
    render = partial(tokenizer.apply_chat_template, tools=tools, tokenize=False, add_generation_prompt=True)
    prompts = [render(messages[:i]) for i, message in enumerate(messages) if i and message["role"] == "assistant"]
    ends = [len(prompt) for prompt in prompts if text.startswith(prompt)]
    if len(ends) < len(prompts) or (ends and not any(start <= end < stop for end in ends for start, stop in spans)):
        logger.warning_once("The chat template must start each answer with the text of `add_generation_prompt`.")
    # In generation, the prompt ends where an answer begins, or inside it (after `<think>`). No token may cross this.
    cuts = sorted({0, len(text), *chain.from_iterable(spans), *ends})
    parts = [(text[cut:to], any(start <= cut < end for start, end in spans)) for cut, to in pairwise(cuts)]
    ids, is_answer = _encode(parts, tokenizer)
    # Templates may close an answer after its mark, with any special token, but the model must learn to end it.
    special = special_ids(tokenizer)
    for index in range(1, len(ids)):
        is_open = special.isdisjoint(ids[max(index - 2, 0) : index])
        is_end = ids[index] == tokenizer.eos_token_id or (is_open and ids[index] in special)
        is_answer[index] |= is_end and is_answer[index - 1]
        if is_open and is_answer[index - 1] and not is_answer[index]:
            logger.warning_once("Ends of answers are not learned. Put `{{ eos_token }}` before `{% endgeneration %}`.")
    return ids, is_answer


def _split_completion(prompt: Any, completion: Any, tools: list | None, tokenizer: PreTrainedTokenizerBase) -> Parts:
    if isinstance(prompt, str) and isinstance(completion, str):
        return [(prompt, False), (completion, True)]
    if isinstance(prompt, str) or isinstance(completion, str):
        given = f"{prompt!r:.100} and {completion!r:.100}"
        raise ValueError(f"`prompt` and `completion` must both be text, or both {MESSAGES}, but are {given}.")
    prompt, completion = _check_messages("prompt", prompt), _check_messages("completion", completion)
    before = tokenizer.apply_chat_template(prompt, tools, tokenize=False, add_generation_prompt=True)
    tokenization.check_chat(prompt + completion, tokenizer, tools)
    text = tokenizer.apply_chat_template(prompt + completion, tools, tokenize=False)
    if not text.startswith(before):
        raise ValueError("The chat template must keep the prompt as it is before an answer, but changes it.")
    return [(before, False), (text[len(before) :], True)]


def _split_gap(values: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> Parts:
    for name, value in values.items():
        if not isinstance(value, str):
            raise ValueError(f"`{name}` must be text, but is {value!r}.")
    prefix, middle = values["prefix"], values["middle"]
    if middle and prefix.endswith(" ") and _includes_space(tokenizer):  # `infill` leaves the space to the gap, too
        prefix, middle = prefix[:-1], f" {middle}"
    return [(prefix, False), (middle, True), (values["suffix"], False)]


_includes_space = lru_cache(maxsize=1)(words_include_space)  # reads the whole vocabulary


def _check_messages(name: str, messages: Any) -> list[dict[str, str]]:
    """Return messages with only the keys that have values. Raise a `ValueError` if they are not messages."""
    is_list = isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages)
    if not is_list or not all(isinstance(one.get(key), str) for one in messages for key in ("role", "content")):
        raise ValueError(f"`{name}` must be {MESSAGES}, but is {messages!r:.200}.")
    if excluded := [key for one in messages if one["role"] == "assistant" for key in WEIGHTS if one.get(key) == 0]:
        raise ValueError(f"`{name}` has `{excluded[0]}` 0 or false, but all answers are learned. Remove the example.")
    return [{key: item for key, item in message.items() if item is not None} for message in messages]


def format_example(ids: list[int], labels: list[int], tokenizer: PreTrainedTokenizerBase, colours: bool) -> str:
    """Return the text of an example: context in grey and answers in green, or answers in double brackets."""
    answer, context = ((GREEN, RESET), (GREY, RESET)) if colours else (("[[", "]]"), ("", ""))
    text = ""
    for is_context, run in groupby(zip(ids, labels, strict=True), lambda pair: pair[1] == -100):
        opening, closing = context if is_context else answer
        text += f"{opening}{tokenizer.decode([token for token, _ in run])}{closing}"
    return text
