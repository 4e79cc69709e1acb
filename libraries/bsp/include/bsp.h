/*
 * bsp.h: BSPlib, the bulk synchronous parallel library, over RDMA verbs.
 *
 * A program is compiled by bspcc and started by bsprun. It computes in supersteps: processes put, get and send, and
 * bsp_sync() makes all of it happen. -DBSP_MULTICORE chooses the forms of MulticoreBSP for C: sizes are size_t.
 *
 * Conventions
 *   - Functions return nothing that can fail. A wrong call ends the whole job with one message on standard error,
 *     which names the process, the call and the reason. Exit code: 124 (bsprun(1)).
 *   - One thread of a process calls, none from a signal handler.
 *   - Memory passed belongs to the caller. Offsets and sizes are bytes.
 *   - `pid` is 0 to bsp_nprocs() - 1. A process may put to, get from and send to itself. Zero bytes are allowed.
 *
 * Source: Hill et al., "BSPlib: The BSP programming library", Parallel Computing 24 (1998); MulticoreBSP for C 1.2.
 */
#ifndef SHADOWIB_BSP_H
#define SHADOWIB_BSP_H

#include <stdarg.h>
#include <stddef.h>

#ifdef BSP_MULTICORE
#define BSP_PID unsigned int
#define BSP_SIZE size_t
#define BSP_COUNT unsigned int
#define SHADOWIB_BSP_NAME(name) __asm__("bspm_" #name) SHADOWIB_BSP_NO_SITE
#else
#define BSP_PID int
#define BSP_SIZE int
#define BSP_COUNT int
#define SHADOWIB_BSP_NAME(name) __asm__("bsp_" #name) SHADOWIB_BSP_NO_SITE
#endif
#ifdef SHADOWIB_BSP_PORTABLE /* by bspcc, of programs of shadowib-cc */
#define SHADOWIB_BSP_NO_SITE __attribute__((annotate("shadowib_no_site")))
#else
#define SHADOWIB_BSP_NO_SITE
#endif
#if defined(__GNUC__)
#define SHADOWIB_BSP_PRINTF __attribute__((format(printf, 1, 2)))
#define SHADOWIB_BSP_NORETURN __attribute__((noreturn))
#else
#define SHADOWIB_BSP_PRINTF
#define SHADOWIB_BSP_NORETURN
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Names the function that all processes run. The first statement of main() if bsp_begin() is not. Process 0 returns;
 * each other process calls spmd() here and exits with 0. spmd must begin with bsp_begin(). */
void bsp_init(void (*spmd)(void), int argc, char** argv) SHADOWIB_BSP_NAME(init);

/* Begins the parallel part with `processes` of them, or as many as bsprun has started if they are fewer. The number
 * of process 0 counts. Processes beyond it exit with 0. Waits for the others. May be called once. */
void bsp_begin(BSP_PID processes) SHADOWIB_BSP_NAME(begin);

/* Ends the parallel part. Waits for the others, which must call it too. Puts and messages since the last bsp_sync()
 * are lost. */
void bsp_end(void) SHADOWIB_BSP_NAME(end);

/* Prints the message of printf's form, and ends all processes with exit code 124. */
void bsp_abort(const char* format, ...) SHADOWIB_BSP_NAME(abort) SHADOWIB_BSP_PRINTF SHADOWIB_BSP_NORETURN;

/* Processes of the parallel part. Before bsp_begin(): as many as bsprun has started. */
BSP_PID bsp_nprocs(void) SHADOWIB_BSP_NAME(nprocs);

/* This process's number. */
BSP_PID bsp_pid(void) SHADOWIB_BSP_NAME(pid);

/* Seconds since bsp_begin(). Clocks of processes differ. */
double bsp_time(void) SHADOWIB_BSP_NAME(time);

/* Ends the superstep. On return gets, then puts, have happened, messages are in the queue, and registrations count.
 * Messages of the superstep before that were not moved are gone. */
void bsp_sync(void) SHADOWIB_BSP_NAME(sync);

/* Registers memory[0..bytes) from the next superstep on. All processes register in the same order; sizes may differ,
 * and NULL with 0 bytes stands for no memory. The memory must last until it is removed. */
void bsp_push_reg(const void* memory, BSP_SIZE bytes) SHADOWIB_BSP_NAME(push_reg);

/* Removes the newest registration of `memory` from the next superstep on. Pushes and pops of a superstep count in the
 * order of the calls. */
void bsp_pop_reg(const void* memory) SHADOWIB_BSP_NAME(pop_reg);

/* Copies source[0..bytes) now, and to `offset` of the registered memory of process `pid` at the end of the superstep.
 * `destination` is this process's address of the registration. Puts to one place: the highest process wins, of one
 * process the last. */
void bsp_put(BSP_PID pid, const void* source, void* destination, BSP_SIZE offset, BSP_SIZE bytes)
    SHADOWIB_BSP_NAME(put);

/* A put at any time until the end of the superstep. Neither memory may be touched until then. */
void bsp_hpput(BSP_PID pid, const void* source, void* destination, BSP_SIZE offset, BSP_SIZE bytes)
    SHADOWIB_BSP_NAME(hpput);

/* Copies bytes at `offset` of the registered memory of process `pid` as they are at the end of the superstep, before
 * puts, to destination[0..bytes). `source` is this process's address of the registration. */
void bsp_get(BSP_PID pid, const void* source, BSP_SIZE offset, void* destination, BSP_SIZE bytes)
    SHADOWIB_BSP_NAME(get);

/* A get at any time until the end of the superstep. Neither memory may be touched until then. */
void bsp_hpget(BSP_PID pid, const void* source, BSP_SIZE offset, void* destination, BSP_SIZE bytes)
    SHADOWIB_BSP_NAME(hpget);

/* Sets the size of tags from the next superstep on, in all processes alike. *tag_bytes becomes the present size. */
void bsp_set_tagsize(BSP_SIZE* tag_bytes) SHADOWIB_BSP_NAME(set_tagsize);

/* Sends payload[0..bytes) with a tag to the queue of process `pid`. Both are copied now. */
void bsp_send(BSP_PID pid, const void* tag, const void* payload, BSP_SIZE bytes) SHADOWIB_BSP_NAME(send);

/* Messages in the queue, and the bytes of their payloads. */
void bsp_qsize(BSP_COUNT* messages, BSP_SIZE* bytes) SHADOWIB_BSP_NAME(qsize);

/* The first message: *status is its payload's size, and its tag is copied to `tag`. -1 if the queue is empty. */
void bsp_get_tag(BSP_SIZE* status, void* tag) SHADOWIB_BSP_NAME(get_tag);

/* Copies up to `capacity` bytes of the first message's payload, and removes the message. */
void bsp_move(void* payload, BSP_SIZE capacity) SHADOWIB_BSP_NAME(move);

/* Points to the first message's tag and payload, and removes it from the queue. They last until the next bsp_sync().
 * Returns the payload's size; -1 if the queue is empty. */
BSP_SIZE bsp_hpmove(void** tag, void** payload) SHADOWIB_BSP_NAME(hpmove);

#ifdef BSP_MULTICORE
/* bsp_abort() with a list of arguments. */
void bsp_vabort(const char* format, va_list arguments) SHADOWIB_BSP_NAME(vabort) SHADOWIB_BSP_NORETURN;

/* bsp_send(). The caller leaves tag and payload alone until the next bsp_sync(). */
void bsp_hpsend(BSP_PID pid, const void* tag, const void* payload, size_t bytes) SHADOWIB_BSP_NAME(hpsend);

/* Copies registered memory of process `pid` as it is now, and waits for it. */
void bsp_direct_get(BSP_PID pid, const void* source, size_t offset, void* destination, size_t bytes)
    SHADOWIB_BSP_NAME(direct_get);
#endif

/* Names of older programs. */
#define bsp_pushregister bsp_push_reg
#define bsp_popregister bsp_pop_reg

#ifdef __cplusplus
}
#endif
#ifdef SHADOWIB_BSP_PORTABLE
#include <shadowib/bsp_portable.h>
#endif
#endif
