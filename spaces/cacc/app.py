"""The page of the metric: a CSV in, the table and the matching out. Run it with ``python app.py``."""

import base64
import csv
import html
import io
import ipaddress
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path

import gradio as gr
import numpy as np
import pandas as pd
from cacc import PARTS, continual_accuracy
from PIL import Image
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse

COLUMNS = ("prediction", "reference", "stage")
MAX_BYTES = 5_000_000
MAX_IDS = 1_000  # distinct predicted ids, categories: a matching beyond takes this small machine too long
MAX_STAGES = 50
MAX_PICTURES = 12
LABELLED_SIDE = 30  # a matrix up to this size is written out with its ids and counts
OLD_COLOUR, NEW_COLOUR, MISS_COLOUR = (37, 99, 235), (22, 163, 74), (120, 120, 120)

STRONGEST = 0.7  # opacity of the largest count: text stays readable on it, in the light and in the dark theme

TABLE_COLUMNS = ["stage", "All", "Old", "New", "images", "old images", "categories", "predicted ids"]
PAIR_COLUMNS = ["stage", "predicted id", "category", "kind", "images", "right"]

CSS = """
.cacc-matrices {display: flex; flex-wrap: wrap; gap: 1.5rem 3rem; align-items: flex-start}
.cacc-matrices figure {margin: 0; max-width: 100%; overflow-x: auto}
.cacc-matrices figcaption {font-weight: 600; margin-bottom: .25rem}
.cacc-matrices table {
  border-collapse: separate; border-spacing: 1px; width: auto; margin: 0; border: 0 none;
  font-variant-numeric: tabular-nums;
}
.cacc-matrices th, .cacc-matrices td {
  min-width: 2.2rem; height: 2.2rem; padding: 0 .3rem; text-align: center; font-size: .85rem;
  border: 1px solid var(--border-color-primary);
}
.cacc-matrices th, .cacc-matrices thead td {font-weight: 600; border: 0 none}
.cacc-matrices img {image-rendering: pixelated; width: min(100%, 640px); background: white}
.cacc-key {margin: .75rem 0 1rem; line-height: 1.8}
.cacc-key span {padding: .1rem .4rem; border-radius: .2rem; margin-right: .25rem}
"""
# Fonts of the reader's own system: nothing is fetched from elsewhere.
THEME = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])


class KnownName:
    """Turns away who asks for the page by a name that it does not have.

    A web page that gives its own name the address of this machine could otherwise have its visitors' browsers ask
    here, and read the answers. An address cannot be given away like that.

    Args:
        app: what comes next.
    """

    def __init__(self, app):
        self.app = app
        self.names = {"localhost", *os.environ.get("SPACE_HOST", "").lower().replace(" ", "").split(",")} - {
            ""
        }

    async def __call__(self, scope, receive, send):
        """Answer, or pass it on."""
        host = next((value for name, value in scope.get("headers", ()) if name == b"host"), b"").decode(
            "latin-1"
        )
        name = re.sub(r":\d+$", "", host.lower())
        if scope["type"] == "http" and name not in self.names and not is_address(name.strip("[]")):
            return await PlainTextResponse("This page does not go by that name.", 421)(scope, receive, send)
        return await self.app(scope, receive, send)


def is_address(name: str) -> bool:
    """Whether it is an address, and no name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


LAUNCH = {
    "app_kwargs": {"middleware": [Middleware(KnownName)]},
    "max_file_size": MAX_BYTES,
    "allowed_paths": [],
    "ssr_mode": False,
    "theme": THEME,
    "css": CSS,
    "footer_links": ["api", "gradio", "settings"],
}

INTRODUCTION = """
# Continual clustering accuracy (cACC)

Paste or upload a CSV with the columns `prediction`, `reference` and `stage`, one line for every image, all integers
from 0 on. References below the number of known categories are Old, at every stage. Predicted ids have no meaning of
their own: at each stage they are matched one-to-one to the categories so that most images are right.
"""

Scored = tuple[pd.DataFrame, str, pd.DataFrame]


def score(text: str, path: str | None, num_known: float | None) -> Scored:
    """Table of accuracies, the count matrix of every stage as HTML, and the matched pairs.

    Args:
        text: pasted CSV, used where no file is given.
        path: uploaded CSV.
        num_known: number of initially labelled categories.
    """
    try:
        columns = parse_csv(read_upload(path) if path else text or "")
        known = int(num_known) if num_known is not None and float(num_known).is_integer() else num_known
        result = continual_accuracy(*columns, known, detail=True)
    except (ValueError, csv.Error) as error:
        # Gradio shows messages as HTML, and this one may quote the file.
        message = html.escape(str(error), quote=False)
        raise gr.Error(message, duration=30, print_exception=False) from error
    stages = result["stages"]
    return (
        accuracy_table(result),
        matrices(stages, known),
        matched_pairs(stages, known),
    )


def read_upload(path: str) -> str:
    """Text of an uploaded file that is small enough."""
    size = Path(path).stat().st_size
    if size > MAX_BYTES:
        raise ValueError(
            f"Expected a CSV of at most {MAX_BYTES:,} bytes, got {size:,}: use the metric in Python for it."
        )
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Expected a CSV in UTF-8, got byte {error.object[error.start]:#04x} at position {error.start}: "
            "save the table as CSV UTF-8."
        ) from error


def parse_csv(text: str) -> tuple[list[int], list[int], list[int]]:
    """Predictions, references and stages; other columns are ignored.

    Raises:
        ValueError: the text is too long, a column is missing, or a cell is no integer from 0 on.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(
            f"Expected at most {MAX_BYTES:,} characters, got {len(text):,}: use the metric in Python for it."
        )
    reader = csv.reader(io.StringIO(text.strip()), skipinitialspace=True)
    header = [name.strip().lower() for name in next(reader, [])]
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        found = shortened(", ".join(header)) or "nothing"
        raise ValueError(
            f"Expected a first line with {', '.join(COLUMNS)}, got {found}: {', '.join(missing)} is missing."
        )
    places = [header.index(name) for name in COLUMNS]
    columns: tuple[list[int], list[int], list[int]] = ([], [], [])
    for cells in reader:
        if not cells:
            continue
        for name, place, column in zip(COLUMNS, places, columns, strict=True):
            column.append(parse_cell(cells[place] if place < len(cells) else "", name, reader.line_num))
    for name, column, limit in zip(COLUMNS, columns, (MAX_IDS, MAX_IDS, MAX_STAGES), strict=True):
        if len(set(column)) > limit:
            raise ValueError(
                f"Expected at most {limit:,} different values of {name}, got {len(set(column)):,}: check that they "
                "are ids, or use the metric in Python."
            )
    return columns


def parse_cell(cell: str, name: str, line: int) -> int:
    """An id; `line` is where it stands, for the message."""
    if not cell.strip().isascii() or not cell.strip().isdigit() or len(cell.strip()) > 18:
        raise ValueError(
            f"Expected {name} to be an integer from 0 on, got {shortened(cell)!r} in line {line}: "
            "correct it or leave the line out."
        )
    return int(cell)


def shortened(text: str, length: int = 40) -> str:
    """As much of a foreign text as fits a message."""
    return text if len(text) <= length else text[: length - 3] + "..."


def accuracy_table(result: dict) -> pd.DataFrame:
    """One line for every stage and one for the mean, accuracies in percent."""
    rows = [
        {
            "stage": str(row["stage"]),
            **{part.capitalize(): percent(row[part]) for part in PARTS},
            "images": row["num_samples"],
            "old images": row["num_old"],
            "categories": row["num_categories"],
            "predicted ids": row["num_clusters"],
        }
        for row in result["stages"]
    ]
    mean = dict.fromkeys(rows[0], "") | {part.capitalize(): percent(result[part]) for part in PARTS}
    return pd.DataFrame([*rows, mean | {"stage": "mean", "images": result["num_samples"]}])[TABLE_COLUMNS]


def percent(value: float) -> str:
    """Two places; a dash where there is no image of the kind."""
    return "-" if math.isnan(value) else f"{value:.2f}"


def matched_pairs(stages: list[dict], num_known: int) -> pd.DataFrame:
    """One line for every matched pair, and for every predicted id that was matched to nothing."""
    rows = []
    for row in stages:
        counts, matching = np.asarray(row["counts"]), dict(row["matching"])
        column_of = {category: index for index, category in enumerate(row["categories"])}
        for index, cluster in enumerate(row["clusters"]):
            line = {"stage": row["stage"], "predicted id": cluster, "images": int(counts[index].sum())}
            category = matching.get(cluster)
            if category is None:
                rows.append({**line, "category": "none", "kind": "", "right": 0})
            else:
                right = int(counts[index, column_of[category]])
                kind = "old" if category < num_known else "new"
                rows.append({**line, "category": str(category), "kind": kind, "right": right})
    return pd.DataFrame(rows)[PAIR_COLUMNS]


def matrices(stages: list[dict], num_known: int) -> str:
    """Count matrices of the first stages as HTML, with a key to their colours; all text in it is our own."""
    key = "".join(
        f'<span style="background:{shade(colour, 1)}">{name}</span> '
        for name, colour in (("right, old", OLD_COLOUR), ("right, new", NEW_COLOUR), ("wrong", MISS_COLOUR))
    )
    figures = "".join(matrix(row, num_known) for row in stages[:MAX_PICTURES])
    rest = ""
    if len(stages) > MAX_PICTURES:
        rest = f"<p>The first {MAX_PICTURES} of {len(stages)} stages; the tables have all of them.</p>"
    text = "Predicted ids go down, categories across; matched ones stand on the diagonal."
    return f'<p class="cacc-key">{key}{text}</p><div class="cacc-matrices">{figures}</div>{rest}'


def matrix(row: dict, num_known: int) -> str:
    """Count matrix of a stage, matched pairs on the diagonal: blue old, green new, grey wrong."""
    counts = np.asarray(row["counts"])
    position = {category: index for index, category in enumerate(row["categories"])}
    place = {cluster: index for index, cluster in enumerate(row["clusters"])}
    pairs = sorted(
        ((place[cluster], position[category]) for cluster, category in row["matching"]),
        key=lambda pair: pair[1],
    )
    matched_rows, matched_columns = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    rows = matched_rows + sorted(set(range(counts.shape[0])) - set(matched_rows))
    columns = matched_columns + sorted(set(range(counts.shape[1])) - set(matched_columns))
    ordered = counts[np.ix_(rows, columns)]
    colours = np.full((*ordered.shape, 3), MISS_COLOUR)
    for index, column in enumerate(matched_columns):
        colours[index, index] = OLD_COLOUR if row["categories"][column] < num_known else NEW_COLOUR
    strength = np.sqrt(ordered / max(ordered.max(), 1))  # the root keeps small counts visible
    cluster_ids = [row["clusters"][index] for index in rows]
    category_ids = [row["categories"][index] for index in columns]
    size = f"predicted ids: {len(cluster_ids)}, categories: {len(category_ids)}"
    if max(ordered.shape) <= LABELLED_SIDE:
        body = written_out(ordered, colours, strength, cluster_ids, category_ids)
    else:
        body = drawn(colours, strength, f"Count matrix of stage {row['stage']} ({size})")
    return f"<figure><figcaption>stage {row['stage']} ({size})</figcaption>{body}</figure>"


def written_out(
    counts: np.ndarray, colours: np.ndarray, strength: np.ndarray, down: list[int], across: list[int]
) -> str:
    """A table with the ids of clusters at the left and of categories on top; zeros are left out."""
    head = "".join(f'<th scope="col">{category}</th>' for category in across)
    lines = []
    for row, cluster in enumerate(down):
        cells = "".join(
            f'<td style="background:{shade(colours[row, column], strength[row, column])}">{count or ""}</td>'
            for column, count in enumerate(counts[row].tolist())
        )
        lines.append(f'<tr><th scope="row">{cluster}</th>{cells}</tr>')
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def drawn(colours: np.ndarray, strength: np.ndarray, description: str) -> str:
    """A picture with one square for every cell, for matrices too large to read."""
    pixels = (255 - (255 - colours) * strength[..., None]).astype(np.uint8)
    scale = max(1, 800 // max(strength.shape))
    stream = io.BytesIO()
    Image.fromarray(pixels.repeat(scale, axis=0).repeat(scale, axis=1)).save(stream, "PNG", optimize=True)
    data = base64.b64encode(stream.getvalue()).decode()
    return f'<img alt="{description}" src="data:image/png;base64,{data}">'


def shade(colour: Iterable[int], strength: float) -> str:
    """A colour that lets the page's own background through, so that it fits the light and the dark theme."""
    red, green, blue = (int(value) for value in colour)
    return f"rgba({red},{green},{blue},{STRONGEST * strength:.3f})"


def worked_example() -> tuple[str, None, int]:
    """Two stages, three known categories, one discovered at each; stage 2 mixes up 3 and 4 in part."""
    stages = {
        1: [(0, 0, 6), (1, 1, 5), (2, 2, 4), (0, 2, 2), (7, 3, 8)],
        2: [(0, 0, 4), (1, 1, 4), (2, 2, 4), (7, 3, 5), (7, 4, 3), (9, 4, 6), (9, 0, 1)],
    }
    lines = [",".join(COLUMNS)]
    for stage, groups in stages.items():
        lines += [
            f"{prediction},{reference},{stage}"
            for prediction, reference, count in groups
            for _ in range(count)
        ]
    return "\n".join(lines), None, 3


def nothing_yet() -> tuple[None, str, None]:
    """Empty results, so that those of an earlier table never stand beside another one's mistake."""
    return None, "", None


def build_app() -> gr.Blocks:
    """The page, not yet served."""
    with gr.Blocks(title="cACC", analytics_enabled=False, delete_cache=(3600, 3600)) as app:
        gr.Markdown(INTRODUCTION)
        with gr.Row():
            with gr.Column():
                text = gr.Textbox(
                    label="CSV", lines=12, max_lines=12, placeholder="prediction,reference,stage\n0,0,1"
                )
            with gr.Column():
                upload = gr.File(
                    label="or a file, which then counts", file_types=[".csv"], type="filepath", height=150
                )
                known = gr.Number(label="number of known categories", value=1, minimum=1)
                with gr.Row():
                    example = gr.Button("Worked example")
                    button = gr.Button("Score", variant="primary")
        table = gr.Dataframe(label="accuracy, percent", headers=TABLE_COLUMNS, interactive=False)
        pictures = gr.HTML(label="who was matched to whom", show_label=True, container=True, padding=True)
        pairs = gr.Dataframe(label="matching", headers=PAIR_COLUMNS, interactive=False)
        inputs, outputs = [text, upload, known], [table, pictures, pairs]
        # Without the progress of Gradio: it writes "Error" over every result, beside the message that says which.
        quiet = {"show_progress": "hidden"}
        limits = {"concurrency_limit": 2, "time_limit": 60, **quiet}
        cleared = button.click(nothing_yet, None, outputs, api_visibility="private", **quiet)
        cleared.then(score, inputs, outputs, api_name="score", **limits)
        filled = example.click(worked_example, None, inputs, api_name="example", **quiet)
        filled.success(score, inputs, outputs, api_visibility="private", **limits)
    return app.queue(max_size=16)


if __name__ == "__main__":
    build_app().launch(**LAUNCH)
