// Proving over a connection that one knows the job's key, without telling it: the MAC of ib2tcp's handshake and of
// the keepers'. It is BLAKE2b-256 keyed with the job's key, over one role byte and all messages before.
//
// Leaves nothing of the key on the stack or in registers, which may be saved in an image. No heap. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace shadowib {

inline constexpr std::size_t kJobKeyBytes = 32, kProofBytes = 32;

struct ProofPart {
  const void* data;
  std::size_t bytes;
};

// `role`: 'C' of the connecting side, 'S' of the accepting side, so that no proof can be sent back.
void keyed_proof(const std::uint8_t key[kJobKeyBytes], char role, std::initializer_list<ProofPart> parts,
                 std::uint8_t out[kProofBytes]);
// In constant time.
bool same_proof(const std::uint8_t a[kProofBytes], const std::uint8_t b[kProofBytes]);

}  // namespace shadowib
