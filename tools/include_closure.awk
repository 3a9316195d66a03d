# Prints a line per .cc file of the arguments: its path, then the paths of all files of the arguments
# that it includes, directly or through others. All arguments are relative to the repository root, and
# quoted includes are written from src/, from the root or from the file's own folder.

BEGIN {
  for (i = 1; i < ARGC; i++) is_file[ARGV[i]] = 1
}

/^[ \t]*#[ \t]*include[ \t]*"/ {
  split($0, quoted, "\"")
  folder = FILENAME
  sub(/[^\/]*$/, "", folder)
  header = quoted[2]
  if (("src/" header) in is_file) header = "src/" header
  else if (!(header in is_file)) header = folder header
  if (header in is_file) includes[FILENAME] = includes[FILENAME] " " header
}

function add_closure(file,    headers, num_headers, i) {
  if (file in seen) return
  seen[file] = 1
  closure = closure " " file
  num_headers = split(includes[file], headers, " ")
  for (i = 1; i <= num_headers; i++) add_closure(headers[i])
}

END {
  for (i = 1; i < ARGC; i++) {
    if (ARGV[i] !~ /\.cc$/) continue
    delete seen
    closure = ""
    add_closure(ARGV[i])
    print substr(closure, 2)
  }
}
