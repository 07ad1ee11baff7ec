"""The look of our offline pages, and the HTML of their parts; no network, no script, no figures."""

import html
from collections.abc import Sequence

from vla import svg

NONE = "–"
"""Stands in a table where there is nothing to say."""
STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --soft: #667080; --line: #e2e5ea; --ground: #fff;
  --panel: #f6f7f9; }
@media (prefers-color-scheme: dark) { :root { --text: #e3e6ea; --soft: #98a1ae; --line: #31363d;
  --ground: #16181c; --panel: #1e2126; } }
body { margin: 0 auto; padding: 40px 24px 80px; max-width: 1080px; color: var(--text);
  background: var(--ground); font: 15px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 19px; margin: 48px 0 12px; padding-top: 20px; border-top: 1px solid var(--line); }
h3 { font-size: 15px; margin: 28px 0 8px; }
p { margin: 8px 0; max-width: 74ch; }
.soft, figcaption, .legend { color: var(--soft); font-size: 13px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 20px 0 8px; font-size: 14px; }
th, td { padding: 7px 18px 7px 0; text-align: left; border-bottom: 1px solid var(--line);
  white-space: nowrap; vertical-align: top; }
th { color: var(--soft); font-weight: 500; font-size: 12.5px; white-space: normal;
  vertical-align: bottom; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.strong { font-weight: 600; }
.long { display: inline-block; white-space: normal; min-width: 24ch; max-width: 48ch; }
.dot { display: inline-block; width: 9px; height: 9px; border-radius: 50%; margin-right: 8px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr));
  gap: 8px 40px; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(300px, 100%), 1fr));
  gap: 20px 24px; }
.gallery figure { margin: 0; }
figure { margin: 16px 0; }
svg.chart { width: 100%; max-width: 640px; font-size: 11.5px; fill: var(--soft); }
svg .grid { stroke: var(--line); }
svg .chance { stroke: var(--soft); stroke-dasharray: 4 3; }
.key { display: inline-flex; align-items: center; gap: 7px; margin-right: 20px; }
video, figure img { width: 100%; border-radius: 6px; display: block; }
figure img { max-width: 860px; }
figcaption { margin-top: 8px; max-width: 84ch; }
details { margin: 12px 0; }
summary { cursor: pointer; color: var(--soft); }
pre { background: var(--panel); padding: 14px 16px; border-radius: 6px; overflow-x: auto;
  font: 12.5px/1.5 ui-monospace, Menlo, Consolas, monospace; }
"""
POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"
"""Content security policy: whatever our files hold, the page loads and runs nothing."""


def document(title: str, body: Sequence[str]) -> str:
    """Return a whole page; `title` is text, the parts of `body` are HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], numbers: range = range(0), strong: int = -1
) -> str:
    """Return a table; cells are HTML, headings text, columns `numbers` are aligned to the right."""

    def kind(column: int) -> str:
        names = ["number"] * (column in numbers) + ["strong"] * (column == strong)
        return f' class="{" ".join(names)}"' if names else ""

    top = "".join(f"<th{kind(i)}>{escape(name)}</th>" for i, name in enumerate(head))
    body = "".join(
        f"<tr>{''.join(f'<td{kind(i)}>{cell}</td>' for i, cell in enumerate(row))}</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{top}</tr>{body}</table></div>'


def figure(drawing: str, caption: str) -> str:
    """Return a drawing, which is HTML, over its caption, which is text."""
    return f"<figure>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"


def dot(place: int) -> str:
    """Return a spot in the colour of the series at a place."""
    return f'<span class="dot" style="background:{svg.colour(place)}"></span>'


def escape(text: str) -> str:
    """Return text as HTML."""
    return html.escape(text)
