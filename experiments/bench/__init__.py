"""Speed as ratios taken in one run: the gradient kernel, whole streams, growth, history."""
