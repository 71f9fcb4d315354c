"""Grids of settings over seeds in chunks that are stored and resumed."""
