#include "libraries/portable/runtime/save.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "libraries/portable/image/pages.h"
#include "libraries/portable/runtime/containers.h"
#include "libraries/portable/runtime/pointers.h"
#include "libraries/portable/runtime/state.h"

namespace shadowib::portable {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw Refused{path + " cannot be " + what + ": " + std::strerror(errno)};
}

// Closes and removes a file that has no final name yet.
class NewFile {
 public:
  explicit NewFile(const std::string& path) : path_(path + ".new") {
    unlink(path_.c_str());  // what is left of a process that was killed, which may still be in a write to it
    fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd_ < 0) fail(path_, "created");
  }
  ~NewFile() {
    if (fd_ >= 0) close(fd_);
    if (!path_.empty()) unlink(path_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  int fd() const { return fd_; }

  void become(const std::string& path, const std::string& directory) {
    if (fsync(fd_) != 0) fail(path_, "written");
    const int closed = close(fd_);
    fd_ = -1;
    if (closed != 0) fail(path_, "written");
    if (rename(path_.c_str(), path.c_str()) != 0) fail(path, "replaced");
    path_.clear();
    const int above = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (above < 0) return;
    (void)fsync(above);
    close(above);
  }

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace

void save_image(const std::string& directory, std::uint32_t member, std::uint64_t visits) {
  State state;
  StateIndex index(state);
  add_program(state, index);
  add_blocks(state, index);
  add_frames(state, index);
  settle_containers(state);
  check_pointers(state);
  state.image.member = member, state.image.visits = visits;
  std::uint64_t bytes = 0;
  for (Object& object : state.image.objects) {
    if (object.data == kNoData) continue;
    object.data = bytes;
    bytes += object.size;
  }
  std::uint64_t id = 0;
  if (getrandom(&id, sizeof id, 0) != sizeof id) id = static_cast<std::uint64_t>(getpid());
  const std::string path = directory + "/member-" + std::to_string(member) + ".psi";
  NewFile file(path);
  PageWriter writer(file.fd(), id);
  const std::vector<unsigned char> tables = encode(state.image, bytes);
  writer.add(tables.data(), tables.size());
  for (std::size_t i = 0; i < state.memory.size(); i++) {
    const Object& object = state.image.objects[i];
    if (object.data != kNoData) writer.add(state.memory[i], object.size);
  }
  writer.finish();
  file.become(path, directory);
}

}  // namespace shadowib::portable
