"""Published numbers of the field, made again at their own sizes."""
