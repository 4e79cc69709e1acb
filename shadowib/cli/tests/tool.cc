// What the tests of the commands cannot do by themselves: committing a set, leaving one half written, holding a lock.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/job/job_directory.h"
#include "hooks/job/protocol.h"
#include "hooks/store/store.h"

using namespace shadowib;

static int make_set(const std::string& directory, const std::string& job, bool commit,
                    std::string image = "not an image at all") {
  std::string staging, path;
  SetManifest m{};
  if (Status s = open_directory_store(directory)->stage(job, &staging, &m.number); !s.ok())
    return std::fprintf(stderr, "%s\n", s.text()), 1;
  m.set_id = random_hex(16);
  m.job = job;
  m.shadowib_version = SHADOWIB_VERSION;
  m.backend = "ib2tcp";
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  char created[64];
  std::snprintf(created, sizeof(created), "%lld.%09ld", static_cast<long long>(now.tv_sec), now.tv_nsec);
  m.created = created;
  m.members.push_back({0, 77, "member.0.image", image.size(), std::string(32, '0'), "app", "host", 1, 2});
  if (!write_new_file(staging + "/member.0.image", image).ok()) return 1;
  if (!commit) return std::puts(staging.c_str()), 0;
  if (Status s = commit_set(*open_directory_store(directory), staging, m, &path); !s.ok())
    return std::fprintf(stderr, "%s\n", s.text()), 1;
  return std::puts(path.c_str()), 0;
}

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "set") == 0) return make_set(argv[2], argv[3], true);
  if (argc == 5 && std::strcmp(argv[1], "set") == 0) {
    std::string image;
    return read_file(argv[4], &image).ok() ? make_set(argv[2], argv[3], true, image) : 1;
  }
  if (argc == 4 && std::strcmp(argv[1], "staging") == 0) return make_set(argv[2], argv[3], false);
  if (argc == 3 && std::strcmp(argv[1], "hold") == 0) {
    char byte;
    if (hold_alive_lock(argv[2]) < 0) return 1;
    std::puts("held");
    std::fflush(stdout);
    return ::read(0, &byte, 1) == 0 ? 0 : 1;  // until the test closes our input
  }
  return 2;
}
