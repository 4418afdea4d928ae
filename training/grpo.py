# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Command that trains a decoder with rewards, by GRPO (arXiv 2402.03300) with exact likelihoods in any order.

    accelerate launch training/grpo.py CONFIG.yaml [--key value ...]

A step samples groups of completions with `generate`, and then updates the weights `num_updates` times. TRL's
GRPOTrainer (1.16) cannot be used: it computes log-probabilities from left to right, of text after the prompt, and its
loss does not get the orders and steps that a `rollout_func` returns.

The random numbers of a forward pass depend only on the seed and the number of its first completion. The completions are
thus the same for any number of processes, if `per_device_batch_size` is the same. A resumed run continues as in
training/pretrain.py.
"""

import json
import math
import sys
from copy import deepcopy
from dataclasses import dataclass, fields
from inspect import signature
from pathlib import Path
from statistics import fmean
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import torch
from accelerate.utils import gather_object
from matplotlib.figure import Figure
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from aogpt.texts import decode_after
from common.caching import versioned
from common.commands import option
from common.corpora import import_function, load_corpus, no_text_error
from common.data import Data, evenly_spaced
from common.data_arguments import DataArguments
from common.files import hash_file, write_json, write_text
from common.reports import BLUE, ORANGE, save_figure, style_axes
from modeling_aogpt import tokenization
from modeling_aogpt.data_collator import make_streams
from modeling_aogpt.generation_config import AnyOrderGenerationConfig
from modeling_aogpt.infill import encode_with_masks, pad_texts
from modeling_aogpt.tokenization import load_tokenizer
from training.architecture import Architecture
from training.arguments import TrainingArguments
from training.batches import pass_samples, rows_of_samples
from training.evaluation import SAMPLE_SEED
from training.objectives import OBJECTIVES, Objective
from training.pretrain import Pretraining, logger, main
from training.status import StepStatus, StopRequest

MEASURES = ("reward", "solved", "kl", "entropy")  # means over completions; the last two in nats per completion
OWN_COLUMNS = ("text", "input_ids")  # the reward gets the others
SAMPLING = -5  # index of the random stream, see training/draws.py
# Keys that cannot be used with rewards, and must keep their defaults.
UNUSED = {
    *("objective", "orders", "min_context", "max_context", "left_to_right_fraction", "final_left_to_right_fraction"),
    *("distillation_weight", "ema_decay", "keep_best", "packing", "context_marks", "num_samples"),
}


@dataclass
class GRPOArguments(TrainingArguments):
    """Settings of a run of GRPO. The batch of a step consists of `batch_size` completions."""

    reward: str | None = option(
        None,
        "Function MODULE:FUNCTION of the lists `prompts` and `completions`, and of a list for each other column of the "
        "data, by name. It returns a number for each completion; at least 1 means solved.",
    )
    order: Literal["random", "left_to_right", "confidence", "margin", "entropy"] = option(
        "random", "Order of the tokens of a completion (also with block_length or stride), as in `generate`."
    )
    num_steps: int | None = option(None, "Number of steps of `generate`; by default one for each token.", least=1)
    unmasking: str = option("bernoulli", "Positions that a step of `generate` unmasks.")
    max_new_tokens: int | None = option(None, "Number of tokens to append to prompts.", least=1)
    group_size: int = option(8, "Number of completions of a prompt, which are compared with each other.", least=2)
    num_updates: int = option(1, "Number of updates of the weights with the completions of a step.", least=1)
    clip_range: float = option(0.2, "A probability ratio farther from 1 than this brings no further gain.", above=0)
    kl_weight: float = option(0.01, "Weight of the KL divergence from the initial model, in nats.", least=0)
    scale_rewards: bool = option(True, "Divide advantages by the standard deviation of the rewards of their group.")
    learning_rate: float = option(1e-5, "Peak learning rate.", above=0, below=math.inf)
    ema_decay: float = option(0.0, "Must be 0, which means no moving average.")
    left_to_right_fraction: float | None = option(0.0, "Must be 0. Use `order`.")
    num_samples: int = option(0, "Must be 0. The file log.jsonl has a completion of each step.")

    needs_source = True

    def generation_config(self) -> AnyOrderGenerationConfig:
        """Return the settings of `generate`. With other settings, log-probabilities might not be exact."""
        names = ("order", "num_steps", "unmasking", "max_new_tokens", "block_length", "stride")
        return AnyOrderGenerationConfig(**{name: getattr(self, name) for name in names}, return_dict_in_generate=True)


def load_prompts(arguments: DataArguments, start_token_id: int | None = None) -> Data:
    """Load and split prompts: the documents of a corpus, in the column `text`, with their `input_ids`."""
    if arguments.tokenizer is None:
        raise ValueError("Training with rewards needs an initial model. Set `init_from`.")
    if arguments.streaming:
        raise ValueError("`streaming` cannot be used with rewards. Remove it.")
    corpus, tokenizer, rows = load_corpus(arguments), load_tokenizer(arguments.tokenizer), {}
    facts = {"corpus": arguments.name, "tokenizer": arguments.tokenizer, "packing": "prompts"}
    facts["sources"] = corpus.sources
    for name, feature in corpus.train.rows.features.items():
        if any(kind in str(feature) for kind in ("timestamp", "Json", "Value('float")):  # 2.5 makes 2 a float
            logger.warning("`reward` gets %r as %s. If it was text or an integer in JSON, use CSV.", name, feature)
    for name, split in (("train", corpus.train), ("validation", corpus.validation)):
        texts = split.rows[split.column][:]
        chosen = [row for row, text in enumerate(texts) if split.select([text])]
        if split.column != "text":
            raise ValueError(f"{arguments.name} has examples instead of prompts. Set `text_column` to the prompts.")
        if not chosen:
            raise no_text_error(name, arguments)
        options = {"input_columns": "text", "fn_kwargs": {"tokenizer": tokenizer}}
        rows[name] = split.rows.select(chosen).map(versioned(_encode, tokenization), **options)
        sizes = sum(map(len, rows[name]["input_ids"])), sum(len(text.encode()) for text in rows[name]["text"])
        facts[name] = {"documents": len(chosen), "tokens": sizes[0], "bytes": sizes[1]}
    return Data(arguments, rows["train"], rows["validation"], tokenizer, facts)


def _encode(text: str, tokenizer: PreTrainedTokenizerBase) -> dict[str, list[int]]:
    return {"input_ids": encode_with_masks(text, tokenizer)}


def hash_code(module: ModuleType) -> str:
    """Return hashes of the file of a module and, recursively, of the files in its folder that it imports."""
    hashes, modules = {}, [module]
    for one in modules:
        file = str(getattr(one, "__file__", None))
        if file not in hashes and Path(file).parent == Path(str(module.__file__)).parent:
            hashes[file] = hash_file(file)
            values = vars(one).values()  # modules, and functions or classes of modules
            names = (str(getattr(value, "__module__", None) or getattr(value, "__name__", None)) for value in values)
            modules += [sys.modules[name] for name in names if sys.modules.get(name)]
    return " ".join(sorted(hashes.values()))


class PolicyObjective(Objective):
    """Clipped objective (PPO, arXiv 1707.06347) with the exact probabilities of the tokens of trajectories."""

    @torch.compiler.disable  # the number of rows varies
    def forward(
        self, log_probs: torch.Tensor, advantages: torch.Tensor, clip_range: float, **trajectory: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss: the sum over the tokens of a completion, averaged over completions.

        `trajectory` has the arguments of `trajectory_log_probs`, whose result at the time of sampling was `log_probs`
        (batch, n). `advantages` has shape (batch,).
        """
        ratios, advantages = (self.log_probs(**trajectory) - log_probs).exp(), advantages[:, None]
        gains = torch.minimum(ratios * advantages, ratios.clamp(1 - clip_range, 1 + clip_range) * advantages)
        return -gains.masked_fill(trajectory["unmasking_steps"] < 0, 0.0).sum(dim=1).mean()

    def log_probs(self, **trajectory: torch.Tensor) -> torch.Tensor:
        """Return the log-probabilities (batch, n) of the tokens of trajectories."""
        return self.model.trajectory_log_probs(**trajectory)


def compute_advantages(rewards: torch.Tensor, kl: torch.Tensor, training: GRPOArguments) -> torch.Tensor:
    """Return the advantages (batch,) of completions, given their rewards and log-ratios `kl` to the initial model.

    With `scale_rewards`, rewards are normalized as in GRPO. Otherwise, the mean of the other completions of a group is
    subtracted from each, so that the expected gradient of the first update is exactly that of the expected reward minus
    `kl_weight` times the KL divergence.
    """
    values, kl = (part.view(-1, training.group_size) for part in (rewards, kl))
    leave_one_out = training.group_size / (training.group_size - 1)
    scale = 1 / (values.std(dim=1, keepdim=True) + 1e-4) if training.scale_rewards else leave_one_out
    penalties = training.kl_weight * leave_one_out * (kl - kl.mean(dim=1, keepdim=True))
    return ((values - values.mean(dim=1, keepdim=True)) * scale - penalties).flatten()


class PolicyTraining(Pretraining):
    """A run of GRPO. The file `log.jsonl` has a line for each step: the `MEASURES`, and one of the completions."""

    arguments, load_data = GRPOArguments, staticmethod(load_prompts)
    objectives = dict.fromkeys(OBJECTIVES, PolicyObjective)
    written = "model, log.jsonl, curves.png, results.json"

    def __init__(self, architecture: Architecture, training: GRPOArguments, data: Data, *others: Any) -> None:
        self.reward = import_function("reward", str(training.reward))
        columns = [name for name in data.train.column_names if name not in OWN_COLUMNS]
        try:
            signature(self.reward).bind(prompts=[], completions=[], **dict.fromkeys(columns))
        except TypeError as error:
            given = ", ".join(("prompts", "completions", *columns))
            raise ValueError(f"`reward` gets {given}: {error}. Add `**others` for what it does not use.") from error
        data.facts["code of the reward"] = hash_code(sys.modules[self.reward.__module__])
        super().__init__(architecture, training, data, *others)
        self.generation, self.log_file = self.training.generation_config(), self.training.output_dir / "log.jsonl"
        num_new = training.max_new_tokens or 0
        lengths = [len(ids) + num_new for rows in (data.train, data.validation) for ids in rows["input_ids"]]
        data.mean_length = fmean(lengths[: len(data.train)])
        self._check(max(lengths))
        if self.generation.orders.is_left_to_right:
            self.model.generation_config.order = "left_to_right"
        if self.accelerator.is_main_process:
            lines = self.log_file.read_text().splitlines(keepends=True) if self.log_file.exists() else []
            write_text(self.log_file, "".join(lines[: self.progress.step]))

    def _check(self, longest: int) -> None:
        """Raise a `ValueError` if settings cannot be used. `longest` is the length of the longest text."""
        training, accelerator, most = self.training, self.accelerator, self.settings["sequence_length"]
        defaults = {item.name: item.default for kind in (DataArguments, GRPOArguments) for item in fields(kind)}
        if given := sorted(name for name in UNUSED if self.settings[name] != defaults[name]):
            raise ValueError(f"`{'`, `'.join(given)}` cannot be used with rewards. Remove them.")
        size = training.batch_size // accelerator.num_processes // accelerator.gradient_accumulation_steps
        if self.settings["architecture"] == "encoder":
            raise ValueError(f"Rewards need a decoder, but {training.init_from} is an encoder. Change `init_from`.")
        if size % training.group_size:
            raise ValueError(f"`group_size` must divide the completions of a pass ({size}). Change one of them.")
        if longest > most:
            raise ValueError(f"A prompt with its completion may have {most} tokens, but one has {longest}. Shorten it.")

    def sample(
        self, prompts: list[dict[str, Any]], group_size: int, seed: int
    ) -> tuple[dict[str, torch.Tensor], list[str], torch.Tensor]:
        """Sample `group_size` completions of each prompt, and compute their rewards.

        Return the arguments of `trajectory_log_probs` and its result, the texts of the completions (with the prompt, if
        it has masks), and the rewards.
        """
        tokenizer, device = self.data.tokenizer, self.accelerator.device
        rows = [prompt for prompt in prompts for _ in range(group_size)]
        inputs, mask = pad_texts([torch.tensor(row["input_ids"]) for row in rows])
        options = {"generator": torch.Generator().manual_seed(seed), "generation_config": self.generation}
        with self.averaged_weights():  # the weights themselves, because `ema_decay` is 0
            output = self.model.generate(inputs.to(device), attention_mask=mask.to(device), **options)
        new = (0, output.sequences.shape[1] - inputs.shape[1])
        is_shown = F.pad(mask * (inputs == tokenizer.mask_token_id).any(dim=1, keepdim=True), new).bool()
        is_shown |= output.unmasking_steps.cpu() >= 0
        shown = [row[kept].tolist() for row, kept in zip(output.sequences.cpu(), is_shown, strict=True)]
        before = [[] if tokenizer.mask_token_id in row["input_ids"] else row["input_ids"] for row in rows]
        texts = [decode_after(*ids, tokenizer) for ids in zip(before, shown, strict=True)]
        # The reward gets copies, because it may change its arguments.
        columns = {name: [deepcopy(row[name]) for row in rows] for name in rows[0] if name not in OWN_COLUMNS}
        rewards = self.reward(prompts=[row["text"] for row in rows], completions=list(texts), **columns)
        try:
            values = torch.as_tensor(rewards, dtype=torch.float64, device="cpu").detach()
        except Exception:  # of any kind, such as for None instead of a number
            values = torch.empty(0)
        if values.shape != (len(texts),) or not values.isfinite().all():
            advice = "Return a number for each completion, also for one that cannot be scored."
            raise ValueError(f"`reward` must return {len(texts)} finite numbers, but returned {rewards}. {advice}")
        trajectory = {name: output[name] for name in ("sequences", "orders", "unmasking_steps")}
        trajectory["attention_mask"] = F.pad(mask, new, value=1).to(device)
        trajectory["log_probs"] = output.token_logprobs.float()
        return trajectory, texts, values

    def roll_out(self, samples: list[int]) -> tuple[dict[str, Any], torch.Tensor, str]:
        """Return the arguments of the objective for a pass with these samples, the `MEASURES`, and one completion."""
        training, prompts = self.training, self.data.train
        groups = [sample // training.group_size for sample in samples[:: training.group_size]]
        seed = int(make_streams(int(make_streams(training.seed, torch.tensor(SAMPLING))), torch.tensor(samples[0])))
        chosen = [prompts[row] for row in rows_of_samples(groups, len(prompts), training.seed)]
        trajectory, texts, rewards = self.sample(chosen, training.group_size, seed)
        log_probs = trajectory.pop("log_probs")
        with self.averaged_weights(), self.objective.initial_model() as initial:
            kl = (log_probs - initial.trajectory_log_probs(**trajectory)).double().sum(dim=1).cpu()
        measures = torch.stack([rewards, (rewards >= 1).double(), kl, -log_probs.double().sum(dim=1).cpu()])
        advantages = compute_advantages(rewards, kl, training).to(log_probs)
        options = {"log_probs": log_probs, "advantages": advantages, "clip_range": training.clip_range}
        return trajectory | options, measures.mean(dim=1), texts[0]

    def batches(self) -> SimpleNamespace:
        """Return an object without batches, because each step samples its own."""
        return SimpleNamespace(position=None)

    def step(self, batches: SimpleNamespace, stop: StopRequest) -> StepStatus:
        """Sample completions, update the weights `num_updates` times, and return the status of the last update."""
        training, accelerator, step = self.training, self.accelerator, self.progress.step
        process = (accelerator.gradient_accumulation_steps, accelerator.process_index, accelerator.num_processes)
        samples = pass_samples(range(step, step + 1), training.batch_size, *process)
        passes, measures, texts = zip(*map(self.roll_out, samples), strict=True)
        means = accelerator.reduce(torch.stack(measures).mean(dim=0).to(accelerator.device), "mean").tolist()
        self.measures = dict(zip(MEASURES, means, strict=True))
        accelerator.log({f"train/{name}": value for name, value in self.measures.items()}, step=step + 1)
        if accelerator.is_main_process:
            with self.log_file.open("a") as file:
                file.write(json.dumps({"step": step + 1, **self.measures, "completion": texts[0]}) + "\n")
        return [self.update(passes, stop) for _ in range(training.num_updates)][-1]

    def summary(self) -> str:
        """Return the text after the progress bar."""
        return ", ".join(f"{name} {value:.3g}" for name, value in self.measures.items())

    def evaluate(self) -> None:
        """Compute the mean reward of held-out prompts, with one completion for each."""
        training, accelerator, rows = self.training, self.accelerator, self.data.validation
        rows = [rows[number] for number in evenly_spaced(len(rows), training.eval_sequences or len(rows))]
        size = training.eval_batch_size
        batches = range(0, len(rows), size)[accelerator.process_index :: accelerator.num_processes]
        parts = [self.sample(rows[first : first + size], 1, SAMPLE_SEED + first) for first in batches]
        rewards = gather_object([reward for _, _, rewards in parts for reward in rewards.tolist()])
        scores = {"reward": fmean(rewards), "solved": fmean(reward >= 1 for reward in rewards)}
        accelerator.log({f"eval/{name}": value for name, value in scores.items()}, step=self.progress.step)
        logger.info("Step %d: held-out prompts %s.", self.progress.step, scores)
        self.progress.evaluations.append({"step": self.progress.step, **scores})

    @staticmethod
    def write_report(results: dict[str, Any], samples: list[str], folder: Path) -> None:
        """Write `curves.png` and, last, `results.json`, which marks the run as finished."""
        log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        figure = Figure(figsize=(12, 3), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(MEASURES)), MEASURES, strict=True):
            for points, color in ((log, BLUE), (results["evaluations"], ORANGE)):
                if name in points[-1]:  # the held-out prompts, in orange, have no KL divergence or entropy
                    axes.plot([one["step"] for one in points], [one[name] for one in points], color=color)
            style_axes(axes, name)
        save_figure(figure, folder / "curves.png")
        write_json(folder / "results.json", results)


if __name__ == "__main__":
    main(sys.argv[1:], PolicyTraining)
