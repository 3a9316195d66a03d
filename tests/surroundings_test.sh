#!/usr/bin/env bash
# What a user's surroundings may do to a command: streams that cannot be written, FIFOs where files
# are expected, files that are cut while they are in use, limits of stack, threads, memory and
# descriptors. Every command ends by itself, soon, with a message, and never by a signal.
# Arguments: CONVENE REPOSITORY
set -uo pipefail
convene=$1 root=$2
work=$(mktemp -d)
chmod 755 "$work"
trap 'rm -rf "$work"' EXIT
cp -r "$root/models/demo" "$work/demo"
demo=$work/demo
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
convene() { timeout -k 1 60 "$convene" "$@"; }

# ends STATUS TEXT COMMAND...: as a shell reports its status, with the text on standard error. 124: it hung; 128 and
# more: a signal.
ends() {
  local wanted=$1 text=$2 status=0
  shift 2
  "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
  [ "$status" = "$wanted" ] || fail "status $status, not $wanted: $* ($(tail -1 "$work/err"))"
  grep -qF -- "$text" "$work/err" || fail "no '$text' from $*: $(tail -1 "$work/err")"
}

run=(run "$demo" --prompt "Once upon" --max-tokens 4 --temperature 0)
convene "${run[@]}" >"$work/text" 2>/dev/null || fail "run"
printf '{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"x","max_tokens":4}}\n' \
  >"$work/in.jsonl"
echo "1 2 3" >"$work/ids"
echo "A text to score." >"$work/text.txt"

# Messages that cannot be written are no reason to stop; results that cannot are an error.
for command in "run $demo --prompt x --max-tokens 4" "chat $demo --max-tokens 4" "tokenize $demo --text x" \
               "detokenize $demo --ids 5" "inspect $demo" "perplexity $demo --text $work/text.txt" \
               "compare $demo --text $work/text.txt --formats int8" "logits $demo --tokens $work/ids --out $work/l.npy" \
               "batch $demo --input $work/in.jsonl --output $work/o.jsonl" "--help" "--version"; do
  read -ra words <<<"$command"
  status=0; echo hi | convene "${words[@]}" >/dev/null 2>/dev/full || status=$?
  [ $status = 0 ] || fail "$command with a full standard error: $status"
  status=0; echo hi | convene "${words[@]}" >/dev/null 2>&- || status=$?
  [ $status = 0 ] || fail "$command with a closed standard error: $status"
  case $command in logits*|batch*) continue ;; esac
  status=0; echo hi | convene "${words[@]}" >/dev/full 2>"$work/err" || status=$?
  [ $status = 1 ] || fail "$command with a full standard output: $status"
  grep -q "cannot write standard output" "$work/err" || fail "$command: $(tail -1 "$work/err")"
  status=0; echo hi | convene "${words[@]}" >&- 2>"$work/err" || status=$?
  [ $status = 1 ] || fail "$command with a closed standard output: $status"
  grep -q "cannot write standard output" "$work/err" || fail "$command: $(tail -1 "$work/err")"
done
# Who reads messages may leave, too; who reads the results ends the command as any other.
status=0; convene "${run[@]}" 2> >(exec true) >"$work/out" || status=$?
[ $status = 0 ] && cmp -s "$work/out" "$work/text" || fail "run without a reader of its messages: $status"
set +o pipefail
[ "$("$convene" --help | head -1)" != "" ] || fail "help into head"
set -o pipefail

# What cannot be read is not an empty conversation.
status=0; convene chat "$demo" --max-tokens 4 <"$work" >/dev/null 2>"$work/err" || status=$?
[ $status = 1 ] && grep -q "cannot read standard input" "$work/err" || fail "chat with a directory: $status"

# A FIFO is no file of a model. A pipe is a text.
mkfifo "$work/fifo"
for name in config.json generation_config.json tokenizer.json tokenizer_config.json model.safetensors; do
  mv "$demo/$name" "$work/kept" 2>/dev/null || rm -f "$work/kept"
  cp "$demo/tokenizer.json" "$work/tokenizer.json" 2>/dev/null
  mkfifo "$demo/$name"
  ends 1 "is a FIFO" timeout 10 "$convene" "${run[@]}"
  rm "$demo/$name"
  [ ! -e "$work/kept" ] || mv "$work/kept" "$demo/$name"
done
ends 1 "nobody writes to" timeout 15 "$convene" run "$demo" --prompt-file "$work/fifo" --max-tokens 2
ends 1 "nobody writes to" timeout 15 "$convene" run "$demo" --prompt x --plan "$work/fifo"
ends 1 "nobody reads" timeout 10 "$convene" "${run[@]}" --json "$work/fifo"
ends 1 "nobody reads" timeout 10 "$convene" batch "$demo" --input "$work/in.jsonl" --output "$work/fifo"
convene run "$demo" --prompt-file <(sleep 0.2; printf 'Once upon') --max-tokens 4 --temperature 0 >"$work/out" 2>/dev/null
cmp -s "$work/out" "$work/text" || fail "a prompt from a pipe"
convene logits "$demo" --tokens <(echo 1 2 3) --out "$work/l2.npy" 2>/dev/null && cmp -s "$work/l.npy" "$work/l2.npy" \
  || fail "tokens from a pipe"
convene batch "$demo" --input <(cat "$work/in.jsonl") --output /dev/stdout 2>/dev/null | grep -q '"status_code":200' \
  || fail "a batch from a pipe to a pipe"

# A file that is cut under a model that runs: one that is mapped ends with a message, a copy of it goes on.
convene quantize "$demo" --out "$work/packed" --threads 1 2>/dev/null || fail quantize
mkfifo "$work/turns"
timeout -k 1 60 "$convene" chat "$work/packed" --max-tokens 4 <"$work/turns" >/dev/null 2>"$work/err" &
chat=$!
exec 7>"$work/turns"
for _ in {1..200}; do
  ! grep -q "loaded" "$work/err" || break
  sleep 0.1
done
truncate -s 4096 "$work/packed/convene.safetensors"
echo hello >&7
exec 7>&-
status=0; wait $chat || status=$?
if grep -q "loaded: .* of weights mapped in" "$work/err"; then
  [ $status = 1 ] && grep -q "convene.safetensors was cut, or its disk failed" "$work/err" \
    || fail "a mapped file that is cut: $status, $(tail -1 "$work/err")"
else
  grep -q "loaded: .* of weights read into" "$work/err" || fail "no line says how weights were loaded: $(cat "$work/err")"
  [ $status = 0 ] || fail "a file that is cut after it was copied: $status, $(tail -1 "$work/err")"
fi

# Limits. With less than 16 KiB of stack the system starts no program at all, and with 16 KiB none beside an environment of
# some kilobytes, which lies there too.
for kilobytes in 16 64 128 1024; do
  (ulimit -s $kilobytes; env -i PATH="$PATH" timeout -k 1 60 "$convene" "${run[@]}" >"$work/out" 2>"$work/err") || fail "ulimit -s $kilobytes: $(tail -1 "$work/err")"
  cmp -s "$work/out" "$work/text" || fail "another text with ulimit -s $kilobytes"
done
nested=$(printf '[%.0s' {1..200000})
echo "{\"a\": $nested" >"$work/nested.json"
for kilobytes in 64 8192; do
  status=0
  (ulimit -s $kilobytes; convene inspect "$work/nested.json" >/dev/null 2>"$work/err") || status=$?
  [ $status = 1 ] || fail "nested JSON with ulimit -s $kilobytes: $status"
done
for kilobytes in 60000 100000 150000 200000 300000; do
  status=0
  (ulimit -v $kilobytes; convene "${run[@]}" >"$work/out" 2>"$work/err") || status=$?
  # The loader says itself that it finds no room for libraries (127).
  case $status in
    0) cmp -s "$work/out" "$work/text" || fail "another text with ulimit -v $kilobytes" ;;
    1|127) [ -s "$work/err" ] || fail "no message with ulimit -v $kilobytes" ;;
    *) fail "ulimit -v $kilobytes: $status, $(tail -1 "$work/err")" ;;
  esac
done
for descriptors in 4 5 8; do
  status=0
  (ulimit -n $descriptors; exec timeout -k 1 60 "$convene" "${run[@]}") >"$work/out" 2>"$work/err" || status=$?
  case $status in
    0) cmp -s "$work/out" "$work/text" || fail "another text with ulimit -n $descriptors" ;;
    1|127) [ -s "$work/err" ] || fail "no message with ulimit -n $descriptors" ;;
    *) fail "ulimit -n $descriptors: $status, $(tail -1 "$work/err")" ;;
  esac
done
# A limit of the size of files.
for command in "logits $demo --tokens $work/ids --out $work/cut.npy" "quantize $demo --out $work/cut" \
               "synth $demo --out $work/cut-synth" "run $demo --prompt x --max-tokens 2 --trace $work/cut.json" \
               "batch $demo --input $work/in.jsonl --output $work/cut.jsonl"; do
  read -ra words <<<"$command"
  (ulimit -f 0; convene "${words[@]}" 2>&1 >/dev/null; echo "status $?") | tr '\n' ' ' >"$work/err"
  grep -q "File too large.* status 1 " "$work/err" || fail "$command with ulimit -f 0: $(cat "$work/err")"
done
# Root may have any number of processes, nobody may not.
cp "$convene" "$work/convene" && chmod -R a+rX "$work"
as_nobody=()
[ "$(id -u)" != 0 ] || as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
if "${as_nobody[@]}" true 2>/dev/null; then
  status=0
  "${as_nobody[@]}" bash -c "ulimit -u 1; exec timeout -k 1 60 '$work/convene' run '$demo' --prompt x --threads 2 --max-tokens 2" \
    >/dev/null 2>"$work/err" || status=$?
  # timeout itself may be refused its child.
  case $status in 1|125) ;; *) fail "no process left: $status, $(tail -1 "$work/err")" ;; esac
  status=0
  "${as_nobody[@]}" bash -c "ulimit -u 1; exec '$work/convene' run '$demo' --prompt x --threads 2 --max-tokens 2" \
    >/dev/null 2>"$work/err" || status=$?
  [ $status = 1 ] && grep -q "cannot start thread 2 of 2" "$work/err" || fail "no thread left: $status, $(tail -1 "$work/err")"
fi

# What is given as a model and is none.
for command in run chat "logits --tokens $work/ids --out $work/x.npy" "perplexity --text $work/text.txt" inspect tokenize \
               "detokenize --ids 5" "compare --text $work/text.txt" bench "quantize --out $work/new" \
               "encode --text x --out $work/x.npy" "batch --input $work/in.jsonl --output $work/y.jsonl"; do
  read -ra words <<<"$command"
  for given in "mistralai/Mixtral-8x7B-v0.1=hf download mistralai/Mixtral-8x7B-v0.1" "/nonexistent=there is no directory" \
               "$work/model.gguf=is GGUF" "$work/text.txt=is a file"; do
    touch "$work/model.gguf"
    ends 1 "${given#*=}" timeout 10 "$convene" "${words[0]}" "${given%%=*}" "${words[@]:1}"
  done
done
ends 1 "is no directory" "$convene" run "$demo/config.json" --prompt x
ends 2 "cannot write /nope/x" "$convene" "${run[@]}" --trace /nope/x
ends 2 "--max-tokens: \"1e18\" is not a whole number" "$convene" run "$demo" --prompt x --max-tokens 1e18

[ "$failures" = 0 ] && echo "every command ended by itself, with a message"
