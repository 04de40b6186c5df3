"""What tests share: made-up results, worlds, models, cases of the kernels, experiments to run."""
