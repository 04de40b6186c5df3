"""Permuted Shakespeare: a language whose words change places in every task."""
