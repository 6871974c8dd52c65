"""Matrix products Y[M, N] = X[M, K] · W[N, K]ᵀ in every format: definitions, kernels, baselines and
timings."""
