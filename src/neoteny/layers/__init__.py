"""What layers look like: unit groups and ports, kinds of layers, their rows and columns."""
