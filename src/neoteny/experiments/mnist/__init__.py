"""The experiments on Online Permuted MNIST."""
