#include "shadowib/cli/direct_verbs.h"

#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "shadowib/cli/elf_file.h"
#include "shadowib/cli/in_child.h"
#include "shadowib/cli/machine.h"
#include "shadowib/cli/program.h"

namespace shadowib::cli {
namespace {

constexpr char kLoader[] = "/lib64/ld-linux-x86-64.so.2";
constexpr const char* kPrefixes[] = {"mlx5dv_", "mlx4dv_", "efadv_", "hnsdv_", "manadv_", "qedr_dv_", "bnxt_re_dv_"};
constexpr std::size_t kNamed = 3;  // of a longer list

std::string some_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kNamed; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kNamed) text += " and " + std::to_string(names.size() - kNamed) + " more";
  return text;
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// That such calls are linked does not say that they are made: perftest asks for them by its options only, UCX and
// libfabric look first whether the device is theirs, which a shadow device never is.
Finding direct_verbs(const std::vector<std::string>& own, const std::vector<LoadedLibrary>& libraries) {
  const char* what = "direct verbs";
  std::string users;
  if (!own.empty()) users = "the program is linked to " + some_of(own);
  for (const LoadedLibrary& library : libraries) {
    ElfFacts elf;
    if (library.path.empty() || !read_elf(library.path, &elf)) continue;
    const std::vector<std::string> calls = direct_verbs_among(elf.undefined);
    if (!calls.empty()) users += (users.empty() ? "" : "; ") + library.name + " to " + some_of(calls);
  }
  if (!users.empty())
    return {
        what, Verdict::kNote, users + ": shadowib does not shadow them",
        "no device of shadowib is one of theirs (mlx5dv_is_supported and the like say no): a program that insists "
        "on them fails, so leave such options off"};
  return {what, Verdict::kOk,
          "neither it nor the " + std::to_string(libraries.size()) +
              " libraries it names; what it loads later is not seen",
          ""};
}

}  // namespace

std::vector<std::string> direct_verbs_among(const std::vector<std::string>& undefined) {
  std::vector<std::string> calls;
  for (const std::string& symbol : undefined)
    for (const char* prefix : kPrefixes)
      if (symbol.rfind(prefix, 0) == 0) calls.push_back(symbol);
  return calls;
}

std::vector<LoadedLibrary> parse_loader_list(const std::string& text) {
  std::vector<LoadedLibrary> libraries;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos) continue;
    const std::size_t arrow = line.find(" => ", begin);
    std::size_t end = line.rfind(" (0x");
    if (end == std::string::npos) end = line.size();
    if (arrow == std::string::npos) {  // the loader by its path, or the vdso
      if (line[begin] == '/')
        libraries.push_back({base_name(line.substr(begin, end - begin)), line.substr(begin, end - begin)});
      continue;
    }
    const std::string path = line.substr(arrow + 4, end - arrow - 4);
    libraries.push_back({line.substr(begin, arrow - begin), path[0] == '/' ? path : ""});
  }
  return libraries;
}

std::vector<LoadedLibrary> libraries_of(const std::string& program) {
  std::string text;
  // As ldd does; --list would stop at the first that is not found. Not the interpreter the file names: it would be
  // run.
  in_child(
      [&program](int told) {
        ::dup2(told, STDOUT_FILENO);
        ::setenv("LD_TRACE_LOADED_OBJECTS", "1", 1);
        ::execl(kLoader, kLoader, program.c_str(), static_cast<char*>(nullptr));
        return 127;
      },
      &text);
  return parse_loader_list(text);
}

Findings examine_program(const std::string& given) {
  std::string path;
  if (Status s = find_program(given, &path); !s.ok())
    return {{"program", Verdict::kRefused, s.text(), "name it by its path"}};
  if (Status s = judge_program(path); !s.ok())
    return {{"program", Verdict::kRefused, s.text(), "shadowib run does not start it as it is"}};
  ElfFacts elf;
  if (!read_elf(path, &elf))
    return {{"program", Verdict::kNote, path + " may not be read", "chmod +r it to have it judged"}};
  if (!elf.is_elf)
    return {{"program", Verdict::kNote, path + " is a script, which is not looked into", "name what it starts"}};
  Findings findings{{"program", Verdict::kOk, path + " can be run under shadowib", ""}};
  const std::vector<LoadedLibrary> libraries = libraries_of(path);
  std::string absent;
  for (const LoadedLibrary& library : libraries)
    if (library.path.empty()) absent += (absent.empty() ? "" : ", ") + library.name;
  if (!absent.empty())
    findings.push_back({"its libraries", Verdict::kMissing, "not found: " + absent,
                        "install them, or add their directory to LD_LIBRARY_PATH"});
  findings.push_back(direct_verbs(direct_verbs_among(elf.undefined), libraries));
  return findings;
}

}  // namespace shadowib::cli
