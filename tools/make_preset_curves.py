#!/usr/bin/env python3
"""Writes src/cost/preset_curves.cc: curves of measured operators that presets are delivered with.

    tools/make_preset_curves.py build/release/convene FOLDER [KEPT] > curves.cc
    mv curves.cc src/cost/preset_curves.cc

FOLDER has the tables of ai-dynamo/aiconfigurator (Apache-2.0) that are named below. Few of their
points are fitted, so that the file stays small; import-profile takes all of them. KEPT is an
earlier result: curves that it has stay as they are, so that one more changes no other price.
"""

import json
import re
import subprocess
import sys

MOST_POINTS = 400
# By preset: the GPU's key and the tables of its operators.
PRESETS = {
    "a100-nvlink": (
        "a100",
        [
            "a100_sxm_gemm_sglang_0.5.10_gemm_perf.csv.gz",
            "a100_sxm_gemm_trtllm_1.0.0_gemm_perf.csv.gz",
            "a100_sxm_moe_sglang_0.5.10_moe_perf.csv.gz",
            "a100_sxm_comm_nccl_2.27.3_nccl_perf.csv.gz",
            "a100_sxm_comm_vllm_0.14.0_custom_allreduce_perf.csv.gz",
        ],
    ),
    "h100-nvlink": (
        "h100",
        [
            "h100_sxm_gemm_vllm_0.24.0_gemm_perf.csv.gz",
            "h100_sxm_moe_vllm_0.24.0_moe_perf.csv.gz",
            "h100_sxm_comm_nccl_2.27.3_nccl_perf.csv.gz",
            "h100_sxm_comm_vllm_0.24.0_custom_allreduce_perf.csv.gz",
            "h100_sxm_comm_sglang_0.5.12_wideep_deepep_normal_perf.csv.gz",
        ],
    ),
    "h200-nvlink": (
        "h200",
        [
            "h200_sxm_comm_sglang_0.5.12_wideep_deepep_normal_perf.csv.gz",
        ],
    ),
}
OPERATORS = [
    "product bf16",
    "product fp8",
    "product int8",
    "grouped_product bf16",
    "grouped_product fp8",
    "grouped_product int4_wo",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "all_reduce",
    "all_reduce, vLLM vLLM_custom_graph",
    "dispatch",
    "combine",
]

HEADER = '''// Curves of measured operators, for presets. Written by tools/make_preset_curves.py, and not to be
// edited.
//
// Fitted to points of tables of ai-dynamo/aiconfigurator, Copyright (c) 2025-2026 NVIDIA
// CORPORATION & AFFILIATES, licensed under the Apache License 2.0; each model's "source" names its
// table.
// clang-format off
#include "cost/preset_curves.h"

namespace convene::cost {
namespace {

constexpr PresetCurve kCurves[] = {
'''
FOOTER = '''};

}  // namespace

std::span<const PresetCurve> PresetCurves() { return kCurves; }

}  // namespace convene::cost
'''


def wrapped(text, width=120):
    """Lines of a JSON text, broken behind commas of lists of numbers."""
    line = ""
    for part in text.split(","):
        piece = part + ","
        # Inside a string a line must not be broken.
        if len(line) + len(piece) > width and line.count('"') % 2 == 0:
            yield line
            line = ""
        line += piece
    yield line[:-1]


def kept_curves(path):
    """By GPU and operator, the texts of the curves of an earlier result."""
    with open(path, encoding="utf-8") as file:
        found = re.findall(r'\{"(\w+)", R"json\(\n(.*?)\n\)json"\}', file.read(), re.DOTALL)
    return {(gpu, json.loads(text.replace("\n", ""))["name"]): text for gpu, text in found}


def main():
    program, folder = sys.argv[1:3]
    kept = kept_curves(sys.argv[3]) if len(sys.argv) > 3 else {}
    out = [HEADER]
    for preset, (gpu, tables) in PRESETS.items():
        profile = subprocess.run(
            [program, "import-profile", *[f"{folder}/{table}" for table in tables], "--preset", preset,
             "--most-points", str(MOST_POINTS), "--out", "-"],
            check=True, stdout=subprocess.PIPE, text=True)
        operators = json.loads(profile.stdout)["operators"]
        for name in OPERATORS:
            # Of a relative: those are in the preset already, and are not this GPU's.
            if not operators.get(name, {"source": ""})["source"].startswith(gpu + "_"):
                continue
            text = "\n".join(wrapped(json.dumps(operators[name], separators=(",", ":"))))
            out.append('    {"%s", R"json(\n%s\n)json"},\n' % (gpu, kept.get((gpu, name), text)))
    sys.stdout.write("".join(out) + FOOTER)


if __name__ == "__main__":
    main()
