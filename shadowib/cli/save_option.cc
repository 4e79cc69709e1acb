#include "shadowib/cli/save_option.h"

#include <cerrno>

namespace shadowib::cli {
namespace {

constexpr char kForked[] = "forked", kStopped[] = "stopped";

}  // namespace

void add_save_option(Command* command, std::string* save) {
  command
      ->add_option(
          "--save", *save,
          "Whether programs stand while their images are written: stopped,\nor forked: they go on, and a copy "
          "of each process writes;\ndefault $SHADOWIB_SAVE, else stopped")
      ->one_of({kForked, kStopped})
      ->type_name("HOW");
}

Status choose_save(const std::string& save, bool* forked) {
  const std::string variable = environment("SAVE");
  const std::string& how = save.empty() ? variable : save;
  *forked = how == kForked;
  if (how.empty() || how == kForked || how == kStopped) return {};
  return Status::of(Code::kUsage, EINVAL, "SHADOWIB_SAVE=%.60s is neither forked nor stopped", how.c_str());
}

}  // namespace shadowib::cli
