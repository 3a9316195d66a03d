#!/usr/bin/env python3
"""Tables and a plot of what bench/scenario_bench measured.

    bench/scenario_report.py OUT --title TITLE --rate RATE PART...     PART: FILE.json or NAME=FILE.json,FILE.json

Writes OUT.json (all points), OUT.md (tables per part, the errors of predictions and of replays, where
plans change places) and OUT.svg (times of each part). Needs python3-matplotlib.
"""
import argparse
import datetime
import json
import pathlib
import re
import statistics

from prediction_table import SUMMARY_HEAD, errors_of, regrets, summary, words_of_regrets


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown CPU"


def ratio(rounds, key, form):
    return form.format(rounds[key]) if rounds[key] else "-"


def replayed(point):
    """Milliseconds and their error."""
    seconds = point.get("replayed_s")
    return f"{seconds * 1e3:.1f} ({100 * (seconds / point['median_s'] - 1):+.0f} %)" if seconds else "-"


def predicted(point):
    """Milliseconds, their error raw and after drift."""
    if not point["predicted"]:
        return "-"
    errors = errors_of(point["predicted"], point)
    return f"{1e3 * point['predicted']['predicted_s']:.1f} ({100 * errors['raw']:+.0f} %, {100 * errors['drift']:+.0f} %)"


def table(name, points):
    """One line per point; ratios of all rounds and, after a slash, of even ones."""
    are_predicted = any(p["predicted"] for p in points)
    lines = [f"## {name}", "",
             "| experts | tokens per rank | skew | plan | ms, median (least - most) | first plan ÷ this | speed, of that at the "
             "first skew | waiting for another rank | even rounds | not computing | experts: longest rank, ms (mean ± over ranks) | "
             "replayed, ms (error) |" + (" predicted, ms (error raw, after drift) |" if are_predicted else ""),
             "|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|" + ("---:|" if are_predicted else "")]
    for p in points:
        experts = p["sections"].get("experts", {"mean_s": 0, "deviation_s": 0, "longest_s": 0})
        skew = "-" if p["skew"] < 0 else f"{p['skew']:.1f}"
        every, even = p["all_rounds"], p["even_rounds"]
        lines.append(
            f"| {p['experts']} | {p['tokens_per_rank']} | {skew} | `{p['plan']}` | "
            f"{p['median_s'] * 1e3:.1f} ({p['least_s'] * 1e3:.1f} - {p['most_s'] * 1e3:.1f}) | "
            f"{every['speedup']:.2f} / {ratio(even, 'speedup', '{:.2f}')} | "
            f"{every['of_flat']:.2f} / {ratio(even, 'of_flat', '{:.2f}')} | "
            f"{100 * every['waiting_share']:.1f} % / "
            + (f"{100 * even['waiting_share']:.1f} %" if even["rounds"] else "-") +
            f" | {even['rounds']} of {every['rounds']} | {100 * p['not_computing_share']:.1f} % | "
            f"{experts['longest_s'] * 1e3:.1f} ({experts['mean_s'] * 1e3:.1f} ± {experts['deviation_s'] * 1e3:.1f}) | "
            f"{replayed(p)} |"
            + (f" {predicted(p)} |" if are_predicted else ""))
    return lines + [""]


def section_table(name, points):
    """Milliseconds of each kind of task: mean ± deviation over ranks, and after a plus the waiting."""
    kinds = [kind for kind in points[0]["sections"]
             if any(p["sections"].get(kind, {}).get("mean_s", 0) + p["sections"].get(kind, {}).get("waiting_s", 0)
                    > 0.01 * p["median_s"] for p in points)]
    lines = [f"### {name}, by section: ms, mean ± over ranks + waiting for another rank", "",
             "| experts | tokens per rank | skew | plan | " + " | ".join(kinds) + " |", "|---:|---:|---:|---|" + "---:|" * len(kinds)]
    for p in points:
        cells = []
        for kind in kinds:
            of = p["sections"].get(kind)
            if of is None:
                cells.append("")
                continue
            waiting = f" + {of['waiting_s'] * 1e3:.1f}" if of["waiting_s"] > 0.00005 else ""
            cells.append(f"{of['mean_s'] * 1e3:.1f} ± {of['deviation_s'] * 1e3:.1f}{waiting}")
        skew = "-" if p["skew"] < 0 else f"{p['skew']:.1f}"
        lines.append(f"| {p['experts']} | {p['tokens_per_rank']} | {skew} | `{p['plan']}` | " + " | ".join(cells) + " |")
    return lines + [""]


def crossings(parts):
    """Where a point's first plan and another one change places, over tokens or over experts."""
    lines = []
    for name, points in parts:
        for axis in ("tokens_per_rank", "experts"):
            series = {}
            for p in points:
                rest = p["experts"] if axis == "tokens_per_rank" else p["tokens_per_rank"]
                series.setdefault((p["skew"], p["plan"], rest), []).append((p[axis], p["all_rounds"]["speedup"]))
            for (skew, plan, _), values in series.items():
                values = sorted(values)
                for (before, was), (after, now) in zip(values, values[1:]):
                    if (was - 1) * (now - 1) < 0 and min(abs(was - 1), abs(now - 1)) > 0.03:
                        lines.append(f"- {name}, skew {skew:.1f}: `{plan}` against the first plan: {was:.2f} at {before}, "
                                     f"{now:.2f} at {after} {axis.replace('_', ' ')}.")
    return (["## Where plans change places", "",
             "Ratios on both sides of one, by more than 3 %:", ""] + lines + [""]) if lines else []


def task_errors(points):
    by_kind = {}
    for p in points:
        for kind, error in (p.get("task_errors") or {}).items():
            by_kind.setdefault(kind, []).append(abs(error))
    return sorted(by_kind.items())


def prediction_errors(parts):
    """Of all parts and of each: errors, and what it costs to run the plan that is predicted to be best."""
    found = {name: [{**p, **p["predicted"], **errors_of(p["predicted"], p)} for p in points if p["predicted"]] for name, points in parts}
    every = [point for points in found.values() for point in points]
    if not every:
        return ["Nothing was predicted in this run.", ""]
    lines = ["Predicted against measured, by costs that these ranks had measured with other models before the first of these steps ran; errors are "
             "predicted / measured - 1, the median over rounds, raw and after what the reference kernels of each round say of memory and cores "
             "(bench/prediction_table.py). Plans with a capacity are not predicted.", "", *SUMMARY_HEAD, summary("all", every)]
    lines += [summary(name, points) for name, points in found.items() if points] + [""]
    rows = [row for points in found.values() for row in regrets(points, ("experts", "tokens_per_rank", "skew"))]
    return lines + [f"- {words}" for words in words_of_regrets(rows)] + [""]


def replay_errors(points):
    found = [p["replayed_s"] / p["median_s"] - 1 for p in points if p.get("replayed_s")]
    if not found:
        return []
    return ["Replayed is no prediction: a plan's own tasks are given the times that they were measured to take in the other rounds of the same "
            f"run, and are simulated. It tests the simulator alone. Against measured over {len(found)} points: median error "
            f"{100 * statistics.median(map(abs, found)):.1f} %, greatest {100 * max(map(abs, found)):.1f} %. Median errors per kind of task: "
            + ", ".join(f"{kind} {100 * statistics.median(values):.0f} %" for kind, values in task_errors(points)) + ".", ""]


VARIABLES = {"skew": "skew", "experts": "experts", "tokens_per_rank": "tokens per rank"}


def plan_name(point):
    """Without what differs from point to point: an automatic choice, a capacity factor."""
    return re.sub("capacity=.*", "padded", point["plan"].split(" (")[0]).replace("layout=attention=dp2+experts=", "")


def bars(axis, points):
    """A bar per plan, where nothing else varies."""
    places = range(len(points))
    values = [p["median_s"] * 1e3 for p in points]
    axis.bar(places, values, color="#4477aa", label="measured (median, least and most)",
             yerr=[[v - p["least_s"] * 1e3 for v, p in zip(values, points)], [p["most_s"] * 1e3 - v for v, p in zip(values, points)]],
             ecolor="#888888", capsize=2)
    replayed = [(i, p["replayed_s"] * 1e3) for i, p in enumerate(points) if p.get("replayed_s")]
    if replayed:
        axis.plot(*zip(*replayed), "D", color="#ee6677", markersize=4, label="replayed")
    axis.set_xticks(list(places), [p["plan"].replace(" (", "\n(") for p in points], fontsize=6, rotation=30, ha="right")
    axis.set_ylabel("ms per step")
    axis.legend(fontsize=6)


def curves(times, ratios, points, varying):
    """Time and gain over what varies most; a curve per plan and value of the others."""
    x = max(varying, key=lambda v: len({p[v] for p in points}))
    others = [v for v in varying if v != x]
    plans = list(dict.fromkeys(plan_name(p) for p in points))
    rests = sorted({tuple(p[v] for v in others) for p in points})
    colors = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"]
    for plan in plans:
        for rest in rests:
            chosen = sorted((p for p in points if plan_name(p) == plan and tuple(p[v] for v in others) == rest),
                            key=lambda p: p[x])
            if not chosen:
                continue
            label = ", ".join([plan] + [f"{VARIABLES[v]} {value:g}" for v, value in zip(others, rest)])
            style = {"color": colors[plans.index(plan) % len(colors)], "marker": "o", "markersize": 3,
                     "linestyle": ["-", "--", ":", "-."][rests.index(rest) % 4]}
            values = [p["median_s"] * 1e3 for p in chosen]
            times.errorbar([p[x] for p in chosen], values,
                           yerr=[[v - p["least_s"] * 1e3 for v, p in zip(values, chosen)],
                                 [p["most_s"] * 1e3 - v for v, p in zip(values, chosen)]],
                           elinewidth=0.5, capsize=2, label=label, **style)
            ratios.plot([p[x] for p in chosen], [p["all_rounds"]["speedup"] for p in chosen], **style)
    for axis in (times, ratios):
        if x != "skew":
            axis.set_xscale("log", base=2 if x == "experts" else 10)
            axis.set_xticks(sorted({p[x] for p in points}), [f"{v:g}" for v in sorted({p[x] for p in points})], fontsize=6)
            axis.minorticks_off()
        axis.set_xlabel(VARIABLES[x], fontsize=7)
    times.set_yscale("log")
    times.set_ylabel("ms per step", fontsize=7)
    ratios.axhline(1, color="#888888", linewidth=0.8)
    ratios.set_ylabel("first plan ÷ this (median of rounds)", fontsize=7)
    ratios.legend(*times.get_legend_handles_labels(), fontsize=5.5, loc="center left", bbox_to_anchor=(1.02, 0.5))


def plot(path, title, parts):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    plt.rcParams["svg.fonttype"] = "none"  # text, not outlines
    figure = plt.figure(figsize=(11, 0.8 + 3.1 * len(parts)), layout="constrained")
    for row, (name, points) in zip(figure.subfigures(len(parts), 1, squeeze=False)[:, 0], parts):
        row.suptitle(name, fontsize=9)
        varying = [v for v in VARIABLES if len({p[v] for p in points}) > 1]
        if varying:
            curves(*row.subplots(1, 2), points, varying)
        else:
            bars(row.subplots(1, 1), points)
    figure.suptitle(title)
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("parts", nargs="+")
    parser.add_argument("--title", required=True)
    parser.add_argument("--rate", required=True)
    arguments = parser.parse_args()
    parts = []
    for part in arguments.parts:
        name, _, files = part.rpartition("=")
        points = [point for file in files.split(",") for point in json.loads(pathlib.Path(file).read_text())]
        parts.append((name or pathlib.Path(files).stem, points))
    everything = [p for _, points in parts for p in points]
    out = pathlib.Path(arguments.out)
    # A line per point.
    out.with_suffix(".json").write_text("{" + ",".join(
        f"\n{json.dumps(name)}: [\n" + ",\n".join(json.dumps(p, separators=(",", ":")) for p in points) + "\n]"
        for name, points in parts) + "\n}\n")
    lines = [f"# {arguments.title}: measured", "",
             f"{cpu_name()}, 2 ranks of one core unless said, link: {arguments.rate}, "
             f"{datetime.date.today().isoformat()}. Plans of a part took turns in each round; medians. "
             "Made by `bench/scenarios/" + out.stem + "`; what it says is in [ranks](ranks.md).", ""]
    lines += prediction_errors(parts)
    lines += replay_errors(everything)
    lines += ["A round is even where all ranks took about the same time for their attention, the same work on each (within 10 %); "
              "the others tell of the machine as much as of the plan.", ""]
    for name, points in parts:
        lines += table(name, points)
    lines += crossings(parts)
    for name, points in parts:
        lines += section_table(name, points)
    lines += [f"![{arguments.title}]({out.stem}.svg)", ""]
    out.with_suffix(".md").write_text("\n".join(lines))
    plot(out.with_suffix(".svg"), arguments.title, parts)
    print(f"wrote {out}.json, .md and .svg")


if __name__ == "__main__":
    main()
