"""How many new labels the sets of a classifier's defaults hold, over seeds.

python examples/default_sets.py --seeds 60
"""

from __future__ import annotations

import argparse

import numpy as np

from gossamer.sklearn import SparseBayesClassifier

LEVELS = (0.8, 0.9, 0.95)


def main(seeds: int = 60, rows: int = 210, classes: int = 10) -> dict[float, tuple[float, float]]:
    """Print and return, for every level, the mean coverage over seeds and its standard error."""
    held: dict[float, list[float]] = {level: [] for level in LEVELS}
    for seed in range(seeds):
        draw = np.random.default_rng([7, seed])
        centres = 1.5 * draw.standard_normal((classes, 4))
        labels = draw.integers(classes, size=rows + 1000)
        x = centres[labels] + draw.standard_normal((len(labels), 4))
        model = SparseBayesClassifier(random_state=seed).fit(x[:rows], labels[:rows])
        new = np.searchsorted(model.classes_, labels[rows:])
        for level in LEVELS:
            sets = model.predict_set(x[rows:], level)
            held[level].append(float(sets[np.arange(len(new)), new].mean()))
    found = {}
    for level, shares in held.items():
        found[level] = (float(np.mean(shares)), float(np.std(shares, ddof=1) / np.sqrt(seeds)))
        print(f"{level:.0%}: {found[level][0]:.3f} ± {found[level][1]:.3f}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--rows", type=int, default=210)
    main(**vars(parser.parse_args()))
