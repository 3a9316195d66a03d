#!/usr/bin/env python3
"""Tables and a plot of what bench/scenario_bench measured.

    tools/scenario_report.py OUT --title TITLE --rate RATE PART.json...

Writes OUT.json (all points), OUT.md (a table per part and, where points have predictions, the
errors) and OUT.svg (times of each part). Needs python3-matplotlib.
"""
import argparse
import datetime
import json
import pathlib
import statistics


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown CPU"


def table(name, points):
    has_prediction = any(p.get("predicted_s") for p in points)
    lines = [f"## {name}", "",
             "| experts | tokens per rank | skew | plan | ms, median (least - most) | first plan ÷ this, round by round | "
             "experts: longest rank, ms (mean ± over ranks) | not computing |" + (" simulated, ms (error) |" if has_prediction else ""),
             "|---:|---:|---:|---|---:|---:|---:|---:|" + ("---:|" if has_prediction else "")]
    for p in points:
        experts = p["sections"].get("experts", {"mean_s": 0, "deviation_s": 0})
        skew = "-" if p["skew"] < 0 else f"{p['skew']:.1f}"
        line = (f"| {p['experts']} | {p['tokens_per_rank']} | {skew} | `{p['plan']}` | "
                f"{p['median_s'] * 1e3:.1f} ({p['least_s'] * 1e3:.1f} - {p['most_s'] * 1e3:.1f}) | "
                f"{p['speedup']:.2f} | "
                f"{experts.get('longest_s', 0) * 1e3:.1f} ({experts['mean_s'] * 1e3:.1f} ± {experts['deviation_s'] * 1e3:.1f}) | "
                f"{100 * p['not_computing_share']:.1f} % |")
        if has_prediction:
            predicted = p.get("predicted_s")
            line += (f" {predicted * 1e3:.1f} ({100 * (predicted / p['median_s'] - 1):+.0f} %) |" if predicted else " |")
        lines.append(line)
    return lines + [""]


def task_errors(points):
    by_kind = {}
    for p in points:
        for kind, error in (p.get("task_errors") or {}).items():
            by_kind.setdefault(kind, []).append(abs(error))
    return sorted(by_kind.items())


def errors(points):
    found = [abs(p["predicted_s"] / p["median_s"] - 1) for p in points if p.get("predicted_s")]
    if not found:
        return []
    return [f"Simulated (measured costs per task) against measured over {len(found)} points: median error "
            f"{100 * statistics.median(found):.1f} %, greatest {100 * max(found):.1f} %. Median errors per kind of task: "
            + ", ".join(f"{kind} {100 * statistics.median(values):.0f} %" for kind, values in task_errors(points)) + ".", ""]


def plot(path, title, parts):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(len(parts), 1, figsize=(9, 1.2 + 2.6 * len(parts)), layout="constrained")
    for axis, (name, points) in zip(axes if len(parts) > 1 else [axes], parts):
        labels, values, predicted = [], [], []
        for p in points:
            skew = "" if p["skew"] < 0 else f" skew {p['skew']:.1f}"
            labels.append(f"{p['plan'].replace('layout=attention=dp2+experts=', '')}\n{p['tokens_per_rank']} tokens"
                          f" E{p['experts']}{skew}")
            values.append(p["median_s"] * 1e3)
            predicted.append(p["predicted_s"] * 1e3 if p.get("predicted_s") else None)
        places = range(len(points))
        axis.bar(places, values, color="#4477aa", label="measured (median)")
        axis.errorbar(places, values, yerr=[[v - p["least_s"] * 1e3 for v, p in zip(values, points)],
                                            [p["most_s"] * 1e3 - v for v, p in zip(values, points)]],
                      fmt="none", ecolor="#888888", capsize=2)
        marks = [(i, v) for i, v in zip(places, predicted) if v is not None]
        if marks:
            axis.plot(*zip(*marks), "D", color="#ee6677", label="simulated")
        axis.set_xticks(list(places), labels, fontsize=5.5, rotation=60 if len(points) > 8 else 0,
                        ha="right" if len(points) > 8 else "center")
        axis.set_ylabel("ms per step")
        axis.set_title(name, fontsize=9, loc="left")
        axis.legend(fontsize=6)
    figure.suptitle(title)
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("parts", nargs="+")
    parser.add_argument("--title", required=True)
    parser.add_argument("--rate", required=True)
    arguments = parser.parse_args()
    parts = [(pathlib.Path(p).stem, json.loads(pathlib.Path(p).read_text())) for p in arguments.parts]
    everything = [p for _, points in parts for p in points]
    out = pathlib.Path(arguments.out)
    out.with_suffix(".json").write_text(json.dumps(dict(parts), indent=1) + "\n")
    lines = [f"# {arguments.title}: measured", "",
             f"{cpu_name()}, 2 ranks of one core unless said, link: {arguments.rate}, "
             f"{datetime.date.today().isoformat()}. Plans of a part took turns in each round; medians. "
             "Made by `bench/scenarios/" + out.stem + "`.", ""]
    lines += errors(everything)
    for name, points in parts:
        lines += table(name, points)
    lines += [f"![{arguments.title}]({out.stem}.svg)", ""]
    out.with_suffix(".md").write_text("\n".join(lines))
    plot(out.with_suffix(".svg"), arguments.title, parts)
    print(f"wrote {out}.json, .md and .svg")


if __name__ == "__main__":
    main()
