// Areas of vector registers as one processor leaves them, made fit for another. The layouts are those of real ones.
#include "hooks/imager/restore/extended_state.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstring>

namespace shadowib {
namespace {

constexpr std::uint64_t kBasic = 3, kAvx = 4, kOpmask = 1 << 5, kUpper = 1 << 6, kHigh = 1 << 7, kPkru = 1 << 9;
constexpr std::uint64_t kAvx512 = kOpmask | kUpper | kHigh;

ProcessorState processor(std::uint64_t xcr0, std::initializer_list<std::pair<int, std::uint32_t>> offsets) {
  ProcessorState p{};
  p.xcr0 = xcr0;
  for (const auto& [number, offset] : offsets) p.state_offsets[number] = offset;
  return p;
}
const ProcessorState kEmulated = processor(kBasic | kAvx, {{2, 576}});
const ProcessorState kZen4 = processor(kBasic | kAvx | kAvx512, {{2, 576}, {5, 832}, {6, 896}, {7, 1408}});
const ProcessorState kSkylake =
    processor(kBasic | kAvx | kAvx512 | kPkru, {{2, 576}, {5, 1088}, {6, 1152}, {7, 1664}, {9, 2688}});

constexpr std::uint32_t kBytes[] = {0, 0, 256, 0, 0, 64, 512, 1024, 0, 8};

std::uint64_t size_of(const ProcessorState& p) {
  std::uint64_t most = 576;
  for (int i = 2; i < 10; ++i)
    if (p.state_offsets[i] != 0) most = std::max<std::uint64_t>(most, p.state_offsets[i] + kBytes[i]);
  return most;
}

// Every byte of component i is i, of the oldest part 1.
std::vector<std::uint8_t> area_of(const ProcessorState& p, std::uint64_t in_use) {
  const std::uint64_t bytes = size_of(p);
  std::vector<std::uint8_t> area(bytes + 4);
  std::memset(area.data(), 1, 464);
  _fpx_sw_bytes words{};
  words.magic1 = FP_XSTATE_MAGIC1;
  words.extended_size = static_cast<std::uint32_t>(bytes + 4);
  words.xstate_size = static_cast<std::uint32_t>(bytes);
  words.xstate_bv = p.xcr0;
  std::memcpy(area.data() + 464, &words, sizeof(words));
  std::memcpy(area.data() + 512, &in_use, sizeof(in_use));
  for (int i = 2; i < 10; ++i)
    if ((in_use >> i & 1) != 0) std::memset(area.data() + p.state_offsets[i], i, kBytes[i]);
  const std::uint32_t magic = FP_XSTATE_MAGIC2;
  std::memcpy(area.data() + bytes, &magic, sizeof(magic));
  return area;
}

// What a kernel reads there: the components in use, each with its value at its place, and nothing behind the end.
void expect_area(const std::vector<std::uint8_t>& area, const ProcessorState& p, std::uint64_t in_use) {
  const std::uint64_t bytes = extended_state_bytes(area.data(), p);
  ASSERT_EQ(bytes, area.size());
  ASSERT_LE(bytes, size_of(p) + 4) << "larger than the kernel takes";
  std::uint32_t magic;
  std::memcpy(&magic, area.data() + bytes - 4, sizeof(magic));
  EXPECT_EQ(magic, FP_XSTATE_MAGIC2);
  std::uint64_t found;
  std::memcpy(&found, area.data() + 512, sizeof(found));
  EXPECT_EQ(found, in_use);
  EXPECT_EQ(area[0], 1);
  EXPECT_EQ(area[463], 1);
  for (int i = 2; i < 10; ++i) {
    if ((in_use >> i & 1) == 0) continue;
    ASSERT_LE(p.state_offsets[i] + kBytes[i], bytes - 4);
    EXPECT_EQ(area[p.state_offsets[i]], i);
    EXPECT_EQ(area[p.state_offsets[i] + kBytes[i] - 1], i);
  }
}

TEST(ExtendedState, BecomesSmaller) {
  EXPECT_TRUE(extended_state_differs(kZen4, kEmulated));
  auto area = area_of(kZen4, kBasic | kAvx);
  const Status status = fit_extended_state(kZen4, kEmulated, &area);
  ASSERT_TRUE(status.ok()) << status.text();
  expect_area(area, kEmulated, kBasic | kAvx);
}

TEST(ExtendedState, OfALargerProcessorStays) { EXPECT_FALSE(extended_state_differs(kEmulated, kZen4)); }

TEST(ExtendedState, GoesWhereAnotherMakerHasIt) {
  EXPECT_TRUE(extended_state_differs(kSkylake, kZen4));
  auto area = area_of(kSkylake, kBasic | kAvx | kAvx512);
  Status status = fit_extended_state(kSkylake, kZen4, &area);
  ASSERT_TRUE(status.ok()) << status.text();
  expect_area(area, kZen4, kBasic | kAvx | kAvx512);
  area = area_of(kZen4, kBasic | kAvx | kOpmask | kUpper);
  status = fit_extended_state(kZen4, kSkylake, &area);
  ASSERT_TRUE(status.ok()) << status.text();
  expect_area(area, kSkylake, kBasic | kAvx | kOpmask | kUpper);
}

TEST(ExtendedState, RefusesWhatIsLost) {
  auto area = area_of(kZen4, kBasic | kAvx | kUpper);
  const auto before = area;
  Status status = fit_extended_state(kZen4, kEmulated, &area);
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_NE(std::strstr(status.text(), "AVX-512"), nullptr) << status.text();
  EXPECT_EQ(area, before);
  // The highest sixteen registers lie behind the end of what the smaller area has room for.
  area = area_of(kZen4, kBasic | kAvx | kAvx512);
  status = fit_extended_state(kZen4, kSkylake, &area);
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_NE(std::strstr(status.text(), "more of the stack"), nullptr) << status.text();
}

TEST(ExtendedState, DropsWhatHasItsFirstValue) {
  auto area = area_of(kZen4, kBasic | kAvx | kUpper);
  std::memset(area.data() + kZen4.state_offsets[6], 0, kBytes[6]);
  Status status = fit_extended_state(kZen4, kEmulated, &area);
  ASSERT_TRUE(status.ok()) << status.text();
  expect_area(area, kEmulated, kBasic | kAvx);
  area = area_of(kSkylake, kBasic | kPkru);
  EXPECT_EQ(fit_extended_state(kSkylake, kZen4, &area).code(), Code::kRefused);  // a key of the program's
  area = area_of(kSkylake, kBasic | kPkru);
  const std::uint64_t first = 0x55555554;
  std::memcpy(area.data() + kSkylake.state_offsets[9], &first, sizeof(first));
  status = fit_extended_state(kSkylake, kZen4, &area);
  ASSERT_TRUE(status.ok()) << status.text();
  expect_area(area, kZen4, kBasic);
}

TEST(ExtendedState, NeedsNoRoomForFirstValues) {
  auto area = area_of(kZen4, kBasic | kAvx | kAvx512);
  std::memset(area.data() + kZen4.state_offsets[7], 0, kBytes[7]);
  const Status status = fit_extended_state(kZen4, kSkylake, &area);
  ASSERT_TRUE(status.ok()) << status.text();
  expect_area(area, kSkylake, kBasic | kAvx | kOpmask | kUpper);
}

TEST(ExtendedState, TellsWhatIsNone) {
  const auto changed = [](auto change) {
    auto area = area_of(kZen4, kBasic | kAvx);
    _fpx_sw_bytes words;
    std::memcpy(&words, area.data() + 464, sizeof(words));
    change(words);
    std::memcpy(area.data() + 464, &words, sizeof(words));
    return extended_state_bytes(area.data(), kZen4);
  };
  EXPECT_EQ(changed([](auto&) {}), size_of(kZen4) + 4);
  EXPECT_EQ(changed([](auto& w) { w.magic1 += 1; }), 0u);
  EXPECT_EQ(changed([](auto& w) { w.xstate_size += 4; }), 0u);
  EXPECT_EQ(changed([](auto& w) { w.xstate_size = 500, w.extended_size = 504; }), 0u);
  EXPECT_EQ(changed([](auto& w) { w.xstate_size = 1 << 20, w.extended_size = (1 << 20) + 4; }), 0u);
  EXPECT_EQ(changed([](auto& w) { w.xstate_bv |= 1ull << 62; }), 0u);
  EXPECT_EQ(changed([](auto& w) { w.xstate_bv = 4; }), 0u);
}

TEST(ExtendedState, RefusesWhatIsDamaged) {
  auto area = area_of(kZen4, kBasic | kAvx512);
  ProcessorState other = kZen4;
  other.state_offsets[7] = 60000;  // of an image that lies
  EXPECT_EQ(fit_extended_state(other, kSkylake, &area).code(), Code::kCorrupt);
  area = area_of(kZen4, kBasic | kAvx);
  area[520 + 7] = 0x80;  // the compact form
  EXPECT_EQ(fit_extended_state(kZen4, kEmulated, &area).code(), Code::kRefused);
  area = area_of(kZen4, kBasic | 1ull << 40);
  EXPECT_EQ(fit_extended_state(kZen4, kEmulated, &area).code(), Code::kRefused);
}

}  // namespace
}  // namespace shadowib
