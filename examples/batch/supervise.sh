#!/bin/bash
# A Slurm job that is kept alive: members that die are started again, and so is the job after a node failed.
#
#   sbatch --ntasks=4 --time=12:00:00 supervise.sh mpirun ./app ARGUMENT...
#
# Sets lie in shadowib-ckpt.<job id>, which stays the same when Slurm queues the job again. `shadowib checkpoint JOB --kill`
# saves the job and ends it, and so does the supervisor before the time limit. The script then asks Slurm to queue it
# again (exit code 75).
#SBATCH --nodes=1
#SBATCH --requeue
#SBATCH --open-mode=append
set -u
if [ $# -eq 0 ]; then
  echo "usage: sbatch [OPTIONS] supervise.sh COMMAND [ARGUMENT...]" >&2
  exit 2
fi
job=${SLURM_JOB_NAME:-job}
job=${job//[!A-Za-z0-9._-]/_} # Slurm allows any
job=${job:0:64}
[[ $job == [A-Za-z0-9]* ]] || job=j${job:1}
export SHADOWIB_DIR="${SHADOWIB_DIR:-${SLURM_SUBMIT_DIR:-$PWD}/shadowib-ckpt.${SLURM_JOB_ID:-0}}"
hosts=()
[ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ] && hosts=(--hosts slurm) # by ssh, or $SHADOWIB_RSH
# Saved and ended before the time limit, where Slurm tells when that is.
shadowib supervise --job "$job" ${SLURM_JOB_END_TIME:+--until slurm} "${hosts[@]}" -- "$@"
code=$?
if [ "$code" -eq 75 ]; then
  scontrol requeue "$SLURM_JOB_ID"
  exit
fi
exit "$code"
