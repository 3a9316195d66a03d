#!/usr/bin/env python3
"""Tables of what was predicted and what was measured: every point, errors, ranks of plans, regret.

    bench/prediction_table.py [--all FILE] PREDICTIONS RUNS [PREDICTIONS RUNS ...]

Files are those of prediction_bench, and each run must be for the prediction that is there. An error is predicted / measured - 1, its median over rounds. After drift:
with what the round's reference kernels say of memory and cores, and nothing else. Inside: the share of points that lay
in their interval, which should be nine in ten after drift. --all writes every point there as
a Markdown table; the summary goes to standard output.
"""
import argparse
import collections
import json
import statistics
import sys


def read_lines(path, members):
    """Objects with these members, one a line. A last line that was cut, by a run that was ended, is left out."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines(keepends=True)
    objects = []
    for number, line in enumerate(lines, 1):
        try:
            read = json.loads(line)
        except json.JSONDecodeError as error:
            if number < len(lines) or line.endswith("\n"):
                sys.exit(f"{path}, line {number}: {error.msg}")
            print(f"{path}, line {number} was cut and is left out", file=sys.stderr)
            continue
        missing = [member for member in members if not isinstance(read, dict) or member not in read]
        if missing:
            sys.exit(f"{path}, line {number} has no {', '.join(missing)}")
        objects.append(read)
    return objects


def quantile(values, share):
    ordered = sorted(values)
    return ordered[int(share * (len(ordered) - 1) + 0.5)]


def corrected(prediction, read, dot):
    """The prediction for a machine whose reference kernels ran at these speeds."""
    memory = prediction["read_bytes_per_s"] / read - 1
    compute = prediction["dot_operations_per_s"] / dot - 1
    seconds = prediction["predicted_s"]
    return seconds + prediction["memory_s"] * memory + prediction["compute_s"] * compute


PREDICTED = ("key", "profile", "model", "weights", "link", "ranks", "threads", "batch", "tokens", "context", "plan", "predicted_s",
             "low_s", "high_s", "memory_s", "compute_s", "extrapolated", "read_bytes_per_s", "dot_operations_per_s")
RAN = ("key", "seconds", "read_bytes_per_s", "dot_operations_per_s")


def points_of(predictions_path, runs_path):
    predictions = {}
    for line in read_lines(predictions_path, PREDICTED):
        if line["key"] in predictions:
            sys.exit(f"{predictions_path} predicts {line['key']} twice, from the profiles {predictions[line['key']]['profile']} and "
                     f"{line['profile']}")
        predictions[line["key"]] = line
    points = []
    ran_before = set()
    for run in read_lines(runs_path, RAN):
        if run["key"] in ran_before:
            sys.exit(f"{runs_path} has two runs of {run['key']}: remove one of them")
        ran_before.add(run["key"])
        prediction = predictions.get(run["key"])
        if prediction is None:
            sys.exit(f"{runs_path} has a point that {predictions_path} does not predict: {run['key']}")
        made, ran = ([line.get("predicted_s"), line.get("profile")] for line in (prediction, run))
        if made != ran:
            sys.exit(f"{runs_path} ran {run['key']} for a prediction of {ran[0]} s from profile {ran[1]}, and {predictions_path} predicts "
                     f"{made[0]} s from profile {made[1]}: a prediction must be there before its runs, so run this one's anew")
        points.append({**prediction, "runs": runs_path, "seconds": run["seconds"], **errors_of(prediction, run)})
    return points


def errors_of(prediction, run):
    """Of the rounds of `run`: what was measured, the error raw and after drift, and whether the interval held."""
    rounds = list(zip(run["seconds"], run["read_bytes_per_s"], run["dot_operations_per_s"]))
    predicted = prediction["predicted_s"]
    errors = {
        "measured_s": statistics.median(run["seconds"]),
        "raw": statistics.median(predicted / seconds - 1 for seconds, _, _ in rounds),
        "drift": statistics.median(corrected(prediction, read, dot) / seconds - 1 for seconds, read, dot in rounds),
    }
    for which in ("raw", "drift"):
        longer = 1 / (1 + errors[which])
        errors["inside_" + which] = prediction["low_s"] <= longer * predicted <= prediction["high_s"]
    return errors


SUMMARY_HEAD = ["| | points | raw: median | 90 % | worst | bias | inside | after drift: median | 90 % | worst | bias | inside |", "|" + "---|" * 12]


def summary(name, points):
    """One row: median, 90th percentile and worst of absolute errors, and the mean of signed ones."""
    row = f"| {name} | {len(points)}"
    for which in ("raw", "drift"):
        errors = [abs(point[which]) for point in points]
        bias = statistics.mean(point[which] for point in points)
        row += " | " + " | ".join(f"{100 * value:.1f} %" for value in (
            statistics.median(errors), quantile(errors, 0.9), max(errors)))
        inside = statistics.mean(point["inside_" + which] for point in points)
        row += f" | {100 * bias:+.1f} % | {100 * inside:.0f} %"
    return row + " |"


def rank_correlation(first, second):
    """Spearman's."""
    def ranks(values):
        order = sorted(range(len(values)), key=lambda i: values[i])
        placed = [0] * len(values)
        for place, index in enumerate(order):
            placed[index] = place
        return placed
    a, b = ranks(first), ranks(second)
    n = len(a)
    return 1 - 6 * sum((x - y) ** 2 for x, y in zip(a, b)) / (n * (n * n - 1))


def regrets(points, same=("runs", "model", "weights", "link", "ranks", "threads", "batch", "tokens", "context")):
    """By group of plans that took turns, those with the same of `same`: regret, the noise beside it, and the correlation of ranks.

    The best of odd rounds is compared in even ones, so plans that ran in one round alone are left out.
    """
    groups = collections.defaultdict(list)
    for point in points:
        if len(point["seconds"]) < 2:
            continue
        groups[tuple(point[key] for key in same)].append(point)
    rows = []
    for plans in groups.values():
        if len(plans) < 2:
            continue
        odd = lambda plan: statistics.median(plan["seconds"][0::2])
        even = lambda plan: statistics.median(plan["seconds"][1::2])
        chosen = min(plans, key=lambda plan: plan["predicted_s"])
        best = min(plans, key=odd)
        rows.append({
            "regret": even(chosen) / even(best) - 1,
            "noise": abs(odd(best) / even(best) - 1),
            "correlation": rank_correlation([plan["predicted_s"] for plan in plans],
                                            [plan["measured_s"] for plan in plans]),
        })
    return rows


def words_of_regrets(rows):
    lines = []
    for key in ("regret", "noise"):
        values = [row[key] for row in rows]
        lines.append(f"{key}: {100 * statistics.median(values):.1f} % in the median, {100 * quantile(values, 0.9):.1f} % at "
                     f"the 90th percentile, {100 * max(values):.1f} % at worst, of {len(values)} choices")
    correlations = [row["correlation"] for row in rows]
    return lines + [f"rank correlation of plans: {statistics.median(correlations):.2f} in the median, {min(correlations):.2f} at worst"]


def write_all(path, points):
    with open(path, "w", encoding="utf-8") as file:
        file.write("| model | weights | link | ranks | threads | plan | step (batch x tokens @ context) | predicted ms | interval "
                   "| measured ms | raw | after drift | beyond what was measured |\n")
        file.write("|" + "---|" * 13 + "\n")
        for point in points:
            model = point["model"].rstrip("/").split("/")[-1]
            step = f"{point['batch']}x{point['tokens']}@{point['context']}"
            file.write(f"| {model} | {point['weights']} | {point['link']} | {point['ranks']} | {point['threads']} | {point['plan']} | {step} "
                       f"| {1e3 * point['predicted_s']:.2f} | {1e3 * point['low_s']:.2f} - {1e3 * point['high_s']:.2f} "
                       f"| {1e3 * point['measured_s']:.2f} "
                       f"| {100 * point['raw']:+.1f} % | {100 * point['drift']:+.1f} % "
                       f"| {100 * point['extrapolated']:.0f} % |\n")


def main():
    parser = argparse.ArgumentParser(description="Tables of predicted and measured steps")
    parser.add_argument("--all", help="write every point to this file")
    parser.add_argument("files", nargs="+", help="pairs of a file of predictions and one of runs")
    options = parser.parse_args()
    if len(options.files) % 2:
        parser.error("a file of predictions has no file of runs")
    points = []
    for predictions, runs in zip(options.files[0::2], options.files[1::2]):
        points += points_of(predictions, runs)
    if not points:
        sys.exit("nothing has run")
    if options.all:
        write_all(options.all, points)
    print("\n".join([*SUMMARY_HEAD, summary("all", points)]))
    for title, key in (("link", "link"), ("ranks", "ranks"), ("threads", "threads"), ("weights", "weights"), ("plan", "plan")):
        values = sorted({str(point[key]) for point in points})
        for value in values if len(values) > 1 else []:
            print(summary(f"{title} {value}", [point for point in points if str(point[key]) == value]))
    for name in sorted({point["model"].rstrip("/").split("/")[-1] for point in points}):
        print(summary(name, [point for point in points if point["model"].rstrip("/").split("/")[-1] == name]))
    rows = regrets(points)
    once = sum(len(point["seconds"]) < 2 for point in points)
    if once:
        print(f"\n{once} of {len(points)} points ran in one round, and no regret is told of them: it takes --rounds 2 or more")
    if rows:
        print("\n" + "\n".join(words_of_regrets(rows)))


if __name__ == "__main__":
    main()
