#include "hooks/imager/restore/processor_check.h"

#include <algorithm>

#include "hooks/imager/processor.h"
#include "hooks/imager/restore/extended_state.h"

namespace shadowib {
namespace {

// What glibc's loader saves when it binds a function at its first call, into as much of the stack as it found it to
// need when the program started. A processor with more of these enabled writes more, and one that has them elsewhere
// may. Source: glibc, STATE_SAVE_MASK.
constexpr std::uint64_t kSavedByLoader = 0xee;
// In features[6]: the loader saves in the compact form, which is the same everywhere.
constexpr std::uint32_t kXsavec = 2;

ProcessorState recorded(const ProcessRecord& p) {
  ProcessorState state{};
  std::copy(std::begin(p.cpu_features), std::end(p.cpu_features), state.features);
  state.xcr0 = p.xcr0;
  std::copy(std::begin(p.state_offsets), std::end(p.state_offsets), state.state_offsets);
  return state;
}

Status check_loader(const LoadedImage& image, const ProcessorState& from, const ProcessorState& here) {
  const ProcessRecord& p = image.process;
  if (p.binds_at_start != 0 || p.xcr0 == 0) return {};
  const bool larger = (here.xcr0 & ~p.xcr0 & kSavedByLoader) != 0;
  const bool elsewhere =
      extended_state_differs(from, here) && (p.xcr0 & ~here.xcr0) == 0 && (p.cpu_features[6] & kXsavec) == 0;
  if (!larger && !elsewhere) return {};
  return Status::of(
      Code::kRefused, 0,
      "member %u ran with processor state %lx enabled, here %lx is%s: its loader would overwrite its stack when it "
      "saves the registers; restart on a machine with the same vector extensions, or run the job with --cpu",
      image.header.member, p.xcr0, here.xcr0, larger ? "" : ", in another order");
}

}  // namespace

Status fit_to_processor(const LoadedImage& image, int fd, std::vector<MemoryPatch>* patches) {
  ProcessorState here;
  read_processor_state(&here);
  const ProcessRecord& p = image.process;
  const ProcessorState from = recorded(p);
  if (const ProcessorFeature* f = missing_feature(from, static_cast<int>(p.processor_level), here))
    return Status::of(Code::kRefused, 0,
                      "member %u ran on a processor with %s, which this one has not; restart on a machine that has "
                      "it, or run the job with --cpu x86-64-v%d",
                      image.header.member, f->name, std::max(2, level_of_this_processor()));
  // What signals leave may be missing: it is looked at whether anybody needs it.
  if ((p.xcr0 & ~here.xcr0 & ~known_extended_state()) != 0)
    return Status::of(Code::kRefused, 0,
                      "member %u ran with processor state %lx enabled, here only %lx is; restart on a "
                      "machine with the same vector extensions",
                      image.header.member, p.xcr0, here.xcr0);
  SHADOWIB_TRY(check_loader(image, from, here));
  if (!extended_state_differs(from, here)) return {};
  return fit_extended_states(image, fd, from, here, patches);
}

}  // namespace shadowib
