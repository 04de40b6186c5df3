"""The experiments on Slowly-Changing Regression."""
