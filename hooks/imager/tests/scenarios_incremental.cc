// A process that is saved again and again, each image leaving out what the ones before have
// (IMAGER_TEST_INCREMENTAL).
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "hooks/imager/tests/subject.h"

using namespace shadowib::test;

namespace {

constexpr std::size_t kPageBytes = 4096, kPages = 1024;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kManyPages = 32768;  // more than the sanitizer's own
#else
constexpr std::size_t kManyPages = 8192;
#endif
constexpr unsigned kRounds = 14;

// The content of a page in a version; version 0 is a page of zeros.
std::uint64_t word_of(std::uint64_t page, std::uint64_t version, std::uint64_t word) {
  return version == 0 ? 0 : (page * 0x9e3779b97f4a7c15ull) ^ (version << 40) ^ (word * 0xff51afd7ed558ccdull);
}

// One mapping, and the versions that its pages should have.
struct Memory {
  explicit Memory(int flags, std::size_t pages = kPages) : versions(pages, 0) {
    void* map = ::mmap(nullptr, pages * kPageBytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    CHECK_THAT(map != MAP_FAILED);
    at = static_cast<std::uint64_t*>(map);
  }
  std::uint64_t* page(std::size_t i) { return at + i * (kPageBytes / 8); }
  void write(std::size_t i, std::uint32_t version) {
    versions[i] = version;
    for (std::size_t w = 0; w < kPageBytes / 8; ++w) page(i)[w] = word_of(i, version, w);
  }
  void drop(std::size_t i) {
    versions[i] = 0;
    CHECK_THAT(::madvise(page(i), kPageBytes, MADV_DONTNEED) == 0);
  }
  void check() {
    for (std::size_t i = 0; i < versions.size(); ++i)
      for (std::size_t w = 0; w < kPageBytes / 8; ++w) CHECK_THAT(page(i)[w] == word_of(i, versions[i], w));
  }

  std::uint64_t* at;
  std::vector<std::uint32_t> versions;
};

}  // namespace

// Pages change, become zero, are dropped, and get back what they had in an earlier image.
SCENARIO(incremental) {
  std::mt19937 random(20261127);
  Memory memory(MAP_PRIVATE);
  for (std::size_t i = 0; i < kPages; i += 1 + i % 3) memory.write(i, 1);
  // Two mappings, with pages on both sides of where they meet.
  for (std::size_t i = kPages / 2 - 2; i < kPages / 2 + 2; ++i) memory.write(i, 1);
  CHECK_THAT(::madvise(memory.page(kPages / 2), kPages / 2 * kPageBytes, MADV_DONTDUMP) == 0);
  for (std::uint32_t round = 0;; ++round) {
    if (save()) {
      memory.check();
      ::_exit(42);
    }
    if (round + 1 == kRounds) break;
    for (std::size_t i = 0; i < kPages / 32; ++i) memory.write(random() % kPages, 2 + round);
    for (std::size_t i = 0; i < 8; ++i) {
      memory.write(random() % kPages, 0);
      memory.write(random() % kPages, 1 + round / 2);
      memory.drop(random() % kPages);
    }
  }
  ::_exit(10);
}

// Much changes once, so that the first pack is used for less than half.
SCENARIO(incremental_halves) {
  Memory memory(MAP_PRIVATE, kManyPages);
  for (std::uint32_t round = 0; round < 5; ++round) {
    for (std::size_t i = 0; i < kManyPages * (round == 0 ? 4 : 3) / 4; ++i)
      if (round < 2) memory.write(i, 1 + round);
    if (save()) {
      memory.check();
      ::_exit(42);
    }
  }
  ::_exit(10);
}

// Another process writes into the memory while it is saved, as a device does for a guest. Any content will do there.
SCENARIO(incremental_written) {
  Memory memory(MAP_PRIVATE), written(MAP_PRIVATE);
  for (std::size_t i = 0; i < kPages; ++i) memory.write(i, 1);
  for (std::size_t i = 0; i < kPages; ++i) written.write(i, 1);
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // where a child may not write to its parent otherwise
  const pid_t owner = ::getpid(), writer = ::fork();
  CHECK_THAT(writer >= 0);
  if (writer == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<std::uint64_t> content(kPages * kPageBytes / 8);
    for (std::uint64_t round = 1; ::getppid() == owner; ++round) {
      for (std::uint64_t& word : content) word = round;
      const iovec from{content.data(), kPages * kPageBytes}, to{written.at, kPages * kPageBytes};
      if (::process_vm_writev(owner, &from, 1, &to, 1, 0) < 0) ::_exit(1);
    }
    ::_exit(0);
  }
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    memory.write(round, 2 + round);
    if (save()) {
      memory.check();
      ::_exit(42);
    }
  }
  CHECK_THAT(::waitpid(writer, nullptr, WNOHANG) == 0);  // it has written all the time
  CHECK_THAT(::kill(writer, SIGKILL) == 0);
  ::_exit(10);
}

// Shared memory of a table, whose pages are another space of addresses.
SCENARIO(incremental_shared) {
  with_table();
  Memory shared(MAP_SHARED), own(MAP_PRIVATE);
  for (std::uint32_t round = 0; round < 3; ++round) {
    for (std::size_t i = round; i < kPages; i += round == 0 ? 1 : 97) {
      shared.write(i, 1 + round);
      own.write(i, 10 + round);
    }
    if (save()) {
      shared.check();
      own.check();
      ::_exit(42);
    }
  }
  ::_exit(10);
}
