#!/usr/bin/env python3
"""Writes tests/ranks/costs_of_two_ranks.json: costs with which serve_test.sh's plans are chosen.

    mpirun -n 2 --bind-to none convene measure --steps bf16 --threads 1 -o measured.json
    tests/ranks/make_costs_of_two_ranks.py measured.json > costs.json
    mv costs.json tests/ranks/costs_of_two_ranks.json

Kept of the profile is what computing costs on two ranks. The errors of its predictions, which would
widen intervals, and what is the host's alone are left out, and the link is one of 60 us and 1 GB/s,
so that the search comes to the same plans on all machines. Made from its own result it is the same
again; of a profile that was measured anew serve_test.sh tells whether the plans that it names still
follow. When the format of profiles changes, the fields are changed in the file and it is made
again.
"""

import json
import sys

LINK_SECONDS = 60e-6
LINK_BYTES_PER_S = 1e9
LINK_SIZES = [24, 16384, 131072, 1048576, 8388608]
CORE_S_PER_BYTE = 1e-10
# Of the host these are kept or have no zero.
HOST = {"cpu_name": "none: for tests", "num_interleaved_nodes": 1, "num_numa_nodes": 1}
KEPT = ("version", "date", "isa", "last_level_cache_bytes")


def zero_of(value):
    return type(value)()


def without_errors(node):
    """The same with every error of held-out points 0, the number of points kept."""
    if isinstance(node, list):
        return [without_errors(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "p95_error" in node:
        return {key: value if key == "points" else 0.0 for key, value in node.items()}
    return {key: without_errors(value) for key, value in node.items()}


def costs_for_tests(profile):
    machine = {
        key: HOST.get(key, value if key in KEPT else zero_of(value))
        for key, value in profile["machine"].items()
    }
    machine.pop("gpus", None)
    of_two = [steps for steps in profile["steps"] if steps["ranks"] == 2]
    if len(of_two) != 1:
        sys.exit(f"{len(of_two)} costs of steps on two ranks; measure them alone, with --steps bf16")
    steps = without_errors(of_two[0])
    steps["exchange"]["core_s_per_byte"] = CORE_S_PER_BYTE
    steps["exchange"]["seconds_over_bytes"] = {
        "at": [float(size) for size in LINK_SIZES],
        "value": [round(LINK_SECONDS + size / LINK_BYTES_PER_S, 12) for size in LINK_SIZES],
    }
    return {
        "links": [],
        "machine": machine,
        "operators": {},
        "steps": [steps],
        "version": profile["version"],
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        costs = costs_for_tests(json.load(file))
    print(json.dumps(costs, indent=1, sort_keys=True))
