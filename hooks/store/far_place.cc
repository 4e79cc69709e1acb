#include "hooks/store/far_place.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <sstream>

#include "hooks/job/job_directory.h"
#include "hooks/store/far_command.h"
#include "hooks/store/far_directory.h"

namespace shadowib {
namespace {

constexpr std::size_t kMostPath = 800;

std::string absolute(const std::string& path) {
  std::error_code error;
  std::filesystem::path whole = std::filesystem::absolute(path, error).lexically_normal();
  if (!whole.has_filename() && whole.has_relative_path()) whole = whole.parent_path();
  return whole;
}

bool valid_part(std::string_view part) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !part.empty() && part.size() <= 200 && part[0] != '.' && part[0] != '-' &&
         std::all_of(part.begin(), part.end(), plain);
}

}  // namespace

std::string FarSpec::text() const {
  if (!directory.empty()) return "dir:" + directory;
  std::string text;
  for (const std::string& word : command) text += (text.empty() ? "exec:" : " ") + word;
  return text;
}

Status parse_far(std::string_view text, FarSpec* spec) {
  *spec = {};
  const std::string whole(text);
  const auto wrong = [&whole](const char* why) {
    return Status::of(Code::kUsage, EINVAL, "far place '%.100s' %s; use dir:PATH or exec:CMD", whole.c_str(), why);
  };
  if (whole.size() > kMostPath || whole.find('\n') != std::string::npos) return wrong("is too long or has a newline");
  if (whole.starts_with("dir:")) {
    if (whole.size() == 4) return wrong("names no directory");
    spec->directory = absolute(whole.substr(4));
    return spec->directory.starts_with('/') ? Status() : wrong("is below a working directory that is gone");
  }
  if (!whole.starts_with("exec:")) return wrong("is of no known kind");
  std::istringstream words(whole.substr(5));
  for (std::string word; words >> word;) spec->command.push_back(word);
  if (spec->command.empty()) return wrong("names no command");
  std::string& program = spec->command[0];
  if (program.find('/') == std::string::npos) return {};
  program = absolute(program);
  return program.starts_with('/') ? Status() : wrong("is below a working directory that is gone");
}

std::unique_ptr<FarPlace> open_far(const FarSpec& spec, int stall_ms) {
  if (!spec.directory.empty()) return std::make_unique<FarDirectory>(spec.directory);
  return std::make_unique<FarCommand>(spec.command, stall_ms);
}

bool valid_object_name(const std::string& name) {
  for (std::size_t begin = 0;;) {
    const std::size_t end = name.find('/', begin);
    if (!valid_part(std::string_view(name).substr(begin, end - begin))) return false;
    if (end == std::string::npos) return true;
    begin = end + 1;
  }
}

bool may_pass(const Status& status) {
  switch (status.code()) {
    case Code::kTimeout:
    case Code::kCorrupt:
      return true;
    case Code::kIo: {
      static constexpr int kLasting[] = {ENOSPC,  EDQUOT, EACCES, EPERM,        EROFS,   ENOENT,
                                         ENOTDIR, ELOOP,  EFBIG,  ENAMETOOLONG, ENOEXEC, EISDIR};
      return std::find(std::begin(kLasting), std::end(kLasting), status.error()) == std::end(kLasting);
    }
    default:
      return false;
  }
}

}  // namespace shadowib
