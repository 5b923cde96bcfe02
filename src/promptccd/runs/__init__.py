"""Results of a run: trained, scored and saved stages, and their later use."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.runs.evaluate import RunEvaluation as RunEvaluation
    from promptccd.runs.folder import RunDirectory as RunDirectory
    from promptccd.runs.folder import stream_rows as stream_rows
    from promptccd.runs.predict import Candidate as Candidate
    from promptccd.runs.predict import Explanation as Explanation
    from promptccd.runs.predict import Prediction as Prediction
    from promptccd.runs.predict import explain_image as explain_image
    from promptccd.runs.predict import load_model as load_model
    from promptccd.runs.predict import predict_folder as predict_folder
    from promptccd.runs.predict import stage_of as stage_of
    from promptccd.runs.stage import load_view as load_view
    from promptccd.runs.start import ParameterCount as ParameterCount
    from promptccd.runs.start import continued as continued
    from promptccd.runs.start import count_parameters as count_parameters
    from promptccd.runs.start import stage_stream as stage_stream
    from promptccd.runs.train import train_run as train_run

give_names_on_demand(__name__)
