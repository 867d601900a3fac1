"""Regression on tables: our defaults beside what a user would pick instead.

``sets`` says which rows train and which judge, ``forecast`` what is measured of a prediction,
``rivals`` and ``deep_ensemble`` are the others, ``experiment`` the tables and checks.
"""
