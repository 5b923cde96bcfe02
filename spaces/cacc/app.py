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

COLUMNS = ("prediction", "reference", "stage")
MAX_BYTES = 5_000_000
MAX_IDS = 1_000  # distinct predicted ids, categories: a matching beyond takes this small machine too long
MAX_STAGES = 50
TABLE_COLUMNS = ["stage", "All", "Old", "New", "images", "old images", "categories", "predicted ids"]
PAIR_COLUMNS = ["stage", "predicted id", "category", "kind", "images", "right"]

# Fonts of the reader's own system: nothing is fetched from elsewhere.
THEME = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])


LAUNCH = {
    "max_file_size": MAX_BYTES,
    "allowed_paths": [],
    "ssr_mode": False,
    "theme": THEME,
    "footer_links": ["api", "gradio", "settings"],
}

INTRODUCTION = """
# Continual clustering accuracy (cACC)

Paste or upload a CSV with the columns `prediction`, `reference` and `stage`, one line for every image, all integers
from 0 on. References below the number of known categories are Old, at every stage. Predicted ids have no meaning of
their own: at each stage they are matched one-to-one to the categories so that most images are right.
"""


def score(text: str, path: str | None, num_known: float | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Table of accuracies, and the matched pairs.

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
    return accuracy_table(result), matched_pairs(result["stages"], known)


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


def nothing_yet() -> tuple[None, None]:
    """Empty results, so that those of an earlier table never stand beside another one's mistake."""
    return None, None


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
        pairs = gr.Dataframe(label="matching", headers=PAIR_COLUMNS, interactive=False)
        inputs, outputs = [text, upload, known], [table, pairs]
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
