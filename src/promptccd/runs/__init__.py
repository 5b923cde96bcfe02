"""What a run leaves: trained, scored and saved stages, and how they are used again."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.runs.evaluate_run import RunEvaluation
    from promptccd.runs.explanation import Explanation, explain_image
    from promptccd.runs.models import ParameterCount, count_parameters
    from promptccd.runs.prediction import Candidate, Prediction, load_model, predict_folder, stage_of
    from promptccd.runs.run_directory import RunDirectory
    from promptccd.runs.run_groups import PIXELS, baseline_rows, require_different, row_names
    from promptccd.runs.stage_checkpoint import load_view
    from promptccd.runs.train_run import stage_stream, train_run

__all__ = [
    "PIXELS",
    "Candidate",
    "Explanation",
    "ParameterCount",
    "Prediction",
    "RunDirectory",
    "RunEvaluation",
    "baseline_rows",
    "count_parameters",
    "explain_image",
    "load_model",
    "load_view",
    "predict_folder",
    "require_different",
    "row_names",
    "stage_of",
    "stage_stream",
    "train_run",
]

give_names_on_demand(__name__)
