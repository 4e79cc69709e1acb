#include "shadowib/base/keyed_proof.h"

#include <sodium/crypto_generichash.h>
#include <sodium/utils.h>

namespace shadowib {
namespace {

// More than BLAKE2b takes, and a signal's frame with all registers below it.
constexpr std::size_t kHashStackBytes = 16 << 10;

// They belong to no caller, and may go on holding what was hashed until somebody happens to use them.
void clear_vector_registers() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx"))
    asm volatile("vzeroall" ::
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                       "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
#endif
}

}  // namespace

// Hashing leaves parts of the key in its state, on the stack below us and in registers.
void keyed_proof(const std::uint8_t key[kJobKeyBytes], char role, std::initializer_list<ProofPart> parts,
                 std::uint8_t out[kProofBytes]) {
  crypto_generichash_state state;
  crypto_generichash_init(&state, key, kJobKeyBytes, kProofBytes);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&role), 1);
  for (const ProofPart& part : parts)
    crypto_generichash_update(&state, static_cast<const unsigned char*>(part.data), part.bytes);
  crypto_generichash_final(&state, out, kProofBytes);
  sodium_memzero(&state, sizeof(state));
  sodium_stackzero(kHashStackBytes);
  clear_vector_registers();
}

bool same_proof(const std::uint8_t a[kProofBytes], const std::uint8_t b[kProofBytes]) {
  return sodium_memcmp(a, b, kProofBytes) == 0;
}

}  // namespace shadowib
