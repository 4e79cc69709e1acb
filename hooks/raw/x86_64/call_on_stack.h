// Runs a function on another stack, so that the caller's stack stays as it is meanwhile.
#pragma once

#include <cstdint>

namespace shadowib {

// `top` is the end of the new stack, 16-byte aligned. Nothing may be thrown through it.
inline void call_on_stack(void (*function)(void*), void* argument, void* top) {
  __asm__ volatile(
      "movq %%rsp, %%rbx\n\t"
      "movq %[top], %%rsp\n\t"
      "callq *%[function]\n\t"
      "movq %%rbx, %%rsp\n\t"
      : "+D"(argument)
      : [top] "r"(top), [function] "r"(function)
      : "rbx", "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3",
        "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

}  // namespace shadowib
