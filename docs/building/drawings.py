"""The drawings of ``docs/pictures``: plain SVG, on a light ground of their own, so that they read in the dark too.

Run it with ``python -m docs.building.drawings`` after a drawing was changed.
"""

import base64
import shutil
from html import escape
from pathlib import Path

import numpy as np

ALBUM = Path(__file__).parents[1] / "notebooks" / "album"
PICTURES = Path(__file__).parents[1] / "pictures"
INK, QUIET, GROUND = "#1f2937", "#6b7280", "#f8fafc"
BLUE, LINE = "#1d4ed8", "#94a3b8"
COLOURS = ("#2563eb", "#d97706", "#059669", "#c026d3", "#dc2626", "#0891b2", "#7c3aed", "#65a30d")

Point = tuple[float, float]


class Drawing:
    """Shapes on a ground, later ones over earlier ones; lengths in pixels."""

    def __init__(self, width: int, height: int, title: str):
        self.size = (width, height)
        self.title = title
        self.parts: list[str] = []

    def text(
        self,
        at: Point,
        words: str,
        size: int = 15,
        colour: str = INK,
        anchor: str = "middle",
        weight: int = 400,
    ) -> None:
        """Words, a line each; the point is the middle of the first line unless `anchor` is ``start``."""
        for row, line in enumerate(words.split("\n")):
            self.parts.append(
                f'<text x="{at[0]:g}" y="{at[1] + row * size * 1.3:g}" font-size="{size}" fill="{colour}" '
                f'text-anchor="{anchor}" font-weight="{weight}">{escape(line)}</text>'
            )

    def box(
        self,
        at: Point,
        size: Point,
        fill: str = "#fff",
        edge: str = LINE,
        dashed: bool = False,
        radius: int = 8,
        width: float = 1.5,
    ) -> None:
        """A rectangle from its upper left corner."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<rect x="{at[0]:g}" y="{at[1]:g}" width="{size[0]:g}" height="{size[1]:g}" rx="{radius}" '
            f'fill="{fill}" stroke="{edge}" stroke-width="{width}"{dash}/>'
        )

    def dot(self, at: Point, radius: float, fill: str, edge: str = "none", dashed: bool = False) -> None:
        """A circle."""
        dash = ' stroke-dasharray="3 2.5"' if dashed else ""
        self.parts.append(
            f'<circle cx="{at[0]:g}" cy="{at[1]:g}" r="{radius:g}" fill="{fill}" stroke="{edge}" '
            f'stroke-width="1.8"{dash}/>'
        )

    def ellipse(self, at: Point, radii: Point, turn: float, colour: str, chosen: bool = False) -> None:
        """A component of a mixture."""
        self.parts.append(
            f'<ellipse cx="{at[0]:g}" cy="{at[1]:g}" rx="{radii[0]:g}" ry="{radii[1]:g}" fill="{colour}" '
            f'fill-opacity="{0.28 if chosen else 0.1}" stroke="{colour}" stroke-width="{3 if chosen else 1.2}" '
            f'transform="rotate({turn:g} {at[0]:g} {at[1]:g})"/>'
        )

    def photograph(self, file: Path, at: Point, side: float) -> None:
        """A photograph, cut square."""
        content = base64.b64encode(file.read_bytes()).decode()
        self.parts.append(
            f'<svg x="{at[0]:g}" y="{at[1]:g}" width="{side:g}" height="{side:g}"><image width="{side:g}" '
            f'height="{side:g}" preserveAspectRatio="xMidYMid slice" href="data:image/jpeg;base64,{content}"/></svg>'
        )

    def arrow(self, *points: Point, colour: str = INK, dashed: bool = False) -> None:
        """A line through points, with a head."""
        path = " ".join(f"{'L' if row else 'M'}{x:g} {y:g}" for row, (x, y) in enumerate(points))
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.8" marker-end="url(#head)"{dash}/>'
        )

    def svg(self) -> str:
        """The whole file."""
        width, height = self.size
        head = (
            '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{INK}"/></marker>'
        )
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif">\n'
            f"<title>{escape(self.title)}</title>\n<defs>{head}</defs>\n"
            f'<rect width="{width}" height="{height}" rx="12" fill="{GROUND}"/>\n{body}\n</svg>\n'
        )


def stages() -> Drawing:
    """Four stages: images, known categories, and replay for the next stage."""
    page = Drawing(960, 400, "One labelled stage, then three streams without labels")
    for stage in range(4):
        left = 24 + stage * 234
        page.text((left + 105, 36), f"stage {stage}", 18, weight=700)
        page.text((left + 105, 58), "no labels" if stage else "with labels", 14, QUIET)
        page.box((left, 72), (210, 132))
        for place in range(12):
            at = (left + 22 + place % 4 * 46, 84 + place // 4 * 38)
            colour = "#cbd5e1" if stage else COLOURS[place % 4]
            page.box(at, (30, 30), fill=colour, edge=colour, radius=5)
            page.text((at[0] + 15, at[1] + 21), "?" if stage else "", 16, INK, weight=700)
        page.arrow((left + 105, 206), (left + 105, 240))
        page.box((left, 244), (210, 64), fill="#dbeafe", edge=BLUE)
        page.text((left + 105, 272), "backbone + prompts", 16, weight=700)
        page.text((left + 105, 293), "only the last block learns", 13, QUIET)
        if stage < 3:
            page.arrow((left + 212, 276), (left + 231, 276))
        for category in range(4 + stage):
            new = stage > 0 and category == 3 + stage
            at = (left + 105 - (3 + stage) * 13 + category * 26, 334)
            page.dot(at, 10, "#fff" if new else COLOURS[category], COLOURS[category], dashed=new)
        said = "one more is discovered" if stage else "four categories are known"
        page.text((left + 105, 366), said, 14, INK)
    page.text(
        (480, 390),
        "PromptCCD keeps no images: the model goes from stage to stage, with the mixture that it remembers by.",
        13,
        QUIET,
    )
    return page


def mixture() -> Drawing:
    """PromptCCD: components of a mixture over features are class prototypes and prompts at once."""
    page = Drawing(960, 430, "The nearest components of the mixture become prompts of the image")
    rng = np.random.default_rng(4)
    centres = [(110.0, 130.0), (240.0, 100.0), (330.0, 200.0), (120.0, 270.0), (260.0, 310.0)]
    radii = [(52, 32), (46, 30), (50, 34), (44, 34), (56, 30)]
    turns = [20, -15, 40, 0, -25]
    chosen = [1, 2]
    page.text((210, 38), "1 · a mixture over [CLS] features", 17, weight=700)
    page.box((24, 54), (380, 316))
    for row, (centre, radius, turn) in enumerate(zip(centres, radii, turns, strict=True)):
        page.ellipse(centre, radius, turn, COLOURS[row], row in chosen)
        for x, y in rng.normal(centre, (radius[0] * 0.42, radius[1] * 0.42), (14, 2)):
            page.dot((round(float(x)), round(float(y))), 2.6, COLOURS[row])
        page.dot(centre, 15, "#fff", COLOURS[row])
        page.text((centre[0], centre[1] + 5), f"μ{row + 1}", 15, INK, weight=700)
    star = (300.0, 138.0)
    page.dot(star, 8, "#fff", INK)
    page.dot(star, 3, INK)
    page.text((star[0] + 14, star[1] - 6), "the image", 13, anchor="start")
    page.text(
        (214, 398),
        "A component is a category: its mean μ is\na prototype, and a prompt at the same time.",
        14,
        QUIET,
    )

    _prompted_block(page, chosen)
    return page


def _prompted_block(page: Drawing, chosen: list[int]) -> None:
    """How the chosen means act, and how the mixture is stored."""
    page.text((690, 38), "2 · the nearest means enter as prompts", 17, weight=700)
    names = ["[CLS]", "μ2", "μ3", "patch", "patch", "…", "patch"]
    fills = ["#e2e8f0", COLOURS[1], COLOURS[2], "#fff", "#fff", "#fff", "#fff"]
    for row, (name, fill) in enumerate(zip(names, fills, strict=True)):
        at = (438 + row * 72, 92)
        page.box(at, (64, 44), fill=fill, radius=6)
        page.text((at[0] + 32, 120), name, 15, "#fff" if row in chosen else INK, weight=600)
    page.arrow((404, 160), (420, 160), (420, 76), (542, 76), (542, 90))
    page.arrow((690, 140), (690, 172))
    page.box((438, 176), (496, 56), fill="#dbeafe", edge=BLUE)
    page.text((686, 210), "last block of the backbone (the one that learns)", 16, weight=700)
    page.text((686, 260), "[CLS] comes out: the feature of the image", 14)
    page.arrow((470, 234), (470, 274))
    page.arrow((902, 234), (902, 274))
    page.box((438, 276), (232, 60))
    page.text((554, 302), "contrastive losses", 15, weight=600)
    page.text((554, 322), "labels take part at stage 0", 13, QUIET)
    page.box((702, 276), (232, 60))
    page.text((818, 302), "groups: k-means with", 15, weight=600)
    page.text((818, 322), "known images held", 15, weight=600)

    page.arrow((406, 360), (422, 360))
    page.text(
        (430, 365),
        "3 · replay: 100 features drawn of every component join",
        16,
        anchor="start",
        weight=700,
    )
    page.text(
        (430, 389),
        "the next stage's fit, so that categories keep their component.",
        14,
        QUIET,
        anchor="start",
    )


BIRD = (
    "........",
    "..bb....",
    ".abbb...",
    "..bbbcc.",
    "..dcccce",
    "..ddccee",
    "...f.f..",
    "........",
)
PARTS = {"a": 1, "b": 0, "c": 2, "d": 3, "e": 4, "f": 5}
PART_NAMES = ("head", "beak", "wing", "belly", "tail", "legs")


def parts() -> Drawing:
    """PromptCCD++: every patch goes to the pool of its object part."""
    page = Drawing(960, 440, "A router sends every patch to its part, whose prompts scale it")
    page.text((134, 38), "1 · patches", 17, weight=700)
    for row, line in enumerate(BIRD):
        for column, letter in enumerate(line):
            fill = "#e2e8f0" if letter == "." else COLOURS[PARTS[letter]]
            page.box((24 + column * 28, 60 + row * 28), (26, 26), fill=fill, edge=fill, radius=4)
    page.box((24 + 5 * 28 - 1, 60 + 4 * 28 - 1), (28, 28), fill="none", edge=INK, radius=4, width=3)
    page.text((134, 312), "Colours are the parts that the\nrouter sees; grey is background.", 14, QUIET)

    page.text((400, 38), "2 · router", 17, weight=700)
    page.box((300, 140), (200, 84), fill="#fef3c7", edge="#d97706")
    page.text((400, 168), "which part is it?", 17, weight=700)
    page.text((400, 190), "sees the patches around it,\nand what [CLS] looks at", 13, QUIET)
    page.arrow((192, 185), (298, 185))
    page.text(
        (400, 258),
        "At stage 0 it learns from part labels\nthat the frozen backbone's patch\nfeatures give by clustering."
        " Then it\nis frozen.",
        14,
        QUIET,
    )

    _pools(page)
    return page


def _pools(page: Drawing) -> None:
    """The pools of all parts, and the effect of the chosen prompts on a patch."""
    page.text((690, 38), "3 · a pool of prompts for each part", 17, weight=700)
    for row, name in enumerate(PART_NAMES):
        top = 58 + row * 40
        mine = name == "wing"
        page.box(
            (570, top),
            (250, 34),
            fill="#fff",
            edge=COLOURS[row] if mine else "#cbd5e1",
            width=3 if mine else 1.2,
        )
        page.text((582, top + 23), name, 15, COLOURS[row], "start", 700)
        for place in range(6):
            picked = mine and place in (1, 4)
            page.box(
                (650 + place * 27, top + 8),
                (20, 18),
                fill=COLOURS[row] if picked else "#e2e8f0",
                edge="none",
                radius=3,
            )
    page.arrow((502, 182), (536, 182), (536, 155), (568, 155))
    page.text(
        (832, 150),
        "the 2 prompts\nwhose keys are\nnearest to it",
        13,
        QUIET,
        "start",
    )
    page.arrow((695, 300), (695, 330))
    page.box((300, 334), (634, 44), fill="#fff")
    page.text((617, 362), "patch \N{MULTIPLICATION SIGN} ( 1 + mean of the chosen prompts )", 17, weight=700)
    page.arrow((617, 380), (617, 394))
    page.text(
        (617, 414),
        "into the last block. With all prompts at 0 this is the plain backbone, bit for bit.",
        14,
        QUIET,
    )


def scoring() -> Drawing:
    """How groups are scored: matched one to one, then counted as All, Old and New."""
    page = Drawing(960, 330, "Groups are matched with categories one to one, then images are counted")
    groups = [[0, 0, 0, 0, 4], [1, 1, 1, 1, 1], [4, 4, 4, 2, 4], [2, 2, 2, 2, 0]]
    matched = [0, 1, 4, 2]
    old = {0: "cat", 1: "car", 2: "cup"}
    page.text((170, 36), "groups that were found", 17, weight=700)
    page.text((530, 36), "categories of the data", 17, weight=700)
    for row, images in enumerate(groups):
        top = 56 + row * 56
        page.box((24, top), (292, 44))
        for place, category in enumerate(images):
            right = category == matched[row]
            page.dot(
                (56 + place * 56, top + 22), 13, COLOURS[category] if right else "#fff", COLOURS[category]
            )
            if not right:
                page.text((56 + place * 56, top + 28), "✗", 16, COLOURS[category], weight=700)
        page.arrow((318, top + 22), (438, top + 22))
        page.box(
            (442, top),
            (176, 44),
            fill="#fff",
            edge=COLOURS[matched[row]],
            dashed=matched[row] not in old,
            width=2.5,
        )
        page.text((530, top + 28), old.get(matched[row], "owl, new"), 16, COLOURS[matched[row]], weight=700)
    page.text(
        (378, 300), "One matching for all groups, the one that gets most images right (Hungarian).", 14, QUIET
    )
    pairs = [(category, category == matched[row]) for row, images in enumerate(groups) for category in images]
    counted = (
        ("All", [right for _, right in pairs], "all images"),
        ("Old", [right for category, right in pairs if category in old], "labelled"),
        ("New", [right for category, right in pairs if category not in old], "the others"),
    )
    for row, (name, rights, what) in enumerate(counted):
        top = 56 + row * 76
        page.box((660, top), (276, 64), fill="#fff" if row else "#dbeafe", edge=BLUE)
        page.text((682, top + 40), name, 20, BLUE, "start", 700)
        page.text((746, top + 40), f"{sum(rights)} of {len(rights)}", 18, INK, "start", 700)
        page.text((836, top + 39), what, 13, QUIET, "start")
    return page


def discovery() -> Drawing:
    """What the package does, with photographs; the groups are those of the notebook that trains on them."""
    page = Drawing(1200, 452, "Three labelled categories, a stream of unlabelled photographs, and six groups")
    files = {folder.name: sorted(folder.glob("*.jpg")) for folder in sorted(ALBUM.iterdir())}
    known, new = ("aeroplane", "bonsai", "leopard"), ("motorbike", "sunflower", "watch")
    page.text((150, 38), "some images have labels", 19, weight=700)
    for row, name in enumerate(known):
        top = 62 + row * 122
        page.box((24, top), (252, 112))
        page.text((40, top + 26), name, 16, COLOURS[row], "start", 700)
        for place, file in enumerate((files[name][0], *files[name][2:4])):
            page.photograph(file, (40 + place * 75, top + 36), 68)
    page.text((505, 38), "others come without", 19, weight=700)
    page.box((340, 62), (330, 356))
    mixed = [(name, place) for place in range(3, 8) for name in (*new, *known)]
    order = np.random.default_rng(1).permutation(len(mixed))[:20]
    for row, chosen in enumerate(order):
        name, place = mixed[chosen]
        page.photograph(files[name][place], (352 + row % 4 * 78, 74 + row // 4 * 68), 62)
    page.text((950, 38), "all are grouped, new categories discovered", 19, weight=700)
    for row, name in enumerate((*known, *new)):
        left, top = 734 + row // 3 * 226, 62 + row % 3 * 122
        page.box((left, top), (216, 112), edge=COLOURS[row], dashed=name in new, width=2.5)
        title = f"new: category {row}" if name in new else name
        page.text((left + 14, top + 26), title, 16, COLOURS[row], "start", 700)
        for place in range(3):
            page.photograph(files[name][place + 4], (left + 14 + place * 64, top + 38), 60)
    page.arrow((284, 240), (332, 240))
    page.arrow((678, 240), (726, 240))
    page.text((600, 441), "Photographs: Caltech-101, Li, Andreeto, Ranzato and Perona (CC BY 4.0)", 12, QUIET)
    return page


DRAWINGS = {"stages": stages, "mixture": mixture, "parts": parts, "scoring": scoring}


def drawn() -> dict[str, str]:
    """Every drawing by the name of its file."""
    return {f"{name}.svg": draw().svg() for name, draw in DRAWINGS.items()}


def main() -> None:
    """Write them."""
    PICTURES.mkdir(exist_ok=True)
    for name, svg in drawn().items():
        (PICTURES / name).write_text(svg, encoding="utf-8")
    _photographed(discovery(), PICTURES / "discovery.jpg")


def _photographed(drawing: Drawing, path: Path) -> None:
    """Keep a drawing as a JPEG: GitHub shows no photographs within an SVG."""
    from playwright.sync_api import sync_playwright  # the drawings themselves need no browser

    width, height = drawing.size
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": width, "height": height}, device_scale_factor=1.5)
        page.set_content(f"<body style='margin:0'>{drawing.svg()}</body>")
        page.screenshot(path=path, type="jpeg", quality=82)
        chromium.close()


if __name__ == "__main__":
    main()
