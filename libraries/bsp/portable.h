// The library's state in portable images: bsp.h keeps it in memory of the program, with types, around a site.
//
// The structs are those of bsp_portable.h, which C programs compile. One thread.
#pragma once

#include <cstdint>

extern "C" {
struct shadowib_bsp_memory {
  void* begin;
  void* end;
};

struct shadowib_bsp_kept {
  long long superstep;
  double seconds;  // of bsp_time()
  int process, processes;
  int tag_bytes, inbox_tag_bytes;
  long long memories, messages, message_bytes;
  char target[32];  // the architecture that message bytes are of
  struct shadowib_bsp_memory* memory;
  char* message;
};

// 1 in each process but 0, which runs the function that bsp_init() names.
int shadowib_bsp_is_other(void);
// 1 if the bsp_sync() before this call is to save.
int shadowib_bsp_due(void);
// The types of the next message's tag and payload, as letters (types.h).
void shadowib_bsp_types(int tag, int payload);
// The type that the pointer to the next registered memory leads to, as shadowib_portable_type() gives it, and whether
// it is an array.
void shadowib_bsp_memory_type(const void* type, int is_array);
// Fills all but the two blocks, then the blocks, which are the caller's.
void shadowib_bsp_measure(struct shadowib_bsp_kept* kept);
void shadowib_bsp_keep(struct shadowib_bsp_kept* kept);
// Behind the site. In a process that has come from an image: connects to the others, and is where the image was.
void shadowib_bsp_resume(const struct shadowib_bsp_kept* kept);
}
