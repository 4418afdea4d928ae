# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The command `python -m aogpt`, which is the same as `aogpt`."""

from .cli import main

main()
