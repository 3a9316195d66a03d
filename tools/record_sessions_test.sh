#!/usr/bin/env bash
# record_sessions.sh on a small document: what it accepts, what it finds, what it writes.
set -euo pipefail
record=$(dirname "${BASH_SOURCE[0]}")/record_sessions.sh
record=$(realpath "$record")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

cat >"$work/convene" <<'EOF'
#!/usr/bin/env bash
case $1 in
  text) printf ' a text\n\nof lines\n' ;;
  figures) printf 'Some CPU, 12 threads, avx2, steps of at most 512 tokens\npp8  1  12.5 MiB  %s\n' "$2" >&2 ;;
  broken) exit 3 ;;
esac
EOF
chmod +x "$work/convene"

# document NAME EXACT FIGURES: a document in which these lines are recorded.
document() {
  printf '%s\n' 'Before.' '' '<!-- session exact -->' '    $ build/release/convene text | cat' \
    "     $2" '' '    of lines' '<!-- end of session -->' 'Between.' '<!-- session figures -->' \
    '    $ build/release/convene figures 7.25' \
    "    $3, steps of at most 512 tokens" '    pp8 1  9,999.0 KiB 1.5' '    More than 100 % of a peak' \
    '<!-- end of session -->' 'After.' >"$work/$1"
}
check() { "$record" --check "$work/convene" "$work/$1" >"$work/log" 2>&1; }

document same 'a text' 'Other CPU (2), 1 thread, amx'
check same || fail "the same was not accepted: $(cat "$work/log")"
document text 'another text' 'Other CPU (2), 1 thread, amx'
if check text; then fail "another text was accepted"; fi
grep -q '^-.*another text' "$work/log" && grep -q '^+.*a text' "$work/log" || fail "no difference shown"
document words 'a text' 'Other CPU, 1 strand, amx'
if check words; then fail "other words were accepted"; fi

cp "$work/text" "$work/written"
"$record" "$work/convene" "$work/written" >/dev/null || fail "not recorded"
check written || fail "what was recorded is not accepted: $(cat "$work/log")"
grep -q '^Before.$' "$work/written" && grep -q '^Between.$' "$work/written" &&
  grep -q '^After.$' "$work/written" && grep -q '^     a text$' "$work/written" &&
  grep -q '12.5 MiB  7.25$' "$work/written" || fail "recorded: $(cat "$work/written")"

sed 's/convene text/convene broken/' "$work/same" >"$work/broken"
if check broken; then fail "a command that fails was accepted"; fi
grep -q 'fails with status 3' "$work/log" || fail "no status: $(cat "$work/log")"
for end in 8 15; do
  sed "${end}d" "$work/same" >"$work/open"
  if check open; then fail "a session without its end in line $end was accepted"; fi
done
echo nothing >"$work/none"
if check none; then fail "a document without sessions was accepted"; fi
grep -v '\$ build' "$work/same" >"$work/commandless"
if check commandless; then fail "a session without commands was accepted"; fi

[ "$failures" = 0 ] && echo "record_sessions.sh records and checks"
