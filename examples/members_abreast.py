"""A step of twenty small networks, one beside the other and as one network: milliseconds of each.

python examples/members_abreast.py --members 20 --rounds 9
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import gossamer
from gossamer.inference import Method
from gossamer.models import mlp

COLUMNS, ROWS, STEPS = 8, 64, 10


def build(harvest: str, members: int) -> Method:
    """Members before their first step."""
    return gossamer.build(
        "rigl",
        lambda: mlp(input_shape=(COLUMNS,), output_size=1, hidden=(256, 256)),
        num_data=700,
        total_steps=100_000,  # no swap among the steps that are timed
        likelihood="gaussian",
        members=members,
        member_sparsity=0.95,
        harvest=harvest,
    )


def measure(members: int = 20, rounds: int = 9) -> dict[str, float]:
    """Medians over the rounds, in which the two take turns, of processor time of a step."""
    torch.set_num_threads(1)
    x, y = torch.randn(ROWS, COLUMNS), torch.randn(ROWS, 1)
    methods = {harvest: build(harvest, members) for harvest in ("runs", "abreast")}
    seconds: dict[str, list[float]] = {harvest: [] for harvest in methods}
    for number in range(rounds + 1):
        for harvest, method in methods.items():
            began = time.process_time()
            for _ in range(STEPS):
                method.step((x, y))
            if number:  # the first warms up
                seconds[harvest].append((time.process_time() - began) / STEPS)
    return {harvest: 1e3 * statistics.median(found) for harvest, found in seconds.items()}


def main() -> None:
    """Print both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=9)
    found = measure(**vars(parser.parse_args()))
    print(", ".join(f"{harvest} {value:.1f} ms" for harvest, value in found.items()))
    print(f"ratio {found['runs'] / found['abreast']:.1f}")


if __name__ == "__main__":
    main()
