#include "hooks/launcher/session_directories.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "hooks/raw/directory_reader.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

constexpr int kDeepest = 4;          // Open MPI's: root/JOB/RANK
constexpr std::size_t kMost = 4096;  // ranks of a host, with room

void find_below(const std::string& directory, int depth, std::vector<std::string>* found) {
  struct stat s {};
  if (::lstat(directory.c_str(), &s) != 0 || !S_ISDIR(s.st_mode) || s.st_uid != ::geteuid()) return;
  if (found->size() == kMost) return;
  found->push_back(directory);
  if (depth == kDeepest) return;
  DirectoryReader names(directory.c_str());
  while (const char* name = names.next())
    if (std::strcmp(name, ".") != 0 && std::strcmp(name, "..") != 0)
      find_below(directory + '/' + name, depth + 1, found);
}

}  // namespace

bool is_session_directory(const char* path) {
  struct stat s {};
  return path[0] == '/' && ::lstat(path, &s) == 0 && S_ISDIR(s.st_mode) && s.st_uid == ::geteuid() &&
         (s.st_mode & S_IWOTH) == 0;
}

std::vector<std::string> find_session_directories(const std::vector<std::string>& roots) {
  std::vector<std::string> found;
  for (const std::string& root : roots) find_below(root, 0, &found);
  return found;
}

void make_session_directories(const std::vector<std::string>& directories, std::vector<std::string>* made) {
  for (const std::string& directory : directories) {
    for (std::size_t end = 1; end != std::string::npos;) {
      end = directory.find('/', end + 1);
      const std::string part = directory.substr(0, end);
      if (::mkdir(part.c_str(), S_IRWXU) == 0) {
        made->push_back(part);
      } else if (errno != EEXIST) {
        log_line(LogLevel::kWarn, "cannot make the launcher's session directory %s again: %s", part.c_str(),
                 std::strerror(errno));
        break;
      }
    }
  }
}

void remove_session_directories(std::vector<std::string>* made) {
  while (!made->empty()) {
    ::rmdir(made->back().c_str());  // another rank's files are in it, or it is gone
    made->pop_back();
  }
}

}  // namespace shadowib
