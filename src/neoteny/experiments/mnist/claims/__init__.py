"""What the paper says of Online Permuted MNIST, and how it is checked."""
