# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Command that makes a model folder from a checkpoint of a training run. The run may still be training.

    python training/export_checkpoint.py CHECKPOINT OUTPUT_DIR [--weights ema|live]

CHECKPOINT is a checkpoint, or the folder of a run, whose newest checkpoint is then used. The result is like the model
folder of a finished run. The command needs neither the corpus nor a GPU.
"""

import sys
from pathlib import Path

from common.commands import Parser, one_line_errors
from common.files import check_empty_folder
from common.models import save_model
from modeling_aogpt.tokenization import load_tokenizer
from training.checkpoints import STATE_FILE, load_checkpoint, load_checkpoint_model, valid_checkpoints

PREFIXES = {"ema": "average", "live": "weights"}  # prefixes of the names of tensors in a checkpoint


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser((), description="Make a model folder from a checkpoint of a training run.")
    parser.add_argument("checkpoint", type=Path, help="checkpoint of a run, or the folder of the run")
    parser.add_argument("output_dir", type=Path, help="new or empty folder for the model")
    weights_help = "ema: moving averages of the weights. live: weights of the last step."
    parser.add_argument("--weights", choices=PREFIXES, default="ema", help=weights_help)
    (arguments,) = parser.parse(argv)
    path = arguments.checkpoint
    check_empty_folder(arguments.output_dir)
    is_checkpoint = path.is_file() or (path / STATE_FILE).exists()
    if (checkpoint := load_checkpoint(path) if is_checkpoint else next(valid_checkpoints(path), None)) is None:
        raise ValueError(f"{path} is neither a checkpoint nor the folder of a run with a checkpoint. Check the path.")
    tokenizer = load_tokenizer(checkpoint.path.parent / "tokenizer")
    save_model(load_checkpoint_model(checkpoint, PREFIXES[arguments.weights]), tokenizer, arguments.output_dir)
    print(f"Written: {arguments.output_dir} (step {checkpoint.step}, {arguments.weights} weights).")


if __name__ == "__main__":
    main(sys.argv[1:])
