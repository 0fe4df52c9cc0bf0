#!/bin/sh
# fetch_text_test.sh FETCH_TEXT: the script against programs "bible" of this test's own.
set -eu

fetch_text=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin"
for tool in sh sed wc mv rm; do ln -s "$(command -v $tool)" "$folder/bin/$tool"; done
out=$folder/text

fail() {
  echo "FAILED: $1" >&2
  exit 1
}

# Prints $1 lines, each with a reference.
install_bible() {
  printf '#!/bin/sh\ni=0\nwhile [ $i -lt %s ]; do echo "1Ki$i:2 Ge1:1 stays, and so do these %s"; i=$((i + 1)); done\n' \
    "$1" "words, words, words, words, words, words, words, words and words" >"$folder/bin/bible"
  chmod +x "$folder/bin/bible"
}

PATH="$folder/bin" "$fetch_text" "$out" 2>"$folder/errors" && fail "without the package it must fail"
grep -q "install Debian's package bible-kjv" "$folder/errors" || fail "the message must name the package"

install_bible 10
PATH="$folder/bin" "$fetch_text" "$out" 2>"$folder/errors" && fail "a short text must be refused"
grep -q "expected at least 1000000 bytes of text, found 940" "$folder/errors" || fail "the message must give both sizes"
[ -z "$(ls "$folder" | grep text)" ] || fail "a refused text must leave no file"

install_bible 11000
PATH="$folder/bin" "$fetch_text" "$out"
[ "$(wc -l <"$out")" -eq 11000 ] || fail "every verse must be a line"
[ "$(sort -u "$out" | head -c 22)" = "Ge1:1 stays, and so do" ] || fail "the reference, and only it, must be gone"
