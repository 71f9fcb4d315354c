"""Speed as ratios taken in one run: `kernel` (the gradient), `streams` (interactions), `run`."""
