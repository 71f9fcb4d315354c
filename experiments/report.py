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
from experiments import figures
from experiments.context import Context
from experiments.figures import risk_stream


def write_report(results: Path, progress: Callable[[str], None], names: Sequence[str] = ()) -> Path:
    """Compute every figure, save its data, and write `report.html`; returns the page's path.

    Args:
        results: folder to write to; made if it is missing.
        progress: told what is being done.
        names: figures to make; all by default.

    Raises:
        InputError: a name that is no figure's.
    """
    chosen = figures.find(names)
    results.mkdir(parents=True, exist_ok=True)
    made = [_make_figure(module, results, progress) for module in chosen]
    page = _template().render(
        figures=made, certificate=_certificate_card(), environment=_environment()
    )
    target = results / "report.html"
    _write_atomically(target, page.encode())
    return target


def _make_figure(module: ModuleType, results: Path, progress) -> dict:
    name = figures.name_of(module)
    config = module.Config()
    arrays = module.compute(config, Context(lambda text: progress(f"{name}: {text}")))
    figure = module.plot(config, arrays)
    for suffix in ("png", "svg", "pdf"):
        _write_atomically(results / f"{name}.{suffix}", _render(figure, suffix))
    plt.close(figure)
    _write_atomically(results / f"{name}.csv", _as_csv(arrays).encode())
    return {
        "name": name,
        "title": module.TITLE,
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
