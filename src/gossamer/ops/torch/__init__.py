"""The layers in plain torch: any device, any dtype, no compiler.

``masked`` is the reference backend, ``philox`` the noise, ``draws`` the posterior draws one by one
and ``reading`` a product that leaves out inputs of weight 0.
"""
