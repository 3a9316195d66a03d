#!/usr/bin/env python3
"""Writes src/text/unicode_tables.cc: where Debian 12's Unicode data differ from those of the `tokenizers` package.

    pip install tokenizers==0.23.3
    python tools/make_unicode_tables.py > src/text/unicode_tables.cc      # on Debian 12

The package is asked what it holds of every code point; liboniguruma (Unicode 14) and libutf8proc (Unicode 15) of this
machine likewise. The package itself mixes versions: its regular expressions know Unicode 16, its digits and lower case
17, its normalization forms and its punctuation about 9. What differs becomes a table.
"""

import ctypes
import sys

from tokenizers import Regex, __version__, normalizers, pre_tokenizers

import precompiled_charsmap

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
EVERYTHING = "".join(map(chr, CODE_POINTS))
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn".split()
# What a stand-in must share with the code point it stands for.
PROPERTIES = [rf"\p{{{name}}}" for name in CATEGORIES + ["Han", "Hiragana", "Katakana", "Alphabetic"]] + [r"\s", r"\w"]


def package_matches(pattern):
    splitter = pre_tokenizers.Split(Regex(f"(?:{pattern})+"), "removed", invert=True)
    return {ord(c) for part, _ in splitter.pre_tokenize_str(EVERYTHING) for c in part}


def oniguruma_matches(pattern, library=ctypes.CDLL("libonig.so.5")):
    encoding = ctypes.addressof(ctypes.c_char.in_dll(library, "OnigEncodingUTF8"))
    syntax = ctypes.addressof(ctypes.c_char.in_dll(library, "OnigSyntaxOniguruma"))
    library.onig_initialize((ctypes.c_void_p * 1)(encoding), 1)
    regex, error = ctypes.c_void_p(), ctypes.create_string_buffer(64)
    source = ctypes.create_string_buffer(pattern.encode())
    begin = ctypes.addressof(source)
    code = library.onig_new(ctypes.byref(regex), ctypes.c_void_p(begin), ctypes.c_void_p(begin + len(pattern)), 0,
                            ctypes.c_void_p(encoding), ctypes.c_void_p(syntax), error)
    assert code == 0, (pattern, code)
    matched = set()
    for c in CODE_POINTS:
        text = chr(c).encode()
        end = ctypes.cast(text, ctypes.c_void_p).value + len(text)
        if library.onig_match(regex, text, ctypes.c_void_p(end), text, None, 0) == len(text):
            matched.add(c)
    return matched


def utf8proc(library=ctypes.CDLL("libutf8proc.so.2")):
    category = [None] * 0x110000
    for c in CODE_POINTS:
        library.utf8proc_category_string.restype = ctypes.c_char_p
        category[c] = library.utf8proc_category_string(c).decode()
    lower = [library.utf8proc_tolower(c) for c in range(0x110000)]
    return category, lower


def utf8proc_breaks(left, right, library=ctypes.CDLL("libutf8proc.so.2")):
    library.utf8proc_grapheme_break_stateful.restype = ctypes.c_bool
    return library.utf8proc_grapheme_break_stateful(left, right, ctypes.byref(ctypes.c_int32(0)))


def utf8proc_form(text, options, library=ctypes.CDLL("libutf8proc.so.2")):
    data, out = text.encode(), ctypes.c_void_p()
    library.utf8proc_map.restype = ctypes.c_ssize_t
    size = library.utf8proc_map(data, ctypes.c_ssize_t(len(data)), ctypes.byref(out), options)
    result = ctypes.string_at(out, size).decode()
    ctypes.CDLL(None).free(out)
    return result


def ranges(code_points):
    result = []
    for c in sorted(code_points):
        if result and result[-1][1] == c - 1:
            result[-1][1] = c
        else:
            result.append([c, c])
    return result


def stand_ins():
    """For every code point that this machine's Oniguruma sees otherwise: the nearest that it sees as the package does.

    The nearest, because patterns also spell out ranges of code points.
    """
    package = [package_matches(p) for p in PROPERTIES]
    machine = [oniguruma_matches(p) for p in PROPERTIES]
    features_of = lambda c, sets: tuple(c in s for s in sets) + (len(chr(c).encode()),)
    alike = {}  # by features: code points, sorted
    entries = []
    for c in CODE_POINTS:
        features = features_of(c, package)
        if features == features_of(c, machine):
            alike.setdefault(features, []).append(c)
        elif entries and entries[-1][1] == c - 1 and entries[-1][2] == features:
            entries[-1][1] = c
        else:
            entries.append([c, c, features])
    return [(first, last, min(alike[f], key=lambda c: min(abs(c - first), abs(c - last)))) for first, last, f in entries]


def grapheme_stand_ins():
    """For every code point that joins its neighbours otherwise than utf8proc thinks: one that joins as the package does.

    Only for clusters of at most 5 bytes, which are all that the Precompiled normalizer looks up: there a code point extends
    the character before it, or the one after it, or stands alone even before an accent.
    """
    replaced = lambda keys: normalizers.Precompiled(precompiled_charsmap.build({key: "Y" for key in keys}))
    after_a, any_first = replaced([b"a"]), replaced([bytes([b]) for b in range(0xC2, 0xF5)])
    joins = lambda normalizer, text: normalizer.normalize_str(text) == "Y"
    entries = []
    for c in CODE_POINTS[0x80:]:
        text = chr(c)
        package = (joins(after_a, "a" + text), joins(any_first, text + "a"))
        machine = (not utf8proc_breaks(0x61, c), not utf8proc_breaks(c, 0x61))
        proxy = {(True, False): 0x301, (False, True): 0x600}.get(package, 0x61)
        if package == machine and len(text.encode()) < 4 and not any(package):
            package, machine = joins(any_first, text + "\u0301"), not utf8proc_breaks(c, 0x301)
            proxy = 0x61 if package else 0x200B
        if package == machine:
            continue
        if entries and entries[-1][1] == c - 1 and entries[-1][2] == proxy:
            entries[-1][1] = c
        else:
            entries.append([c, c, proxy])
    return entries


def normalization_barriers():
    """Code points whose decompositions or combining classes the package does not know."""
    forms = [(normalizers.NFD(), 2 | 16), (normalizers.NFKD(), 2 | 16 | 4)]  # STABLE, DECOMPOSE, COMPAT
    settings = [
        "{}",
        "a\u0315{}\u0300\u05b0{}\u0334\u3099b",  # marks of combining classes 232, 230, 10, 1 and 8
        "a\u0316\u0345\u0301{}\u0327\u0ec8{}\u05b7",
    ]
    barriers = set()
    for setting in settings:
        for c in CODE_POINTS:
            text = setting.replace("{}", chr(c))
            if any(form.normalize_str(text) != utf8proc_form(text, options) for form, options in forms):
                barriers.add(c)
    # What composes to a code point unknown to the package must not compose.
    for c in list(barriers):
        parts = utf8proc_form(chr(c), 2 | 16)
        if len(parts) > 1 and normalizers.NFD().normalize_str(chr(c)) == chr(c):
            barriers.update(map(ord, parts[1:]))
    return barriers


def print_ranges(name, comment, code_points):
    print(f"\n// {comment}\nconst CodePointRange {name}[] = {{")
    print_rows(f"{{0x{first:04x}, 0x{last:04x}}}," for first, last in ranges(code_points))


def print_rows(items):
    line = "   "
    for item in items:
        if len(line) + 1 + len(item) > 100:
            print(line)
            line = "   "
        line += " " + item
    print(line + "\n};")


def main():
    category, lower = utf8proc()
    has_category = lambda letter: {c for c in CODE_POINTS if category[c][0] == letter}
    numeric = {c for c in CODE_POINTS if len(pre_tokenizers.Digits(True).pre_tokenize_str(f"a{chr(c)}a")) == 3}
    punctuation = {
        c for c in CODE_POINTS if len(pre_tokenizers.Punctuation("removed").pre_tokenize_str(f"a{chr(c)}a")) == 2
    }
    ascii_punctuation = {c for c in range(0x80) if chr(c).isprintable() and not chr(c).isalnum() and c != 0x20}
    mark = {c for c in CODE_POINTS if normalizers.StripAccents().normalize_str(f"a{chr(c)}a") == "aa"}
    # Of Unicode 16, so that a newer utf8proc needs no other table.
    newest_mark = has_category("M") | package_matches(r"\p{M}")
    newest_punctuation = has_category("P") | package_matches(r"\p{P}") | ascii_punctuation
    lower_case = [(c, normalizers.Lowercase().normalize_str(chr(c))) for c in CODE_POINTS]
    lower_case = [(c, ord(low)) for c, low in lower_case if len(low) == 1 and ord(low) != lower[c]]

    print(f"""// Written by tools/make_unicode_tables.py for tokenizers {__version__}; do not edit.
#include "text/unicode_tables.h"

namespace convene::text {{
namespace {{

// clang-format off""")
    print("// For regular expressions.\nconst StandIn kStandIns[] = {")
    print_rows(f"{{0x{first:04x}, 0x{last:04x}, 0x{proxy:04x}}}," for first, last, proxy in stand_ins())
    print("\n// For grapheme clusters.\nconst StandIn kGraphemeStandIns[] = {")
    print_rows(f"{{0x{first:04x}, 0x{last:04x}, 0x{proxy:04x}}}," for first, last, proxy in grapheme_stand_ins())
    print_ranges("kNormalizationBarriers", "Newer than the normalization data.", normalization_barriers())
    print_ranges("kMoreNumbers", "Numbers that utf8proc may not know.", numeric - has_category("N"))
    print_ranges("kMorePunctuation", "No punctuation in later versions.", punctuation - newest_punctuation)
    print_ranges("kNoPunctuation", "Punctuation of later versions.", newest_punctuation - punctuation)
    print_ranges("kMoreMarks", "No marks in later versions.", mark - newest_mark)
    print_ranges("kNoMarks", "Marks of later versions.", newest_mark - mark)
    print("\n// Letters whose lower case utf8proc may not know.\nconst LowerCase kLowerCase[] = {")
    print_rows(f"{{0x{c:04x}, 0x{low:04x}}}," for c, low in lower_case)
    print("""// clang-format on

}  // namespace

std::span<const StandIn> StandIns() { return kStandIns; }
std::span<const StandIn> GraphemeStandIns() { return kGraphemeStandIns; }
std::span<const CodePointRange> NormalizationBarriers() { return kNormalizationBarriers; }
std::span<const CodePointRange> MoreNumbers() { return kMoreNumbers; }
std::span<const CodePointRange> MorePunctuation() { return kMorePunctuation; }
std::span<const CodePointRange> NoPunctuation() { return kNoPunctuation; }
std::span<const CodePointRange> MoreMarks() { return kMoreMarks; }
std::span<const CodePointRange> NoMarks() { return kNoMarks; }
std::span<const LowerCase> LowerCases() { return kLowerCase; }

}  // namespace convene::text""")


if __name__ == "__main__":
    sys.exit(main())
