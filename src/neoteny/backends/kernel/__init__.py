"""Compiled fast paths for networks that learn from one example at a time: a whole block of updates in one call.

The flow: `options` says whether a stack of runs is covered and with which options; `pack` lays its tensors out for a
kernel and back; `examples` does the same for the plan of a task, `schedule` for the replacement schedule; `cpu` (numba)
and `cuda` (CUDA C++, compiled when it is first used) advance all runs; `backend` is what the suite holds.

The library is the truth and a kernel the same truth compiled: the same draws, the same units replaced at the same
steps, the same numbers but for the order of sums.
"""
