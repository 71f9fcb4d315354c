"""The main job: every figure with its data, and one self-contained page that shows them."""

import base64
import csv
import io
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import jinja2
import matplotlib.pyplot as plt
import numpy as np

import dd_jax as dd
from dd_jax import data
from dd_jax.errors import InputError
from experiments import audit_figure, risk_stream, savings, sequential

# One entry per figure: module with Config, compute, plot and caption; its heading.
FIGURES: tuple[tuple[ModuleType, str], ...] = (
    (risk_stream, "Risk along a stream of deletions"),
    (audit_figure, "What samples prove: audited, exact, certified"),
    (savings, "What an edit saves, against retraining"),
    (sequential, "A hundred deletions, by every system"),
)


def write_report(results: Path, progress: Callable[[str], None], names: Sequence[str] = ()) -> Path:
    """Compute every figure, save its data, and write `report.html`; returns the page's path.

    Args:
        results: folder to write to; made if it is missing.
        progress: told what is being done.
        names: figures to make; all by default.

    Raises:
        InputError: a name that is no figure's.
    """
    chosen = _chosen(names)
    results.mkdir(parents=True, exist_ok=True)
    figures = [_make_figure(module, title, results, progress) for module, title in chosen]
    page = _template().render(
        figures=figures, certificate=_certificate_card(), environment=_environment()
    )
    target = results / "report.html"
    _write_atomically(target, page.encode())
    return target


def _chosen(names: Sequence[str]) -> list[tuple[ModuleType, str]]:
    known = {_name(module): (module, title) for module, title in FIGURES}
    for name in names:
        if name not in known:
            raise InputError(f"there is no figure {name!r}; choose from {', '.join(known)}.")
    return [known[name] for name in (names or known)]


def _name(module: ModuleType) -> str:
    return module.__name__.split(".")[-1]


def _make_figure(module: ModuleType, title: str, results: Path, progress) -> dict:
    name = _name(module)
    config = module.Config()
    arrays = module.compute(config, lambda text: progress(f"{name}: {text}"))
    figure = module.plot(config, arrays)
    for suffix in ("png", "svg", "pdf"):
        _write_atomically(results / f"{name}.{suffix}", _render(figure, suffix))
    plt.close(figure)
    _write_atomically(results / f"{name}.csv", _as_csv(arrays).encode())
    return {
        "name": name,
        "title": title,
        "caption": module.caption(config, arrays),
        "image": base64.b64encode((results / f"{name}.svg").read_bytes()).decode(),
        "config": asdict(config),
    }


def _render(figure, suffix: str) -> bytes:
    # Dates would make the same run write different bytes.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[suffix]
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix, dpi=150, metadata=metadata)
    return buffer.getvalue()


def _as_csv(arrays: dict[str, np.ndarray]) -> str:
    """Long form: array name, index along each axis, value."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["array", "index", "value"])
    for name, array in arrays.items():
        for index, value in np.ndenumerate(array):
            writer.writerow([name, " ".join(map(str, index)), f"{float(value):.9g}"])
    return buffer.getvalue()


def _write_atomically(path: Path, content: bytes) -> None:
    """A reader never sees half a file."""
    partial = path.with_name(path.name + ".part")
    partial.write_bytes(content)
    partial.replace(path)


def _certificate_card() -> dict:
    """The plan and the certificate that the first figure runs under."""
    config = risk_stream.Config()
    loaded = data.load(config.dataset)
    _, plan = risk_stream.make_plan(config, loaded.train)
    certificate = plan.certificate(
        request=1, data_check=dd.losses.check_data(dd.losses.logistic(), loaded.train)
    )
    return {
        "dataset": f"{loaded.name} ({loaded.preprocessing}), n = {plan.n}, d = {plan.dim}",
        "text": str(certificate),
    }


def _environment() -> dict[str, str]:
    packages = {name: version(name) for name in ("dd-jax", "jax", "jaxlib", "numpy", "scipy")}
    return {"python": platform.python_version(), "machine": platform.machine(), **packages}


def _template() -> jinja2.Template:
    source = (Path(__file__).parent / "page.html.j2").read_text(encoding="utf-8")
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(source)
