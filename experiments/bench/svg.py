"""A small SVG writer, so that a picture's bytes depend on its content alone.

matplotlib writes other bytes with every release; the pictures of the pages are compared byte for
byte with what the records, or the code, give.
"""

from __future__ import annotations

from html import escape

INK, GREY, FAINT, PAPER = "#1f2328", "#59636e", "#d8dee4", "#ffffff"
BLUE, ORANGE, RED, GREEN = "#2a6fb8", "#c96a12", "#c0272d", "#2c7a4b"


class Picture:
    """Shapes on a light background, which keeps them readable on a dark page. Units are pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height = width, height
        self._shapes = [
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>',
        ]

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        stroke: str = "none",
        radius: float = 0,
    ) -> None:
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
            f'fill="{fill}" stroke="{stroke}"/>'
        )

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        color: str = INK,
        width: float = 1,
        arrow: bool = False,
        dashed: bool = False,
    ) -> None:
        end = f' marker-end="url(#arrow-{color[1:]})"' if arrow else ""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        if arrow and (marker := _marker(color)) not in self._shapes:
            self._shapes.append(marker)
        self._shapes.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" '
            f'stroke-width="{width:g}"{dash}{end}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 12,
        color: str = INK,
        anchor: str = "start",
        bold: bool = False,
        mono: bool = False,
    ) -> None:
        """One line of text; y is its baseline."""
        weight = ' font-weight="600"' if bold else ""
        family = ' font-family="ui-monospace, Menlo, Consolas, monospace"' if mono else ""
        self._shapes.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{color}" '
            f'text-anchor="{anchor}"{weight}{family}>{escape(text)}</text>'
        )

    def svg(self) -> str:
        size = f'width="{self.width}" height="{self.height}"'
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
            f'viewBox="0 0 {self.width} {self.height}" role="img" '
            f'font-family="system-ui, Helvetica, Arial, sans-serif">'
        )
        return "\n".join([head, *self._shapes, "</svg>"]) + "\n"


def _marker(color: str) -> str:
    return (
        f'<marker id="arrow-{color[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="{color}"/></marker>'
    )
