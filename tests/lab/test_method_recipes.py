"""What docs/models.md says of methods chosen by layer is what was recorded.

If these fail, the page promises of methods what was not measured, or a table shows another run.
"""

from __future__ import annotations

from explorer.recordings.files import NOT_RECORDED
from explorer.survey.loss import EMBEDDING
from lab import method_recipes
from lab.intervals import spearman
from lab.method_recipes import AloneRun, MethodRun, ModelRuns, recorded_methods

ROUNDED = MethodRun(4.5, "", False, 0, 4.49, 0.02, 0.021, 0.02, 0.022)
CHOSEN = MethodRun(4.5, "gptq", True, 30, 4.5, 0.01, 0.0105, 0.01, 0.011)
FORCED = MethodRun(4.5, "gptq", False, 36, 4.49, None, 0.0126, 0.012, 0.0132)
ALONE = tuple(
    AloneRun(layer, "int4_group128", method, predicted, loss)
    for layer, scale in (("a", 1.0), ("b", 2.0), ("c", 3.0))
    for method, predicted, loss in (("", 4 * scale, 4 * scale), ("gptq", 2 * scale, scale))
)
MADE_UP = ModelRuns("m", EMBEDDING, 9, 90, 36, 14, {"": 10.0, "gptq": 30.0}, (ROUNDED, FORCED, CHOSEN), ALONE)


def test_the_words_are_those_of_the_rows() -> None:
    """Each run with what it loses less than rounding of its budget; shares against the measured ones."""
    lines = method_recipes.runs_table([MADE_UP]).splitlines()[2:]
    assert [line.split("|")[-2].strip() for line in lines] == ["–", "40 %", "50 %"]
    assert "GPTQ, for all layers of that recipe" in lines[1] and "chosen by layer (30 of 36)" in lines[2]
    assert "0.01050 ± 0.00050" in lines[2] and "| – |" in lines[1]
    said = method_recipes.ranks_sentence([MADE_UP])
    assert "rank correlation of the predicted with the measured loss is 1.000" in said
    assert "predicted 2.00 times the measured one in the median" in said and "3 layers" in said
    assert method_recipes.seconds_sentence([MADE_UP]) == "m (36 layers × 14 schemes): 10 s, with GPTQ 30 s"


def test_without_recordings_they_say_so() -> None:
    every = (method_recipes.runs_table, method_recipes.ranks_sentence, method_recipes.seconds_sentence)
    assert {words([]) for words in every} == {f"({NOT_RECORDED})"}


def test_single_layers_lose_what_is_predicted() -> None:
    """Of recorded layers quantized alone: in the measured order, and by methods less than by rounding, as
    predicted within a third in the median: a survey's methods see half of the tokens, and gain less."""
    encoder = next(one for one in recorded_methods().rows if one.kind == EMBEDDING)
    by_method = [run for run in encoder.alone if run.method]
    assert spearman([run.predicted for run in by_method], [run.loss for run in by_method]) > 0.95
    rounded = {(run.layer, run.scheme): run for run in encoder.alone if not run.method}
    assert all(run.loss < rounded[run.layer, run.scheme].loss for run in by_method)
    median = float(
        method_recipes.ranks_sentence([encoder]).partition("predicted ")[2].split("predicted ")[1][:4]
    )
    assert 1.0 <= median < 1.33
