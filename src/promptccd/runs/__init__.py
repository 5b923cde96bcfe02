"""What a run leaves: trained, scored and saved stages, and how they are used again."""

from promptccd.runs.evaluate_run import RunEvaluation
from promptccd.runs.explanation import Explanation, explain_image
from promptccd.runs.models import ParameterCount, count_parameters
from promptccd.runs.prediction import Prediction, load_model, predict_folder, stage_of
from promptccd.runs.run_directory import RunDirectory
from promptccd.runs.stage_checkpoint import load_view
from promptccd.runs.train_run import stage_stream, train_run

__all__ = [
    "Explanation",
    "ParameterCount",
    "Prediction",
    "RunDirectory",
    "RunEvaluation",
    "count_parameters",
    "explain_image",
    "load_model",
    "load_view",
    "predict_folder",
    "stage_of",
    "stage_stream",
    "train_run",
]
