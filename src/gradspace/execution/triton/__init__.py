"""Fused execution on a CUDA device: Triton kernels, and how they are launched."""
