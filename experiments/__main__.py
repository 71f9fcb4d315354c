"""`python -m experiments`: the report, the comparison and the benchmark, run from a checkout."""

from dd_jax import cli

COMMANDS = {
    "bench": "speed of the gradient kernels as ratios to this machine's matrix product",
    "compare": "every system on the same records: claims, secrets, cost, risk, what leaks",
    "embed": "photographs as the features of a public frozen network",
    "report": "every figure and table, and one page that shows them",
}
PROGRAM = cli.Program(
    "python -m experiments",
    "The figures, tables and measurements of dd_jax.",
    "experiments.commands",
    COMMANDS,
    {"report": "what is complete is kept, and the same command goes on from it"},
)

if __name__ == "__main__":
    cli.entry(PROGRAM)
