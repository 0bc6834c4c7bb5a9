"""Report of a comparison: one HTML file to read, print and share."""

from gradspace.report.write import write_report

__all__ = ["write_report"]
