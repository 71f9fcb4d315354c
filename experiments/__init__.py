"""Figures, tables, the comparison and the benchmark: `python -m experiments`, from a checkout."""
