"""`dd-jax run`: serving deletions on one data set, and the lines that show it."""
