"""The field: every method on one problem after another, each at its published setting and at the best of a search."""
