"""`stack`: n networks trained in lock-step by the same methods."""
