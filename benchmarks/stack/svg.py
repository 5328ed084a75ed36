"""Bar charts as SVG: one narrow column, so that they are legible beside text and on a phone, and in dark mode too.

A picture in a page cannot see the page's colours, so each chart has a card of its own, with a light and a dark set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from benchmarks.stack import candidates

OURS, THEIRS, SCALE = "ours", "theirs", "scale"  # kinds of bars, and the names of their colours
LEGEND = {OURS: "vecenvs", THEIRS: "other libraries", SCALE: "for scale, not compared"}
_WIDTH, _EDGE, _REACH, _ROW, _LETTER = 480, 14, 210, 19, 6.4  # pixels; the longest bar ends at _REACH
_STYLE = """
text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328;
  paint-order: stroke; stroke: #fff; stroke-width: 3px }
.name { font-size: 12px } .title { font-weight: 700; font-size: 15px }
.panel { font-weight: 600 } .note { fill: #59636e; font-size: 12px }
.card { fill: #fff; stroke: #d1d9e0 } .one { stroke: #59636e; stroke-dasharray: 3 3 }
.ours, .step { fill: #2f6fd0 } .theirs, .other { fill: #a3acb5 } .scale, .update { fill: #d9a441 }
.inference { fill: #3f9a6b }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; stroke: #16181d }
  .note { fill: #9da7b1 } .card { fill: #16181d; stroke: #3d444d } .one { stroke: #9da7b1 }
  .ours, .step { fill: #5b9bff } .theirs, .other { fill: #6b7480 }
}"""


@dataclass(frozen=True)
class Bar:
    """A bar: its parts one after the other, each with the name of its colour; and the figure that is written there."""

    name: str
    parts: Sequence[tuple[str, float]]
    figure: str


@dataclass(frozen=True)
class Panel:
    """Bars below one title. `heading`, if any, begins a new part of the chart."""

    title: str
    bars: Sequence[Bar]
    heading: str = ""


def draw(
    path: Path,
    title: str,
    panels: Sequence[Panel],
    note: str,
    legend: Mapping[str, str] = LEGEND,
    *,
    ratios: bool = True,
) -> None:
    """Write the chart. Only those colours are in the legend that some bar has.

    `ratios`: all panels have one scale, on which a dashed line marks 1; otherwise each panel has a scale of its own.
    """
    lines: list[str] = []
    y = 30.0
    lines.append(_text(_EDGE, y, title, "title"))
    for row in _wrapped(note):
        y += 17
        lines.append(_text(_EDGE, y, row, "note"))
    used = {colour for panel in panels for bar in panel.bars for colour, _ in bar.parts}
    x, y = float(_EDGE), y + 22
    for colour in [one for one in legend if one in used]:
        wide = 34 + _LETTER * len(legend[colour])
        if x + wide > _WIDTH:
            x, y = float(_EDGE), y + 18
        lines.append(f'<rect class="{colour}" x="{x}" y="{y - 10}" width="12" height="12" rx="2"/>')
        lines.append(_text(x + 17, y, legend[colour], "note"))
        x += wide
    whole = max([1.0, *map(_longest, panels)])
    for panel in panels:
        if panel.heading:
            y += 32
            lines.append(_text(_EDGE, y, panel.heading, "title"))
        y += 26
        lines.append(_text(_EDGE, y, panel.title, "panel"))
        scale = (_REACH - _EDGE) / (whole if ratios else _longest(panel))
        if ratios:
            x, bottom = _EDGE + scale, y + _ROW * len(panel.bars) + 6
            lines.append(f'<line class="one" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 6}" y2="{bottom}"/>')
        for bar in panel.bars:
            y += _ROW
            begin = float(_EDGE)
            for colour, value in bar.parts:
                width = max(1.0, scale * value)
                lines.append(f'<rect class="{colour}" x="{begin:.1f}" y="{y - 11}" width="{width:.1f}" height="14"/>')
                begin += width
            lines.append(_text(begin + 6, y, f"{bar.figure}  {bar.name.replace(', a worker per core', ', per core')}"))
    height = y + 22
    size = f'width="{_WIDTH}" height="{height:.0f}"'
    told = [f"{panel.title}: {', '.join(f'{bar.name} {bar.figure}' for bar in panel.bars)}" for panel in panels]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {_WIDTH} {height:.0f}" role="img">'
    card = f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1:.0f}" rx="6"/>'
    path.parent.mkdir(parents=True, exist_ok=True)
    says = f"<title>{escape('; '.join([title, *told]))}</title>"
    path.write_text("\n".join([head, says, f"<style>{_STYLE}</style>", card, *lines, "</svg>\n"]), encoding="utf-8")


def bar_of(one: candidates.Candidate, value: float, figure: str, parts: Sequence[tuple[str, float]] = ()) -> Bar:
    """Return a candidate's bar, in the colour of its kind unless it has parts."""
    kind = OURS if one.library == candidates.OURS else THEIRS if one.python else SCALE
    return Bar(f"vecenvs {one.name}" if kind == OURS else one.name, parts or [(kind, value)], figure)


def _longest(panel: Panel) -> float:
    return max((sum(value for _, value in bar.parts) for bar in panel.bars), default=1.0)


def _text(x: float, y: float, text: str, kind: str = "name") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" xml:space="preserve">{escape(text)}</text>'


def _wrapped(text: str) -> list[str]:
    rows = [""]
    for word in text.split():
        if _LETTER * len(f"{rows[-1]} {word}") > _WIDTH - 2 * _EDGE:
            rows.append("")
        rows[-1] = f"{rows[-1]} {word}".strip()
    return rows
