"""A results folder: parts, tables, checkpoints, atomic files."""
