"""Data of the problems: found, downloaded, checked or generated."""
