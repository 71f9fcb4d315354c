"""A comparison that takes seconds."""

from experiments.compare.scene import Config

SMALL = Config(
    data=("synthetic",),
    systems=("perturbed-gd", "fixed-model"),
    seeds=100,
    records=24,
    l2=0.1,
    releases=3,
    copies=4,
    stream=3,
)
