#!/bin/bash
# Restarts a set on several hosts by ssh, its members dealt out in order:
#
#   hosts.sh SET HOST [HOST...]
#
# SET lies in a directory that all hosts see under the same path, and so does shadowib. The exit code is 0 if every process
# exited with 0, else the greatest that a host's command gave.
set -u
if [ $# -lt 2 ]; then
  echo "usage: hosts.sh SET HOST [HOST...]" >&2
  exit 2
fi
set_path=$(realpath "$1")
shift
hosts=("$@")
mapfile -t members < <(shadowib inspect "$set_path" --json | sed -n 's/^ *"member": \([0-9]*\),$/\1/p' | sort -nu)
if [ ${#members[@]} -eq 0 ]; then # the reason stands above
  exit 3
fi
share=$(((${#members[@]} + ${#hosts[@]} - 1) / ${#hosts[@]}))
command=$(command -v shadowib)
commands=()
for ((i = 0; i * share < ${#members[@]}; ++i)); do
  list=$(
    IFS=,
    echo "${members[*]:i * share:share}"
  )
  ssh -o BatchMode=yes "${hosts[i]}" "'$command' restart '$set_path' --members $list" &
  commands+=($!)
done
worst=0
for pid in "${commands[@]}"; do
  wait "$pid"
  code=$?
  [ "$code" -le "$worst" ] || worst=$code
done
exit "$worst"
