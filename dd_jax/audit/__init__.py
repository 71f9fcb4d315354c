"""Samples to sound statements: lower bounds with confidence, verdicts on claims, and controls.

Samples refute an upper bound; they never certify one. Whatever is chosen by looking at data
(direction, critic, threshold, bins) is chosen on one part of the seeds and judged on another.
"""
