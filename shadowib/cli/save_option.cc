#include "shadowib/cli/save_option.h"

#include <cerrno>

namespace shadowib::cli {
namespace {

constexpr char kForked[] = "forked", kStopped[] = "stopped", kAuto[] = "auto";

}  // namespace

void add_save_option(Command* command, std::string* save) {
  command
      ->add_option(
          "--save", *save,
          "Whether programs stand while their images are written: stopped;\nforked: they go on, and a copy of "
          "each process writes; or auto:\nforked where the host has the memory for it. Default $SHADOWIB_SAVE,\nelse "
          "stopped with the store central, auto with others")
      ->one_of({kForked, kStopped, kAuto})
      ->type_name("HOW");
}

Status choose_save(const std::string& save, bool central, SaveWay* way) {
  const std::string variable = environment("SAVE");
  const std::string& how = save.empty() ? variable : save;
  *way = how == kForked                              ? SaveWay::kForked
         : how == kAuto || (how.empty() && !central) ? SaveWay::kAuto
                                                     : SaveWay::kStopped;
  if (how.empty() || how == kForked || how == kStopped || how == kAuto) return {};
  return Status::of(Code::kUsage, EINVAL, "SHADOWIB_SAVE=%.60s is none of stopped, forked and auto", how.c_str());
}

void add_incremental_option(Command* command, bool* incremental) {
  command->add_flag("--incremental", *incremental,
                    "Write only pages of memory that the job's newest set does not\nhave; default "
                    "$SHADOWIB_INCREMENTAL, else all pages");
}

Status choose_incremental(bool given, bool central, bool flushed, bool* incremental) {
  const std::string variable = environment("INCREMENTAL");
  if (!variable.empty() && variable != "0" && variable != "1")
    return Status::of(Code::kUsage, EINVAL, "SHADOWIB_INCREMENTAL=%.60s is neither 1 nor 0", variable.c_str());
  *incremental = given || variable == "1";
  if (!*incremental) return {};
  if (!central)
    return Status(Code::kUsage, EINVAL,
                  "--incremental needs images in --dir: use --store central, or leave out --incremental");
  if (flushed)
    return Status(Code::kUsage, EINVAL,
                  "sets of --incremental cannot be flushed to a far place: use --flush none, or leave out "
                  "--incremental");
  return {};
}

void add_compress_option(Command* command, std::string* compress) {
  command
      ->add_option("--compress", *compress,
                   "How pages of memory are compressed in images: none, lz4\n(quick), or zstd (smaller); default "
                   "$SHADOWIB_COMPRESS, else none")
      ->one_of({kCompressionNames[0], kCompressionNames[1], kCompressionNames[2]})
      ->type_name("HOW");
}

bool says_compression(const std::string& compress) { return !compress.empty() || !environment("COMPRESS").empty(); }

Status choose_compression(const std::string& compress, Compression* compression) {
  const std::string variable = environment("COMPRESS");
  const std::string& how = compress.empty() ? variable : compress;
  if (parse_compression(how.empty() ? "none" : how, compression)) return {};
  return Status::of(Code::kUsage, EINVAL, "SHADOWIB_COMPRESS=%.60s is none of none, lz4 and zstd", how.c_str());
}

}  // namespace shadowib::cli
