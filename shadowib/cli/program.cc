#include "shadowib/cli/program.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdlib>

#include "shadowib/cli/elf_file.h"

namespace shadowib::cli {
namespace {

constexpr int kMaxScripts = 5;  // as the kernel

bool regular_file(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

Status refuse(const std::string& path, const char* why) {
  return Status::of(Code::kRefused, 0, "%.180s %.180s", path.c_str(), why);
}

Status judge_elf(const std::string& path, const ElfFacts& elf) {
  if (!elf.is_64_bit || elf.machine != EM_X86_64)
    return refuse(path, "is for another architecture than x86-64; run an x86-64 build of it");
  if (!elf.is_program) return refuse(path, "is an ELF file but no program");
  // Running the loader itself, with a program as its argument, does preload.
  if (elf.interpreter.empty() && elf.soname.compare(0, 8, "ld-linux") == 0) return {};
  if (elf.interpreter.empty())
    return refuse(path, "is statically linked, so no library can be loaded into it; link it dynamically");
  if (elf.interpreter.find("ld-linux-x86-64") == std::string::npos)
    return refuse(path, "uses another C library than glibc, so libshadowib.so cannot be loaded into it");
  return {};
}

Status judge_privileges(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    return Status::of(Code::kNotFound, errno, "%.250s: %s", path.c_str(), std::strerror(errno));
  if ((info.st_mode & (S_ISUID | S_ISGID)) != 0)
    return refuse(path,
                  "is setuid or setgid, so the loader ignores preloaded libraries; run a copy without these bits");
  if (::getxattr(path.c_str(), "security.capability", nullptr, 0) > 0)
    return refuse(path,
                  "has file capabilities, so the loader ignores preloaded libraries; run a copy without (setcap -r)");
  return {};
}

// The interpreter of a "#!" line; false if there is none.
bool interpreter_of(const std::string& path, std::string* interpreter) {
  char line[256] = {};
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t got = ::read(fd, line, sizeof(line) - 1);
  ::close(fd);
  std::string text(line, got > 0 ? static_cast<std::size_t>(got) : 0);
  if (text.compare(0, 2, "#!") != 0) return false;
  std::size_t begin = text.find_first_not_of(" \t", 2);
  if (begin == std::string::npos) return false;
  *interpreter = text.substr(begin, text.find_first_of(" \t\r\n", begin) - begin);
  return !interpreter->empty();
}

}  // namespace

Status find_program(const std::string& name, std::string* path) {
  bool denied = false;
  auto usable = [&](const std::string& candidate) {
    if (!regular_file(candidate)) return false;
    if (::access(candidate.c_str(), X_OK) == 0) return true;
    denied = true;
    return false;
  };
  if (name.find('/') != std::string::npos) {
    *path = name;
    if (usable(name)) return {};
  } else {
    const char* list = std::getenv("PATH");
    std::string places = list != nullptr ? list : "/usr/local/bin:/usr/bin:/bin";
    for (std::size_t begin = 0; begin <= places.size();) {
      std::size_t end = std::min(places.find(':', begin), places.size());
      std::string place = places.substr(begin, end - begin);
      *path = (place.empty() ? "." : place) + "/" + name;
      if (usable(*path)) return {};
      begin = end + 1;
    }
  }
  if (denied) return Status::of(Code::kPermission, EACCES, "%.250s is not executable; chmod +x it", name.c_str());
  return Status::of(Code::kNotFound, ENOENT, "%.250s: no such program", name.c_str());
}

Status judge_program(const std::string& given) {
  std::string path = given;
  for (int scripts = 0;; ++scripts) {
    SHADOWIB_TRY(judge_privileges(path));
    ElfFacts elf;
    // A program that may be executed but not read is judged by nobody; the loader decides.
    if (!read_elf(path, &elf)) return {};
    if (elf.is_elf) return judge_elf(path, elf);
    std::string next;
    if (!interpreter_of(path, &next)) next = "/bin/sh";  // as execvp does with a script that does not say
    if (scripts == kMaxScripts) return refuse(given, "is a script whose interpreters do not end");
    path = next;
  }
}

}  // namespace shadowib::cli
