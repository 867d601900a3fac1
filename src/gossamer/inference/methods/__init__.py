"""The methods, one file each: config, presets, build, and one line about it.

The registry reads this folder. A method never imports another method.
"""
