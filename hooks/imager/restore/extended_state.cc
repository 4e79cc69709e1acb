#include "hooks/imager/restore/extended_state.h"

#include <signal.h>

#include <algorithm>
#include <cstring>

namespace shadowib {
namespace {

// Of every processor: x87 and SSE, what the kernel says of the area in their unused part, and the XSAVE header.
constexpr std::uint64_t kHeaderAt = 512, kLegacyBytes = kHeaderAt + 64;
constexpr std::uint64_t kWordsAt = kHeaderAt - sizeof(_fpx_sw_bytes);
static_assert(kWordsAt == 464);
constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kOldest = 3;  // x87 and SSE, as bits
constexpr std::uint64_t kCompact = 1ull << 63;

struct Component {
  int number;
  std::uint32_t bytes;
  const char* name;
};
constexpr int kPkru = 9, kTiles = 18;
constexpr std::uint32_t kPkruAtFirst =
    0x55555554;  // the kernel's, not the processor's: no key but the first may be used
// Intel's manual, volume 1, chapter 13; those of user code.
constexpr Component kComponents[] = {
    {2, 256, "AVX"},
    {3, 64, "MPX"},
    {4, 64, "MPX"},
    {5, 64, "AVX-512"},
    {6, 512, "AVX-512"},
    {7, 1024, "AVX-512"},
    {kPkru, 8, "protection keys"},
    {17, 64, "AMX"},
    {kTiles, 8192, "AMX"},
};

bool enabled(const ProcessorState& p, const Component& c) {
  return (p.xcr0 >> c.number & 1) != 0 && p.state_offsets[c.number] >= kLegacyBytes;
}

template <typename T>
T read_at(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}
template <typename T>
void write_at(std::uint8_t* at, T value) {
  std::memcpy(at, &value, sizeof(value));
}

bool is_initial(const Component& c, const std::uint8_t* value) {
  if (c.number == kPkru && read_at<std::uint32_t>(value) == kPkruAtFirst) return true;
  return std::all_of(value, value + c.bytes, [](std::uint8_t byte) { return byte == 0; });
}

// What the kernel takes at most: tiles only from who has asked for them.
std::uint64_t most_bytes(const ProcessorState& p, std::uint64_t in_use) {
  std::uint64_t most = kLegacyBytes;
  for (const Component& c : kComponents)
    if (enabled(p, c) && (c.number != kTiles || (in_use >> kTiles & 1) != 0))
      most = std::max<std::uint64_t>(most, p.state_offsets[c.number] + c.bytes);
  return most;
}

}  // namespace

std::uint64_t known_extended_state() {
  std::uint64_t bits = 0;
  for (const Component& c : kComponents) bits |= 1ull << c.number;
  return bits;
}

bool extended_state_differs(const ProcessorState& from, const ProcessorState& to) {
  for (const Component& c : kComponents)
    if (enabled(from, c) && (!enabled(to, c) || to.state_offsets[c.number] != from.state_offsets[c.number]))
      return true;
  return false;
}

std::uint64_t extended_state_bytes(const std::uint8_t* area, const ProcessorState& from) {
  const auto words = read_at<_fpx_sw_bytes>(area + kWordsAt);
  if (words.magic1 != FP_XSTATE_MAGIC1 || words.xstate_size < kLegacyBytes ||
      words.xstate_size > kMostExtendedStateBytes - FP_XSTATE_MAGIC2_SIZE ||
      words.extended_size != words.xstate_size + FP_XSTATE_MAGIC2_SIZE || (words.xstate_bv & kOldest) != kOldest ||
      (words.xstate_bv & ~from.xcr0) != 0)
    return 0;
  return words.extended_size;
}

Status fit_extended_state(const ProcessorState& from, const ProcessorState& to, std::vector<std::uint8_t>* area) {
  auto words = read_at<_fpx_sw_bytes>(area->data() + kWordsAt);
  const std::uint64_t had = words.xstate_size;
  const auto in_use = read_at<std::uint64_t>(area->data() + kHeaderAt);
  if ((read_at<std::uint64_t>(area->data() + kHeaderAt + 8) & kCompact) != 0)
    return Status(Code::kRefused, 0, "vector registers were saved in a form that signals do not leave");
  std::vector<std::uint8_t> fit(area->begin(), area->begin() + kLegacyBytes);
  std::uint64_t kept = in_use & kOldest, taken = kept;
  fit.resize(std::max(had, most_bytes(to, in_use)));
  for (const Component& c : kComponents) {
    if ((in_use >> c.number & 1) == 0) continue;
    taken |= 1ull << c.number;
    const std::uint64_t at = from.state_offsets[c.number];
    if (at < kLegacyBytes || at + c.bytes > had)
      return Status::of(Code::kCorrupt, 0, "saved %s registers lie outside of what was saved", c.name);
    const std::uint8_t* value = area->data() + at;
    const bool has_room = enabled(to, c) && to.state_offsets[c.number] + c.bytes <= had;
    if (!has_room && is_initial(c, value)) continue;
    if (!enabled(to, c))
      return Status::of(Code::kRefused, 0,
                        "%s registers were in use, which this processor has not; restart on a machine that has them",
                        c.name);
    if (!has_room)
      return Status::of(Code::kRefused, 0,
                        "%s registers were in use, for which this processor needs more of the stack; restart on a "
                        "machine like the first",
                        c.name);
    std::memcpy(fit.data() + to.state_offsets[c.number], value, c.bytes);
    kept |= 1ull << c.number;
  }
  if (taken != in_use)
    return Status::of(
        Code::kRefused, 0,
        "registers were in use that shadowib does not know (XSTATE_BV %lx); restart on a machine like the first",
        in_use);
  const std::uint64_t has = std::min(had, most_bytes(to, kept));
  words.xstate_bv &= to.xcr0;
  words.xstate_size = static_cast<std::uint32_t>(has);
  words.extended_size = static_cast<std::uint32_t>(has + FP_XSTATE_MAGIC2_SIZE);
  write_at(fit.data() + kWordsAt, words);
  write_at(fit.data() + kHeaderAt, kept);
  fit.resize(has + FP_XSTATE_MAGIC2_SIZE);
  write_at<std::uint32_t>(fit.data() + has, FP_XSTATE_MAGIC2);
  *area = std::move(fit);
  return {};
}

// What a program has on its stack are not only the frames of the stop signal: its own handlers may have been
// interrupted, on stacks of their own. They are all found by what the kernel marks them with.
Status fit_extended_states(const LoadedImage& image, int fd, const ProcessorState& from, const ProcessorState& to,
                           std::vector<MemoryPatch>* patches) {
  ImageMemory memory(image, fd);
  SHADOWIB_TRY(memory.open());
  std::uint8_t first[kHeaderAt];
  std::vector<std::uint8_t> area;
  return memory.visit([&](std::uint64_t address, const std::uint8_t* data, std::uint64_t bytes) -> Status {
    for (std::uint64_t at = kWordsAt % kAlignment; at < bytes; at += kAlignment) {
      if (read_at<std::uint32_t>(data + at) != FP_XSTATE_MAGIC1) continue;
      const std::uint64_t begin = address + at - kWordsAt;
      SHADOWIB_TRY(memory.read(begin, first, sizeof(first)));
      const std::uint64_t whole = extended_state_bytes(first, from);
      if (whole == 0) continue;
      area.resize(whole);
      SHADOWIB_TRY(memory.read(begin, area.data(), whole));
      if (read_at<std::uint32_t>(area.data() + whole - FP_XSTATE_MAGIC2_SIZE) != FP_XSTATE_MAGIC2) continue;
      if (Status s = fit_extended_state(from, to, &area); !s.ok())
        return Status::of(s.code(), 0, "member %u was interrupted where its %.200s", image.header.member, s.text());
      patches->push_back({begin, area});
    }
    return {};
  });
}

}  // namespace shadowib
