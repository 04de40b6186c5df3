"""The dense kernel on a GPU (CUDA C++, compiled when first used): batches, and methods that act on all weights.

It trains what `dense` trains, from the same layout. `memory` plans a block's working memory, `source` writes the source
for one learner, `kernel` launches it. A block of threads trains a run: `block.cu` says how its threads work together,
`network.cu` has the passes through the network, `weights.cu` those over all weights, `units.cu` and `reinit.cu` what is
made new, `train.cu` puts one update together.
"""
