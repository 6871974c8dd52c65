"""Survey the layers of a model, choose a scheme for each within a budget, check and apply the recipe.

    survey = load_survey(SURVEYS / "all-MiniLM-L6-v2.jsonl")  # .head, .layers, .linear, .complete
    front = frontier(survey)     # .bits, .loss; .uniform, single schemes
    choice = front.at(4.5)       # about 0.1 s: .schemes, .bits, .bytes, .loss, .gap
    recipe = recipe_of(survey, choice)                        # a ModelRecipe: .save(path), .load(path)
    front = frontier(survey, constraints=Constraints(target=EXPORTS["gguf"]))

``survey_model`` (run.py) makes a survey, a JSON line a layer as they are done. ``check_recipe`` (check.py)
runs the model that a recipe makes, and measures its loss.
"""

from explorer.models.files import Role
from explorer.models.kinds import depth_of, fused_groups, kind_of
from explorer.survey.budget import Choice, Constraints, Frontier, Uniform, frontier, recipe_of
from explorer.survey.recipe import ModelRecipe
from explorer.survey.rows import SURVEYS, Head, Layer, Survey, load_survey
from explorer.survey.sensitivities import SENSITIVITIES, Evidence, Sensitivity

__all__ = [
    "SENSITIVITIES", "SURVEYS", "Choice", "Constraints", "Evidence", "Frontier", "Head", "Layer",
    "ModelRecipe", "Role", "Sensitivity", "Survey", "Uniform", "depth_of", "frontier", "fused_groups",
    "kind_of", "load_survey", "recipe_of",
]  # fmt: skip
