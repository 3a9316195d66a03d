// Templates that try to take the process down: each ends with an error, in bounded time and memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "jinja/render_test.h"

namespace convene::jinja {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// Small enough that every test ends at once; each bound is checked by what exceeds it alone.
constexpr Limits kSmall{
    .max_steps = 200'000, .max_output_bytes = 1 << 20, .max_live_bytes = 4 << 20};

std::string Render(const std::string& source, const Limits& limits = kSmall) {
  return RenderOrError(source, limits);
}

std::string Repeat(std::string_view text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

TEST(HostileTemplate, CannotLoopWithoutEnd) {
  EXPECT_THAT(Render("{% for i in range(10 ** 9) %}{% endfor %}"), HasSubstr("Range too big"));
  EXPECT_THAT(Render("{% for i in range(-9223372036854775807 - 1, 9223372036854775807) %}"
                     "{% endfor %}"),
              HasSubstr("Range too big"));
  EXPECT_THAT(
      Render("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
      HasSubstr("steps"));
}

TEST(HostileTemplate, CannotRecurseWithoutEnd) {
  EXPECT_THAT(Render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("nested"));
  EXPECT_THAT(Render("{% macro f(x) %}{% if true %}{% for i in [1] %}{{ [f([x])] }}{% endfor %}"
                     "{% endif %}{% endmacro %}{{ f(1) }}"),
              HasSubstr("nested"));
  EXPECT_THAT(Render("{% macro f(x=f()) %}{% endmacro %}{{ f() }}"), StartsWith("error"));
}

TEST(HostileTemplate, CannotWriteWithoutEnd) {
  EXPECT_THAT(Render("{% for i in range(9999) %}{{ 'x' * 1000 }}{% endfor %}"),
              HasSubstr("writes more than 1048576 bytes"));
  EXPECT_THAT(
      Render("{% macro f(n) %}{{ 'x' * 100000 }}{{ f(n - 1) if n }}{% endmacro %}{{ f(30) }}"),
      HasSubstr("writes more than"));
  const std::string capture =
      "{% set x %}{% for i in range(99) %}{{ 'y' * 99999 }}{% endfor %}{% endset %}";
  EXPECT_THAT(Render(capture), HasSubstr("writes more than"));
}

TEST(HostileTemplate, CannotFillTheMemory) {
  const Limits many_steps{
      .max_steps = size_t{1} << 40, .max_output_bytes = 1 << 20, .max_live_bytes = 4 << 20};
  EXPECT_THAT(Render("{{ 'x' * 10 ** 15 }}", many_steps), HasSubstr("bytes"));
  EXPECT_THAT(Render("{{ [1] * 10 ** 15 }}", many_steps), HasSubstr("bytes"));
  EXPECT_THAT(Render("{{ 'x' * 9223372036854775807 }}", many_steps), HasSubstr("bytes"));
  EXPECT_THAT(Render("{% set n = namespace(l=['x' * 500000]) %}{% for i in range(99) %}"
                     "{% set n.l = n.l + [i ~ 'y' * 500000] %}{% endfor %}",
                     many_steps),
              HasSubstr("values take more than 4194304 bytes"));
  EXPECT_THAT(Render("{% set n = namespace(s='x') %}{% for i in range(99) %}"
                     "{% set n.s = n.s + n.s %}{% endfor %}",
                     many_steps),
              HasSubstr("a text of"));
  EXPECT_THAT(
      Render("{% for i in range(99999) %}{% set n = namespace(a=1) %}{% endfor %}", many_steps),
      HasSubstr("values take more"));
  EXPECT_THAT(Render("{{ ',' * 1000000 }}{{ (',' * 1000000).split(',')|length }}", many_steps),
              HasSubstr("values take more"));
  EXPECT_THAT(Render("{{ ('x' * 1000000)|list|length }}", many_steps),
              HasSubstr("values take more"));
  EXPECT_THAT(Render("{{ 'x'.center(10 ** 12) }}", many_steps), HasSubstr("values take more"));
  EXPECT_THAT(Render("{{ '%999999999999d' % 1 }}", many_steps), HasSubstr("values take more"));
  EXPECT_THAT(Render("{{ '{:999999999999}'.format(1) }}", many_steps),
              HasSubstr("values take more"));
  EXPECT_THAT(Render("{{ 'a\\nb'|indent(10 ** 12) }}", many_steps), HasSubstr("values take more"));
  EXPECT_THAT(Render("{{ [1]|tojson(indent=10 ** 12) }}", many_steps),
              HasSubstr("values take more"));
  EXPECT_THAT(Render("{{ ['x', 'y']|join('z' * 900000)|replace('z', 'zzzzzzzz') }}", many_steps),
              HasSubstr("bytes"));
  EXPECT_THAT(Render("{{ ('\\t' * 9).expandtabs(10 ** 12) }}", many_steps), HasSubstr("bytes"));
  EXPECT_THAT(Render("{{ ('[' ~ '1,' * 400000 ~ '1]')|from_json|length }}", many_steps),
              HasSubstr("values take more"));
}

TEST(HostileTemplate, GivesMemoryBackForWhatItDrops) {
  EXPECT_EQ(
      Render(
          "{% for i in range(50) %}{% set x = 'y' * 900000 %}{% endfor %}done",
          {.max_steps = size_t{1} << 40, .max_output_bytes = 1 << 20, .max_live_bytes = 4 << 20}),
      "done");
}

TEST(HostileTemplate, CannotNestValuesDeep) {
  const std::string build = "{% set n = namespace(v=1) %}{% for i in range(5000) %}";
  for (const char* step : {"[n.v]", "(n.v,)", "{1: n.v}", "[n.v]|map('list')", "[n.v].index",
                           "{1: n.v}.items()", "cycler(n.v)", "joiner(n.v)"}) {
    EXPECT_THAT(Render(build + "{% set n.v = " + step + " %}{% endfor %}{{ n.v == n.v }}"),
                StartsWith("error"))
        << step;
  }
  EXPECT_THAT(Render("{% set n = namespace(l=1) %}{% for i in range(5000) %}{% for j in [n.l] %}"
                     "{% set n.l = loop %}{% endfor %}{% endfor %}"),
              HasSubstr("nested deeper"));
}

TEST(HostileTemplate, CannotMakeSharedValuesExplode) {
  const std::string doubling =
      "{% set n = namespace(a=1, b=1) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}"
      "{% set n.b = [n.b, n.b] %}{% endfor %}";
  for (const char* use : {"{{ n.a }}", "{{ n.a|tojson }}", "{{ n.a == n.b }}", "{{ n.a < n.b }}"}) {
    EXPECT_THAT(Render(doubling + use), StartsWith("error")) << use;
  }
  const std::string keys =
      "{% set n = namespace(a=(1,), b=(1,)) %}{% for i in range(60) %}{% set n.a = (n.a, n.a) %}"
      "{% set n.b = (n.b, n.b) %}{% endfor %}{{ {n.a: 1}[n.b] }}";
  EXPECT_THAT(Render(keys), HasSubstr("steps"));
}

TEST(HostileTemplate, MayPutANamespaceIntoItself) {
  EXPECT_EQ(Render("{% set n = namespace() %}{% set n.n = [n] %}{{ n.n[0].n|length }}"), "1");
  EXPECT_THAT(Render("{% set n = namespace() %}{% set n.n = n %}{{ n }}"),
              HasSubstr("contains itself"));
  EXPECT_EQ(Render("{% for i in [1, 2] %}{{ loop.changed(loop) }}{% endfor %}"), "TrueFalse");
  EXPECT_EQ(Render("{% set n = namespace(f=none) %}{% macro mk(f) %}{% macro g() %}{{ f is none }}"
                   "{% endmacro %}{% set n.f = g %}{% endmacro %}{% for i in range(900) %}"
                   "{% set x = mk(n.f) %}{% endfor %}{{ n.f() }}"),
            "False");
}

TEST(HostileTemplate, CannotOverflowTheParser) {
  for (const auto& [open, close] : {std::pair{"(", ")"},
                                    {"[", "]"},
                                    {"{1:", "}"},
                                    {"-", ""},
                                    {"not ", ""},
                                    {"f(", ")"},
                                    {"1 if 1 else ", ""},
                                    {"x is a(", ")"},
                                    {"x|f(", ")"},
                                    {"x[", "]"}}) {
    EXPECT_THAT(Render("{{ " + Repeat(open, 100'000) + "1" + Repeat(close, 100'000) + " }}"),
                HasSubstr("nested deeper"))
        << open;
  }
  for (const char* chain :
       {" + 1", " ~ 1 + 1", ".x", "|upper", "[0]", "()", " and 1", " ** 1", " if 1"}) {
    EXPECT_THAT(Render("{{ 1" + Repeat(chain, 100'000) + " }}"), StartsWith("error")) << chain;
  }
  EXPECT_THAT(Render(Repeat("{% if 1 %}", 10'000)), HasSubstr("nested deeper"));
  EXPECT_THAT(Render(Repeat("{% for x in y %}", 10'000)), HasSubstr("nested deeper"));
  EXPECT_THAT(Render(Repeat("{% set x %}", 10'000)), HasSubstr("nested deeper"));
  EXPECT_THAT(Render("{% set " + Repeat("(", 10'000)), HasSubstr("nested deeper"));
  EXPECT_THAT(Render("{% if 1 %}" + Repeat("{% elif 1 %}", 10'000)), StartsWith("error"));
  EXPECT_THAT(Render(std::string((4 << 20) + 1, 'x')), HasSubstr("the limit is 4194304"));
}

TEST(HostileTemplate, LongFlatSourcesAreFine) {
  EXPECT_EQ(Render("{% if 0 %}" + Repeat("{% elif 0 %}", 10'000) + "{% else %}x{% endif %}"), "x");
  EXPECT_EQ(Render("{{ [" + Repeat("1,", 10'000) + "]|length }}"), "10000");
  EXPECT_EQ(Render("{{ ''" + Repeat(" 'a'", 10'000) + " == 'a' * 10000 }}"), "True");
}

TEST(HostileTemplate, SearchesTextInLinearTime) {
  // Quadratic searches would take hours here.
  const Limits limits;
  const std::string text = "{% set t = 'a' * 16000000 %}{% set p = 'a' * 8000000 %}";
  EXPECT_EQ(Render(text + "{{ (p ~ 'b') in t }}", limits), "False");
  EXPECT_EQ(Render(text + "{{ t.rfind('b' ~ p) }}", limits), "-1");
  EXPECT_EQ(Render(text + "{{ t.count(p ~ 'b') }}{{ t.rsplit('b' ~ p)|length }}", limits), "01");
  EXPECT_EQ(Render("{% set t = 'é' * 300000 %}{{ t.strip(t ~ 'x')|length }}", limits), "0");
}

TEST(HostileTemplate, AnyBytesEndWithATextOrAnError) {
  for (int seed = 0; seed < 2000; ++seed) {
    static constexpr std::string_view kPieces[] = {
        "{{",    "}}",     "{%",    "%}", "{#",   "#}", "-",    "+",      "'",
        "\"",    "\\",     "(",     ")",  "[",    "]",  "{",    "}",      "|",
        ".",     ",",      ":",     "if", "for",  "in", "set",  "x",      "else",
        "endif", "endfor", "macro", "1",  " ",    "\n", "raw",  "endraw", "is",
        "not",   "~",      "*",     "=",  "\xff", "é",  "loop", "call",   "\0"};
    std::string source;
    auto state = static_cast<uint32_t>(seed);
    for (int i = 0; i < 40; ++i) {
      state = state * 1664525 + 1013904223;
      source += kPieces[(state >> 8) % std::size(kPieces)];
    }
    Render(source);
  }
}

}  // namespace
}  // namespace convene::jinja
