# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Commands that measure the speed and memory of this project."""
