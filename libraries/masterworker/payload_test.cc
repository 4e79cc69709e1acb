#include "libraries/masterworker/payload.h"

#include <gtest/gtest.h>

#include <string>

namespace shadowib::masterworker {
namespace {

TEST(Payload, GoesThroughCAndBack) {
  Payload payload = Payload::copy("bytes", 5);
  void* data = payload.data();
  EXPECT_EQ(payload.release(), data);
  EXPECT_EQ(payload.size(), 0u);
  const Payload back = Payload::adopt(data);
  EXPECT_EQ(std::string(static_cast<const char*>(back.data()), back.size()), "bytes");
}

TEST(Payload, WithoutBytesIsNullToC) {
  EXPECT_EQ(Payload().release(), nullptr);
  EXPECT_EQ(Payload::copy("", 0).release(), nullptr);
  EXPECT_EQ(Payload::adopt(nullptr).size(), 0u);
}

}  // namespace
}  // namespace shadowib::masterworker
