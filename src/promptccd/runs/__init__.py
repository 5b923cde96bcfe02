"""What a run leaves: trained, scored and saved stages, and how they are used again."""

from promptccd.runs.evaluate_run import RunEvaluation
from promptccd.runs.prediction import load_model, predict_folder
from promptccd.runs.run_directory import RunDirectory
from promptccd.runs.train_run import stage_stream, train_run

__all__ = ["RunDirectory", "RunEvaluation", "load_model", "predict_folder", "stage_stream", "train_run"]
