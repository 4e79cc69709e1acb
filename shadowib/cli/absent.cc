// Parts of the tree that a build may lack; each answers that it is not there.
#include "hooks/coordinator.h"
#include "hooks/imager/checkpoint_set.h"
#include "hooks/imager/descriptors.h"
#include "hooks/imager/image_reader.h"
#include "hooks/imager/restart.h"

namespace shadowib {
namespace {
[[maybe_unused]] Status absent() { return Status(Code::kInternal, 0, "this build lacks the part that does it"); }
}  // namespace

#ifndef SHADOWIB_HAVE_COORDINATOR
Status run_checkpoint(const CheckpointOptions&, CheckpointReport*) { return absent(); }
Status query_status(const std::string&, const std::string&, const std::string&, int, std::vector<MemberStatus>*,
                    std::string*) {
  return absent();
}
#endif
#ifndef SHADOWIB_HAVE_RESTORE
Status read_image(const std::string&, ImageInfo*, int*) { return absent(); }
Status restart_set(const SetManifest&, const RestartOptions&, std::vector<RestartedProcess>*) { return absent(); }
#endif
#ifndef SHADOWIB_HAVE_DESCRIPTORS
Status match_descriptors(const std::map<std::uint32_t, std::string>&) { return absent(); }
Status print_descriptors(const std::string&, bool, std::string*) { return absent(); }
#endif
}  // namespace shadowib
