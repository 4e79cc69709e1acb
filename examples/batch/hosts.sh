#!/bin/bash
# Restarts a set on several hosts by ssh, its members dealt out in order:
#
#   hosts.sh SET HOST [HOST...]
#
# SET lies in a directory that all hosts see under the same path, and so does shadowib. The exit code is 0 if every process
# exited with 0, else the greatest that a host's command gave. Not for stores mem:single and disk:single, whose images are
# on one host each.
set -u
if [ $# -lt 2 ]; then
  echo "usage: hosts.sh SET HOST [HOST...]" >&2
  exit 2
fi
set_path=$(realpath "$1")
shift
hosts=("$@")
set_json=$(shadowib inspect "$set_path" --json)
store=$(sed -n 's/^  "store": "\(.*\)",*$/\1/p' <<<"$set_json")
case $store in
  *:single)
    echo "hosts.sh: the images of $set_path are on the hosts that its members ran on (store $store); start on each host" \
      "shadowib restart $set_path --members LIST; shadowib inspect names the hosts" >&2
    exit 3
    ;;
esac
mapfile -t members < <(sed -n 's/^ *"member": \([0-9]*\),$/\1/p' <<<"$set_json" | sort -nu)
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
