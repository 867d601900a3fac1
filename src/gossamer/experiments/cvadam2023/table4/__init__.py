"""``cvadam2023/table4``: variable selection by EM-MCMC on the three simulated examples."""
