# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The server: formats of OpenAI and llama.cpp, batches, limits, errors, hang-ups, the key, and SIGTERM."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import normalizers
from transformers import PreTrainedTokenizerBase, set_seed

from common.files import read_json
from common.tokenizers import vocabulary_arguments
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.tokenization import load_tokenizer
from tests.references import SIZES, perturb_vectors
from tests.tokenizers_of_all_kinds import KINDS, byte_level

pytest.importorskip("fastapi")
uvicorn, httpx = pytest.importorskip("uvicorn"), pytest.importorskip("httpx")

from aogpt.serve import (  # noqa: E402 (fastapi may be missing)
    NO_OP_VALUES,
    SETTINGS,
    ChatRequest,
    CompletionRequest,
    InfillRequest,
    Sample,
    Server,
    make_app,
)
from aogpt.texts import find_starts  # noqa: E402
from aogpt.worker import JobStreamer, Worker  # noqa: E402
from tests.serving import main  # noqa: E402

GREEDY = {"temperature": 0, "order": "left_to_right"}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with a random model of 64 positions and a byte-level tokenizer."""
    return save_model(tmp_path_factory.mktemp("model"), 64)


def save_model(folder: Path, num_positions: int) -> str:
    tokenizer = byte_level()
    set_seed(0)
    sizes = SIZES | {"max_position_embeddings": num_positions, "initializer_range": 0.5}
    model = AOGPTForAnyOrderLM(AOGPTConfig(**vocabulary_arguments(tokenizer), **sizes))
    perturb_vectors(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def model(model_folder: str) -> AOGPTForAnyOrderLM:
    return AOGPTForAnyOrderLM.from_pretrained(model_folder).eval()


@pytest.fixture
def tokenizer(model_folder: str) -> PreTrainedTokenizerBase:
    return load_tokenizer(model_folder)


@pytest.fixture
def start(model: AOGPTForAnyOrderLM, tokenizer: PreTrainedTokenizerBase) -> Iterator[Callable[..., str]]:
    """Return a function that starts a server on loopback and returns its address."""
    running = []

    def start(**options: Any) -> str:
        start.servers.append(Server(model, tokenizer, "tiny", **options))
        config = uvicorn.Config(make_app(start.servers[-1]), log_level="warning")
        server, listener = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
        running.append((server, Thread(target=server.run, kwargs={"sockets": [listener]})))
        running[-1][1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    start.servers = []
    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join()


@pytest.fixture
def call(start: Callable[..., str]) -> Callable[..., Any]:
    """Return a function that posts several bodies at once, and returns the JSON of the responses."""
    default = start()

    def call(path: str, *bodies: dict, url: str = default) -> Any:
        with ThreadPoolExecutor(len(bodies)) as pool:
            responses = list(pool.map(lambda body: httpx.post(url + path, json=body, timeout=60), bodies))
        results = [response.json() for response in responses]
        return results if len(bodies) > 1 else results[0]

    return call


def read_events(text: str) -> list[dict]:
    *parts, last = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    assert last == "[DONE]"
    return [json.loads(part) for part in parts]


def read_texts(answer: dict) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


# ------------------------------------------------------------------------------------------------------- completions


def test_completions_are_those_of_generate(
    call: Callable, model: AOGPTForAnyOrderLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    answer = call("/v1/completions", {"prompt": "I saw", "max_tokens": 6, "n": 2, "logprobs": 2, **GREEDY})
    ids = model.encode_text("I saw", tokenizer)
    filled, length = model.generate(ids, max_new_tokens=6, do_sample=False), ids.shape[1]
    new = filled[0, length:].tolist()
    expected = model.log_likelihood(filled).token_log_likelihood[0, length:]
    assert (answer["object"], answer["model"]) == ("text_completion", "tiny")
    assert answer["usage"] == {"prompt_tokens": length, "completion_tokens": 12, "total_tokens": length + 12}
    for index, choice in enumerate(answer["choices"]):
        assert (choice["index"], choice["finish_reason"]) == (index, "length")
        assert choice["text"] == tokenizer.decode(new)
        logprobs = choice["logprobs"]
        assert logprobs["token_logprobs"] == pytest.approx(expected.tolist())
        assert logprobs["tokens"][0] == tokenizer.decode(new[0])
        assert logprobs["text_offset"] == [5 + len(tokenizer.decode(new[:end])) for end in range(6)]
        for token, value, top in zip(*list(logprobs.values())[:3], strict=True):
            assert top[token] == value == max(top.values())


@pytest.mark.parametrize("is_end", [False, True])
@pytest.mark.parametrize("start_token_id", [None, 3])
def test_echo_scores_prompts(
    start: Callable[..., str], model: AOGPTForAnyOrderLM, tokenizer: Any, start_token_id: int | None, is_end: bool
) -> None:
    """Texts and ids are scored from left to right, also without a new token, and if the new token is end-of-text."""
    config, texts = model.config, ["I saw é", "def cat", "I<|endoftext|>saw"]
    config.start_token_id = start_token_id
    url = f"{start()}/v1/completions"
    model.lm_head.bias.data[config.eos_token_id] += 99 if is_end else -99
    for text in texts if start_token_id is None else ([start_token_id, 5, 6, 7], [8, 9, 10]):
        ids = model.encode_text(text, tokenizer)[0] if isinstance(text, str) else torch.tensor(text)
        first = int(ids[0] == start_token_id)
        expected = model.log_likelihood(ids[None]).token_log_likelihood[0, first:].tolist()
        body, given = {"echo": True, "logprobs": 1, "temperature": 0, "seed": 1}, tokenizer.decode(ids.tolist())
        for prompt, size in ((text, 0), (ids.tolist(), 1), ([ids.tolist()], 3)):
            (choice,) = httpx.post(url, json=body | {"prompt": prompt, "max_tokens": size}).json()["choices"]
            scores, num_new = choice["logprobs"], 1 if is_end and size else size
            assert scores["token_logprobs"][: len(expected)] == pytest.approx(expected)
            assert {len(values) for values in scores.values()} == {len(expected) + num_new}
            assert scores["tokens"][: len(expected)] == [*map(start.servers[0].name_token, ids[first:].tolist())]
            offsets = [len(tokenizer.decode(ids[:end]).rstrip("\ufffd")) for end in range(first, len(ids))]
            assert scores["text_offset"][: len(expected)] == offsets
            assert choice["text"].startswith(given)
            assert (choice["text"] == given) == (num_new == 0 or is_end)


@pytest.mark.parametrize(
    ("text", "starts"), [("cafe\u0301 the", [0, 1, 2, 3, 3, 5]), ("\ufb01 cat", [0, 1, 1]), ("a\u0301", [0, 0])]
)
def test_offsets_are_those_of_the_text_before_normalization(text: str, starts: list[int]) -> None:
    """The tokenizer joins a letter and its accent, and splits a ligature."""
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    assert find_starts(tokenizer(text).input_ids, text, tokenizer) == starts


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_probability_zero_have_no_logprobs(
    call: Callable, start: Callable[..., str], model: AOGPTForAnyOrderLM, stream: bool
) -> None:
    """JSON has no infinity. The other tokens are scored, and `top_logprobs` leaves such tokens out."""
    model.lm_head.bias.data[7:] = -torch.inf
    body = {"echo": True, "logprobs": 5, "max_tokens": 0, "stream": stream}
    response = httpx.post(f"{start()}/v1/completions", json=body | {"prompt": [5, 9, 6]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "logprobs")
    model.lm_head.bias.data[:3] = -torch.inf
    (choice,) = call("/v1/completions", body | {"prompt": [5, 4, 6], "stream": False})["choices"]
    assert [len(top) for top in choice["logprobs"]["top_logprobs"]] == [4, 4, 4]


def test_the_client_of_lm_eval_reads_log_likelihoods(call: Callable, model: AOGPTForAnyOrderLM) -> None:
    client = pytest.importorskip("lm_eval.models.openai_completions").LocalCompletionsAPI
    ids, lengths = [[*range(5, 12)], [*range(9, 20)]], [3, 4]
    body = client._create_payload(SimpleNamespace(model="tiny"), ids)
    scores = client.parse_logprobs(call("/v1/completions", body), ctxlens=lengths)
    for row, length, (score, is_greedy) in zip(ids, lengths, scores, strict=True):
        ids, is_target = torch.tensor([row]), torch.arange(len(row))[None] >= length
        assert score == pytest.approx(model.log_likelihood(ids, targets=is_target).log_likelihood.item())
        logits = model(ids).logits[0, length:, : model.config.num_valid_tokens]
        assert is_greedy == (logits.argmax(dim=-1).tolist() == row[length:])
    greedy = model.generate(torch.tensor([[5]]), max_new_tokens=4, do_sample=False).tolist()
    body = client._create_payload(SimpleNamespace(model="tiny"), greedy)
    assert client.parse_logprobs(call("/v1/completions", body), ctxlens=[1])[0][1]


def test_settings_of_the_package_reach_generate(
    call: Callable, model: AOGPTForAnyOrderLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, generate = [], model.generate
    monkeypatch.setattr(model, "generate", lambda *ids, **options: given.append(options) or generate(*ids, **options))
    settings = {"num_steps": 2, "unmasking": "fixed_count", "order": "random", "top_p": 0.9, "temperature": 0.5}
    assert read_texts(call("/v1/completions", {"prompt": None, "max_tokens": 4, "user": "me", **settings}))
    assert given[0].items() >= (settings | {"max_new_tokens": 4, "do_sample": True}).items()


def test_a_text_ends_before_a_stop_string_or_at_end_of_text(
    call: Callable, start: Callable[..., str], model: AOGPTForAnyOrderLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    body = {"prompt": "the cat", "max_tokens": 50, **GREEDY}
    (whole,) = read_texts(call("/v1/completions", body))
    stop = whole[9:12]
    (choice,) = call("/v1/completions", body | {"stop": ["never", stop], "logprobs": 0})["choices"]
    assert choice["text"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"
    assert 0 < len(choice["logprobs"]["tokens"]) < 50
    ids = model.encode_text("the cat", tokenizer)
    model.generation_config.eos_token_id = int(model.generate(ids, max_new_tokens=5, do_sample=False)[0, -1])
    url = start()
    answer = call("/v1/completions", body, url=url)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] <= 4
    assert whole.startswith(answer["choices"][0]["text"])
    answer = call("/v1/completions", body | {"stop_at_eos": False, "logprobs": 0}, url=url)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == len(answer["choices"][0]["logprobs"]["tokens"]) == 50


def test_streamed_texts_are_the_same(start: Callable[..., str]) -> None:
    url = f"{start()}/v1/completions"
    body = {"prompt": ["I saw", "", "the cat"], "max_tokens": 30, "stop": ["\ufffdn", " cat"], "seed": 3, "n": 2}
    body["echo"] = True
    expected = httpx.post(url, json=body).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *events, last = read_events(httpx.post(url, json=body | options).text)
    assert len(events) > 3
    texts, reasons = [""] * 6, [[] for _ in range(6)]
    for choice in (choice for event in events for choice in event["choices"]):
        texts[choice["index"]] += choice["text"]
        reasons[choice["index"]].append(choice["finish_reason"])
    assert texts == read_texts(expected)
    assert texts[4].startswith("the cat")
    assert [given[-1] for given in reasons] == [choice["finish_reason"] for choice in expected["choices"]]
    assert not any(any(given[:-1]) for given in reasons)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]


def test_characters_that_may_change_are_not_sent(model: AOGPTForAnyOrderLM, tokenizer: PreTrainedTokenizerBase) -> None:
    """Such characters are parts of a character, or of a stop string."""
    server, job = Server(model, tokenizer, "tiny"), SimpleNamespace(has_gap=False, has_echo=False, arguments={})
    sample, whole = Sample(server, job, torch.tensor([0]), "", ["the cat", "- ü"]), "é the dog - é"
    row = tokenizer(whole).input_ids
    for end in range(len(row)):
        sample.update(row[:end], is_finished=False)
        assert whole.startswith(sample.text)
        assert not sample.text.endswith(("t", "th", "the", "the ", "- "))
    sample.update(row, is_finished=True)
    assert sample.text == whole
    server.worker.close()


def test_the_stop_string_that_is_complete_first_counts(model: AOGPTForAnyOrderLM, tokenizer: Any) -> None:
    """The text and the number of tokens do not depend on how many tokens arrive at once."""
    server, row = Server(model, tokenizer, "tiny"), tokenizer("abcdef").input_ids
    job = SimpleNamespace(has_gap=False, has_echo=False, arguments={})
    for step in (1, len(row)):
        sample = Sample(server, job, torch.tensor([0]), "", ["cd", "bcde"])
        for end in range(step, len(row) + 1, step):
            sample.update(row[:end], is_finished=False)
        assert sample.text == "ab"
        assert sample.num_tokens == len(tokenizer("abcd").input_ids)
    server.worker.close()


@pytest.mark.parametrize(("stop", "text", "num_tokens"), [("\ufffd", "aßb", 4), ("ß", "a", 3), ("b", "aß", 4)])
def test_the_first_byte_of_a_character_ends_no_text(
    model: AOGPTForAnyOrderLM, tokenizer: Any, stop: str, text: str, num_tokens: int
) -> None:
    server, row = Server(model, tokenizer, "tiny"), tokenizer("aßb").input_ids
    assert len(row) == 4
    for step in (1, len(row)):
        sample = Sample(
            server, SimpleNamespace(has_gap=False, has_echo=False, arguments={}), torch.tensor([0]), "", [stop]
        )
        for end in range(step, len(row) + 1, step):
            sample.update(row[:end], is_finished=end == len(row))
        assert (sample.text, sample.num_tokens) == (text, num_tokens)
    server.worker.close()


@pytest.mark.parametrize("has_gap", [False, True])
def test_a_text_ends_at_a_special_token_that_is_a_stop_string(
    model: AOGPTForAnyOrderLM, tokenizer: PreTrainedTokenizerBase, has_gap: bool
) -> None:
    """The decoded text does not contain the name of the token. The model has no end-of-text token."""
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    server, job = Server(model, tokenizer, "tiny"), SimpleNamespace(has_gap=has_gap, has_echo=False, arguments={})
    sample = Sample(server, job, torch.tensor([0]), "", ["<|endoftext|>\n"])
    sample.update(tokenizer("the cat<|endoftext|>\nsat").input_ids, is_finished=True)
    assert (sample.text, sample.reason) == ("the cat", "stop")
    server.worker.close()


@pytest.mark.parametrize("kind", ["Llama", "Llama 2", "characters"])
def test_tokens_have_different_names(model: AOGPTForAnyOrderLM, kind: str) -> None:
    """Otherwise, `top_logprobs` would lack the value of a token."""
    tokenizer = KINDS[kind]()
    server = Server(model, tokenizer, "tiny")
    names = [*map(server.name_token, range(len(tokenizer)))]
    assert len({*names}) == len(names)
    server.worker.close()


def test_tokens_with_the_same_name_keep_their_log_probabilities() -> None:
    sample = SimpleNamespace(name={1: "A", 2: "A", 3: "b"}.get)
    assert Sample.name_all(sample, {2: -1.0, 1: -2.0, 3: -torch.inf}) == {"A": -1.0, "token_id:1": -2.0}


# ---------------------------------------------------------------------------------------------------------- infilling

GAPS = [("def I", "cat"), ("I saw", "\n\n  cat\n"), ("the\n\tcat", " sat"), ("", "cat"), ("un", "\t")]


@pytest.mark.parametrize(("prefix", "suffix"), GAPS)
def test_both_endpoints_fill_in_gaps_as_infill(
    call: Callable, model: AOGPTForAnyOrderLM, tokenizer: PreTrainedTokenizerBase, prefix: str, suffix: str
) -> None:
    """The text around the gap is kept."""
    settings = {"do_sample": False, "order": "confidence"}
    text = f"{prefix}{tokenizer.mask_token}{suffix}"
    output = model.infill(text, lengths=range(1, 5), tokenizer=tokenizer, **settings)
    body = {"prompt": prefix, "suffix": suffix, "max_tokens": 4, "n": 2, "logprobs": 1, **settings}
    answer = call("/v1/completions", body)
    choice = answer["choices"][0]
    assert [prefix + given + suffix for given in read_texts(answer)] == output.texts * 2
    start = model.encode_text(prefix, tokenizer).shape[1]
    is_target = torch.zeros_like(output.sequences)
    is_target[0, start : start + output.lengths] = 1
    scores = model.log_likelihood(output.sequences, targets=is_target)
    assert sum(choice["logprobs"]["token_logprobs"]) == pytest.approx(scores.log_likelihood.item())
    body = {"input_prefix": prefix[:2], "prompt": prefix[2:], "input_suffix": suffix, "n_predict": 4, "top_k": 0}
    filled = call("/infill", body | settings | {"samplers": ["top_k"], "cache_prompt": True})
    assert prefix + filled["content"] + suffix == output.texts[0]
    assert filled["stop"]
    assert not filled["truncated"]


def test_names_of_special_tokens_in_an_edited_file_are_text(
    call: Callable, model: AOGPTForAnyOrderLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Training reads them as text, too. In other requests, they are the tokens."""
    body = {"input_prefix": 'end = "<|endoftext|>', "input_suffix": '"\n', "n_predict": 4, "do_sample": False}
    name = tokenizer(body["input_prefix"], split_special_tokens=True).input_ids
    ids = torch.tensor([*name, model.config.mask_token_id, *tokenizer(body["input_suffix"]).input_ids])
    output = model.infill(ids, lengths=range(1, 5), do_sample=False, order="confidence")
    answer = call("/infill", body | {"order": "confidence"})
    assert answer["tokens_evaluated"] == len(ids) - 1
    filled = output.sequences[0, len(name) :][: output.lengths]
    assert answer["content"] == tokenizer.decode(filled)
    answer = call("/v1/completions", {"prompt": "a<|endoftext|>", "max_tokens": 1})
    assert answer["usage"]["prompt_tokens"] == 2


def test_each_sample_has_the_length_that_the_model_predicts(
    call: Callable, model: AOGPTForAnyOrderLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    model.config.max_gap_length = 4
    model.lm_head.bias.data[model.config.eos_token_id] += 5  # ends are likely
    text, generator = f"I saw{tokenizer.mask_token}cat", torch.Generator().manual_seed(0)
    output = model.infill(text, range(1, 5), tokenizer=tokenizer, num_return_sequences=8, generator=generator)
    assert len(set(output.candidates.flatten().tolist())) > 1
    body = {"prompt": "I saw", "suffix": "cat", "lengths": [*range(1, 5)], "n": 8, "seed": 0}
    assert [f"I saw{given}cat" for given in read_texts(call("/v1/completions", body))] == output.texts
    # The log-probabilities are those with which the tokens were drawn, with the text after all slots.
    before, after = (torch.tensor(tokenizer(part).input_ids) for part in ("I saw", "cat"))
    choices = call("/v1/completions", body | {"logprobs": 0})["choices"]
    for choice, (length,), ids in zip(choices, output.candidates.tolist(), output.sequences, strict=True):
        start, slots = len(before), torch.zeros(4, dtype=torch.long)
        slots[:length] = ids[start : start + length]
        ids = torch.cat((before, slots, after))[None]
        positions = torch.arange(ids.shape[1])[None]
        is_target, is_slot = positions - start < length, (positions >= start) & (positions < start + 4)
        scores = model.log_likelihood(ids, targets=is_target & is_slot, context=~is_slot, orders="left_to_right")
        expected = scores.token_log_likelihood[0, start : start + length].tolist()
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected, abs=1e-4)
    # The longest filling must fit, or `infill` would refuse the whole batch.
    answer = call("/v1/completions", body | {"prompt": "1" * (62 - len(after))})
    assert answer["error"]["code"] == "context_length_exceeded"
    assert "with gaps" not in answer["error"]["message"]


@pytest.mark.parametrize("prompt", ["the ", "the  ", "the\n    ", " "])
def test_a_space_before_the_gap_is_not_repeated(
    call: Callable,
    model: AOGPTForAnyOrderLM,
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
    prompt: str,
) -> None:
    """The gap includes the space (" cat" is one token), which the prompt already has."""
    cat = tokenizer(" cat").input_ids
    assert len(cat) == 1
    mask = model.config.mask_token_id
    monkeypatch.setattr(
        model, "_generate", lambda ids, *_, **__: SimpleNamespace(sequences=ids.where(ids != mask, cat[0]))
    )
    body = {"prompt": prompt, "suffix": " sat", "lengths": [1]}
    assert read_texts(call("/v1/completions", body)) == ["cat"]
    assert call("/infill", {"input_prefix": prompt, "input_suffix": " sat", "lengths": [1]})["content"] == "cat"


def test_long_texts_of_editors_are_cut(
    call: Callable, model: AOGPTForAnyOrderLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"input_prefix": "I saw a cat\n" * 99, "input_suffix": "sat\n" * 99}
    answer = call("/infill", body)
    assert answer["truncated"]
    assert answer["tokens_evaluated"] == model.config.max_position_embeddings - 8
    assert call("/infill", body | {"input_suffix": ""})["content"]
    monkeypatch.setattr("aogpt.serve.CHARACTERS_PER_TOKEN", 1)  # 64 characters
    long, short = {"input_prefix": " the" * 20}, {"input_suffix": " cat"}
    assert call("/infill", long | short)["truncated"]
    assert call("/infill", {"input_prefix": " cat", "input_suffix": " the" * 20})["truncated"]
    assert not call("/infill", {"input_prefix": " the" * 16} | short)["truncated"]
    empty = {"content": "", "tokens_predicted": 0}
    assert (
        call("/infill", {"input_extra": [{"text": "a"}], "n_predict": 0, "input_prefix": "a"}).items() >= empty.items()
    )


def test_what_editors_send_is_answered_as_they_read_it(call: Callable, model: AOGPTForAnyOrderLM) -> None:
    """The requests of llama.vim and llama.vscode: unknown fields are ignored, and all displayed fields are there."""
    text = {"id_slot": 0, "input_prefix": "I saw\n", "prompt": "a c", "input_suffix": "\n sat"}
    text |= {"input_extra": [{"text": "def", "filename": "a.py"}], "cache_prompt": True}
    times = {"t_max_prompt_ms": 500, "t_max_predict_ms": 250}
    names = [f"{kind}_{unit}" for kind in ("prompt", "predicted") for unit in ("n", "ms", "per_token_ms", "per_second")]
    fields = ["content", *(f"timings/{name}" for name in names), "truncated", "tokens_cached"]
    sampling = {"top_k": 40, "top_p": 0.9, "samplers": ["top_k", "top_p", "infill"], "stream": False, "n_indent": 4}
    vim = {**text, **sampling, **times, "n_predict": 8, "stop": [], "response_fields": fields}
    code = {**text, **sampling, **times, "n_predict": 8, "n_cmpl": 3, "lora": [{"id": 0, "scale": 0.5}]}
    prepare = {**text, **times, "n_predict": 0, "samplers": [], "temperature": 0.0, "response_fields": [""]}
    assert call("/infill", prepare) == {}
    answer = call("/infill", vim)
    assert list(answer) == fields
    assert answer["timings/predicted_ms"] > 0
    for more in ({}, {"seed": -1, "top_k": -1, "top_p": 1.0, "min_p": 0.0}, {"top_k": 0, "stop": [*"abcdefgh"]}):
        answer = call("/infill", code | more)
        assert answer["generation_settings"]["n_ctx"] == model.config.max_position_embeddings
        assert answer["timings"].keys() == set(names)
        assert answer["timings"]["predicted_n"] == answer["tokens_predicted"]
    assert call("/v1/completions", {"prompt": "a", "top_k": -1})["choices"]


# ------------------------------------------------------------------------------------------------------------ batches


def test_batched_requests_get_the_texts_of_single_requests(
    call: Callable, start: Callable[..., str], model: AOGPTForAnyOrderLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [{"prompt": "I saw a cat"[:size], "max_tokens": 9, **GREEDY} for size in range(0, 12, 2)]
    bodies += [body | {"suffix": " sat", "order": "confidence"} for body in bodies]
    seeded = [{"prompt": "the", "max_tokens": 9, "seed": 7}] * 2
    expected = [read_texts(call("/v1/completions", body)) for body in (*bodies, *seeded)]
    sizes, run = [], Worker._run_batch
    monkeypatch.setattr(Worker, "_run_batch", lambda worker, jobs: sizes.append(len(jobs)) or run(worker, jobs))
    answers = call("/v1/completions", *bodies, *seeded)
    assert [read_texts(answer) for answer in answers] == expected
    assert sum(sizes) == 14
    assert 3 < len(sizes) < 12
    sizes.clear()
    call("/v1/completions", *bodies, url=start(max_batch=3))
    assert 1 < max(sizes) <= 3


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def send_only(url: str, body: dict) -> socket.socket:
    """Send a request, and return the open connection."""
    host, port = url.removeprefix("http://").split(":")
    connection, content = socket.create_connection((host, int(port))), json.dumps(body)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(f"{head}{content}".encode())
    return connection


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_hangs_up_frees_its_place(
    start: Callable[..., str], model: AOGPTForAnyOrderLM, monkeypatch: pytest.MonkeyPatch, is_streamed: bool
) -> None:
    """The queue has a place again, and a generation that nobody needs ends."""
    steps, fast, put_draft = [], Event(), JobStreamer.put_draft
    monkeypatch.setattr(JobStreamer, "put_draft", lambda *given: steps.append(fast.wait(0.5)) or put_draft(*given))
    url, body = start(max_queue=1), {"prompt": "a", "max_tokens": 60, "stream": is_streamed, "stop_at_eos": False}
    worker = start.servers[0].worker
    first = send_only(url, body)
    wait_until(lambda: steps)
    second = send_only(url, body)
    wait_until(lambda: worker.waiting)
    refused = httpx.post(f"{url}/v1/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    second.close()
    wait_until(lambda: not worker.waiting)
    with ThreadPoolExecutor() as pool:
        third = pool.submit(httpx.post, f"{url}/v1/completions", json=body | {"max_tokens": 5, "stream": False})
        wait_until(lambda: worker.waiting)
        first.close()
        wait_until(lambda: not worker.waiting)
        assert len(steps) < 50
        fast.set()
        assert third.result().status_code == 200


def test_sigterm_finishes_what_runs(model_folder: str) -> None:
    command = [sys.executable, "-m", "aogpt", "serve", model_folder, "--port", "0"]
    environment = os.environ | {"AOGPT_API_KEY": "secret"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        url = next(match[0] for line in process.stderr if (match := re.search(r"http://127\.0\.0\.1:\d+", line)))
        assert httpx.get(f"{url}/v1/models").status_code == 401
        body, headers = {"prompt": "a", "max_tokens": 60, "n": 32, "stream": True}, {"Authorization": "Bearer secret"}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=60) as response:
            parts = response.iter_text()
            first = next(parts)
            process.send_signal(signal.SIGTERM)
            events = read_events(first + "".join(parts))
        assert sum(bool(choice["finish_reason"]) for event in events for choice in event["choices"]) == 32
        assert process.wait(timeout=30) in (0, -signal.SIGTERM)


# ------------------------------------------------------------------------------------------------------------- errors

TEXT = {"prompt": "a"}
MALFORMED = [
    *(b"", b"{", b"[]", b"null", b'"a"', b"\xff", b"[" * 9999, b'{"prompt": "\\ud800"}', b'{"temperature": NaN}'),
    *({"prompt": value} for value in (1, [], [-1], [9**9], [[]], [1, "a"], {}, ["a", None], "a<|mask|>", "a " * 99)),
    *(TEXT | {"max_tokens": value} for value in (-1, 1.5, "9", 10**30, True, 99)),
    *(TEXT | {"n": value} for value in (0, "2", 10**9)),
    *(TEXT | {"temperature": value} for value in (-1, "hot", 1e-300, [], {})),
    *(TEXT | {"stop": value} for value in ("", [""], 5, ["a"] * 65, "a<|endoftext|>")),
    *(TEXT | {"seed": value} for value in (2**64, 0.5)),
    *(TEXT | {"suffix": value} for value in (5, "<|mask|>", "a " * 99)),
    *(TEXT | {"suffix": "a"} | more for more in ({"lengths": []}, {"lengths": [0]}, {"padded_length": 10**9})),
    *(TEXT | {"suffix": "a"} | more for more in ({"echo": True}, {"max_tokens": 0}, {"prompt": [1]})),
    TEXT | {"suffix": "a", "max_tokens": 2, "lengths": [1, 3]},  # more tokens than `max_tokens`
    *(TEXT | {"order": value} for value in ("sideways", 5, [0, 1], {})),
    *(TEXT | more for more in ({"logprobs": 6}, {"echo": 1}, {"best_of": 2}, {"logit_bias": {"5": 1}})),
    *(TEXT | more for more in ({"num_step": 2}, {"\ud800": 1}, {"max_length": 5}, {"refine_rounds": 2})),
    *(
        TEXT | more
        for more in ({"suppress_tokens": [10**30]}, {"bad_words_ids": [[]]}, {"strategy": "speculative"} | GREEDY)
    ),
    *(TEXT | more for more in ({"stream": 1}, {"stream_options": 1}, {"top_p": 0}, {"num_steps": 10**9})),
    *(TEXT | {"stream": True} | more for more in ({"suppress_tokens": [-1]}, {"max_tokens": 99})),
]


def test_malformed_bodies_get_errors_in_the_form_of_openai(start: Callable[..., str]) -> None:
    client = httpx.Client(base_url=start(), timeout=60)
    for body in MALFORMED:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = client.post("/v1/completions", content=content)
        assert response.status_code == 400, (body, response.text)
        error = response.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}, body
        assert error["message"], body
        assert error["type"] == "invalid_request_error"
        if isinstance(body, bytes):
            assert client.post("/infill", content=content).status_code < 500, body
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("GET", "/v1/completions", 405),
        ("GET", "/v1/models/other", 404),
        ("POST", "/infill", 400),
    ):
        response = client.request(method, path)
        assert response.status_code == status
        assert response.json()["error"]["message"]
    assert client.post("/infill", content=b" " * 2**21).status_code == 413
    assert client.post("/v1/completions", json={"model": "gpt"}).json()["error"]["code"] == "model_not_found"
    assert client.post("/v1/completions", json=TEXT).status_code == 200


# Values that are wrong for every field but those named, as JSON.
WRONG_FOR_ALL = {
    "[{}]": (),
    "[[[]]]": (),
    '{"a": 1}': ("stream_options",),
    '"\\ud800"': (),
    "-1e99": (),
    f"1{'0' * 400}": ("padded_length", "n_predict"),
    "Infinity": (),
}
KNOWN_FIELDS = {
    "/v1/completions": sorted(CompletionRequest.model_fields.keys() | SETTINGS | NO_OP_VALUES.keys()),
    "/v1/chat/completions": [
        *sorted(ChatRequest.model_fields),
        "n",
        "suffix",
        "top_k",
        "temperature",
        "stream_options",
    ],
    "/infill": [*sorted(InfillRequest.model_fields), "top_k", "temperature"],
}


@pytest.mark.parametrize("path", KNOWN_FIELDS)
def test_every_field_with_a_wrong_value_gets_an_error(
    start: Callable[..., str], tokenizer: PreTrainedTokenizerBase, path: str
) -> None:
    client, num_bodies, tokenizer.chat_template = httpx.Client(base_url=start(), timeout=60), 0, CHAT_TEMPLATE
    text = {"/v1/completions": {"prompt": '"a"'}, "/infill": {"input_prefix": '"a"', "n_predict": "1"}}
    chat = {"messages": '[{"role": "user", "content": "a"}]'}
    for field in KNOWN_FIELDS[path]:
        for value, allowed in WRONG_FOR_ALL.items():
            given = text.get(path, chat) | {field: value}
            body = ", ".join(f'"{name}": {content}' for name, content in given.items())
            response = client.post(path, content=f"{{{body}}}".encode())
            num_bodies += 1
            if field not in allowed:
                assert response.status_code == 400, (field, value, response.text[:200])
                assert response.json()["error"]["message"]
            assert response.status_code < 500
    assert num_bodies > (200 if path == "/v1/completions" else 70)


def test_damaged_bodies_get_no_internal_error(start: Callable[..., str]) -> None:
    client, draw = httpx.Client(base_url=start(), timeout=60), random.Random(0)
    whole = json.dumps(TEXT | {"max_tokens": 2, "stop": ["x"], "logprobs": 1, "temperature": 0.5, "seed": 1}).encode()
    for _ in range(50):
        body = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(body))
            body[place : place + draw.randrange(3)] = bytes(
                draw.choices(b'"{}[]:,0-9.eE\\ntu\xff\x00', k=draw.randrange(3))
            )
        for path in ("/v1/completions", "/infill"):
            response = client.post(path, content=bytes(body))
            assert response.status_code in (200, 400, 404), (body, response.text)
            assert response.status_code == 200 or response.json()["error"]["message"]


def test_an_internal_error_does_not_end_the_server(
    start: Callable[..., str], model: AOGPTForAnyOrderLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = start()
    with monkeypatch.context() as patch:
        patch.setattr(model, "generate", lambda *given, **options: 1 / 0)
        response = httpx.post(f"{url}/v1/completions", json=TEXT)
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
    assert httpx.post(f"{url}/v1/completions", json=TEXT).status_code == 200


def test_a_key_is_required_everywhere_but_for_health(start: Callable[..., str]) -> None:
    client = httpx.Client(base_url=start(key="é"))
    assert client.get("/health").json() == {"status": "ok"}
    for given, status in ((None, 401), ("Bearer wrong", 401), ("Bearer é", 200)):
        headers = [] if given is None else [("Authorization", given.encode("latin-1"))]
        for path in ("/v1/completions", "/infill"):
            assert client.post(path, json=TEXT, headers=headers).status_code == status
        assert client.get("/v1/models", headers=headers).status_code == status


def test_the_official_client(start: Callable[..., str]) -> None:
    openai = pytest.importorskip("openai")
    url = f"{start(key='secret')}/v1"
    client = openai.OpenAI(base_url=url, api_key="secret", max_retries=0)
    assert [entry.id for entry in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "aogpt"
    given = {"model": "tiny", "prompt": "I saw", "max_tokens": 8, "seed": 1}
    completion = client.completions.create(**given, logprobs=2, extra_body={"order": "left_to_right"})
    assert len(completion.choices[0].logprobs.tokens) <= 8
    chunks = [chunk.choices[0].text for chunk in client.completions.create(**given, stream=True)]
    assert "".join(chunks) == completion.choices[0].text
    filled = client.completions.create(**given, suffix=" sat", extra_body={"lengths": [2]})
    assert filled.usage.completion_tokens == 2
    with pytest.raises(openai.BadRequestError, match="order"):
        client.completions.create(**given, stream=True, extra_body={"order": "sideways"})
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=url, api_key="wrong", max_retries=0).models.list()


CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '<|endoftext|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


def test_chats_are_completions_of_the_chat_template(
    start: Callable[..., str], model: AOGPTForAnyOrderLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    openai = pytest.importorskip("openai")
    client, tokenizer.chat_template = (
        openai.OpenAI(base_url=f"{start()}/v1", api_key="any", max_retries=0),
        CHAT_TEMPLATE,
    )
    prompt = "user: I saw<|endoftext|>assistant:"
    ids = model.encode_text(prompt, tokenizer)
    model.generation_config.eos_token_id = int(model.generate(ids, max_new_tokens=8, do_sample=False)[0, -1])
    options = {"model": "tiny", "seed": 1, "n": 2, "extra_body": {"order": "left_to_right"}}
    given = options | {"messages": [{"role": "user", "content": "I saw"}]}
    given |= {"response_format": {"type": "text"}, "tool_choice": "none"}  # without effect
    chats = client.chat.completions.create
    for limit, num_new in (({"max_tokens": 4}, 4), ({"max_completion_tokens": 3}, 3), ({}, 64 - ids.shape[1])):
        completion = client.completions.create(**options, prompt=prompt, max_tokens=num_new)
        expected = [("assistant", choice.text, choice.finish_reason) for choice in completion.choices]
        chat = chats(**given, **limit)
        assert chat.usage == completion.usage
        given["messages"] = [{"role": "user", "content": [{"type": "text", "text": part} for part in ("I", " saw")]}]
        messages = [(choice.message.role, choice.message.content, choice.finish_reason) for choice in chat.choices]
        assert messages == expected
        parts = [[""] * 3 for _ in expected]
        for chunk in chats(**given, **limit, stream=True):
            for choice in chunk.choices:
                new = choice.delta.role, choice.delta.content, choice.finish_reason
                parts[choice.index] = [old + (text or "") for old, text in zip(parts[choice.index], new, strict=True)]
        assert [tuple(part) for part in parts] == expected
    for wrong in (
        {"logprobs": True},
        {"tools": [{"type": "function", "function": {"name": "a"}}]},
        {"messages": []},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]},
        {"messages": [{"role": "assistant", "content": "I"}]},
        {"messages": [{"role": "user", "content": "I saw" * 99}]},
        {"max_tokens": 0},
    ):
        with pytest.raises(openai.BadRequestError, match=r"logprobs|tools|messages|max_tokens|last message|exceed"):
            chats(**given | wrong)
    tokenizer.chat_template = CHAT_TEMPLATE.replace("in messages", "in messages if m.role != 'system'")
    with pytest.raises(openai.BadRequestError, match="leaves out message 0"):
        chats(**given | {"messages": [{"role": "system", "content": "I"}, {"role": "user", "content": "I saw"}]})
    with pytest.raises(openai.BadRequestError, match=r"messages\.1\.content"):
        chats(**given | {"messages": [*given["messages"], {"role": "user"}]})
    for template, message in (
        (None, "has no chat template"),
        ("{{ raise_exception('') }}", "template does not accept"),
    ):
        tokenizer.chat_template = template
        with pytest.raises(openai.BadRequestError, match=message):
            chats(**given)


def test_the_measurement_of_a_server(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", 128)
    main([model, "--num_requests", "40", "--clients", "1", "6", "--output_dir", str(tmp_path / "out")])
    *lines, last = read_json(tmp_path / "out" / "serving.json", ("lines",), "tests/serving.py")["lines"]
    assert [line["right"] for line in lines] == [40, 40]
    assert last["right"] + last["hung up"] == 40
    assert last["wrong"] == last["missing"] == 0
    assert "| 40 |" in (tmp_path / "out" / "serving.md").read_text()
