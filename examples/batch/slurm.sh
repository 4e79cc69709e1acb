#!/bin/bash
# A Slurm job that goes on where its time limit ended it:
#
#   sbatch --ntasks=4 --time=12:00:00 slurm.sh mpirun ./app ARGUMENT...
#   sbatch --ntasks=4 --time=12:00:00 slurm.sh srun --mpi=pmix ./app ARGUMENT...
#
# Five minutes before the end Slurm sends SIGUSR1 to this script, and when the job is preempted, where Slurm is set up with
# SlurmctldParameters=preempt_send_user_signal, PreemptMode=REQUEUE, and a GraceTime that is enough to save the job. It has the
# job saved and ended, and asks Slurm to queue it again; the next time it is started it restarts the newest set. Sets lie in
# shadowib-ckpt.<job id>, which stays the same: what is submitted anew begins anew. On several nodes members are restarted by
# ssh, or by the remote shell $SHADOWIB_RSH.
#SBATCH --nodes=1
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -u
if [ $# -eq 0 ]; then
  echo "usage: sbatch [OPTIONS] slurm.sh COMMAND [ARGUMENT...]" >&2
  exit 2
fi
job=${SLURM_JOB_NAME:-job}
job=${job//[!A-Za-z0-9._-]/_} # Slurm allows any
job=${job:0:64}
[[ $job == [A-Za-z0-9]* ]] || job=j${job:1}
export SHADOWIB_DIR="${SHADOWIB_DIR:-${SLURM_SUBMIT_DIR:-$PWD}/shadowib-ckpt.${SLURM_JOB_ID:-0}}"
interval=${SHADOWIB_INTERVAL:-3600} # for the crash that nobody announces
keep=${SHADOWIB_KEEP:-2}
saved=

newest_set() {
  find "$SHADOWIB_DIR/sets" -maxdepth 1 -name "$job.[0-9]*" 2>/dev/null | sort -V | tail -n 1
}

# The job runs on if this fails, as long as it may.
# shellcheck disable=SC2317 # the trap calls it
save_and_end() {
  local until=$((SECONDS + 240)) code
  while [ "$SECONDS" -lt "$until" ]; do
    shadowib checkpoint "$job" --kill --keep "$keep" --timeout $((until - SECONDS))
    code=$?
    case $code in
      0) saved=yes && return ;;
      3) return ;;   # it has come to its end
      11) sleep 1 ;; # the hourly one is being taken
      *) sleep 5 ;;
    esac
  done
}

hosts=()
[ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ] && hosts=(--hosts slurm) # by ssh, or $SHADOWIB_RSH
trap save_and_end USR1
set_path=$(newest_set)
if [ -n "$set_path" ]; then
  shadowib restart "$set_path" "${hosts[@]}" &
else
  shadowib run --job "$job" --interval "$interval" --keep "$keep" -- "$@" &
fi
running=$!
while kill -0 "$running" 2>/dev/null; do
  wait "$running" # comes back early when a signal comes
done
wait "$running"
code=$?
if [ -n "$saved" ]; then
  scontrol requeue "$SLURM_JOB_ID"
  exit
fi
exit "$code"
