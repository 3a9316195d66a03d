# Puts the page's sources together to one document, as a header: cmake -D FOLDER=... -D OUT=... -P embed_page.cmake
# page.html has a line for the style and one for the scripts, which are put in their places in the order given here.
file(READ ${FOLDER}/page.html page)
file(READ ${FOLDER}/page.css style)
set(script "")
foreach(name dom markdown charts chat watch main)
  file(READ ${FOLDER}/${name}.js part)
  string(APPEND script "${part}")
endforeach()
string(REPLACE "/* page.css */" "${style}" page "${page}")
string(REPLACE "/* scripts */" "${script}" page "${page}")
# Compilers limit the length of a literal: pieces that stand beside each other are one.
string(LENGTH "${page}" length)
set(pieces "")
set(at 0)
while(at LESS length)
  string(SUBSTRING "${page}" ${at} 8000 piece)
  string(APPEND pieces "R\"page(${piece})page\"\n")
  math(EXPR at "${at} + 8000")
endwhile()
file(WRITE ${OUT} "// Made by cmake/embed_page.cmake of src/server/page/.
#pragma once

#include <string_view>

namespace convene::server {

inline constexpr std::string_view kPageText =
${pieces};

}  // namespace convene::server
")
