"""From a table of results to charts, tables, verdicts and one HTML page."""
