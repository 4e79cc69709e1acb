/*
 * shadowib.h: checkpoints asked for by the program itself, and hooks around them.
 *
 * A program that links libshadowib (pkg-config --cflags --libs shadowib, or CMake's shadowib::shadowib) needs no
 * LD_PRELOAD: the library answers its verbs calls too. None of these functions has to be called; without them
 * checkpoints are asked for from outside, by `shadowib checkpoint`.
 *
 * Conventions of this ABI
 *   - C linkage, C types, symbol version SHADOWIB_1. Later additions get a new version; nothing here changes.
 *   - A function that can fail returns a negative errno; shadowib_last_error() then says what happened, to which
 *     object and what to do. errno itself is left alone.
 *   - Strings returned belong to the library. Strings passed are copied. Nothing is thrown.
 *   - Every function may be called by any thread, none from a signal handler, and none from inside a hook unless
 *     it says so.
 */
#ifndef SHADOWIB_SHADOWIB_H
#define SHADOWIB_SHADOWIB_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The library's version, "major.minor.patch". May be called from a hook. */
const char* shadowib_version(void);

/* 1 if this process takes part in checkpoints of its job, else 0. It does from its first opened RDMA device on, or
 * from shadowib_join(). May be called from a hook. */
int shadowib_is_member(void);

/*
 * Makes the process a member of its job now, without an RDMA device. The job and its directory are those of
 * `shadowib run`, or of SHADOWIB_JOB and SHADOWIB_DIR. Returns 0 (also if it is one), or
 *   -EINVAL    a setting is wrong         -EACCES, -EPERM  the directory or a needed call is denied
 *   -EIO, ...  the directory cannot be used
 */
int shadowib_join(void);

/* Flags of shadowib_checkpoint(). */
#define SHADOWIB_CHECKPOINT_KILL 1u /* every process of the job ends by SIGKILL once the set is committed */

/*
 * Checkpoints the whole job and waits. Joins it first if need be.
 *
 *   flags       0 or SHADOWIB_CHECKPOINT_KILL
 *   timeout_ms  how long the checkpoint may take before it is given up and the job goes on; <= 0: 60 s
 *   path        receives the absolute path of the committed set, NUL-terminated, cut to path_bytes; may be NULL.
 *               Empty in a restarted process: sets can be moved
 *
 * Returns twice, like fork:
 *   0   committed; this is the process that asked, and it goes on
 *   1   this is the process restarted from that set, perhaps much later and elsewhere
 * or, with the job unharmed and no set written:
 *   -EOPNOTSUPP  something cannot be captured; the message names it       -ETIMEDOUT  not settled or saved in time
 *   -EBUSY       another checkpoint is under way                          -ECANCELED  another process gave up
 *   -EINVAL      unknown flag or wrong setting                            -ENOSPC, -EACCES, -EIO ...  writing failed
 * If somebody kills the command that takes the checkpoint, it is -ECANCELED too, and `shadowib list` tells of a set.
 */
int shadowib_checkpoint(unsigned flags, int timeout_ms, char* path, size_t path_bytes);

/* Events a hook is told. */
enum shadowib_event {
  SHADOWIB_BEFORE_CHECKPOINT = 0, /* all threads still run; the hook may do I/O and use RDMA */
  SHADOWIB_RESUME = 1,            /* the process goes on, after a checkpoint or one that was given up */
  SHADOWIB_RESTART = 2            /* a restarted process, objects rebuilt, other threads still parked: no RDMA, no
                                     lock another thread may hold (malloc's included) */
};

/* Called as fn(event, arg) in a thread of the library: before a checkpoint the last registered first, after it in
 * order of registration, so that layers nest. May add and remove hooks. Must return; must not call longjmp, exit or
 * throw. */
typedef void (*shadowib_hook)(int event, void* arg);

/* Registers a hook. Returns an id (>= 0) or -ENOMEM. Hooks stay registered across a restart. */
int shadowib_add_hook(shadowib_hook fn, void* arg);

/* Removes the hook with that id; does nothing if there is none. A call of it that is under way ends on its own. */
void shadowib_remove_hook(int id);

/* The text of the calling thread's last failed call here; "" if none failed. Valid until its next call. */
const char* shadowib_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
