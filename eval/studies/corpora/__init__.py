# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Training orders for Sudoku grids and path-star graphs."""
