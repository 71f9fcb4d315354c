"""The commands of `python -m experiments`, one module each."""
