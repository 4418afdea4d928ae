# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Where a run starts: whether its folder contains a finished run, and from which checkpoint to resume it."""

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from common.data_arguments import DataArguments
from common.files import remove_incomplete
from common.processes import check_same_everywhere, gather, together
from common.results import WITHOUT_EFFECT, read_results
from training.architecture import DEFAULTS, Architecture
from training.arguments import TrainingArguments
from training.checkpoints import Checkpoint, checkpoints_in, valid_checkpoints
from training.optimization import num_common_steps

logger = logging.getLogger("pretrain")

PUBLISHED = ("model", "report.md", "loss.png")  # what a run writes at its end, besides results.json
# Keys that may change when a run is resumed, if the learning rates and left-to-right fractions of all finished steps
# stay the same.
SCHEDULE = {"max_steps", "decay_steps", "left_to_right_steps"}


def to_settings(model: Architecture, data: DataArguments, training: TrainingArguments) -> dict[str, Any]:
    """Return all keys of a run with their values, converted to types that JSON can store."""
    values = model | asdict(data) | asdict(training)
    return {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}


def changed_settings(saved: dict[str, Any], current: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the saved and the current value of each setting that has changed and may affect the result."""
    defaults = to_settings(DEFAULTS, DataArguments(), TrainingArguments())
    saved, current = defaults | saved, defaults | current  # runs of earlier versions do not have all settings
    values = {key: (saved.get(key), current.get(key)) for key in sorted(saved.keys() | current.keys())}
    # `eval_sequences` changes evaluations, and `eval_steps` changes which weights can be the best.
    may_change = WITHOUT_EFFECT - {"eval_sequences"} - ({"eval_steps"} if current["keep_best"] else set())
    return {key: pair for key, pair in values.items() if pair[0] != pair[1] and key not in may_change}


def check_same_run(saved: dict[str, Any], current: dict[str, Any], place: Path) -> None:
    """Raise a `ValueError` if settings, except those in `SCHEDULE`, have changed and may affect the result."""
    if changed := {key: pair for key, pair in changed_settings(saved, current).items() if key not in SCHEDULE}:
        differences = "; ".join(f"{key}: previously {then!r}, now {now!r}" for key, (then, now) in changed.items())
        raise ValueError(
            f"{place} belongs to a run with other settings ({differences}). Restore the old settings, or choose "
            "another `output_dir`. To train its weights with other settings, run `python "
            f"training/export_checkpoint.py {place} MODEL`, and start a new run with `--init_from MODEL` and another "
            "`--output_dir`."
        )


def find_start(
    training: TrainingArguments, settings: dict[str, Any], accelerator: Accelerator
) -> tuple[bool, Checkpoint | None]:
    """Let the main process call [`choose_start`], and return its result in all processes.

    Raise a `ValueError` in all processes if they do not see the same files in `output_dir`.
    """
    if accelerator.is_main_process:
        remove_incomplete(training.output_dir)
    accelerator.wait_for_everyone()
    check_same_everywhere(checkpoints=[path.name for path in checkpoints_in(training.output_dir)])
    start = None
    with together(accelerator):
        if accelerator.is_main_process:
            start = choose_start(training, settings)
    return gather(start, accelerator.num_processes)[0]


def choose_start(training: TrainingArguments, settings: dict[str, Any]) -> tuple[bool, Checkpoint | None]:
    """Return whether the run is finished and, if not, the checkpoint from which to resume it (None for a new run).

    A finished run with other values of settings in `SCHEDULE` is extended. Raise a `ValueError` if `output_dir` belongs
    to a run with other settings, or to a run that cannot be extended.
    """
    folder, results = training.output_dir, read_results(training.output_dir)
    if results is not None:
        check_same_run(results["arguments"], settings, folder)
        if training.max_steps < results["steps"]:
            raise ValueError(
                f"The run in {folder} is finished with {results['steps']} steps, and cannot be shortened to "
                f"{training.max_steps}. Choose another `output_dir`."
            )
        if not changed_settings(results["arguments"], settings):
            logger.info("%s is finished (%d steps), so there is nothing to do.", folder, results["steps"])
            return True, None
    checkpoint = checkpoint_to_resume(training, settings)
    if checkpoint is None and results is not None:
        raise ValueError(
            f"The run in {folder} is finished with {_format_changed(results['arguments'], settings)}, but has no "
            "checkpoint from which to extend it. Restore the old value, start a new run from its model with "
            "`--init_from`, or choose another `output_dir`."
        )
    found = [name for name in PUBLISHED if (folder / name).exists()]
    if checkpoint is None and found:
        raise ValueError(
            f"{folder} contains {' and '.join(found)}, but no checkpoint and no results.json. This run would replace "
            "them. Choose another `output_dir`, or move them."
        )
    return False, checkpoint


def _format_changed(saved: dict[str, Any], current: dict[str, Any]) -> str:
    """Return the saved values of the settings that have changed as text."""
    return ", ".join(f"{key}={then}" for key, (then, _) in changed_settings(saved, current).items())


def checkpoint_to_resume(training: TrainingArguments, settings: dict[str, Any]) -> Checkpoint | None:
    """Return the newest checkpoint from which a run can be resumed, or None if there is no valid checkpoint.

    The settings in `SCHEDULE` may have changed, if the learning rates and left-to-right fractions of all steps up to
    the checkpoint stay the same. Raise a `ValueError` if no checkpoint fits, or has other settings.
    """
    too_late: list[str] = []
    for checkpoint in valid_checkpoints(training.output_dir):
        saved = checkpoint.metadata["settings"]
        check_same_run(saved, settings, checkpoint.path)
        num_common = num_common_steps(TrainingArguments.from_settings(saved), training)
        if num_common >= checkpoint.step:
            if too_late:
                logger.warning(
                    "Resuming at step %d. Later checkpoints cannot be used: %s.", checkpoint.step, "; ".join(too_late)
                )
            return checkpoint
        too_late.append(
            f"{checkpoint.path.name} ({_format_changed(saved, settings)}) has the same learning rates "
            f"and left-to-right fractions only up to step {num_common}"
        )
    if too_late:
        raise ValueError(
            f"The run in {training.output_dir} cannot continue with `max_steps={training.max_steps}`: "
            f"{'; '.join(too_late)}. Restore the old value, or start a new run from its model, with "
            "`--init_from` and another `--output_dir`. Runs with `learning_rate_schedule=warmup_stable_decay` can "
            "be extended from the checkpoint before their decay, if `left_to_right_steps` stays the same."
        )
    return None


def warn_of_versions(checkpoint: Checkpoint, now: dict[str, str]) -> None:
    """Log a warning if a checkpoint was written with library versions, or a precision, other than `now`."""
    saved = checkpoint.metadata["versions"]
    if changed := [f"{name} {saved[name]}, now {now.get(name)}" for name in saved if saved[name] != now.get(name)]:
        logger.warning(
            "%s was written with other versions or precision (%s). The results can differ from an uninterrupted run.",
            *(checkpoint.path.name, "; ".join(changed)),
        )
