"""Online Permuted MNIST."""
