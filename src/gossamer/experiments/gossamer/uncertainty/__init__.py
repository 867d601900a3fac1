"""``gossamer/uncertainty``: what honest uncertainty costs, ours and what a user would pick instead.

``problems`` are the data sets, ``contenders`` the methods, ``measuring`` trains one on one and
measures it in every finished form, ``costs`` times their steps side by side, ``checks`` judges,
``front`` draws.
"""
