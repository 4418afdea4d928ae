# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""HTTP server of a model, with OpenAI's endpoints for completions, chats and models, and llama.cpp's `/infill`."""

import asyncio
import copy
import hmac
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from queue import Full
from typing import Annotated, Any, Literal

import torch
import uvicorn
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from transformers import PreTrainedTokenizerBase

from modeling_aogpt import AnyOrderGenerationConfig
from modeling_aogpt.generation_config import FIELDS
from modeling_aogpt.loading import Model
from modeling_aogpt.tokenization import check_chat
from modeling_aogpt.validation import check_integer, is_integer, suggest

from .texts import cut_around, decode_after, find_end, find_special_ids, find_starts, lacks_space, num_final
from .worker import Job, Worker, find_gap

logger = logging.getLogger("uvicorn.error")

MAX_BODY = 2**20  # bytes
LIMITS = {"num_steps": 10**6, "refine_rounds": 100}  # so that a request cannot occupy the model or memory for long
DEFAULT_MAX_TOKENS = 16  # as OpenAI
CHARACTERS_PER_TOKEN = 32  # `/infill` encodes at most this number of characters for each position of the model
# Settings of `generate` that a request may have. The others are set by the fields of the request, or change the output.
SETTINGS = FIELDS.keys() - {
    *("max_length", "max_new_tokens", "num_return_sequences", "return_dict_in_generate", "output_history"),
    *("eos_token_id", "pad_token_id"),
}
# Fields of OpenAI that are accepted only with the value at which they have no effect.
NO_OP_VALUES = {"best_of": 1, "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}}
NO_OP_VALUES |= {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "top_logprobs": 0}
CHAT_KEYS = {"chat.completion": "message", "chat.completion.chunk": "delta"}  # by `object` of the response

Length = Annotated[int, Field(ge=1)]
Stop = Annotated[str, Field(min_length=1)]
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class ApiError(Exception):
    """Error that is sent to the client in OpenAI's form."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def describe(self) -> dict[str, Any]:
        """Return OpenAI's object of the error."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class GenerationRequest(BaseModel):
    """Fields of all requests that generate text. Further fields are settings of `generate`."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    stop: Stop | Annotated[list[Stop], Field(max_length=64)] | None = None
    stream: bool | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    lengths: Annotated[list[Length], Field(min_length=1, max_length=64)] | None = None
    padded_length: Length | None = None

    @classmethod
    async def read(cls, request: Request) -> Any:
        """Return the request in a body. Raise an error for the first field that is wrong."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY:
                raise ApiError(413, f"The body has more than {MAX_BODY} bytes. Shorten it.")
        return cls.model_validate_json(bytes(body))

    @property
    def stops(self) -> list[str]:
        """Return the strings that end a text."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class CompletionRequest(GenerationRequest):
    """Body of `/v1/completions`."""

    model: str | None = None
    prompt: str | Annotated[list[str] | Ids | list[Ids], Field(min_length=1)] | None = None
    suffix: str | None = None
    echo: bool | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    n: Length | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    stream_options: dict[str, Any] | None = None
    user: str | None = None


class TextPart(BaseModel):
    """Part of the content of a message."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """Message of a chat. Further fields are passed to the chat template."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: str
    content: str | list[TextPart]

    @field_validator("content")
    @classmethod
    def join(cls, content: str | list[TextPart]) -> str:
        """Return the content as one string, because many chat templates do not support parts."""
        return content if isinstance(content, str) else "".join(part.text for part in content)


class ChatRequest(GenerationRequest):
    """Body of `/v1/chat/completions`. Further fields are those of `/v1/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Length | None = None
    max_completion_tokens: Length | None = None


class InfillRequest(GenerationRequest):
    """Body of `/infill`. As in llama.cpp, unknown fields are ignored, and a negative seed means a random one."""

    response_fields: list[str] | None = None  # of the answer, such as `content` or `timings/predicted_n`
    input_prefix: str = ""
    input_suffix: str = ""
    prompt: str = ""
    n_predict: int | None = None


class Sample:
    """The text of one sample, while it is generated.

    `text` never contains characters that later tokens may change or that a stop string may cut off. `reason` tells why
    the text ended; None while it is generated.
    """

    def __init__(self, server: "Server", job: Job, ids: torch.LongTensor, prompt: str, stops: list[str]) -> None:
        self.tokenizer, self.name, self.has_gap = server.tokenizer, server.name_token, job.has_gap
        self.stops, self.prompt = stops, prompt
        self.end_of_text = find_special_ids(stops, server.tokenizer) | server.worker.find_ends(job)
        self.before = ids[: find_gap(ids, server.model.config.mask_token_id)].tolist()
        self.unsent, self.given = (prompt, self.before[server.worker.num_starts(ids) :]) if job.has_echo else ("", [])
        self.has_space = lacks_space(self.before, prompt, self.tokenizer)
        self.text, self.reason, self.num_tokens, self.num_sent = "", None, 0, 0

    def update(self, row: list[int], is_finished: bool) -> None:
        """Read the ids generated so far."""
        if self.reason is not None:
            return
        self.num_tokens = find_end(row, self.end_of_text)
        is_final = is_finished or self.num_tokens < len(row)
        text = self.read(row[: self.num_tokens]).rstrip("" if is_final else "\ufffd")  # no character that is cut
        found = [(start + len(stop), start) for stop in self.stops if (start := text.find(stop)) >= 0]
        if found or self.num_tokens < len(row):
            # The string that is complete first ends the text, however many tokens arrive at once.
            end, start = min(found, default=(len(text), None))
            self.text, self.reason = text[:start], "stop"
            while found and num_final(self.read(row[: self.num_tokens - 1]), text) >= end:  # tokens after the string
                self.num_tokens -= 1
        elif is_finished:
            self.text, self.reason = text, "stop" if self.has_gap else "length"
        else:
            unsafe = [end for stop in self.stops for end in range(1, len(stop)) if text.endswith(stop[:end])]
            self.text = text[: len(text) - max(unsafe, default=0)]

    def read(self, ids: list[int]) -> str:
        """Return the text of the ids that follow the prompt, without a first space that the prompt already contains."""
        return decode_after(self.before, ids, self.tokenizer, self.has_space)

    def name_all(self, logprobs: dict[int, float]) -> dict[str, float]:
        """Return log-probabilities by name of the token. If two tokens have the same name, the second gets its id."""
        named: dict[str, float] = {}
        for token, value in logprobs.items():
            if value > -torch.inf:
                named[f"token_id:{token}" if (name := self.name(token)) in named else name] = value
        return named

    def describe_logprobs(self, row: list[int], logprobs: list[tuple[float, dict[int, float]]]) -> dict[str, list]:
        """Return OpenAI's object with the log-probabilities of the tokens of `text` and, with `echo`, of the prompt."""
        row = row[: len(logprobs) - len(self.given)]
        if -torch.inf in (value for value, _ in logprobs):  # JSON has no infinity, and clients skip null
            raise ApiError(400, "A token has probability 0, so `logprobs` is infinite. Remove `logprobs`.", "logprobs")
        starts = find_starts(self.given, self.prompt, self.tokenizer)
        texts = [self.read(row[:number]) for number in range(len(row) + 1)]
        starts += [len(self.prompt) + num_final(text, texts[-1]) for text in texts[:-1]]
        kept = [
            entry
            for entry in zip(self.given + row, logprobs, starts, strict=True)
            if not self.stops or entry[-1] < len(self.prompt + self.text)  # not a part of a stop string
        ]
        return {
            "tokens": [self.name(token) for token, _, _ in kept],
            "token_logprobs": [value for _, (value, _), _ in kept],
            "top_logprobs": [self.name_all({chosen: logprob} | top) for chosen, (logprob, top), _ in kept],
            "text_offset": [start for _, _, start in kept],
        }


class Server:
    """The model, its tokenizer, limits, and the thread that runs the model. Its methods answer requests."""

    def __init__(
        self,
        model: Model,
        tokenizer: PreTrainedTokenizerBase,
        name: str,
        key: str | None = None,
        max_batch: int = 32,
        max_queue: int = 64,
        max_gap: int = 8,
        padded_length: int | None = None,
    ) -> None:
        limits = {"max_batch": max_batch, "max_queue": max_queue, "max_gap": max_gap}
        for limit, value in (limits if padded_length is None else limits | {"padded_length": padded_length}).items():
            check_integer(limit, value)
        self.model, self.tokenizer, self.name, self.key = model, tokenizer, name, key
        self.max_gap, self.padded_length, self.most = max_gap, padded_length, model.config.max_position_embeddings
        self.plain_tokenizer = copy.deepcopy(tokenizer)
        self.plain_tokenizer.split_special_tokens = True  # as in training, the names of special tokens are text
        self.worker = Worker(model, max_batch, max_queue)
        self.entry = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "aogpt"}

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, with special tokens."""
        return self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)

    def name_token(self, token: int) -> str:
        """Return the text of a token or, if it is a part of a character, `token_id:ID`."""
        # A token that is decoded alone may lose its first space. Two tokens would then have the same name.
        text = self.decode([token, token])[len(self.decode([token])) :]
        return f"token_id:{token}" if "\ufffd" in text else text

    async def check_key(self, request: Request) -> None:
        """Raise an error unless a request has the key of the server."""
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.key is not None and not hmac.compare_digest(given.encode(), self.key.encode()):
            raise ApiError(401, "Set the header `Authorization: Bearer KEY` to the key.", None, "invalid_api_key")

    async def retrieve_model(self, name: str) -> dict[str, Any]:
        """Return OpenAI's object of the model. Raise an error if a request has the name of another model."""
        if name != self.name:
            raise ApiError(404, f"There is no model {name!r}. Use {self.name!r}.", "model", "model_not_found")
        return self.entry

    def read_settings(self, query: GenerationRequest) -> dict[str, Any]:
        """Return the settings of `generate` in a request. If the temperature is set, it also sets `do_sample`."""
        given = {name: value for name, value in query.model_extra.items() if value is not None}
        if isinstance(query, CompletionRequest):
            for name in given.keys() & NO_OP_VALUES.keys():
                if (value := given.pop(name)) != NO_OP_VALUES[name]:
                    raise ApiError(400, f"`{name}` ({value!r}) is not supported. Remove it.", name)
            for name in given.keys() - SETTINGS:
                known = (*SETTINGS, *CompletionRequest.model_fields)
                raise ApiError(400, f"The field {name!r} is unknown.{suggest(name, known)}", name)
        settings = {name: value for name, value in given.items() if name in SETTINGS}
        if is_integer(settings.get("top_k")):
            settings["top_k"] = max(settings["top_k"], 0)  # -1 also keeps all tokens, as in llama.cpp and vLLM
        if "temperature" in settings:
            settings.setdefault("do_sample", settings["temperature"] != 0)
        try:
            find_special_ids(query.stops, self.tokenizer)
            if not isinstance(settings.get("order", ""), str):
                raise ValueError(f"`order` must be a string, but is {settings['order']!r}.")
            for name in settings.keys() & LIMITS.keys():
                check_integer(name, settings[name], least=0, most=LIMITS[name])
            config = AnyOrderGenerationConfig.from_generation_config(self.model.generation_config)
            config.with_arguments(settings, is_continuation=True)
        except (ValueError, TypeError) as error:
            raise ApiError(400, str(error)) from error
        return settings

    def encode(self, prompt: str | list[int], suffix: str | None, is_plain: bool = False) -> torch.LongTensor:
        """Return the ids (n,) of a prompt or, with a suffix, of the prompt, a gap and the suffix.

        If `is_plain` is True, names of special tokens are read as ordinary text.
        """
        if not isinstance(prompt, str):
            if suffix or max(prompt) >= (limit := self.model.config.num_valid_tokens):
                cause = "`suffix` needs a text as `prompt`" if suffix else f"Ids in `prompt` must be below {limit}"
                raise ApiError(400, f"{cause}. Change `prompt`.", "prompt")
            return torch.tensor(prompt)
        if self.tokenizer.mask_token in prompt + (suffix or ""):
            raise ApiError(400, f"A text contains {self.tokenizer.mask_token!r}. Remove it.", "prompt")
        if suffix and not hasattr(self.model, "infill"):
            raise ApiError(400, "Infilling needs a decoder, but the model is an encoder. Remove `suffix`.", "suffix")
        try:
            text = prompt + self.tokenizer.mask_token + suffix if suffix else prompt
            ids = self.model.encode_text(text, self.plain_tokenizer if is_plain else self.tokenizer)[0].long()
        except ValueError as error:
            raise ApiError(400, str(error), "prompt") from error
        if suffix and (len(ids) == 1 or ids[-1] == self.model.config.mask_token_id):
            raise ApiError(400, "`suffix` has no tokens. Remove it, or pass a longer one.", "suffix")
        return ids

    def make_job(
        self, query: GenerationRequest, prompts: list[torch.LongTensor], max_tokens: int | None, n: int, has_gap: bool
    ) -> Job:
        """Return the job of a request."""
        arguments = {**self.read_settings(query), "num_return_sequences": n}
        most, lengths = self.read_lengths(query, max_tokens or DEFAULT_MAX_TOKENS)
        limit = most if has_gap else self.most
        room = limit - max(map(len, prompts)) + has_gap
        default = min(DEFAULT_MAX_TOKENS, max(room, 1))
        fitting = (min if self.model.config.max_gap_length is None else max)(lengths)
        needed = fitting if has_gap else default if max_tokens is None else max_tokens
        if needed > room:
            fault = f"The text and {needed} more tokens exceed the limit of {limit} tokens."
            raise ApiError(400, f"{fault} Shorten the text, or request fewer tokens.", code="context_length_exceeded")
        if has_gap:
            if max_tokens is not None and max(lengths) > max_tokens:
                fault = f"The largest of `lengths` ({max(lengths)}) exceeds the limit of {max_tokens} new tokens."
                raise ApiError(400, f"{fault} Shorten it, or increase the limit.", "lengths")
            arguments |= {"lengths": lengths, "padded_length": query.padded_length or self.padded_length}
        else:
            arguments["max_new_tokens"] = needed
        seed = None if isinstance(query, InfillRequest) and (query.seed or 0) < 0 else query.seed
        return Job(prompts, arguments, has_gap, seed, getattr(query, "logprobs", None), getattr(query, "echo", False))

    def read_lengths(self, query: GenerationRequest, max_tokens: int) -> tuple[int, list[int]]:
        """Return how many tokens a text with a gap may have, and the lengths of the gap to compare."""
        most = min(query.padded_length or self.padded_length or self.most, self.most)
        return most, query.lengths or list(range(1, min(max_tokens, self.max_gap) + 1))

    async def follow(self, job: Job, samples: list[Sample], request: Request) -> AsyncIterator[None]:
        """Run a job. Yield whenever the samples have changed. Stop the job when the client has hung up."""
        gone = asyncio.ensure_future(wait_for_disconnect(request))
        gone.add_done_callback(lambda _: job.changed.set())
        needs_end = job.num_top is not None
        try:
            self.worker.submit(job)
            while needs_end or any(sample.reason is None for sample in samples):
                await job.changed.wait()
                job.changed.clear()
                if gone.done():
                    raise ClientDisconnect
                is_finished = job.is_finished
                if job.error is not None:
                    raise job.error
                if needs_end and not is_finished:
                    continue
                needs_end = False
                for sample, row in zip(samples, job.rows, strict=True):
                    sample.update(list(row), is_finished)
                yield
        except Full as error:
            raise ApiError(429, "The queue is full. Try again later.", code="queue_full") from error
        except ValueError as error:
            raise ApiError(400, str(error)) from error
        finally:
            self.worker.stop(job)
            gone.cancel()

    async def complete(self, request: Request) -> Response:
        """Answer `/v1/completions`."""
        return await self.respond(await CompletionRequest.read(request), request)

    async def chat(self, request: Request) -> Response:
        """Answer `/v1/chat/completions`, which completes the text that the chat template makes of the messages."""
        fields = (await ChatRequest.read(request)).model_dump(exclude_none=True)
        messages, most = fields.pop("messages"), fields.pop("max_completion_tokens", None)
        for name in fields.keys() & {"prompt", "suffix", "echo", "logprobs"}:
            if fields.pop(name):
                raise ApiError(400, f"`{name}` is not supported in chats. Remove it.", name)
        if messages[-1]["role"] == "assistant":
            raise ApiError(400, "The last message must not have the role `assistant`. Remove it.", "messages")
        if self.tokenizer.chat_template is None:
            raise ApiError(400, "The tokenizer has no chat template. Save it with one, or use `/v1/completions`.")
        try:
            prompt = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            check_chat(messages, self.tokenizer)
        except Exception as error:  # chat templates raise errors of their own
            text = "The chat template does not accept `messages`. Change them, or use `/v1/completions`."
            raise ApiError(400, f"{text} (Cause: {str(error) or repr(error)})", "messages") from error
        most = most or fields.get("max_tokens") or max(self.most - len(self.encode(prompt, None)), 1)
        query = CompletionRequest(**fields | {"prompt": prompt, "max_tokens": most})
        return await self.respond(query, request, is_chat=True)

    async def respond(self, query: CompletionRequest, request: Request, is_chat: bool = False) -> Response:
        """Return completions, or a stream of them. If `is_chat` is True, each completion is a message."""
        await self.retrieve_model(query.model or self.name)
        n, prompt = query.n or 1, query.prompt or ""
        prompts = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
        if n * len(prompts) > self.worker.max_batch:
            raise ApiError(400, f"`n` times the number of prompts must be at most {self.worker.max_batch}.", "n")
        if query.logprobs is not None and not hasattr(self.model, "infill"):
            raise ApiError(400, "`logprobs` needs a decoder, but the model is an encoder. Remove it.", "logprobs")
        if query.suffix and (query.echo or query.max_tokens == 0):
            raise ApiError(400, "`suffix` cannot be combined with `echo` or `max_tokens=0`. Remove one.", "suffix")
        ids = [self.encode(prompt, query.suffix) for prompt in prompts]
        job = self.make_job(query, ids, query.max_tokens, n, bool(query.suffix))
        samples = [
            Sample(self, job, given, prompt if isinstance(prompt, str) else self.decode(prompt), query.stops)
            for given, prompt in zip(ids, prompts, strict=True)
            for _ in range(n)
        ]
        prefix, kind = ("chatcmpl", "chat.completion") if is_chat else ("cmpl", "text_completion")
        kind = f"{kind}.chunk" if is_chat and query.stream else kind
        head = {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": self.name}
        if query.stream:
            return await respond_with_events(self.stream_choices(query, job, samples, head, request))
        async for _ in self.follow(job, samples, request):
            pass
        choices = [describe_choice(index, sample, job, kind) for index, sample in enumerate(samples)]
        return JSONResponse(head | {"choices": choices, "usage": count_tokens(job, samples)})

    async def stream_choices(
        self, query: CompletionRequest, job: Job, samples: list[Sample], head: dict[str, Any], request: Request
    ) -> AsyncIterator[str]:
        """Yield the data of the events of a streamed response. The last event of a text has its `finish_reason`."""
        open_samples = dict(enumerate(samples))
        async with aclosing(self.follow(job, samples, request)) as changes:
            async for _ in changes:
                new = {i: s for i, s in open_samples.items() if s.text[s.num_sent :] or s.unsent or s.reason}
                if choices := [describe_choice(index, sample, job, head["object"]) for index, sample in new.items()]:
                    yield json.dumps(head | {"choices": choices})
                open_samples = {index: sample for index, sample in open_samples.items() if sample.reason is None}
        if (query.stream_options or {}).get("include_usage"):
            yield json.dumps(head | {"choices": [], "usage": count_tokens(job, samples)})
        yield "[DONE]"

    async def fill_in(self, request: Request) -> Response:
        """Answer `/infill`. A text that is too long is cut, because editors do not know how much fits."""
        query, started = await InfillRequest.read(request), time.perf_counter()
        prefix, suffix, limit = query.input_prefix + query.prompt, query.input_suffix, self.most * CHARACTERS_PER_TOKEN
        max_tokens = self.most if query.n_predict is None or query.n_predict < 0 else query.n_predict
        answer = {"content": "", "stop": True, "model": self.name, "generation_settings": {"n_ctx": self.most}}
        answer |= {"truncated": False, "tokens_predicted": 0, "tokens_evaluated": 0, "tokens_cached": 0}
        if max_tokens > 0 and prefix + suffix:
            whole = self.encode(prefix[-limit:], suffix[:limit], is_plain=True)
            most, lengths = self.read_lengths(query, max_tokens)
            most, num_new = (most, max(lengths)) if suffix else (self.most, max_tokens)
            start, room = find_gap(whole, self.model.config.mask_token_id), most - min(num_new, most // 2)
            before, after = cut_around(whole[:start], whole[start + 1 :], room, fraction_after=0.25)
            ids = torch.cat([before, whole[start : start + 1], after])
            max_tokens = max_tokens if suffix else min(max_tokens, most - len(ids))
            job = self.make_job(query, [ids], max_tokens, 1, bool(suffix))
            sample = Sample(self, job, ids, prefix, query.stops)
            async for _ in self.follow(job, [sample], request):
                pass
            usage = count_tokens(job, [sample])
            answer |= {"content": sample.text, "tokens_predicted": usage["completion_tokens"]}
            is_cut = len(ids) < len(whole) or max(len(prefix), len(suffix)) > limit
            answer |= {"tokens_evaluated": usage["prompt_tokens"], "truncated": is_cut}
        num_new, ms = answer["tokens_predicted"], (time.perf_counter() - started) * 1000
        times = {"prompt_ms": 0.0, "prompt_per_token_ms": 0.0, "prompt_per_second": 0.0, "predicted_ms": ms}
        times |= {"predicted_per_token_ms": ms / max(num_new, 1), "predicted_per_second": num_new / ms * 1000}
        answer["timings"] = times | {"prompt_n": answer["tokens_evaluated"], "predicted_n": num_new}
        if query.response_fields is not None:
            answer |= {f"timings/{name}": value for name, value in answer["timings"].items()}
            answer = {name: answer[name] for name in query.response_fields if name in answer}
        if query.stream:
            return Response(f"data: {json.dumps(answer)}\n\n", media_type="text/event-stream")
        return JSONResponse(answer)


# -------------------------------------------------------------------------------------------------------------- parts


def describe_choice(index: int, sample: Sample, job: Job, kind: str) -> dict[str, Any]:
    """Return OpenAI's object with the new text of a sample. `kind` is the `object` of the response."""
    logprobs = None if job.num_top is None else sample.describe_logprobs(job.rows[index], job.logprobs[index])
    role = {"role": "assistant"} if sample.num_sent == 0 else {}  # only once: clients join strings
    text, sample.unsent, sample.num_sent = sample.unsent + sample.text[sample.num_sent :], "", len(sample.text)
    content = {CHAT_KEYS[kind]: role | {"content": text}} if kind in CHAT_KEYS else {"text": text}
    return {"index": index, **content, "logprobs": logprobs, "finish_reason": sample.reason}


def count_tokens(job: Job, samples: list[Sample]) -> dict[str, int]:
    """Return OpenAI's object with numbers of tokens."""
    given, new = sum(len(ids) - job.has_gap for ids in job.prompts), sum(sample.num_tokens for sample in samples)
    return {"prompt_tokens": given, "completion_tokens": new, "total_tokens": given + new}


async def wait_for_disconnect(request: Request) -> None:
    """Return when the client has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def respond_with_events(events: AsyncIterator[str]) -> Response:
    """Return a response of server-sent events. An error before the first event is raised, and a later one is sent."""
    first = await anext(events)

    async def send() -> AsyncIterator[str]:
        yield f"data: {first}\n\n"
        try:
            async with aclosing(events):
                async for event in events:
                    yield f"data: {event}\n\n"
        except ApiError as error:
            yield f"data: {json.dumps(error.describe())}\n\n"
        except ClientDisconnect:
            pass

    return StreamingResponse(send(), media_type="text/event-stream")


def make_app(server: Server) -> FastAPI:
    """Return the application of a server."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(server.worker.close)

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    keyed = {"dependencies": [Depends(server.check_key)]}
    app.add_api_route("/v1/completions", server.complete, methods=["POST"], **keyed)
    app.add_api_route("/v1/chat/completions", server.chat, methods=["POST"], **keyed)
    app.add_api_route("/infill", server.fill_in, methods=["POST"], **keyed)
    app.add_api_route("/v1/models", lambda: {"object": "list", "data": [server.entry]}, **keyed)
    app.add_api_route("/v1/models/{name:path}", server.retrieve_model, **keyed)
    app.add_api_route("/health", lambda: {"status": "ok"})

    async def describe(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientDisconnect):
            return Response(status_code=499)
        if isinstance(error, HTTPException):
            error = ApiError(error.status_code, str(error.detail))
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = first["loc"][: 3 if first["loc"][:1] == ("messages",) else 1]  # such as "messages", 0, "role"
            name = ".".join(map(str, place)) or None
            error = ApiError(400, f"`{name or 'body'}`: {first['msg']}.", name)
        if not isinstance(error, ApiError):
            error = ApiError(500, "The server has an internal error. Its log has the cause.")
        return JSONResponse(error.describe(), error.status)

    for kind in (ApiError, HTTPException, ValidationError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, describe)
    return app


def serve(server: Server, host: str, port: int) -> None:
    """Serve until a signal ends the process. SIGTERM first finishes the requests that were accepted."""
    if server.key is None and host not in ("127.0.0.1", "localhost", "::1"):
        logger.warning("Everybody who reaches %s can use the model. Set --api_key to require a key.", host)
    uvicorn.run(make_app(server), host=host, port=port, access_log=False)
