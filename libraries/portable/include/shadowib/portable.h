/* Portable checkpoints: what a program may call. Compile it with shadowib-cc; the guide is docs/guide/portable.md.
 *
 * A site is a call where a checkpoint may be taken. A program without shadowib-cc must not call these.
 * Threads: only the program's first thread may call. Signals: not from a handler. */
#ifndef SHADOWIB_PORTABLE_H
#define SHADOWIB_PORTABLE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Put before the declaration of a function of another file that never reaches a site: its calls need no check. */
#ifdef __clang__
#define SHADOWIB_NO_SITE __attribute__((annotate("shadowib_no_site")))
#else
#define SHADOWIB_NO_SITE
#endif
/* Put before the declaration, in a system header, of a function that may reach a site. */
#ifdef __clang__
#define SHADOWIB_MAY_SITE __attribute__((annotate("shadowib_may_site")))
#else
#define SHADOWIB_MAY_SITE
#endif

#ifdef __cplusplus
#define SHADOWIB_NOEXCEPT noexcept
#else
#define SHADOWIB_NOEXCEPT
#endif

/* A checkpoint may be taken here. Returns when the program goes on: after the checkpoint, after a restart, or at once
 * if none is due. A checkpoint that must be refused is told on stderr, and the program goes on. Source: de Camargo et
 * al., section 4.3, checkpoint_candidate. */
SHADOWIB_MAY_SITE void shadowib_portable_site(void) SHADOWIB_NOEXCEPT;

/* Makes the next site take a checkpoint. */
SHADOWIB_NO_SITE void shadowib_portable_due(void) SHADOWIB_NOEXCEPT;

/* How many times a checkpoint was refused at a site so far in this process. */
SHADOWIB_NO_SITE unsigned long shadowib_portable_refusals(void) SHADOWIB_NOEXCEPT;

/* How many times the stack was left and entered so far in this process. */
SHADOWIB_NO_SITE unsigned long shadowib_portable_leaves(void) SHADOWIB_NOEXCEPT;

/* 1 if this process was started from an image, else 0. */
SHADOWIB_NO_SITE int shadowib_portable_restarted(void) SHADOWIB_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
