#!/bin/bash
# Runs a case of restart_check until it has checkpointed and ended itself, restarts it, and wants it to end well.
# Usage: restart_test.sh SHADOWIB RESTART_CHECK BACKEND CASE
set -u
# A checkpoint refuses pipes that lead outside the job; whoever runs the tests may have left one open.
for fd in /proc/$$/fd/*; do
  n=${fd##*/}
  if [ "$n" -gt 2 ] && [ "$n" -ne 255 ]; then eval "exec $n>&-"; fi
done
shadowib=$1 program=$2 backend=$3 case=$4
work=$(mktemp -d)
fail() {
  cat "$work"/*.out
  echo "FAILED: $*; kept: $work"
  exit 1
}
timeout 50 "$shadowib" run --job "$case" --dir "$work" --backend "$backend" -- "$program" "$case" \
  >"$work/run.out" 2>&1 </dev/null
[ -d "$work/sets/$case.0001" ] || fail "no checkpoint was taken"
# The process that took the checkpoint may outlive the program by a moment: the job is busy (11) until it has ended.
for attempt in {1..200}; do
  timeout 50 "$shadowib" restart "$work/sets/$case.0001" --dir "$work" >"$work/restart.out" 2>&1 </dev/null
  result=$?
  [ $result -eq 11 ] || break
  sleep 0.05
done
[ $result -eq 0 ] || fail "exit code $result of the restarted program, or of its restart (attempt $attempt)"
grep -q "^restarted: well$" "$work/run.out" "$work/restart.out" || fail "the program did not come to its end"
rm -rf "$work"
