"""A hundred deletions by every system: passes, runs, rows, words."""
