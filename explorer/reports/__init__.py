"""Reports as files: everything that the page shows of a tensor, a model's survey, matrix products or a
training. The page and the command line build them by the same code."""

from explorer.reports.content import Content, Table, command_of
from explorer.reports.speed import speed_report
from explorer.reports.survey import survey_report
from explorer.reports.tensor import tensor_report
from explorer.reports.training import training_report
from explorer.reports.write import as_html, write

__all__ = [
    "Content", "Table", "as_html", "command_of", "speed_report", "survey_report", "tensor_report",
    "training_report", "write",
]  # fmt: skip
