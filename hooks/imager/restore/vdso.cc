#include "hooks/imager/restore/vdso.h"

#include <sys/utsname.h>

#include <cstring>

namespace shadowib {
namespace {

bool is_special(const std::string& name) {
  return name == "[vdso]" || name.rfind("[vvar", 0) == 0 || name.rfind("[vvclock", 0) == 0;
}

}  // namespace

Status plan_vdso(const LoadedImage& image, const std::vector<CurrentMapping>& current, VdsoPlan* plan) {
  *plan = VdsoPlan{};
  const VdsoRecord& recorded = image.vdso;
  bool same = true;
  for (const CurrentMapping& m : current) {
    if (!is_special(m.name)) continue;
    if (plan->piece_count == kMaxVdsoPieces)
      return Status(Code::kVersion, 0, "this kernel's vdso has too many parts");
    const std::uint32_t i = plan->piece_count++;
    const std::uint64_t length = m.range.end - m.range.start;
    plan->pieces[i] = {m.range.start, plan->staging_bytes, i < recorded.piece_count ? recorded.pieces[i].start : 0,
                       length};
    plan->staging_bytes += length;
    same = same && i < recorded.piece_count && recorded.pieces[i].length == length &&
           m.name == "[" + std::string(recorded.pieces[i].name) + "]" &&
           recorded.pieces[i].start - recorded.pieces[0].start == m.range.start - plan->pieces[0].from;
    if (same && m.name == "[vdso]")
      same = image.vdso_content.size() == length &&
             std::memcmp(image.vdso_content.data(), reinterpret_cast<const void*>(m.range.start), length) == 0;
  }
  if (same && plan->piece_count == recorded.piece_count) return {};
  utsname now{};
  ::uname(&now);
  return Status::of(Code::kVersion, 0,
                    "the image was made under Linux %s, whose vdso differs from that of Linux %s here; "
                    "restart under the same kernel",
                    image.kernel.c_str(), now.release);
}

}  // namespace shadowib
