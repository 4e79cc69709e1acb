#!/bin/bash
# Runs a command as a job of its own under the shim of a build tree: preloaded, and with the drop-in directory.
# Usage: under_shim.sh BUILD_DIR BACKEND[:TRANSPORT] COMMAND...     exit code: the command's
# A build with sanitizers names them in SHADOWIB_SANITIZE: their run-time library is preloaded first.
set -u
build=$1 backend=${2%%:*} transport=auto
[ "$2" = "$backend" ] || transport=${2#*:}
shift 2
directory=$(mktemp -d)
preload=$build/lib/libshadowib.so
case ${SHADOWIB_SANITIZE:-} in
  *address*) preload="$(cc -print-file-name=libasan.so) $preload" ;;
  *thread*) preload="$(cc -print-file-name=libtsan.so) $preload" ;;
esac
env SHADOWIB_DIR="$directory" SHADOWIB_JOB=test SHADOWIB_BACKEND="$backend" SHADOWIB_IB2TCP_TRANSPORT="$transport" \
  LD_LIBRARY_PATH="$build/lib/dropin" LD_PRELOAD="$preload" "$@"
status=$?
rm -rf "$directory"
exit $status
