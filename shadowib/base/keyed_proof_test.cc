// The proof of a key: BLAKE2b as RFC 7693 has it, and another one for each role, key and message.
#include "shadowib/base/keyed_proof.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

namespace shadowib {
namespace {

std::string proof(const std::string& key, char role, const std::string& one, const std::string& two) {
  std::uint8_t out[kProofBytes];
  keyed_proof(reinterpret_cast<const std::uint8_t*>(key.data()), role,
              {{one.data(), one.size()}, {two.data(), two.size()}, {nullptr, 0}}, out);
  return {reinterpret_cast<const char*>(out), sizeof(out)};
}

TEST(KeyedProof, DependsOnKeyRoleAndMessages) {
  const std::string key(32, 'k'), other(32, 'o');
  std::set<std::string> all{proof(key, 'C', "greeting", "challenge"), proof(key, 'S', "greeting", "challenge"),
                            proof(other, 'C', "greeting", "challenge"), proof(key, 'C', "greetinG", "challenge"),
                            proof(key, 'C', "greeting", "challengE")};
  EXPECT_EQ(all.size(), 5u);
  EXPECT_EQ(proof(key, 'C', "greeting", "challenge"), proof(key, 'C', "greeting", "challenge"));
}

// Computed by Python: hashlib.blake2b(b"C" + b"greeting" + b"challenge", key=b"k" * 32, digest_size=32).
TEST(KeyedProof, IsBlake2b) {
  std::string hex;
  for (const char c : proof(std::string(32, 'k'), 'C', "greeting", "challenge")) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(c));
    hex += digits;
  }
  EXPECT_EQ(hex, "eccc9ef92076cc5fff0034b40a74de65cfb3523f6c85e071eeb6d6670b091ad1");
}

TEST(KeyedProof, Compares) {
  std::uint8_t a[kProofBytes] = {}, b[kProofBytes] = {};
  EXPECT_TRUE(same_proof(a, b));
  b[31] = 1;
  EXPECT_FALSE(same_proof(a, b));
}

}  // namespace
}  // namespace shadowib
