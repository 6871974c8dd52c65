"""Matrix products Y[M, N] = X[M, K] · W[N, K]ᵀ in every format: what they mean, their kernels, baselines and
timings."""
