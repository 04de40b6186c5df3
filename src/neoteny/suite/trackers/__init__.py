"""Trackers: the results of a sweep as they come, in TensorBoard, Weights & Biases, MLflow, or a class of your own."""
