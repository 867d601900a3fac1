"""Constrained variational Adam and EM-MCMC, the AISTATS 2023 submission."""
