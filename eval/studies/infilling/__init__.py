# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Study of infilling, with a left-to-right model that is trained to fill in the middle."""
