"""Reports: what the page shows of one tensor and one or two schemes, as files that leave it."""

from explorer.reports.build import Content, Table, build
from explorer.reports.check import Moved, moved
from explorer.reports.page import as_html
from explorer.reports.write import write

__all__ = ["Content", "Moved", "Table", "as_html", "build", "moved", "write"]
