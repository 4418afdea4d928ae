# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Command that trains an AO-GPT or an encoder-only masked diffusion model, from scratch or from another model.

    python training/pretrain.py training/configs/quickstart.yaml [--key value ...]

The same command resumes an interrupted run, with the same final weights: bit for bit on a CPU, up to rounding on a GPU.
"""

import logging
import math
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, send_to_device
from tqdm import tqdm

from common.commands import one_line_errors, progress_bar
from common.data import Data, load_data
from common.examples import format_example
from common.files import atomic_folder, lock_folder, make_folder
from common.hardware import check_precision, hardware, keep_freed_memory, peak_flops, peak_memory, versions
from common.models import identity_of_weights, save_model
from common.packing import total
from common.processes import check_same_everywhere, in_turn, start_accelerator, together
from common.results import ORDER_KINDS, model_evaluation
from common.tokenizers import vocabulary_arguments
from modeling_aogpt.devices import evaluation_mode
from modeling_aogpt.tokenization import load_tokenizer, without_special_tokens
from training.architecture import Architecture, build_config
from training.arguments import TrainingArguments, accumulation_steps
from training.batches import Batches, pass_samples, rows_of_samples
from training.checkpoints import (
    Checkpoint,
    CheckpointWriter,
    load_checkpoint_model,
    load_state,
    training_state,
    valid_checkpoints,
)
from training.checks import check_examples
from training.command_line import parse_arguments
from training.draws import MaskDraws, OrderDraws
from training.evaluation import evaluate, read_samples, write_samples
from training.lora import check_base
from training.model import check_tokenizer, create_model, distribute, make_model
from training.objectives import OBJECTIVES
from training.optimization import ExponentialMovingAverage, create_optimizer, first_decay_step, learning_rate_at
from training.report import loss_curve, write_report
from training.resuming import check_same_run, find_start, to_settings, warn_of_versions
from training.sharding import check_sharding, full_tensor, gathered
from training.status import StepStatus, StopRequest
from training.streamed_data import training_samples
from training.tracking import flops_per_token, logger_types, start_tracker

logger = logging.getLogger("pretrain")


@dataclass
class TrainingProgress:
    """Progress of a run, as stored in checkpoints."""

    step: int = 0  # number of steps so far
    losses: list[float] = field(default_factory=list)  # loss of every step, in nats per token
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    position: dict[str, int] | None = None  # position in a streamed corpus
    train_seconds: float = 0.0


def main(argv: list[str], kind: "type[Pretraining] | None" = None) -> None:
    """Run the command. `kind` is the class of the run, by default [`Pretraining`]."""
    with ExitStack() as lock:
        with one_line_errors():
            run = set_up(argv, lock, kind or Pretraining)
        if run is None:
            return
        # From here on, a ValueError is a bug, so its traceback is shown.
        with one_line_errors(OSError, FloatingPointError):
            stop_signal = run.train()
            if not stop_signal:
                with together(run.accelerator):
                    if run.accelerator.is_main_process:
                        run.publish()
        run.accelerator.end_training()
    if stop_signal:
        sys.exit(128 + stop_signal)


def set_up(argv: list[str], lock: ExitStack, kind: "type[Pretraining]") -> "Pretraining | None":
    """Set up or resume a run, and lock its folder until `lock` is closed. Return None if nothing is to be trained."""
    architecture, data_arguments, training = parse_arguments(argv, kind.arguments)
    settings = to_settings(architecture, data_arguments, training)
    start_token_id = architecture["start_token_id"]
    accelerator = start_accelerator(
        # A machine that only prepares the data may lack the tracker, or not support the precision of training.
        mixed_precision="no" if training.prepare_only else training.mixed_precision,
        dynamo_backend=training.dynamo_backend,
        log_with=logger_types("none" if training.prepare_only else training.tracker),
        project_dir=training.output_dir,
    )
    check_precision(accelerator.device, accelerator.mixed_precision)
    check_sharding(accelerator)
    if accelerator.device.type == "cpu":
        keep_freed_memory()
    accelerator.gradient_accumulation_steps = accumulation_steps(training, accelerator.num_processes)
    logging.basicConfig(level=logging.INFO if accelerator.is_main_process else logging.ERROR, format="%(message)s")

    if training.prepare_only:
        with in_turn(accelerator):
            logger.info("The corpus is prepared: %s.", kind.load_data(data_arguments, start_token_id).facts)
        return None
    with together(accelerator):
        if accelerator.is_main_process:  # before the slow load_data, to fail early
            lock.enter_context(make_folder(training.output_dir))
            lock.enter_context(lock_folder(training.output_dir))
    is_finished, checkpoint = find_start(training, settings, accelerator)
    if is_finished:
        return None
    with in_turn(accelerator):
        if data_arguments.tokenizer is not None:  # before the slow load_data, to fail early
            check_tokenizer(load_tokenizer(data_arguments.tokenizer), architecture, data_arguments, training)
        data = kind.load_data(data_arguments, start_token_id)
    if training.init_from is None and start_token_id is None:
        data.tokenizer = without_special_tokens(data.tokenizer)
    check_same_everywhere(corpus=data.facts)
    check_examples(data, architecture, training)
    if accelerator.is_main_process and data.has_examples:
        for number, row in enumerate(islice(data.train, 3), 1):  # answers are in another colour or in brackets
            text = format_example(row["input_ids"], row["labels"], data.tokenizer, sys.stderr.isatty())
            print(f"Example {number} of {len(data.train)}:\n{text}\n", file=sys.stderr)
        if number := total(data.train, "num_unlearned"):
            logger.info("%d messages of the assistant have no loss (docs/finetuning.md).", number)
    run = kind(architecture, training, data, settings, accelerator, checkpoint)
    if accelerator.is_main_process:
        with atomic_folder(training.output_dir / "tokenizer") as folder:
            data.tokenizer.save_pretrained(folder)
    start_tracker(accelerator, training.tracker, training.output_dir, settings, run.progress.step)
    return run


class Pretraining:
    """A training run: model, moving averages of the weights, optimizer and progress.

    Data, orders and learning rate depend only on step and seed, so they have no state. The position in a streamed
    corpus is stored only to save time: without it, a resumed run would read the corpus from the beginning.
    """

    arguments, objectives = TrainingArguments, OBJECTIVES
    load_data, write_report = staticmethod(load_data), staticmethod(write_report)
    written = "model, report.md, results.json"

    def __init__(
        self,
        architecture: Architecture,
        training: TrainingArguments,
        data: Data,
        settings: dict[str, Any],
        accelerator: Accelerator,
        checkpoint: Checkpoint | None,
    ) -> None:
        self.training, self.data, self.settings, self.accelerator = training, data, settings, accelerator
        self.progress = TrainingProgress()
        self.logged = TrainingProgress()  # progress at the time of the last call of `log`
        self.gradient_norms: dict[int, float] = {}  # by step, before clipping; only of steps that may still be logged
        if checkpoint is not None:  # the files in the folder `init_from` may have changed after the start of the run
            self.initial_weights = checkpoint.metadata["initial_weights"]
            if training.init_from is not None:
                check_base(training, checkpoint.metadata)
        else:
            self.initial_weights = None if training.init_from is None else identity_of_weights(training.init_from)
        config = build_config(architecture, **vocabulary_arguments(data.tokenizer))
        self.model = create_model(config, training, accelerator, load_weights=checkpoint is None)
        self.objective = self.objectives[architecture["architecture"], training.objective](self.model)
        self.objective.distillation_weight = training.distillation_weight
        if training.needs_source and not training.lora_rank:
            self.objective.source = make_model(config, training.init_from).requires_grad_(False)
        self.optimizer = create_optimizer(self.model, training)
        self.parallel_objective, self.parallel_optimizer = distribute(accelerator, self.objective, self.optimizer)
        self.ema = ExponentialMovingAverage(self.model, training.ema_decay)  # after `distribute`, which shards weights
        self.peak_flops = peak_flops(accelerator.device, accelerator.mixed_precision)
        self.versions = versions() | {"mixed_precision": accelerator.mixed_precision}
        self.checkpoints = CheckpointWriter(training.output_dir, training.save_total_limit, self.is_milestone)
        if checkpoint is not None:
            self._resume(checkpoint)

    def _resume(self, checkpoint: Checkpoint) -> None:
        """Restore the state of a checkpoint. Raise a `ValueError` if the corpus has changed."""
        facts = checkpoint.metadata["corpus"]  # those of earlier versions may lack some
        named = ({f"{name} of the corpus": part.get(name) for name in facts} for part in (facts, self.data.facts))
        check_same_run(*named, checkpoint.path)
        warn_of_versions(checkpoint, self.versions)
        self.model.generation_config = self.model.generation_config.from_dict(checkpoint.metadata["generation_config"])
        load_state(checkpoint, self.model, self.ema.weights, self.optimizer.state)
        losses = torch.empty(checkpoint.step, dtype=torch.float64)
        checkpoint.read({"losses": losses})
        self.progress = TrainingProgress(**checkpoint.metadata["progress"], losses=losses.tolist())
        self.logged = replace(self.progress)
        self.ema.num_updates = self.progress.step
        if self.accelerator.scaler is not None and checkpoint.metadata["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(checkpoint.metadata["scaler"])
        if self.accelerator.is_main_process:  # a kill can leave older checkpoints
            self.checkpoints.remove_older(checkpoint.path)
        logger.info("Resuming from %s.", checkpoint.path)

    def is_milestone(self, step: int) -> bool:
        """Return whether to keep a checkpoint: the last before the decay, the best until then, or the best so far."""
        decay = first_decay_step(self.training)  # a longer run continues there, and may need the best one until then
        until_decay = None if decay is None else self.model_step(decay)
        best = (self.model_step(), until_decay) if self.training.keep_best else ()
        return step in (decay, *best)

    def model_step(self, last: float = math.inf) -> int | None:
        """Return the step whose weights become the model, according to the evaluations until the step `last`."""
        evaluations = [scores for scores in self.progress.evaluations if scores["step"] <= last]
        results = {"arguments": self.settings, "evaluations": evaluations}
        return model_evaluation(results)["step"] if evaluations else None

    def save(self) -> None:
        """Write a checkpoint. With FSDP2, every process writes its shards."""
        progress = asdict(self.progress)
        tensors = training_state(self.model, self.ema.weights, self.optimizer.state)
        tensors["losses"] = torch.tensor(progress.pop("losses"), dtype=torch.float64)
        scaler = self.accelerator.scaler
        metadata = {
            "config": self.model.config.to_dict(),
            "generation_config": self.model.generation_config.to_dict(),
            "settings": self.settings,
            "corpus": self.data.facts,
            "initial_weights": self.initial_weights,
            "progress": progress,
            "versions": self.versions,
            "scaler": scaler and scaler.state_dict(),
        }
        if self.accelerator.distributed_type == DistributedType.FSDP:
            self.checkpoints.save_shards(self.progress.step, tensors, metadata)
            return
        with together(self.accelerator):
            if self.accelerator.is_main_process:
                self.checkpoints.save(self.progress.step, tensors, metadata)

    def train(self) -> int:
        """Run the remaining steps, and return the number of the signal that stopped the run early, or 0."""
        training, progress, is_main = self.training, self.progress, self.accelerator.is_main_process
        bar = progress_bar(
            initial=progress.step, total=training.max_steps, unit="step", disable=not is_main, dynamic_ncols=True
        )
        with bar, StopRequest() as stop:
            if self.must_evaluate():  # the run was stopped after the checkpoint of this step, or shortened to it
                self.evaluate()
            batches = self.batches()  # the data-loader workers inherit the signal handlers of StopRequest
            unread: deque[StepStatus] = deque()
            stop_signal = 0
            while progress.step < training.max_steps and not self.must_stop_early():
                started, num_finished = time.perf_counter(), len(progress.losses)
                unread.append(self.step(batches, stop))
                progress.step, progress.position = progress.step + 1, batches.position
                must_evaluate, must_save = self.must_evaluate(), self.must_save()
                # Usually, this status stays unread: the CPU reads the previous one while the device computes this step.
                while len(unread) > 1 or (unread and (must_evaluate or must_save or stop_signal)):
                    stop_signal = self.finish_step(unread.popleft()) or stop_signal
                progress.train_seconds += time.perf_counter() - started
                self._log_steps(num_finished, bar)
                if must_save or stop_signal:
                    self.save()  # before the evaluation, which may take longer than a scheduler waits
                if stop_signal:
                    break
                if must_evaluate:
                    self.evaluate()
        if stop_signal:
            logger.info("Stopped after step %d, with a checkpoint. Run the same command to continue.", progress.step)
        return stop_signal

    def must_save(self) -> bool:
        """Return whether to write a checkpoint after the current step."""
        step, training = self.progress.step, self.training
        may_be_best = training.keep_best and self.must_evaluate()
        return may_be_best or step % training.save_steps == 0 or step == training.max_steps or self.is_milestone(step)

    def must_evaluate(self) -> bool:
        """Return whether the current step must still be evaluated."""
        step, training, evaluations = self.progress.step, self.training, self.progress.evaluations
        is_due = step > 0 and (step % training.eval_steps == 0 or step == training.max_steps)
        return is_due and (not evaluations or evaluations[-1]["step"] != step)

    def must_stop_early(self) -> bool:
        """Return whether the latest `early_stopping_patience` evaluations were not better than an earlier one."""
        patience, steps = self.training.early_stopping_patience, [one["step"] for one in self.progress.evaluations]
        return patience is not None and len(steps) > patience and self.model_step() <= steps[-1 - patience]

    def _log_steps(self, first: int, bar: tqdm) -> None:
        """Log all steps since `first` whose losses are already known, and update the progress bar."""
        training, losses = self.training, self.progress.losses
        for step in range(first, len(losses)):
            if (step + 1) % training.logging_steps == 0 or step + 1 == training.max_steps:
                self.log(step)
        self.gradient_norms.clear()
        if losses:
            bar.set_postfix_str(self.summary(), refresh=False)
        bar.update()

    def summary(self) -> str:
        """Return the text after the progress bar."""
        return f"loss {self.progress.losses[-1]:.3f}, {self.usage()['tokens_per_second']:,.0f} tokens/s"

    def batches(self) -> Batches:
        """Return the batches of the remaining forward passes of this process."""
        training, accelerator = self.training, self.accelerator
        steps, num_passes = range(self.progress.step, training.max_steps), accelerator.gradient_accumulation_steps
        process = (accelerator.process_index, accelerator.num_processes)
        is_decoder = self.settings["architecture"] == "decoder"
        return Batches(
            training_samples(self.data, training.seed, self.progress.position),
            pass_samples(steps, training.batch_size, num_passes, *process),
            OrderDraws(training, self.data.tokenizer.eos_token_id) if is_decoder else MaskDraws(training),
            num_workers=training.dataloader_num_workers,
            pin_memory=accelerator.device.type == "cuda",
        )

    def read_passes(self, batches: Batches) -> list[dict[str, torch.Tensor]]:
        """Return the batches of the forward passes of a step of this process, on its device.

        If a batch has labels, add `num_items_in_batch`: the number of labels of the step, divided by the number of its
        passes in all processes. The mean of the losses of these passes is then the mean over all labels of the step.
        """
        accelerator, num_passes = self.accelerator, self.accelerator.gradient_accumulation_steps
        passes = [send_to_device(next(batches), accelerator.device, non_blocking=True) for _ in range(num_passes)]
        if "labels" in passes[0]:
            num_labels = accelerator.reduce(sum((batch["labels"] != -100).sum() for batch in passes))
            for batch in passes:
                batch["num_items_in_batch"] = num_labels.clamp(min=1) / (num_passes * accelerator.num_processes)
        return passes

    def step(self, batches: Batches, stop: StopRequest) -> StepStatus:
        """Run a training step, and return its status without waiting for the device."""
        return self.update(self.read_passes(batches), stop)

    def update(self, passes: Sequence[dict[str, Any]], stop: StopRequest) -> StepStatus:
        """Update the weights with the forward passes of a step, and return the status of the step."""
        training, accelerator = self.training, self.accelerator
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(self.progress.step, training)
        loss = torch.zeros((), device=accelerator.device)
        for batch in passes:
            with accelerator.accumulate(self.parallel_objective):
                pass_loss = self.parallel_objective(**batch)
                accelerator.backward(pass_loss)
            loss += pass_loss.detach() / accelerator.gradient_accumulation_steps
        norm = accelerator.clip_grad_norm_(self.model.parameters(), training.max_grad_norm)
        norm = full_tensor(torch.as_tensor(norm, device=accelerator.device))

        status = accelerator.gather(torch.stack([loss, norm, torch.full_like(loss, stop.signal)])[None])
        self.parallel_optimizer.step()
        self.parallel_optimizer.zero_grad()
        self.ema.update(self.model)
        return StepStatus(self.progress.step, status)

    def finish_step(self, status: StepStatus) -> int:
        """Record the loss of a step. Return the signal that any process received, or 0.

        Raise a `FloatingPointError` if the loss or its gradient is not finite. No checkpoint contains such a step.
        """
        training, step = self.training, status.step
        mean_loss, gradient_norm, stop_signal = status.read()
        if not math.isfinite(mean_loss) or (self.accelerator.scaler is None and not math.isfinite(gradient_norm)):
            samples = range(step * training.batch_size, (step + 1) * training.batch_size)
            raise FloatingPointError(
                f"Loss and gradient must be finite, but at step {step}, the loss is {mean_loss} and the norm of its "
                f"gradient is {gradient_norm}. Start a new run with a lower `learning_rate` or more `warmup_steps`, "
                f"from scratch or from an earlier checkpoint in {training.output_dir} (training/export_checkpoint.py). "
                f"The batch has the samples {samples[0]} to {samples[-1]}."
            )
        self.progress.losses.append(mean_loss)
        self.gradient_norms[step] = gradient_norm
        return stop_signal

    def usage(self, since: TrainingProgress | None = None) -> dict[str, float]:
        """Return `tokens_per_second`, `peak_memory_gb` and, if known, `mfu` (model FLOPs utilization) since `since`."""
        since, progress = since or TrainingProgress(), self.progress
        num_tokens = (progress.step - since.step) * self.training.batch_size * self.data.mean_length
        speed = num_tokens / (progress.train_seconds - since.train_seconds)
        usage = {"tokens_per_second": speed, "peak_memory_gb": peak_memory(self.accelerator.device) / 1e9}
        if self.peak_flops is not None:
            length, is_frozen = self.settings["sequence_length"], self.training.lora_rank > 0
            flops = speed * flops_per_token(self.model.config, length, is_frozen)
            usage["mfu"] = flops / self.peak_flops / self.accelerator.num_processes
        return usage

    def count_tokens(self) -> int:
        """Return the number of tokens of all steps, without padding after examples."""
        data, num_samples = self.data, self.progress.step * self.training.batch_size
        if not data.has_examples:
            return round(num_samples * data.mean_length)
        rows = rows_of_samples([*range(num_samples)], len(data.train), self.training.seed)
        return int(data.train.with_format("numpy")["num_tokens"][:][rows].sum())

    def log(self, step: int) -> None:
        """Send the mean loss of the latest steps, up to and including `step`, and other numbers to the tracker."""
        window = self.progress.losses[step // self.training.logging_steps * self.training.logging_steps : step + 1]
        values = {
            "train/loss": sum(window) / len(window),
            "train/gradient_norm": self.gradient_norms[step],
            "train/learning_rate": learning_rate_at(step, self.training),
        }
        if self.progress.step > self.logged.step:
            values |= {f"train/{key}": value for key, value in self.usage(self.logged).items()}
        self.logged = replace(self.progress)
        self.accelerator.log(values, step=step + 1)

    def evaluate(self) -> None:
        """Evaluate the model with the moving averages of the weights, and write samples."""
        with self.averaged_weights():
            scores = evaluate(self.model, self.data.validation, self.training, self.accelerator)
            with together(self.accelerator):
                if self.accelerator.is_main_process and (count := self.training.num_samples):
                    length, path = self.settings["sequence_length"], self.samples_file(self.progress.step)
                    write_samples(self.model, self.data.tokenizer, count, length, path, self.training)
        self.progress.evaluations.append({"step": self.progress.step, **scores})
        kinds = [kind for kind in ORDER_KINDS if kind in scores]
        self.accelerator.log({f"eval/{kind}": scores[kind] for kind in kinds}, step=self.progress.step)
        if self.accelerator.is_main_process:
            text = ", ".join(f"{scores[kind]:.3f} {ORDER_KINDS[kind]}" for kind in kinds)
            tqdm.write(f"step {self.progress.step}: held-out bits per byte {text}", file=sys.stderr)

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Context manager in which the model has the averaged weights, for inference in the precision of training."""
        with (
            self.ema.applied_to(self.model),
            gathered(self.objective, self.accelerator),
            evaluation_mode(self.model),
            torch.no_grad(),
            self.accelerator.autocast(),
            torch.compiler.set_stance("force_eager"),  # most shapes differ from those in training
        ):
            yield

    def samples_file(self, step: int) -> Path:
        """Return the path of the texts that are generated after a step."""
        return self.training.output_dir / "samples" / f"samples-{step:08d}.txt"

    def publish(self) -> None:
        """Write the model folder, the figure, the report and, last, `results.json`, which marks the run as finished."""
        training, progress, step = self.training, self.progress, self.model_step()
        checkpoint = next((one for one in valid_checkpoints(training.output_dir) if one.step == step), None)
        if checkpoint is None:
            raise OSError(f"The checkpoint of step {step} is damaged. Remove it and later ones, and run again.")
        model = load_checkpoint_model(checkpoint)
        (training.output_dir / "results.json").unlink(missing_ok=True)  # of a shorter run with other weights
        save_model(model, self.data.tokenizer, training.output_dir / "model")
        results = {
            "arguments": self.settings,
            "initial_weights": self.initial_weights,
            "weights": identity_of_weights(str(training.output_dir / "model")),
            "corpus": self.data.facts | ({"read_up_to": progress.position} if progress.position else {}),
            "num_parameters": model.num_parameters(),
            "steps": progress.step,
            "sequences": progress.step * training.batch_size,
            "tokens": self.count_tokens(),
            "train_seconds": round(progress.train_seconds, 1),
            **{key: round(value, 4) for key, value in self.usage().items()},
            "loss_curve": loss_curve(progress.losses, training),
            "evaluations": progress.evaluations,
            "hardware": hardware(self.accelerator),
            "versions": versions(),
        }
        samples = read_samples(self.samples_file(step)) if training.num_samples else []
        self.write_report(results, samples, training.output_dir)
        logger.info("Written: %s (%s).", training.output_dir, self.written)


if __name__ == "__main__":
    main(sys.argv[1:])
