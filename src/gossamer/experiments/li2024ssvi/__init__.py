"""Li et al., ICLR 2024: sparse subspace variational inference."""
