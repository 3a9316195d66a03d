// What a template may not use: every such construct fails, and the message names it and its line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "jinja/render_test.h"

namespace convene::jinja {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string ErrorOf(const std::string& source) { return RenderOrError("first line\n" + source); }

struct Case {
  const char* source;
  const char* named;
};

class Construct : public testing::TestWithParam<Case> {};

TEST_P(Construct, FailsWithItsNameAndLine) {
  EXPECT_THAT(ErrorOf(GetParam().source), AllOf(HasSubstr("line 2"), HasSubstr(GetParam().named)));
}

INSTANTIATE_TEST_SUITE_P(
    Unsupported, Construct,
    testing::Values(
        Case{"{% include 'x' %}", "'include'"}, Case{"{% import 'x' as y %}", "'import'"},
        Case{"{% from 'x' import y %}", "'from'"}, Case{"{% extends 'x' %}", "'extends'"},
        Case{"{% block b %}{% endblock %}", "'block'"},
        Case{"{% autoescape true %}{% endautoescape %}", "'autoescape'"},
        Case{"{% for x in [] recursive %}{% endfor %}", "recursive"},
        Case{"{% do x %}", "unknown tag 'do'"}, Case{"{% trans %}", "unknown tag 'trans'"},
        Case{"{% if true %}{% endfor %}", "unknown tag 'endfor'"},
        Case{"{{ 1|nope }}", "No filter named 'nope'"},
        Case{"{% if true %}{{ 1|nope }}{% endif %}", "No filter named 'nope'"},
        Case{"{{ ['a']|map('nope')|list }}", "No filter named 'nope'"},
        Case{"{{ 1 is nope }}", "No test named 'nope'"},
        Case{"{{ [1]|select('nope')|list }}", "No test named 'nope'"},
        Case{"{{ 'x'|urlize }}", "'urlize' is not supported"},
        Case{"{{ [1]|random }}", "'random' is not supported"},
        Case{"{{ 'x'|wordwrap }}", "'wordwrap' is not supported"},
        Case{"{{ 'x'.encode() }}", "'encode' of 'str' is not supported"},
        Case{"{{ 1.5.is_integer() }}", "'is_integer'"},
        Case{"{{ lipsum() }}", "'lipsum' is not supported"},
        Case{"{{ nope() }}", "'nope' is undefined"},
        Case{"{{ [1]|map('string') }}", "printing a value of type 'generator'"},
        Case{"{{ {}.items }}", "printing a value of type 'builtin_function_or_method'"},
        Case{"{{ 9223372036854775807 + 1 }}", "exceeds 64 bits"},
        Case{"{{ 9223372036854775808 }}", "exceeds 64 bits"},
        Case{"{{ 2 ** 64 }}", "exceeds 64 bits"}, Case{"{{ ('9' * 30)|int }}", "exceeds 64 bits"},
        Case{"{{ -9223372036854775807 - 2 }}", "exceeds 64 bits"},
        Case{"{{ (-8) ** 0.5 }}", "complex numbers"}, Case{"{{ '\\N{DASH}' }}", "by name"},
        Case{"{{ '\\ud800' }}", "U+D800"}, Case{"{{ [1, 2][0:1, 2] }}", "slice within a tuple"},
        Case{"{{ 5.5|round(-1) }}", "round with a precision of -1"},
        Case{"{{ '%*d' % (3, 1) }}", "'*'"}, Case{"{{ 'a' is sameas 'a' }}", "'sameas'"},
        Case{"{{ messages.append(1) }}", "'append' of 'list' object is unsafe"},
        Case{"{{ messages[0].pop('role') }}", "'pop' of 'dict' object is unsafe"},
        Case{"{{ messages.__class__.__mro__ }}", "'__class__' of 'list' object is unsafe"},
        Case{"{% set messages.x = 1 %}", "non-namespace object"},
        Case{"{% set ns = namespace() %}{% set ns._x = 1 %}", "'_x'"},
        Case{"{% break %}", "'break' outside of a loop"},
        Case{"{% for x in [] %}{% set loop = 1 %}{% endfor %}", "special loop variable"},
        Case{"{% for x in [1] %}{% generation %}{% continue %}{% endgeneration %}{% endfor %}",
             "'continue' outside of a loop"},
        Case{"{% set true = 1 %}", "can't assign to 'true'"},
        Case{"{% macro f(a, a) %}{% endmacro %}", "duplicate argument 'a'"},
        Case{"{% macro f(a=1, b) %}{% endmacro %}", "non-default argument"},
        Case{"{% macro f(caller) %}{{ caller() }}{% endmacro %}", "'caller'"},
        Case{"{{ f(x=1, x=2) }}", "invalid syntax for function call"},
        Case{"{{ 1 is odd is even }}", "chain multiple tests"},
        Case{"{{ loop(1) }}", "'loop' is undefined"},
        Case{"{% for x in [1] %}{{ loop([2]) }}{% endfor %}", "recursive"},
        Case{"{{ 'open }}", "a string is not closed"}, Case{"{{ a @ b }}", "unexpected char '@'"},
        Case{"{{ [1) }}", "unexpected ')', expected ']'"}, Case{"{{ }}", "Expected an expression"},
        Case{"{# open", "Missing end of comment"}, Case{"{% raw %}", "Missing end of raw"},
        Case{"{% if true %}", "looking for the following tags: 'elif' or 'else' or 'endif'"},
        Case{"{% 5 %}", "a tag's name"}, Case{"{{ 1 2 }}", "end of print statement"}));

TEST(Unsupported, TheReferenceToBlocks) {
  EXPECT_THAT(ErrorOf("{{ self.title() }}"), HasSubstr("'self'"));
}

TEST(Unsupported, AnUnknownFilterUnderAConditionFailsOnlyWhenReached) {
  EXPECT_EQ(ErrorOf("{% if false %}{{ 1|nope }}{% endif %}"), "first line\n");
}

}  // namespace
}  // namespace convene::jinja
