"""What benches share that run plans in turn, each in processes of its own (plan_floor.py, unlike_ranks.py)."""

import os
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
    """By number of sequences, from what `convene bench --json` wrote: all prompts, all generated tokens, and a move of the
    experts between where there are any."""
    moved = report["experts_moved"]
    per_move = moved["seconds"] / max(1, moved["count"]) if generated > 1 else 0
    seconds = {}
    for prefill, decode in zip(report["prefill_by_batch"], report["decode"]):
        batch = prefill["batch"]
        seconds[batch] = batch * prompt / prefill["tokens_per_s"] + batch * generated / decode["tokens_per_s"] + per_move
    return seconds


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        cpu = next(line.split(": ")[1].strip() for line in file if line.startswith("model name"))
    return f"{cpu}, {os.cpu_count()} cores"
