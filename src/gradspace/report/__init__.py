"""The report of a comparison: one HTML file to read, to print and to send."""

from gradspace.report.write import write_report

__all__ = ["write_report"]
