"""``cvadam2023/table4``: variable selection by EM-MCMC on the three simulated examples.

``experiment`` gives the tasks and concludes, ``settings`` says what decides a repeat and where it
departs from the authors, ``problem`` holds data, network and sampler, ``repeat`` is one repeat,
``starts`` chooses among its chains, ``timing`` measures against ``dense_reference``.
"""
