"""The page of the metric: a CSV in, the table and the matching out. Run it with ``python app.py``."""

import csv
import html
import io
import math
from pathlib import Path

import gradio as gr
import numpy as np
import pandas as pd
from cacc import PARTS, continual_accuracy
from PIL import Image, ImageDraw

COLUMNS = ("prediction", "reference", "stage")
MAX_BYTES = 5_000_000
MAX_IDS = 1_000  # distinct predicted ids, categories: a matching beyond takes this small machine too long
MAX_STAGES = 50
MAX_PICTURES = 12
LABELLED_SIDE = 30  # a matrix up to this size is drawn with its ids and counts
LAUNCH = {"max_file_size": MAX_BYTES, "allowed_paths": [], "ssr_mode": False}
OLD_COLOUR, NEW_COLOUR, MISS_COLOUR = (37, 99, 235), (22, 163, 74), (120, 120, 120)

INTRODUCTION = """
# Continual clustering accuracy (cACC)

Paste or upload a CSV with the columns `prediction`, `reference` and `stage`, one line for every image, all integers
from 0 on. References below the number of known categories are Old, at every stage. Predicted ids have no meaning of
their own: at each stage they are matched one-to-one to the categories so that most images are right.
"""

Scored = tuple[pd.DataFrame, list[tuple[Image.Image, str]], pd.DataFrame]


def score(text: str, path: str | None, num_known: float | None) -> Scored:
    """Table of accuracies, one picture of the count matrix for every stage, and the matched pairs.

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
        raise gr.Error(html.escape(str(error), quote=False), print_exception=False) from error
    stages = result["stages"]
    return (
        accuracy_table(result),
        [picture(row, known) for row in stages[:MAX_PICTURES]],
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
    return pd.DataFrame([*rows, mean | {"stage": "mean", "images": result["num_samples"]}])


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
    return pd.DataFrame(rows)[["stage", "predicted id", "category", "kind", "images", "right"]]


def picture(row: dict, num_known: int) -> tuple[Image.Image, str]:
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
    colours = np.empty((*ordered.shape, 3))
    colours[:] = MISS_COLOUR
    for index, column in enumerate(matched_columns):
        colours[index, index] = OLD_COLOUR if row["categories"][column] < num_known else NEW_COLOUR
    strength = np.sqrt(ordered / max(ordered.max(), 1))[..., None]  # the root keeps small counts visible
    pixels = (255 - (255 - colours) * strength).astype(np.uint8)
    cluster_ids = [row["clusters"][index] for index in rows]
    category_ids = [row["categories"][index] for index in columns]
    caption = f"stage {row['stage']}: {len(cluster_ids)} predicted ids (down) x {len(category_ids)} categories (across)"
    if max(ordered.shape) <= LABELLED_SIDE:
        return labelled_cells(pixels, ordered, cluster_ids, category_ids), caption
    scale = max(1, 800 // max(ordered.shape))
    return Image.fromarray(pixels.repeat(scale, axis=0).repeat(scale, axis=1)), caption


def labelled_cells(pixels: np.ndarray, counts: np.ndarray, down: list[int], across: list[int]) -> Image.Image:
    """Cells with their counts, ids of clusters at the left and of categories on top."""
    side = 44
    image = Image.new("RGB", (side * (len(across) + 1), side * (len(down) + 1)), "white")
    draw = ImageDraw.Draw(image)

    def write(row: int, column: int, text: str, fill: str) -> None:
        middle = (side * column + side // 2, side * row + side // 2)
        draw.text(middle, shortened(text, 8), fill=fill, anchor="mm")

    for row, cluster in enumerate(down, start=1):
        write(row, 0, str(cluster), "black")
        for column in range(1, len(across) + 1):
            colour, count = pixels[row - 1, column - 1], counts[row - 1, column - 1]
            left, top = side * column, side * row
            draw.rectangle(
                (left, top, left + side - 2, top + side - 2), fill=tuple(colour.tolist()), outline="#dddddd"
            )
            if count:
                write(row, column, str(count), "white" if colour.mean() < 140 else "black")
    for column, category in enumerate(across, start=1):
        write(0, column, str(category), "black")
    return image


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


def build_app() -> gr.Blocks:
    """The page, not yet served."""
    with gr.Blocks(title="cACC", analytics_enabled=False, delete_cache=(3600, 3600)) as app:
        gr.Markdown(INTRODUCTION)
        with gr.Row():
            with gr.Column():
                text = gr.Textbox(
                    label="CSV", lines=10, max_lines=10, placeholder="prediction,reference,stage\n0,0,1"
                )
                upload = gr.File(label="or a file, which then counts", file_types=[".csv"], type="filepath")
                known = gr.Number(label="number of known categories", value=1, minimum=1)
                with gr.Row():
                    example = gr.Button("Worked example")
                    button = gr.Button("Score", variant="primary")
            with gr.Column():
                table = gr.Dataframe(label="accuracy, percent", interactive=False)
                pictures = gr.Gallery(
                    label="who was matched to whom", format="png", columns=2, object_fit="contain"
                )
                pairs = gr.Dataframe(label="matching", interactive=False)
        inputs, outputs = [text, upload, known], [table, pictures, pairs]
        button.click(score, inputs, outputs, api_name="score", concurrency_limit=2, time_limit=60)
        filled = example.click(worked_example, None, inputs, api_name="example")
        filled.success(score, inputs, outputs, api_visibility="private", concurrency_limit=2, time_limit=60)
    return app.queue(max_size=16)


if __name__ == "__main__":
    build_app().launch(**LAUNCH)
