"""What benches share that run plans in turn and compare them (plan_floor.py, unlike_ranks.py, paged_*.py, disaggregated_*.py)."""

import json
import os
import pathlib
import statistics
import subprocess
import sys


def words(*each):
    return [str(word) for word in each]


def run(command, environment):
    """Ends the program with what the command said where that fails."""
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nends with status {done.returncode}: {done.stderr[-2000:]}")


def workload_seconds(report, prompt, generated):
    """By number of sequences, from what `convene bench --json` wrote, the sum that `convene plan` predicts: all prompts, with
    which the first tokens come; a step for each further token; and where decode divides the experts otherwise, their way there
    and back. The bench has one way back less than ways there, since nothing follows its last batch, and reports the mean of
    all: it counts twice, since the same bytes move either way."""
    moved = report["experts_moved"]
    moves = 2 * moved["seconds"] / max(1, moved["count"]) if generated > 1 else 0
    seconds = {}
    for prefill, decode in zip(report["prefill_by_batch"], report["decode"]):
        batch = prefill["batch"]
        seconds[batch] = batch * prompt / prefill["tokens_per_s"] + batch * (generated - 1) / decode["tokens_per_s"] + moves
    return seconds


def predicted_seconds(predicted, batch, generated):
    """Of the same sum, from the member "predicted" of what `convene plan --json` or `convene simulate --json` wrote. The time that
    the plan's solver took is in its throughput, and in no run."""
    return batch * generated / predicted["throughput_tokens_per_s"] - predicted["solver_s"]


# The best of several plans is chosen by the odd rounds and rated by the even ones: rounds that choose favour what they choose.
def odd_rounds(seconds):
    return statistics.median(seconds[0::2])


def even_rounds(seconds):
    return statistics.median(seconds[1::2])


def noise(seconds_by_plan):
    """What two runs of one plan differ by: of all plans of a point, since the odd rounds of the one that they choose are low by
    that choice."""
    return statistics.median(abs(odd_rounds(seconds) / even_rounds(seconds) - 1) for seconds in seconds_by_plan)


NOISE = "the median over all plans of a point of |odd rounds / even rounds - 1|"


def in_turn(plans, number):
    """Plans in the order of round `number`, which turns after every second round: odd and even rounds have both orders."""
    return list(plans)[::1 if number // 2 % 2 == 0 else -1]


def check_rounds(parser, name, rounds):
    if rounds < 2:
        parser.error(f"{name} {rounds} is too few, and must be 2 at least: odd rounds choose and even ones rate")
    if rounds % 4 != 0:
        print(f"warning: {name} {rounds} is no multiple of 4, so odd and even rounds do not have both orders as often",
              file=sys.stderr)


def open_results(*paths):
    """Before the first run, so that a path that cannot be written does not cost the runs. Keeps what is there."""
    for path in paths:
        try:
            with open(path, "a", encoding="utf-8"):
                pass
        except OSError as error:
            sys.exit(f"cannot write {path} ({error.strerror}): choose another --out")


def write_json(path, value):
    """In place of what was there, which stays whole until all is written."""
    beside = pathlib.Path(f"{path}.partial")
    beside.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        cpu = next(line.split(": ")[1].strip() for line in file if line.startswith("model name"))
    return f"{cpu}, {os.cpu_count()} cores"
