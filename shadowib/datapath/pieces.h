// Copies of what the program has written just before its call, in the pieces that it writes.
//
// A processor gives a load what still is in its store buffer, if one store wrote all of it. A load of several pieces
// waits until they have left the buffer, which takes longer than all instructions of a post
// (docs/internals/decisions/copies-in-pieces.md). Compilers would make one load of several.
#pragma once

#include <infiniband/verbs.h>

namespace shadowib {

template <typename Word>
__attribute__((always_inline)) inline Word copy_piece(Word& to, const Word& from) {
  Word word = from;
  asm("" : "+r"(word));
  return to = word;
}

__attribute__((always_inline)) inline void copy_element(ibv_sge& to, const ibv_sge& from) {
  copy_piece(to.addr, from.addr);
  copy_piece(to.length, from.length);
  copy_piece(to.lkey, from.lkey);
}

}  // namespace shadowib
