#!/usr/bin/env python3
"""Names in anonymous namespaces are unique within a folder: tools/check_unity_names.py

Sources of a folder are compiled eight at a time, as one (CONVENE_UNITY), tests likewise: a name that two of them define for
themselves ends the build as soon as a new file shifts them into one group, and so does a type of theirs that has the name of one
in a header of the folder. Kernels of each instruction set and CUDA's are compiled
one by one. Prints each such name with its files; the exit status is then 1.
"""

import collections
import pathlib
import re
import sys

SRC = pathlib.Path(__file__).resolve().parents[1] / "src"
# Overloads of a public function, each of a type of its own.
OVERLOADS = {"ToJson"}
TYPE = re.compile(r"(?:class|struct|enum class|union) (\w+)\b(?!;|::)")
OTHER = re.compile(r"(?:constexpr |const |inline |static |thread_local )*[A-Za-z_][\w:<>,*& \[\]]*?[ &*>](\w+)(?:\(|\[| =|\{|;)")
NEITHER = re.compile(r"TEST|INSTANTIATE|using|namespace|#|//|return|\}|MATCHER|public|private|case|friend|template|static_assert|\s")


def types_of_header(text):
    return {found[1] for line in text.splitlines() if (found := TYPE.match(line))}


def names_in_anonymous_namespaces(text):
    names = set()
    is_inside = False
    for line in text.splitlines():
        if line.startswith("namespace {"):
            is_inside = True
        elif line == "}  // namespace":
            is_inside = False
        elif is_inside:
            found = TYPE.match(line) or (not NEITHER.match(line) and OTHER.match(line))
            if found:
                names.add(found[1])
    return names - OVERLOADS


def is_compiled_alone(path):
    parts = path.relative_to(SRC).parts
    return "cuda" in parts or (parts[0] == "kernels" and "cpu" in parts)


def main():
    files = collections.defaultdict(list)
    headers = {}
    for path in sorted(SRC.rglob("*.h")):
        if not is_compiled_alone(path):
            for name in types_of_header(path.read_text(encoding="utf-8")):
                headers[path.relative_to(SRC).parts[0], name] = str(path.relative_to(SRC.parent))
    for path in sorted(SRC.rglob("*.cc")):
        if is_compiled_alone(path):
            continue
        folder = path.relative_to(SRC).parts[0]
        for name in names_in_anonymous_namespaces(path.read_text(encoding="utf-8")):
            files[folder, path.name.endswith("_test.cc"), name].append(str(path.relative_to(SRC.parent)))
    twice = {key: where for key, where in files.items() if len(where) > 1}
    for (_, _, name), where in sorted(twice.items()):
        print(f"{name} is a name of its own in each of {', '.join(where)}: give all but one of them another")
    hidden = {key: where for key, where in files.items() if (key[0], key[2]) in headers}
    for (folder, _, name), where in sorted(hidden.items()):
        print(f"{name} is a name of its own in {', '.join(where)}, and a type of {headers[folder, name]}: give it another")
    return 1 if twice or hidden else 0


if __name__ == "__main__":
    sys.exit(main())
