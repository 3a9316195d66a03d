# Who may include whom, read from the rows of src/CMakeLists.txt; run by tools/check_includes.sh from
# the repository root with src/CMakeLists.txt, docs/architecture.md and then every source as arguments.

function complain(message) {
  printf "%s:%d: %s\n", FILENAME, FNR, message
  num_findings++
}

BEGIN {
  # A library's headers may appear only in folders whose row names the library.
  library_of["nlohmann/"] = "nlohmann_json::nlohmann_json"
  library_of["CLI/"] = "CLI11::CLI11"
  library_of["histedit.h"] = "PkgConfig::libedit"
  library_of["zlib.h"] = "ZLIB::ZLIB"
  library_of["boost/"] = "Boost::headers"
  library_of["hwloc.h"] = "PkgConfig::hwloc"
  library_of["oniguruma.h"] = "PkgConfig::oniguruma"
  library_of["utf8proc.h"] = "PkgConfig::utf8proc"

  # Headers of a backend may appear only below its folder.
  backend_of["mpi.h"] = "comm/mpi/"
  backend_of["nccl.h"] = "comm/nccl/"
  backend_of["liburing.h"] = "memory/io_uring/"
  backend_of["xgboost/"] = "cost/xgboost/"
  backend_of["coin/"] = "planner/cbc/"
  backend_of["cuda"] = "(device|hardware|kernels)/cuda/|comm/nccl/"
  backend_of["cublas"] = "kernels/cuda/"
  backend_of["immintrin.h"] = "kernels/cpu/"

  # What a device is made of is its own matter: of these folders others include one header alone.
  public_header_of["device/cpu/"] = "device/cpu/cpu_device.h"

  split("schedule drawing cost simulate strategy plan planner", names, " ")
  for (i in names) pure[names[i]] = 1
  impure = "^(thread|mutex|shared_mutex|condition_variable|future|atomic|chrono|ctime|time\\.h|fstream|" \
           "filesystem|iostream|cstdio|stdio\\.h|unistd\\.h|pthread\\.h|fcntl\\.h|sys/.*)$"
}

# The rows: convene_folder(text USES base LIBRARIES PkgConfig::oniguruma), possibly over several lines.
FILENAME ~ /CMakeLists\.txt$/ {
  sub(/#.*/, "")
  if (/^convene_folder\(/) row = ""
  if (/^convene_folder\(/ || row != "") row = row " " $0
  if (row != "" && /\)/) {
    read_row(row)
    row = ""
  }
  next
}

function read_row(row,    words, num_words, folder, part, i) {
  gsub(/convene_folder\(|\)/, " ", row)
  num_words = split(row, words, " ")
  folder = words[1]
  part = ""
  for (i = 2; i <= num_words; i++) {
    if (words[i] == "USES" || words[i] == "LIBRARIES" || words[i] == "WITHOUT") {
      part = words[i]
    } else if (part == "USES") {
      if (!(words[i] in is_folder)) complain(folder " uses " words[i] ", which is no row above it")
      uses[folder, words[i]] = 1
      row_of[folder] = row_of[folder] " " words[i]
    } else if (part == "LIBRARIES") {
      links[folder, words[i]] = 1
    }
  }
  is_folder[folder] = 1
  uses[folder, folder] = uses[folder, "base"] = 1
}

# The table of the architecture page must say the same: | text/ | what it is | base, tensor |
FILENAME ~ /\.md$/ {
  if (!/^\| *[a-z]+\/ *\|/) next
  split($0, cells, "|")
  folder = cells[2]
  gsub(/[ \/]/, "", folder)
  if (!(folder in is_folder) || cells[4] ~ /anything/) next
  num_listed = split(cells[4], listed, /[ ,]+/)
  delete in_table
  for (i = 1; i <= num_listed; i++) {
    if (listed[i] == "") continue
    in_table[listed[i]] = 1
    if (!((folder, listed[i]) in uses) && (listed[i] in is_folder))
      complain("the table lets " folder " use " listed[i] ", its row in src/CMakeLists.txt does not")
  }
  num_used = split(row_of[folder], used, " ")
  for (i = 1; i <= num_used; i++)
    if (used[i] != "base" && !(used[i] in in_table))
      complain("the table does not let " folder " use " used[i] ", its row in src/CMakeLists.txt does")
  next
}

# Sources. `path` is relative to src/, `folder` its first part.
FNR == 1 {
  path = FILENAME
  sub(/^src\//, "", path)
  folder = path
  sub(/\/.*/, "", folder)
  if (!(folder in is_folder)) complain("src/" folder " has no row in src/CMakeLists.txt")
}

/^[ \t]*#[ \t]*include[ \t]*"/ {
  split($0, quoted, "\"")
  check_own(quoted[2])
}

/^[ \t]*#[ \t]*include[ \t]*</ {
  header = $0
  sub(/^[^<]*</, "", header)
  sub(/>.*/, "", header)
  check_foreign(header)
}

/getenv[ \t]*\(/ && path != "base/environment.cc" {
  code = $0
  sub(/\/\/.*/, "", code)
  if (code ~ /getenv[ \t]*\(/) complain("getenv belongs in base/environment.cc")
}

/HugeBuffer::Allocate/ && (folder, "memory") in uses && folder !~ /^(memory|evaluate)$/ && path !~ /_test\.cc$/ {
  complain("what is large is reserved: memory::Ledger::Allocate")
}

function check_own(header,    target, part) {
  target = header
  sub(/\/.*/, "", target)
  if (!(target in is_folder) || index(header, "/") == 0)
    complain("write \"" header "\" from src/ on: \"folder/file.h\"")
  else if (header ~ /_test\.h$/ && path !~ /_test\.(cc|h)$/)
    complain(header " is for tests")
  else if (!((folder, target) in uses))
    complain(folder " may not include " header "; its row in src/CMakeLists.txt has:" row_of[folder])
  for (part in public_header_of)
    if (index(header, part) == 1 && index(path, part) != 1 && header != public_header_of[part])
      complain(header " belongs to " part "; include " public_header_of[part])
}

function check_foreign(header,    prefix) {
  for (prefix in library_of)
    if (index(header, prefix) == 1 && !((folder, library_of[prefix]) in links))
      complain("<" header "> needs " library_of[prefix] " in the row of " folder)
  for (prefix in backend_of)
    if (index(header, prefix) == 1 && path !~ "^(" backend_of[prefix] ")")
      complain("<" header "> belongs below " backend_of[prefix])
  if (header ~ /^g(test|mock)\// && path !~ /_test\.(cc|h)$/)
    complain("<" header "> belongs in a _test.cc or what several share, a _test.h")
  if ((folder in pure) && header ~ impure)
    complain(folder " is pure: no threads, clock or files, so no <" header ">")
}

END {
  if (num_findings > 0) {
    printf "%d findings; who may include whom: docs/architecture.md\n", num_findings
    exit 1
  }
}
