/*
 * shadowib.h: checkpoints asked for by the program itself, and hooks around them.
 *
 * A program that links libshadowib (pkg-config --cflags --libs shadowib, or CMake's shadowib::shadowib) needs no
 * LD_PRELOAD: the library answers its verbs calls too. None of these functions has to be called; without them
 * checkpoints are asked for from outside, by `shadowib checkpoint`.
 *
 * Conventions of this ABI
 *   - C linkage, C types, symbol version SHADOWIB_1, or SHADOWIB_2 where it says so. Later additions get a new
 *     version; nothing here changes.
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

/* Roles of shadowib_join_as(). */
#define SHADOWIB_MEMBER 0 /* what shadowib_join() makes of the process, which may be a guest by SHADOWIB_GUEST=1 */
#define SHADOWIB_GUEST 1  /* shares the job's network, and is in none of its checkpoints */

/*
 * Joins the job in a role. Call it before the process opens an RDMA device. Version SHADOWIB_2.
 *
 * A guest may join at any time, also after a restart. It founds no job. A checkpoint does not stop it and does not
 * wait for it. After a restart it is dead to the members: their queue pairs to it are in error. A guest ends by
 * SIGTERM, and 5 s later by SIGKILL, when no member has lived for 5 s, or the job was restarted or ended by --kill.
 * A child that a member or guest has forked becomes a guest of the same job. It is no member before.
 *
 * Returns 0, also if the process is in the job in that role, or a negative errno.
 *   ENOENT:      The job has no member, and none has come within 5 s.
 *   EBUSY:       The process is a member, and cannot become a guest.
 *   EOPNOTSUPP:  The job was restarted since the process was forked from a member.
 *   EINVAL:      There is no such role, or a setting is wrong.
 *   EIO:         The directory or the exchange cannot be used.
 */
int shadowib_join_as(int role);

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

/* Bounds of shadowib_publish(): bytes of a value, names of a process. */
#define SHADOWIB_VALUE_BYTES 4096
#define SHADOWIB_VALUES 1024

/*
 * Shows value[0..bytes) to all processes of the job, under a name of 1 to 64 of A-Za-z0-9._- (not "." or ".."). The
 * value is copied. Joins the job first if need be. Version SHADOWIB_2. May be called from a hook.
 *
 * A name belongs to the process that publishes it first, until the job ends or is restarted. That process may replace
 * the value. Readers see the old or the new value as a whole. If several publish a new name at once, one succeeds.
 * After a restart the values of restarted processes are there again, as they were at the checkpoint. Hooks told
 * SHADOWIB_RESTART find them already. Values of other processes are gone.
 *
 * Returns 0. Otherwise a negative errno, as below, or what shadowib_join() returns.
 *   EEXIST:    The name belongs to another process.
 *   EINVAL:    No such name can be, or value is NULL.
 *   EMSGSIZE:  The value has more than SHADOWIB_VALUE_BYTES.
 *   ENOSPC:    The process has SHADOWIB_VALUES names already.
 *   EIO:       The exchange cannot be used.
 */
int shadowib_publish(const char* name, const void* value, size_t bytes);

/*
 * Copies the value of that name to value[0..capacity). Joins the job first if need be. Version SHADOWIB_2. May be
 * called from a hook with timeout_ms 0.
 *
 *   timeout_ms  How long to wait for a name that nobody has published. 0: not at all. < 0: without a bound.
 *
 * A checkpoint may be taken while it waits. The checkpoint's time does not count.
 *
 * Returns the value's size, 0 to SHADOWIB_VALUE_BYTES, or a negative errno, as below or as shadowib_join() returns.
 *   ENOENT:     There is no such value, and timeout_ms is 0.
 *   ETIMEDOUT:  None has come within timeout_ms.
 *   EOVERFLOW:  The value is larger than capacity. Nothing is copied.
 *   EINVAL:     No such name can be, or value is NULL.
 *   EIO:        The exchange cannot be used.
 */
int shadowib_lookup(const char* name, void* value, size_t capacity, int timeout_ms);

/* The text of the calling thread's last failed call here; "" if none failed. Valid until its next call. */
const char* shadowib_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
