/* The part of bsp.h for programs of shadowib-cc: bsp_sync() is a site. Programs include bsp.h.
 *
 * Its functions are compiled with the program, whose stack is left at a site. */
#ifndef SHADOWIB_BSP_PORTABLE_H
#define SHADOWIB_BSP_PORTABLE_H

#include <shadowib/portable.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
#error "portable BSP programs are C programs so far"
#endif

struct shadowib_bsp_memory {
  void* begin;
  void* end;
};

struct shadowib_bsp_kept {
  long long superstep;
  double seconds;
  int process, processes;
  int tag_bytes, inbox_tag_bytes;
  long long memories, messages, message_bytes;
  char target[32];
  struct shadowib_bsp_memory* memory;
  char* message;
};

SHADOWIB_NO_SITE int shadowib_bsp_is_other(void);
SHADOWIB_NO_SITE int shadowib_bsp_due(void);
SHADOWIB_NO_SITE void shadowib_bsp_types(int tag, int payload);
SHADOWIB_NO_SITE void shadowib_bsp_memory_type(const void* type, int is_array);
/* The compiler puts the type there that the call's result is converted to a pointer to. */
SHADOWIB_NO_SITE void* shadowib_portable_type(void);
SHADOWIB_NO_SITE void shadowib_bsp_measure(struct shadowib_bsp_kept* kept);
SHADOWIB_NO_SITE void shadowib_bsp_keep(struct shadowib_bsp_kept* kept);
SHADOWIB_NO_SITE void shadowib_bsp_resume(const struct shadowib_bsp_kept* kept);

static __attribute__((unused, noinline)) void shadowib_bsp_save(void) {
  struct shadowib_bsp_kept* kept = (struct shadowib_bsp_kept*)calloc(1, sizeof *kept);
  if (!kept) return;
  shadowib_bsp_measure(kept);
  kept->memory = (struct shadowib_bsp_memory*)calloc((size_t)kept->memories + 1, sizeof *kept->memory);
  kept->message = (char*)calloc((size_t)kept->message_bytes + 1, 1);
  if (kept->memory && kept->message) {
    shadowib_bsp_keep(kept);
    shadowib_portable_site();
    shadowib_bsp_resume(kept);
  }
  free(kept->memory);
  free(kept->message);
  free(kept);
}

static __attribute__((unused)) void shadowib_bsp_sync(void) {
  bsp_sync();
  if (shadowib_bsp_due()) shadowib_bsp_save();
}

static __attribute__((unused)) void shadowib_bsp_init(void (*spmd)(void)) {
  if (!shadowib_bsp_is_other()) return;
  spmd();
  exit(0);
}

/* Messages have the types of primitive values: for images, and for processes of another byte order. */
#define SHADOWIB_BSP_EACH(type, letter) type* : letter, const type* : letter
#define SHADOWIB_BSP_TYPE(pointer)                                                                                 \
  _Generic((pointer), SHADOWIB_BSP_EACH(char, 'c'), SHADOWIB_BSP_EACH(signed char, 'b'),                           \
           SHADOWIB_BSP_EACH(unsigned char, 'B'), SHADOWIB_BSP_EACH(short, 'h'),                                   \
           SHADOWIB_BSP_EACH(unsigned short, 'H'), SHADOWIB_BSP_EACH(int, 'i'), SHADOWIB_BSP_EACH(unsigned, 'I'),  \
           SHADOWIB_BSP_EACH(long, 'l'), SHADOWIB_BSP_EACH(unsigned long, 'L'), SHADOWIB_BSP_EACH(long long, 'q'), \
           SHADOWIB_BSP_EACH(unsigned long long, 'Q'), SHADOWIB_BSP_EACH(float, 'f'),                              \
           SHADOWIB_BSP_EACH(double, 'd'), default : 0)
#define bsp_send(pid, tag, payload, bytes) \
  (shadowib_bsp_types(SHADOWIB_BSP_TYPE(tag), SHADOWIB_BSP_TYPE(payload)), bsp_send(pid, tag, payload, bytes))
#ifdef BSP_MULTICORE
#define bsp_hpsend(pid, tag, payload, bytes) \
  (shadowib_bsp_types(SHADOWIB_BSP_TYPE(tag), SHADOWIB_BSP_TYPE(payload)), bsp_hpsend(pid, tag, payload, bytes))
#endif
/* Registered memory has the type of its pointer. */
#define SHADOWIB_BSP_POINTER(memory) __typeof__(1 ? (memory) : (void*)0)
#define bsp_push_reg(memory, bytes)                                                                           \
  (shadowib_bsp_memory_type((SHADOWIB_BSP_POINTER(memory))shadowib_portable_type(),                           \
                            !__builtin_types_compatible_p(__typeof__(memory), SHADOWIB_BSP_POINTER(memory))), \
   bsp_push_reg(memory, bytes))
#define bsp_sync shadowib_bsp_sync
#define bsp_init(spmd, argc, argv) ((void)(argc), (void)(argv), shadowib_bsp_init(spmd))

#endif
