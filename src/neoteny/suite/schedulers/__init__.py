"""Where the stacks of a sweep are trained: this machine, a Ray cluster, a batch system. One file per backend."""
