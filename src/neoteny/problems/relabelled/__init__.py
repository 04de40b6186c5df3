"""Problems in which the labels of images change: label-permuted and random-label images."""
