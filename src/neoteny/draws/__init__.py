"""Random draws by counter: the same numbers alone, in a stack, on another device and after a resume."""
