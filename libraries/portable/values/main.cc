// shadowib-values: what a portable image holds.
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "libraries/portable/image/values.h"
#include "shadowib/command_line/command_line.h"

namespace {

constexpr int kUsage = 2, kDamaged = 5;

constexpr char kExamples[] =
    "Examples:\n"
    "  shadowib-values member-0.psi             each variable and block, by name\n"
    "  shadowib-values --most 0 member-0.psi    all elements of arrays\n"
    "  shadowib-values --digest *.psi           a number that is equal for equal content on all architectures\n\n"
    "Exit codes: 0 done, 2 a wrong option, 5 an image is damaged or cannot be read.\n";

}  // namespace

int main(int argc, char** argv) {
  bool digest = false;
  std::uint64_t most = 8;
  std::vector<std::string> files;
  command_line::Command program("shadowib-values", "Prints what portable images hold.");
  program.add_flag("--digest", digest, "one number for each image, instead of its values");
  program.add_option("--most", most, "elements of an array that are shown; 0: all")->type_name("N");
  program.add_option("files", files, "images")->type_name("FILE")->required();
  program.footer(kExamples);
  program.usage_code(kUsage);
  int code = 0;
  if (!command_line::parse(program, SHADOWIB_VERSION, argc, argv, &code)) return code;
  for (const std::string& file : files) {
    try {
      const shadowib::portable::Image image = shadowib::portable::read_image(file);
      if (digest) {
        std::printf("%016llx  %s\n", static_cast<unsigned long long>(shadowib::portable::digest(image)),
                    file.c_str());
      } else {
        std::fputs(shadowib::portable::to_text(image, most).c_str(), stdout);
      }
    } catch (const shadowib::portable::Refused& refused) {
      std::fprintf(stderr, "shadowib-values: %s: %s\n", file.c_str(), refused.text.c_str());
      code = kDamaged;
    } catch (const std::bad_alloc&) {
      std::fprintf(stderr, "shadowib-values: %s: there is no memory for it\n", file.c_str());
      code = kDamaged;
    }
  }
  return code;
}
