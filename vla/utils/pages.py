"""Fills the templates of our pages: one self-contained HTML file each, without network or script.

Templates (`*.html.j2`, Jinja) lie beside the modules that fill them. They extend
`vla/utils/page.html.j2`
and take their tables, charts and videos from `vla/utils/parts.html.j2`. All text in them is
escaped.
"""

import base64
import functools
from pathlib import Path
from typing import Any

from vla.utils import charts

NONE = "–"
"""Stands in a table where there is no value."""
ROOT = Path(__file__).parents[2]
"""Folder of our packages."""


def style() -> str:
    """Return the style sheet of every page."""
    return (ROOT / "vla/utils/page.css").read_text("utf-8")


def render(template: str, **values: Any) -> str:
    """Return a template filled with values.

    Args:
        template: Its path from the folder of our packages, such as "training/report/page.html.j2".
        values: What it names.
    """
    return _templates().get_template(template).render(values)


def show(value: Any, spec: str = "") -> str:
    """Return a value as text, formatted by `spec`; a dash for None and NaN."""
    return NONE if value is None or value != value else format(value, spec)


def data_uri(data: bytes, kind: str) -> str:
    """Return data of a media type such as "video/mp4" as an address that needs no network."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@functools.cache
def _templates() -> Any:
    """Return the environment of all templates; Jinja is imported when a page is made."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["show"] = show
    environment.globals |= {
        "style": style, "colour": charts.colour, "dashed_from": len(charts.COLOURS), "NONE": NONE,
    }  # fmt: skip
    return environment
